"""Rows of a run: what is said of a norm, a position, a channel follows from its statistics and the checkpoint."""

import numpy as np
import pytest

import gpt2ln
from gpt2ln.observe import ln_stats
from gpt2ln.stats import STATISTICS
from gpt2ln.summary import at_positions, by_channel, by_layer, by_position, top_channels, x_rms

from . import norms, proofs

STATS = norms.stats_of(norms.inputs(0))
GAINS = norms.gains_of(STATS)
P, C = STATS.positions, STATS.width
ALONE = norms.stats_of(norms.inputs(1, [1]))


def test_a_row_a_norm_in_the_order_of_the_forward_pass():
    rows = by_layer(STATS, GAINS, 2)
    assert [row["norm"] for row in rows] == list(norms.NORMS)
    for n, row in enumerate(rows):
        assert row["count"] == STATS.tokens
        assert row["small"] == STATS.small[n].sum()
        for name in STATISTICS:
            seen = STATS.pooled(n, name)
            assert [row[name][k] for k in ("mean", "std", "min", "max")] == [seen.mean, seen.std, seen.min, seen.max]
        assert [row["var"]["median"]] == STATS.quantiles(n, "var", [0.5])
        np.testing.assert_allclose(row["held"], np.sort(STATS.shares(n))[-2:].sum(), rtol=1e-12)


def test_the_median_of_rstd_is_that_of_the_median_variance():
    """rstd falls as the variance rises, so the median of one is the other's; never outside what was seen."""
    for stats in (STATS, ALONE):
        for row in by_layer(stats, GAINS, 0):
            rstd = row["rstd"]
            right = np.clip((row["var"]["median"] + 1e-5) ** -0.5, rstd["min"], rstd["max"])
            np.testing.assert_allclose(rstd["median"], right, rtol=1e-12)
    assert by_layer(ALONE, GAINS, 0)[0]["rstd"]["median"] == ALONE.pooled(0, "rstd").mean


def test_position_0_stands_beside_the_others():
    for n, row in enumerate(by_layer(STATS, GAINS, 0)):
        (here,) = STATS.quantiles(n, "var", [0.5], slice(0, 1))
        (others,) = STATS.quantiles(n, "var", [0.5], slice(1, None))
        assert row["position_0"] == {"var": here, "others": others, "ratio": here / others}
        assert here / others > 100  # the made-up position 0 is 40 times as large


def test_alone_position_0_has_nothing_beside_it():
    for row in by_layer(ALONE, GAINS, 0):
        assert row["position_0"] == {"var": row["var"]["mean"], "others": None, "ratio": None}


def test_a_ratio_to_nothing_is_none():
    x = np.zeros((3, C), np.float32)
    x[0, 0] = 1
    (row,) = by_layer(norms.stats_of([{"ln_f": x}]), GAINS, 1)
    assert row["position_0"]["others"] == 0
    assert row["position_0"]["ratio"] is None


def test_the_size_of_the_input_is_that_of_the_input():
    """Mean and variance are float32, a few units in the last place off."""
    texts = norms.inputs(0)
    first = None
    for n, row in enumerate(by_layer(STATS, GAINS, 0)):
        x = np.concatenate([text[norms.NORMS[n]] for text in texts]).astype(np.float64)
        right = np.sqrt((x**2).mean())
        first = first or right
        np.testing.assert_allclose([row["x_rms"], row["growth"]], [right, right / first], rtol=1e-6)


def test_nothing_grows_from_nothing():
    rows = by_layer(norms.stats_of([dict.fromkeys(norms.NORMS, np.zeros((2, C), np.float32))]), GAINS, 1)
    assert [(row["x_rms"], row["growth"]) for row in rows] == [(0, None)] * 3


def test_the_size_of_the_input_is_that_of_the_residual_stream(golden):
    """Watched where it runs: ln_1 reads `in`, ln_2 `mid`, ln_f the last `out`."""
    opened, ids = gpt2ln.load(proofs.GOLDEN / "model"), golden["ids"][0].tolist()
    stats = ln_stats(opened.engine, [ids])
    for n, norm in enumerate(stats.norms):
        tap = "h-1/out" if norm == "ln_f" else norm.replace("ln_1", "in").replace("ln_2", "mid")
        (x,) = opened.observe(ids, tap).values()
        np.testing.assert_allclose(x_rms(stats, n), np.sqrt((x.astype(np.float64) ** 2).mean()), rtol=1e-6)


def test_gains_are_joined():
    for row in by_layer(STATS, GAINS, 0):
        for name in "gb":
            v = GAINS[row["norm"]][name].astype(np.float64)
            right = {"mean": v.mean(), "std": v.std(), "min": v.min(), "max": v.max()}
            assert row[name] == right
    for row in by_channel(STATS, GAINS, C):
        assert [row["g"], row["b"]] == [float(GAINS[row["norm"]][k][row["channel"]]) for k in "gb"]


def test_a_row_a_norm_and_position():
    rows = by_position(STATS)
    assert [(row["norm"], row["position"]) for row in rows] == [(norm, p) for norm in norms.NORMS for p in range(P)]
    for row in rows:
        n, p = norms.NORMS.index(row["norm"]), row["position"]
        assert row["count"] == STATS.count[p]
        assert row["var"]["mean"] == STATS.pooled(n, "var", slice(p, p + 1)).mean
        assert {"norm": row["norm"], "position": p} | at_positions(STATS, n, slice(p, p + 1)) == row


@pytest.mark.parametrize("k", [0, 1, 3, C, 100])
def test_the_channels_that_hold_most(k):
    for n, row in enumerate(by_layer(STATS, GAINS, k)):
        shares = STATS.shares(n)
        assert [c["channel"] for c in row["channels"]] == top_channels(STATS, n, k)
        assert [c["share"] for c in row["channels"]] == sorted(shares, reverse=True)[:k]


@pytest.mark.parametrize("k", [0, 1, 2, 100])
def test_a_row_a_channel_that_holds_much_or_reaches_high(k):
    rows = by_channel(STATS, GAINS, k)
    for n, norm in enumerate(norms.NORMS):
        found = [row for row in rows if row["norm"] == norm]
        highest = np.argsort(-STATS.peak[n], kind="stable")[:k].tolist()
        assert {row["channel"] for row in found} == {*top_channels(STATS, n, k), *highest}
        shares = [row["share"] for row in found]
        assert shares == sorted(shares, reverse=True)
    assert [row["norm"] for row in rows] == sorted((row["norm"] for row in rows), key=norms.NORMS.index)


def test_a_channel_that_reaches_high_is_shown_though_it_holds_little():
    """Channel 1 holds most at 20 tokens, channel 4 reaches highest, at one."""
    x = np.random.default_rng(0).normal(0, 0.1, (21, 40)).astype(np.float32)
    x[:20, 1] += 2
    x[20, 4] += 9
    rows = by_channel(norms.stats_of([{"ln_f": x}]), {"ln_f": {"g": np.ones(40)}}, 1)
    assert [row["channel"] for row in rows] == [1, 4]
    assert [row["positions"] for row in rows] == [[[0, 19]], [[20, 20]]]
    assert [(row["massive"], row["often"]) for row in rows] == [(20, 20 / 21), (1, 1 / 21)]
    assert rows[1]["peak_position"] == 20


def test_of_equal_shares_the_lower_channel_comes_first():
    x = np.tile(np.array([[1, -1, 1, -1]], np.float32), (3, 1))
    stats = norms.stats_of([{"ln_f": x}])
    assert top_channels(stats, 0, 4) == [0, 1, 2, 3]


def test_peaks_are_joined():
    for row in by_channel(STATS, GAINS, 2):
        n, c = norms.NORMS.index(row["norm"]), row["channel"]
        assert row["peak"] == STATS.peak[n, c]
        assert row["peak_position"] == STATS.peak_at[n, c]
        assert row["peak_x"] == STATS.peak_x[n, c]
