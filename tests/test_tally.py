"""Counting: exact under any split and order; quantiles read off counts are close, and the same however it was split."""

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2ln import tally
from gpt2ln.tally import BINS, QUANTILE_ERROR, Tally, bins, middles, quantiles

LARGEST = float(np.finfo(np.float32).max)
SMALLEST = float(np.finfo(np.float32).tiny)  # of those with full precision
DENORMAL = 2.0**-149
Q = [0, 0.05, 0.25, 0.5, 0.75, 0.95, 1]

keys = st.lists(st.integers(0, 1 << 50), max_size=30)
parts = st.lists(st.lists(st.integers(0, 9), max_size=30), min_size=1, max_size=5)
floats = st.floats(width=32, allow_nan=False)
positive = st.lists(st.floats(SMALLEST, LARGEST, width=32), min_size=1, max_size=40)


def counted(lists) -> Tally:
    made = Tally()
    for numbers in lists:
        made.add(np.array(numbers, np.int64))
    return made


def flat(lists: list[list]) -> list:
    return [number for numbers in lists for number in numbers]


def content(made: Tally) -> dict[int, int]:
    made.settle()
    return dict(zip(made.keys.tolist(), made.counts.tolist(), strict=True))


def read_off(made: Tally) -> list[float]:
    return quantiles(*made.between(0, BINS), Q)


@given(parts, st.sampled_from([0, 3, 1 << 20]))
def test_counts_are_exact_however_they_come(lists, buffer):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tally, "_BUFFER", buffer)
        made = counted(lists)
        assert content(made) == Counter(flat(lists))
        assert content(counted(lists[::-1])) == content(made)
    assert made.keys.tolist() == sorted(made.keys.tolist())


@given(parts, parts)
def test_a_sum_counts_both_and_changes_neither(a, b):
    first, second = counted(a), counted(b)
    assert content(first + second) == content(second + first) == Counter(flat(a + b))
    assert (content(first), content(second)) == (Counter(flat(a)), Counter(flat(b)))


def test_what_is_added_to_a_sum_stays_there():
    first, second = counted([[1, 2]]), counted([[2]])
    both = first + second
    both.add(np.array([1]))
    assert (content(both), content(first)) == ({1: 2, 2: 2}, {1: 1, 2: 1})


def test_much_is_sorted_in_along_the_way(monkeypatch):
    """What waits is never more than the buffer and the last addition: memory does not grow with the number of texts."""
    monkeypatch.setattr(tally, "_BUFFER", 100)
    made = Tally()
    for _ in range(50):
        made.add(np.arange(40))
        assert sum(map(len, made._new)) <= 100
    assert content(made) == dict.fromkeys(range(40), 50)


@given(keys, st.integers(0, 1 << 50), st.integers(0, 1 << 50))
def test_a_range_of_keys(numbers, a, b):
    first, last = sorted((a, b))
    found = dict(zip(*(x.tolist() for x in counted([numbers]).between(first, last)), strict=True))
    assert found == Counter(n for n in numbers if first <= n < last)


@given(keys)
def test_a_record_reads_back(numbers):
    again = Tally.of(json.loads(json.dumps(counted([numbers]).record())))
    assert content(again) == Counter(numbers)
    assert content(again + again) == Counter(numbers * 2)


def test_an_empty_one():
    assert content(Tally()) == content(Tally() + Tally()) == content(Tally.of(Tally().record())) == {}


# Bins


def edges() -> np.ndarray:
    """Every positive float32 at which a bin begins, and the one before it, rising."""
    starts = np.arange(0, (0x7F800000 >> 18) + 1, dtype=np.int64) << 18
    return np.sort(np.concatenate([starts, starts[1:] - 1])).astype(np.int32).view(np.float32)


def test_a_greater_value_never_has_a_smaller_bin():
    """At every edge there is, of both signs: between edges the bin cannot change."""
    up = edges()
    everything = np.concatenate([-up[::-1], up])
    found = bins(everything)
    assert (np.diff(everything) >= 0).all()
    assert (np.diff(found) >= 0).all()
    assert found.min() >= 0
    assert found.max() < BINS


@pytest.mark.parametrize(
    "rising",
    [
        [-np.inf, -LARGEST, -1, -SMALLEST, -0.0],
        [0.0, SMALLEST, 1, LARGEST, np.inf],
        [-DENORMAL, DENORMAL],
    ],
)
def test_what_is_far_apart_is_told_apart(rising):
    assert (np.diff(bins(np.array(rising, np.float32))) > 0).all()


@given(floats, floats)
def test_any_two_floats_keep_their_order(a, b):
    first, second = bins(np.array([a, b], np.float32))
    assert (a < b) <= (first <= second)
    assert (a > b) <= (first >= second)


def test_an_octave_has_32_bins():
    for octave in (1, 2.0**-100, 2.0**100):
        assert len(np.unique(bins(np.linspace(1, 2, 10**4, endpoint=False) * octave))) == 32


def test_the_middle_of_a_bin_is_near_all_that_is_in_it():
    """Half of a bin, where floats have full precision; below that a bin is 2^-131 wide, so half is 2^-132."""
    x = edges().astype(np.float64)
    x = x[np.isfinite(x)]
    for values in (x, -x):
        np.testing.assert_allclose(middles(bins(values)), values, rtol=QUANTILE_ERROR, atol=2.0**-132)


# Quantiles


@given(positive)
def test_quantiles_are_within_a_64th_of_the_value(values):
    """1e-9 more: bins are exact, but a quantile between two ranks is rounded in float64."""
    right = np.quantile(np.array(values, np.float64), Q)
    for sign in (1, -1):
        found = read_off(counted([bins(sign * np.array(values, np.float32))]))
        right_here = right if sign == 1 else -right[::-1]
        np.testing.assert_allclose(found, right_here, rtol=QUANTILE_ERROR + 1e-9, atol=0)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40))
def test_quantiles_of_both_signs(values):
    """Between two ranks of different sign the error is a 64th of the larger of the two, whatever their mean."""
    x = np.sort(np.array(values, np.float64))
    found = read_off(counted([bins(x)]))
    ranks = np.array(Q) * (len(x) - 1)
    larger = np.maximum(*(np.abs(x[edge(ranks).astype(int)]) for edge in (np.floor, np.ceil)))
    distance = np.abs(np.quantile(x, Q) - found)
    np.testing.assert_array_less(distance, QUANTILE_ERROR * larger * (1 + 1e-9) + 2.0**-131)


@given(st.lists(positive, min_size=1, max_size=5))
def test_merging_changes_no_quantile(lists):
    pieces = [counted([bins(np.array(x, np.float32))]) for x in lists]
    whole = counted([bins(np.array(flat(lists), np.float32))])
    assert read_off(sum(pieces[1:], pieces[0])) == read_off(sum(pieces[-2::-1], pieces[-1])) == read_off(whole)


def test_one_number_may_stand_in_several_groups():
    """As it does where positions are pooled: the same bin comes once for each."""
    numbers = bins(np.array([1, 8, 1, 8, 8], np.float32))
    found = quantiles(numbers, np.array([1, 1, 2, 1, 1]), [0, 0.5, 1])
    np.testing.assert_allclose(found, [1, 4.5, 8], rtol=QUANTILE_ERROR)
