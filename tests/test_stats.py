"""Statistics of norms are those that plain NumPy finds in the taps, however the texts were cut, ordered and merged."""

import json
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpt2ln
from gpt2ln.checkpoint import load as load_arrays
from gpt2ln.commands.output import as_json
from gpt2ln.errors import BadInput
from gpt2ln.observe import ln_stats
from gpt2ln.spec import variables
from gpt2ln.stats import MASSIVE, SKETCHED, SMALL, STATISTICS, LnStats
from gpt2ln.tally import QUANTILE_ERROR

from . import norms, oracle, proofs

Q = [0.05, 0.5, 0.95]
MOMENTS = ("mean", "std", "min", "max")
TEXTS = norms.inputs(0)
P = max(norms.LENGTHS)
lengths = st.lists(st.integers(1, 9), min_size=2, max_size=6)


def values_of(texts, statistic: str) -> list[list[np.ndarray]]:
    """[norm][text] -> [T] float64, straight from the taps."""
    found = [[] for _ in texts[0]]
    for taps in map(norms.taps_of, texts):
        for n, norm in enumerate(texts[0]):
            if statistic == "rms":
                values = np.sqrt((taps[f"{norm}/out"].astype(np.float64) ** 2).mean(1))
            else:
                values = taps[f"{norm}/{statistic}"][:, 0].astype(np.float64)
            found[n].append(values)
    return found


def at(values: list[np.ndarray], positions: slice) -> np.ndarray:
    return np.concatenate([x[positions] for x in values])


def channels_of(texts, norm: str) -> np.ndarray:
    return np.concatenate([norms.taps_of(text)[f"{norm}/norm"] for text in texts]).astype(np.float64)


SPANS = [slice(p, p + 1) for p in range(P)] + [slice(None), slice(1, None), slice(2, 5)]


@pytest.mark.parametrize("statistic", STATISTICS)
def test_moments_are_those_of_the_taps(statistic):
    """Float64 over 23 numbers: 1e-12 of the largest.  rms: six squares summed in float32, some of its last places."""
    stats, tolerance = norms.stats_of(TEXTS), 1e-6 if statistic == "rms" else 1e-12
    for n, values in enumerate(values_of(TEXTS, statistic)):
        for span in SPANS:
            x, found = at(values, span), stats.pooled(n, statistic, span)
            right = [x.mean(), x.std(), x.min(), x.max()]
            seen = [getattr(found, name) for name in MOMENTS]
            np.testing.assert_allclose(seen, right, rtol=tolerance, atol=tolerance * np.abs(x).max())
            assert found.count == len(x)


@pytest.mark.parametrize("statistic", SKETCHED)
def test_quantiles_are_those_of_the_taps(statistic):
    """A 64th of the larger of the two values between which it lies."""
    stats = norms.stats_of(TEXTS)
    for n, values in enumerate(values_of(TEXTS, statistic)):
        for span in SPANS:
            x = at(values, span)
            found = stats.quantiles(n, statistic, Q, span)
            larger = np.maximum(*(np.abs(np.quantile(x, Q, method=way)) for way in ("lower", "higher")))
            np.testing.assert_array_less(np.abs(np.quantile(x, Q) - found), QUANTILE_ERROR * larger * (1 + 1e-9))
            assert x.min() <= min(found) <= max(found) <= x.max()


def test_one_token_is_its_own_quantile():
    stats = norms.stats_of(norms.inputs(3, [1]))
    (var,) = values_of(norms.inputs(3, [1]), "var")[0]
    assert stats.quantiles(0, "var", Q) == [var[0]] * 3


def test_counts_are_those_of_the_taps():
    stats = norms.stats_of(TEXTS)
    assert (stats.documents, stats.tokens, stats.positions) == (len(TEXTS), sum(norms.LENGTHS), P)
    np.testing.assert_array_equal(stats.count, [sum(p < T for T in norms.LENGTHS) for p in range(P)])
    for n, values in enumerate(values_of(TEXTS, "var")):
        small = [sum(np.count_nonzero(x[p : p + 1] < SMALL) for x in values) for p in range(P)]
        np.testing.assert_array_equal(stats.small[n], small)
        assert 0 < sum(small) < stats.tokens


def test_channels_are_those_of_the_taps():
    """Shares: squares of at most 12 tokens summed in float32.  x there: undone from float32, to its last places."""
    stats = norms.stats_of(TEXTS)
    where = np.concatenate([np.arange(T) for T in norms.LENGTHS])
    for n, norm in enumerate(norms.NORMS):
        z, x = channels_of(TEXTS, norm), np.concatenate([text[norm] for text in TEXTS])
        power = (z**2).sum(0)
        np.testing.assert_allclose(stats.shares(n), power / power.sum(), rtol=1e-6)
        np.testing.assert_array_equal(stats.peak[n], np.abs(z).max(0))
        rows = np.abs(z).argmax(0)
        np.testing.assert_array_equal(stats.peak_at[n], where[rows])
        right = x[rows, np.arange(norms.WIDTH)]
        np.testing.assert_allclose(stats.peak_x[n], right, rtol=1e-5, atol=1e-6 * np.abs(x).max())
        massive = z**2 >= MASSIVE * norms.WIDTH
        channels, counts = stats.massive_of(n)
        np.testing.assert_array_equal(np.bincount(channels, counts, norms.WIDTH), massive.sum(0))
        for c in range(norms.WIDTH):
            at, there = stats.massive_at(n, c)
            np.testing.assert_array_equal(np.bincount(at, there, P), np.bincount(where, massive[:, c], P))


def same(a: LnStats, b: LnStats, tolerance: float) -> None:
    """Equal in all but what is summed: mean and std to `tolerance` of the largest value, power of itself."""
    one, two = a.record(), b.record()
    (mean, squares, low, high), (mean_b, squares_b, low_b, high_b) = (np.array(r.pop("moments")) for r in (one, two))
    np.testing.assert_allclose(*(r.pop("power") for r in (one, two)), rtol=tolerance)
    assert one == two
    np.testing.assert_array_equal(low, low_b)
    np.testing.assert_array_equal(high, high_b)
    largest = np.maximum(np.abs(low), np.abs(high)).max(axis=(0, 2), keepdims=True)
    for x, y in ((mean, mean_b), (np.sqrt(squares / a.count), np.sqrt(squares_b / b.count))):
        np.testing.assert_array_less(np.abs(x - y), np.broadcast_to(tolerance * largest + 1e-300, x.shape))


@pytest.mark.parametrize("piece", [1, 2, 5])
def test_texts_read_in_pieces_are_the_same_texts(piece):
    """Power is summed in float32 within a piece."""
    pieces, whole = norms.stats_of(TEXTS, piece), norms.stats_of(TEXTS)
    np.testing.assert_allclose(pieces.power, whole.power, rtol=1e-6)
    pieces.power = whole.power
    same(pieces, whole, 1e-12)


@settings(max_examples=25)
@given(lengths, st.integers(0, 5), st.data())
def test_parts_merge_into_the_whole(lengths, seed, data):
    texts = norms.inputs(seed, lengths)
    cut = data.draw(st.integers(1, len(texts) - 1))
    merged = norms.stats_of(texts[:cut]) + norms.stats_of(texts[cut:])
    whole = norms.stats_of(texts)
    same(merged, whole, 1e-12)
    for n, statistic in ((n, s) for n in range(len(whole.norms)) for s in SKETCHED):
        assert merged.quantiles(n, statistic, Q) == whole.quantiles(n, statistic, Q)


def test_the_order_of_merging_does_not_matter():
    parts = [[text] for text in TEXTS[:3]]
    first, *others = [norms.stats_of(a) + norms.stats_of(b) + norms.stats_of(c) for a, b, c in permutations(parts)]
    grouped = norms.stats_of(parts[0]) + (norms.stats_of(parts[1]) + norms.stats_of(parts[2]))
    for other in [*others, grouped]:
        same(other, first, 1e-12)


def test_of_equal_peaks_the_earlier_one_is_kept_in_any_order():
    """A row and its negative have the same |norm|: first by position, then by x."""
    row = np.array([1, 2, 3, 4, 5, 9], np.float32)
    quiet = np.array([1, -1, 1, -1, 1, -1], np.float32) * 2
    late, early, mirrored = ([{"ln_f": np.stack(rows)}] for rows in ([quiet, quiet, row], [quiet, -row], [quiet, row]))
    for order in permutations([late, early, mirrored]):
        merged = norms.stats_of(order[0]) + norms.stats_of(order[1]) + norms.stats_of(order[2])
        for stats in (merged, norms.stats_of([text for part in order for text in part])):
            assert (stats.peak_at[0, 5], round(stats.peak_x[0, 5], 4)) == (1, -9)


def test_a_record_reads_back_to_the_last_bit():
    stats = norms.stats_of(TEXTS)
    text = as_json(stats.record())
    again = LnStats.of(json.loads(text))
    assert as_json(again.record()) == text
    assert again.quantiles(1, "var", Q) == stats.quantiles(1, "var", Q)
    assert as_json((again + again).record()) == as_json((stats + stats).record())


@pytest.mark.parametrize("name", ["moments", "small", "power", "peak", "peak_at", "peak_x"])
def test_a_record_of_other_shapes_is_refused(name):
    record = norms.stats_of(TEXTS).record()
    record[name] = record[name][:-1]
    with pytest.raises(ValueError, match=rf"{name} has shape \[.*\], expected \["):
        LnStats.of(record)


def test_runs_of_other_norms_do_not_add_up():
    stats = norms.stats_of(TEXTS)
    for other in (norms.inputs(0, width=5), norms.inputs(0, norms=norms.NORMS[:2])):
        with pytest.raises(BadInput, match="3 norms of width 6, and"):
            stats + norms.stats_of(other)


def test_squares_past_the_range_of_float32():
    """Outputs of 1e25, a finite float32 whose square is not one."""
    text = norms.inputs(0, [4])[0]
    stats = LnStats.empty(norms.NORMS, norms.WIDTH)
    stats.add(stats.part(norms.taps_of(text, g=1e25, b=0), 0))
    assert 0.5e25 < stats.pooled(0, "rms").mean < 1.5e25


def test_a_channel_without_variance_has_no_share():
    zero = norms.stats_of([{"ln_f": np.zeros((4, 6), np.float32)}])
    np.testing.assert_array_equal(zero.shares(0), np.zeros(6))


def demo():
    opened = gpt2ln.load("demo")
    return opened, [opened.encode(text) for text in ("To be, or not to be, that is the question. " * 3, "ROMEO:", "a")]


def from_golden():
    return gpt2ln.load(proofs.GOLDEN / "model"), proofs.golden_values()["ids"].tolist()


@pytest.mark.parametrize("given", [demo, from_golden])
def test_statistics_of_real_models_are_those_of_float64(given):
    """2e-6, sixteen units in the last place: what float32 does to a few additions of the residual stream.

    Of the largest |x| for means, which cancel; of the value for the others.  Shares, whose errors average out, 1e-6.
    """
    opened, texts = given()
    hp, weights = opened.hparams, dict(load_arrays(opened.bundle, variables(opened.hparams)))
    stats = ln_stats(opened.engine, texts)
    seen = [oracle.forward(weights, np.array([ids]), hp.n_head, hp.n_layer) for ids in texts]
    assert stats.tokens == sum(map(len, texts))
    for n, norm in enumerate(stats.norms):
        x, y = (np.concatenate([text[f"{norm}/{side}"][0] for text in seen]) for side in ("in", "out"))
        u, s = x.mean(1), x.var(1)
        z = (x - u[:, None]) / np.sqrt(s + 1e-5)[:, None]
        right = {"mean": u, "var": s, "rstd": 1 / np.sqrt(s + 1e-5), "rms": np.sqrt((y**2).mean(1))}
        for name, values in right.items():
            found, largest = stats.pooled(n, name), np.abs(x if name == "mean" else values).max()
            for key in MOMENTS:
                exact = getattr(values, key)()
                np.testing.assert_allclose(getattr(found, key), exact, rtol=0, atol=2e-6 * largest, err_msg=norm)
        np.testing.assert_allclose(stats.shares(n), (z**2).sum(0) / (z**2).sum(), rtol=0, atol=1e-6)
        np.testing.assert_allclose(stats.peak[n], np.abs(z).max(0), rtol=2e-6)
        massive = (z**2 >= MASSIVE * hp.n_embd).sum(0)
        channels, counts = stats.massive_of(n)
        np.testing.assert_array_equal(np.bincount(channels, counts, hp.n_embd), massive)
