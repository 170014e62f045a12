import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gpt2ln.sample import (
    REMOVED,
    Sampling,
    draw,
    log_softmax,
    next_id,
    softmax,
    top_k_logits,
    top_p_logits,
    uniform,
)

LOG = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))  # the distribution of the sampling facts
BELOW_1 = np.nextafter(1.0, 0.0)
KEYS = st.integers(0, 2**64 - 1)


def logits_of(least: float, most: float):
    """Rows of 1 to 40 logits, ties and equal rows among them."""
    numbers = st.one_of(st.floats(least, most, width=32), st.sampled_from([-1.0, 0.0, 2.0]))
    return arrays(np.float32, st.integers(1, 40), elements=numbers)


LOGITS = logits_of(-50, 50)
ANY_LOGITS = st.one_of(LOGITS, logits_of(-(2.0**126), 2.0**126))
SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([5e-324, 1e-300, 1e-9, 0.5, 1.0, 3.0, 1e9, 1e308]),
    top_k=st.integers(0, 50),
    top_p=st.floats(0, 1, exclude_min=True),
    nucleus=st.sampled_from(["openai", "hf"]),
)


def kept(logits: np.ndarray) -> set[int]:
    return set(np.flatnonzero(logits != REMOVED).tolist())


def official(logits, sampling):
    """The logits from which an id is drawn, as the rules read: temperature, then k, then p."""
    scaled = logits.astype(np.float64) / sampling.temperature
    return top_p_logits(top_k_logits(scaled, sampling.top_k), sampling.top_p, sampling.nucleus)


# --- golden: the official filters ---------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 5, 40, 50])
def test_top_k_is_the_official_one(golden, k):
    ours = np.stack([top_k_logits(row, k) for row in golden["filter/logits"]])
    np.testing.assert_array_equal(ours, golden[f"filter/top_k/{k}"])
    assert ours.dtype == np.float32


@pytest.mark.parametrize("p", ["0.0", "0.1", "0.5", "0.9", "0.999", "1.0"])
def test_top_p_is_the_official_one(golden, p):
    ours = np.stack([top_p_logits(row, float(p)) for row in golden["filter/logits"]])
    np.testing.assert_array_equal(ours, golden[f"filter/top_p/{p}"])
    assert ours.dtype == np.float32


# --- both nucleus rules by hand -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nucleus", "counts"),
    [("openai", {0.01: 1, 0.6: 1, 0.9: 2, 0.96: 3, 1: 4}), ("hf", {0.01: 1, 0.6: 2, 0.9: 3, 0.96: 4, 1: 4})],
)
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 1, 0, 2]])
def test_nucleus_keeps_by_hand(nucleus, counts, order):
    for p, count in counts.items():
        ours = top_p_logits(LOG[order], p, nucleus)
        np.testing.assert_array_equal(ours, np.where(np.array(order) < count, LOG[order], REMOVED))


def test_the_rules_differ_by_the_token_that_crosses_p():
    logits = np.log(np.array([8, 4, 2, 1, 1], np.float32) / 16)
    cases = [(0.1, {0}, {0}), (0.55, {0}, {0, 1}), (0.8, {0, 1}, {0, 1, 2}), (0.9, {0, 1, 2}, {0, 1, 2, 3, 4})]
    for p, openai, hf in cases:
        assert kept(top_p_logits(logits, p)) == openai, p
        assert kept(top_p_logits(logits, p, "hf")) == hf, p


def test_ties_with_the_kth_stay():
    logits = np.array([1, 3, 2, 2, 2, 0], np.float32)
    assert [len(kept(top_k_logits(logits, k))) for k in range(8)] == [6, 1, 4, 4, 4, 5, 6, 6]


def test_k_is_cut_before_p():
    """p counts what k has left: .5 and .3 of .8 are .625 and .375."""
    sampling = Sampling(top_k=2, top_p=0.62)
    drawn = {next_id(LOG, sampling, seed=0, sample=n, position=0) for n in range(200)}
    assert drawn == {0}
    assert kept(top_p_logits(LOG, 0.81)) == {0, 1}  # p alone would keep two at .81,
    assert kept(top_p_logits(top_k_logits(LOG, 2), 0.63)) == {0}  # and after k, .625 <= .63 keeps one


# --- properties of the cuts ---------------------------------------------------------------------------------------


@given(LOGITS, st.integers(0, 60), st.floats(0, 1), st.sampled_from(["openai", "hf"]))
def test_a_cut_leaves_the_likeliest_unchanged_and_no_other_value(logits, k, p, nucleus):
    for ours in (top_k_logits(logits, k), top_p_logits(logits, p, nucleus)):
        stay = ours != REMOVED
        assert stay[logits == logits.max()].all()
        np.testing.assert_array_equal(ours[stay], logits[stay])
        if not stay.all():
            assert logits[stay].min() > logits[~stay].max()


@given(LOGITS, st.integers(1, 60), st.integers(1, 60))
def test_a_smaller_k_keeps_no_more(logits, a, b):
    assert kept(top_k_logits(logits, min(a, b))) <= kept(top_k_logits(logits, max(a, b)))


@given(LOGITS, st.floats(0, 1), st.floats(0, 1), st.sampled_from(["openai", "hf"]))
def test_a_smaller_p_keeps_no_more(logits, a, b, nucleus):
    assert kept(top_p_logits(logits, min(a, b), nucleus)) <= kept(top_p_logits(logits, max(a, b), nucleus))


@given(LOGITS, st.floats(0, 1))
def test_hf_keeps_what_openai_keeps(logits, p):
    assert kept(top_p_logits(logits, p)) <= kept(top_p_logits(logits, p, "hf"))


@given(LOGITS, st.integers(1, 60))
def test_top_k_keeps_k_and_ties(logits, k):
    least = sorted(logits.tolist(), reverse=True)[min(k, logits.size) - 1]
    assert kept(top_k_logits(logits, k)) == {i for i, x in enumerate(logits.tolist()) if x >= least}


# --- the draw -----------------------------------------------------------------------------------------------------


@given(ANY_LOGITS, st.one_of(st.floats(0, BELOW_1), st.sampled_from([0.0, BELOW_1])))
def test_a_draw_is_an_id_that_has_probability(logits, u):
    i = draw(logits, u)
    assert type(i) is int
    assert 0 <= i < logits.size
    assert softmax(logits)[i] > 0


@given(ANY_LOGITS, st.floats(0, BELOW_1), st.floats(0, BELOW_1))
def test_a_draw_is_monotone_in_u(logits, a, b):
    assert draw(logits, min(a, b)) <= draw(logits, max(a, b))


@given(ANY_LOGITS, SAMPLINGS, KEYS, KEYS, KEYS)
def test_next_id_is_never_one_removed(logits, sampling, seed, sample, position):
    with np.errstate(over="ignore"):
        left = kept(official(logits - np.float64(logits.max()), sampling))
    i = next_id(logits, sampling, seed=seed, sample=sample, position=position)
    assert i in left
    assert 0 <= i < logits.size


@given(st.integers(2, 300), st.floats(0, BELOW_1))
def test_equal_logits_are_drawn_evenly(n, u):
    assume(0.01 < u * n % 1 < 0.99)
    assert draw(np.full(n, 7.5, np.float32), u) == math.floor(u * n)


@pytest.mark.parametrize(
    ("u", "i"), [(0.0, 0), (0.49, 0), (0.51, 1), (0.79, 1), (0.81, 2), (0.94, 2), (0.96, 3), (BELOW_1, 3)]
)
def test_a_draw_by_hand(u, i):
    assert draw(LOG, u) == i


def test_a_draw_skips_what_has_no_probability_at_either_end():
    logits = np.array([REMOVED, REMOVED, 0, REMOVED, 0, REMOVED], np.float32)
    assert [draw(logits, u) for u in (0.0, 0.49, 0.51, BELOW_1)] == [2, 2, 4, 4]


def test_a_draw_passes_no_end_that_rounding_leaves_short():
    """The sum of 50,257 equal probabilities is not 1 in float64."""
    logits = np.zeros(50257, np.float32)
    assert np.cumsum(softmax(logits))[-1] != 1
    assert draw(logits, BELOW_1) == 50256


# --- the uniform number -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "u"),
    [
        ((0, 0, 0), 0.011546754286331562),
        ((1, 0, 0), 0.3035680343067586),
        ((0, 1, 0), 0.8133540609793564),
        ((0, 0, 1), 0.34218278474233466),
        ((2**63, 3, 0), 0.3337049765646106),
        ((2**64 - 1, 0, 0), 0.23494158814525556),
        ((2**64 - 1, 2**63 + 3, 7), 0.26106335919281254),
    ],
)
def test_known_uniform_numbers(keys, u):
    """Pinned: a seed published today gives the same text tomorrow."""
    assert uniform(*keys) == u


@given(st.tuples(KEYS, KEYS, KEYS), st.integers(0, 2), KEYS)
def test_uniform_depends_on_each_key_alone(keys, place, other):
    u = uniform(*keys)
    assert 0 <= u < 1
    assert u == uniform(*keys)
    changed = [*keys]
    changed[place] = other
    assert (uniform(*changed) == u) == (other == keys[place])


def test_the_largest_seeds_are_told_apart():
    """NumPy makes float64 of a list that holds both small and large whole numbers; half of the seeds would be one."""
    seeds = [2**63 + n for n in range(50)] + [2**64 - 1 - n for n in range(50)]
    assert len({uniform(seed, 1, 0) for seed in seeds}) == len(seeds)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_uniform_numbers_are_uniform_along_each_key(place):
    """Chi-square over 20 bins of 4,000 numbers; 19 degrees of freedom: 3.8 .. 45.3 holds all but 2 in 10,000."""
    keys = [[5, 6, 7] for _ in range(4000)]
    for n, key in enumerate(keys):
        key[place] = n
    counts = np.histogram([uniform(*key) for key in keys], bins=20, range=(0, 1))[0]
    chi = ((counts - 200) ** 2 / 200).sum()
    assert 3.8 < chi < 45.3


# --- next_id ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(), [0.5, 0.3, 0.15, 0.05]),
        (Sampling(temperature=2.0), None),
        (Sampling(temperature=0.5), None),
        (Sampling(top_k=2), [0.625, 0.375, 0, 0]),
        (Sampling(top_p=0.96), [50 / 95, 30 / 95, 15 / 95, 0]),
        (Sampling(top_p=0.6, nucleus="hf"), [0.625, 0.375, 0, 0]),
    ],
)
def test_draws_are_distributed_as_the_model_says(sampling, expected):
    """Chi-square of 4,000 draws at a fixed seed, 3 degrees of freedom: below 19.7 but once in 5,000 seeds."""
    if expected is None:
        power = np.array([0.5, 0.3, 0.15, 0.05]) ** (1 / sampling.temperature)
        expected = power / power.sum()
    drawn = [next_id(LOG, sampling, seed=3, sample=n % 40, position=n // 40) for n in range(4000)]
    counts, expected = np.bincount(drawn, minlength=4), 4000 * np.asarray(expected)
    assert (counts[expected == 0] == 0).all()
    likely = expected > 0
    chi = ((counts - expected)[likely] ** 2 / expected[likely]).sum()
    assert 1e-3 < chi < 19.7


@given(ANY_LOGITS, KEYS, st.integers(0, 50), st.floats(0, 1, exclude_min=True))
def test_temperature_0_is_the_first_of_the_likeliest(logits, seed, k, p):
    sampling = Sampling(temperature=0.0, top_k=k, top_p=p)
    assert next_id(logits, sampling, seed=seed, sample=0, position=0) == logits.tolist().index(logits.max())


@given(LOGITS, KEYS, st.sampled_from([5e-324, 1e-300, 1e-12]))
def test_a_tiny_temperature_is_one_of_the_likeliest(logits, seed, temperature):
    i = next_id(logits, Sampling(temperature=temperature), seed=seed, sample=0, position=0)
    assert logits[i] == logits.max()


@pytest.mark.parametrize("temperature", [1e9, 1e308])
def test_a_huge_temperature_is_even(temperature):
    logits = np.linspace(-30, 30, 10, dtype=np.float32)
    drawn = [next_id(logits, Sampling(temperature=temperature), seed=1, sample=n, position=0) for n in range(3000)]
    counts = np.bincount(drawn, minlength=10)
    assert 0.5 < ((counts - 300) ** 2 / 300).sum() < 32  # chi-square, 9 degrees of freedom


def test_a_cut_holds_at_a_huge_temperature():
    """Were the cut made before the division, -1e10 / 1e300 would be as good as any other logit."""
    drawn = {next_id(LOG, Sampling(temperature=1e300, top_k=2), seed=1, sample=n, position=0) for n in range(300)}
    assert drawn == {0, 1}


def test_values_that_float32_would_round_together_are_no_tie():
    """1 and 1 + 1e-7 are one number once 1e4 is taken off them in float32."""
    logits = np.array([1e4, 1, np.nextafter(np.float32(1), np.float32(2))], np.float32)
    drawn = {next_id(logits, Sampling(temperature=1e6, top_k=2), seed=1, sample=n, position=0) for n in range(100)}
    assert drawn == {0, 2}


def test_next_id_leaves_the_logits_alone():
    logits = LOG.copy()
    next_id(logits, Sampling(0.7, 2, 0.9), seed=0, sample=0, position=0)
    np.testing.assert_array_equal(logits, LOG)


# --- softmax ------------------------------------------------------------------------------------------------------


@given(ANY_LOGITS)
def test_softmax_sums_to_1(logits):
    p = softmax(logits)
    assert p.dtype == np.float64
    np.testing.assert_allclose(p.sum(), 1, rtol=0, atol=1e-14)
    assert p[logits.argmax()] == p.max()


@given(LOGITS)
def test_log_softmax_is_its_logarithm(logits):
    np.testing.assert_allclose(np.exp(log_softmax(logits)), softmax(logits), rtol=1e-13, atol=0)


def test_log_softmax_is_finite_where_softmax_is_0():
    logits = np.array([0, -2000, 1000], np.float32)
    np.testing.assert_array_equal(softmax(logits)[:2], 0)
    np.testing.assert_array_equal(log_softmax(logits), [-1000, -3000, 0])
