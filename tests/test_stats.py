"""Accumulators that merge."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2ln.stats import Moments, NormStats

numbers = st.lists(st.floats(-1e6, 1e6, width=32), max_size=40)


@given(st.lists(numbers, min_size=1, max_size=6))
def test_moments_of_parts_are_those_of_the_whole(parts):
    merged = sum((Moments.of(np.array(p)) for p in parts), Moments())
    whole = np.concatenate([np.array(p, np.float64) for p in parts])
    assert merged.count == whole.size
    if whole.size:
        scale = np.abs(whole).max() + 1e-30
        np.testing.assert_allclose(merged.mean, whole.mean(), rtol=1e-12, atol=1e-12 * scale)
        np.testing.assert_allclose(merged.std, whole.std(), rtol=1e-9, atol=1e-9 * scale)
        assert (merged.min, merged.max) == (whole.min(), whole.max())


def test_moments_with_a_large_mean_lose_nothing():
    """One pass over squares would give 0 or less here."""
    values = np.array([1e8, 1e8 + 1, 1e8 + 2])
    merged = Moments.of(values[:1]) + Moments.of(values[1:])
    np.testing.assert_allclose(merged.std, np.sqrt(2 / 3), rtol=1e-9)


def test_no_numbers_and_one_number():
    assert Moments.of(np.array([])) == Moments()
    assert Moments().std == 0
    one = Moments.of(np.array([3.5]))
    assert (one.count, one.mean, one.std, one.min, one.max) == (1, 3.5, 0, 3.5, 3.5)
    assert Moments() + one == one == one + Moments()


def _taps(rng, T, C):
    x = rng.normal(0, 3, (T, C)).astype("f4")
    x[:, 2] += 40
    u, s = x.mean(1, keepdims=True), x.var(1, keepdims=True)
    n = (x - u) / np.sqrt(s + 1e-5)
    return {"mean": u, "var": s, "rstd": 1 / np.sqrt(s + 1e-5), "norm": n, "out": n * 2 + 1}


def test_norm_stats_against_numpy():
    taps = _taps(np.random.default_rng(0), 50, 6)
    stats = NormStats.of(taps)
    for name in ("mean", "var", "rstd"):
        np.testing.assert_allclose(stats.moments[name].mean, taps[name].mean(dtype=np.float64), rtol=1e-9)
        np.testing.assert_allclose(stats.moments[name].std, taps[name].std(dtype=np.float64), rtol=1e-6)
    rms = np.sqrt((taps["out"].astype(np.float64) ** 2).mean(1))
    np.testing.assert_allclose(stats.moments["rms"].mean, rms.mean(), rtol=1e-6)
    power = (taps["norm"].astype(np.float64) ** 2).sum(0)
    np.testing.assert_allclose(stats.power, power, rtol=1e-6)
    ((channel, share), *rest) = stats.top_channels(6)
    assert channel == 2
    np.testing.assert_allclose(share, power[2] / power.sum(), rtol=1e-6)
    np.testing.assert_allclose(share + sum(s for _, s in rest), 1, rtol=1e-9)


@pytest.mark.parametrize("cut", [1, 17, 49])
def test_norm_stats_of_two_halves_are_those_of_the_whole(cut):
    taps = _taps(np.random.default_rng(1), 50, 6)
    first, second = ({k: v[part] for k, v in taps.items()} for part in (slice(cut), slice(cut, None)))
    merged, whole = NormStats() + NormStats.of(first) + NormStats.of(second), NormStats.of(taps)
    for name, moments in whole.moments.items():
        assert merged.moments[name].count == moments.count == 50
        assert (merged.moments[name].min, merged.moments[name].max) == (moments.min, moments.max)
        np.testing.assert_allclose(merged.moments[name].mean, moments.mean, rtol=1e-12)
        np.testing.assert_allclose(merged.moments[name].std, moments.std, rtol=1e-9)
    np.testing.assert_allclose(merged.power, whole.power, rtol=1e-6)


def test_a_channel_without_variance_has_no_share():
    taps = _taps(np.random.default_rng(0), 4, 6)
    taps["norm"] = np.zeros_like(taps["norm"])
    assert NormStats.of(taps).top_channels(2) == [(0, 0.0), (1, 0.0)]
