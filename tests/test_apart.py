"""How far two arrays are apart, against the plain formulas."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gpt2ln.apart import BINS, equal, measure, rms, steps

SHAPES = st.sampled_from([(3, 4), (2, 2, 3), (1, 1), (4, 1)])
FLOATS = st.floats(-1e6, 1e6, width=32) | st.sampled_from([math.nan, math.inf, -math.inf, -0.0])
PAIRS = SHAPES.flatmap(lambda shape: st.tuples(*[arrays("f4", shape, elements=FLOATS)] * 2))


@given(PAIRS)
def test_the_plain_formulas(pair):
    x, y = pair
    scale = np.arange(1.0, len(x) + 1)
    found = measure(x, y, scale)
    both = np.isfinite(x) & np.isfinite(y)
    p, q = np.where(both, x, 0).astype("f8"), np.where(both, y, 0).astype("f8")
    d = np.abs(p - q).reshape(len(x), -1)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    assert (found.values, found.differ, found.unmatched) == (x.size, (~same).sum(), (~same & ~both).sum())
    assert found.nonfinite == ((~np.isfinite(x)).sum(), (~np.isfinite(y)).sum())
    assert found.largest == d.max()
    np.testing.assert_array_equal(found.far, d.max(1))
    np.testing.assert_allclose(found.relative, (d.max(1) / scale).max(), rtol=1e-12)
    assert sum(found.steps) == both.sum()
    at = found.row, *found.channel
    if found.unmatched:
        assert (~same & ~both)[at]
    else:
        np.testing.assert_allclose(abs(p[at] - q[at]) / scale[found.row], found.relative, rtol=1e-12)
    if found.cosine is not None:
        right = (p * q).sum() / math.sqrt((p * p).sum()) / math.sqrt((q * q).sum())
        np.testing.assert_allclose(found.cosine, right, rtol=1e-9, atol=1e-12)
    else:
        assert not (p.any() and q.any())


def test_steps_fall_into_bins():
    one = np.float32(1)
    ends = [0, 1, 2, 3, 4, 5, 16, 17, 256, 257, 10**6]
    y = (np.full(len(ends), one).view("i4") + np.array(ends, "i4")).view("f4")[:, None]
    x = np.full_like(y, one)
    np.testing.assert_array_equal(steps(x, y)[:, 0], ends)
    found = measure(x, y, np.ones(len(ends)))
    assert dict(zip(BINS, found.steps, strict=True)) == {
        "0": 1, "1": 1, "2": 1, "3-4": 2, "5-16": 2, "17-256": 2, "more": 2,
    }  # fmt: skip


def test_what_float16_has_no_room_for_is_the_same():
    wide = np.float32([[-1e10, 1e10, 1.0, 65504, np.inf, 1e10]])
    narrow = np.float16([[-np.inf, np.inf, 1.0, 65504, np.inf, -np.inf]])
    np.testing.assert_array_equal(equal(wide, narrow), [[True, True, True, True, True, False]])
    np.testing.assert_array_equal(equal(narrow, wide), [[True, True, True, True, True, False]])
    assert measure(wide, narrow, np.ones(1)).unmatched == 1


def test_places_left_out_are_no_part():
    x, y = np.float32([[1, 2], [3, 4]]), np.float32([[1, 9], [3, 5]])
    found = measure(x, y, np.ones(2), np.array([[False, True], [False, False]]))
    assert (found.values, found.differ, found.largest, found.row, found.channel) == (3, 1, 1.0, 1, (1,))
    assert sum(found.steps) == 3


def test_rms_is_of_what_is_finite():
    x = np.array([[3, 4, np.nan], [np.inf, 0, 0], [np.nan, np.nan, np.nan]])
    np.testing.assert_allclose(rms(x), [math.sqrt(12.5), 0, 0])
    np.testing.assert_array_equal(rms(np.zeros((2, 0))), [0, 0])
    np.testing.assert_allclose(rms(np.array([[1e308, -1e308], [1e-300, 1e-300]])), [1e308, 1e-300])


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_nothing_at_all(shape):
    x = np.zeros(shape, "f4")
    found = measure(x, x, np.ones(shape[0]))
    assert (found.values, found.largest, found.relative, found.cosine) == (0, 0.0, 0.0, None)
