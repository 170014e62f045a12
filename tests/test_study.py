"""A study: the numbers of an independent float64 pass of each mistake, nothing for the right norm, sums over texts."""

import numpy as np
import pytest

import gpt2ln
from gpt2ln.engine import Exact
from gpt2ln.mistakes import MISTAKES, Mistake, choose
from gpt2ln.study import study
from gpt2ln.variants import OTHERS, in_place, right

from . import tiny as made_up
from . import wrongs

IDS = [[64, 65, 66, 258, 70, 71, 64, 90, 91, 256, 80], [258, 64, 64, 100], [75]]
NAMES = [mistake.name for mistake in MISTAKES]
RIGHT = Mistake("right", "spelling", "no mistake")


@pytest.fixture(scope="module")
def made(small):
    """Every mistake, three texts."""
    return study(small.exact, IDS, MISTAKES)


def studied(edit, only: str, tmp_path):
    model = gpt2ln.load(made_up.tiny(tmp_path / "m", edit, n_layer=1))
    found = study(model.exact, IDS, choose(only))
    return found, found.effects[0]


def by_name(found) -> dict:
    return {effect.mistake.name: effect for effect in found.effects}


@pytest.fixture(scope="module")
def expected(small, made):
    """Mistake -> what is to be said of it, over all texts; all of it from float64."""

    def of(name: str) -> dict:
        texts = []
        for ids in IDS:
            exact, wrong = (wrongs.outputs(small.hparams, ids, small.weights, k, made.norms) for k in (None, name))
            texts.append(wrongs.said_of(exact, wrong, ids, made.norms))
        largest = {key: np.max([text[key] for text in texts], axis=0) for key in ("norms", "logits", "kl_worst")}
        return largest | {key: sum(text[key] for text in texts) for key in ("kl", "flips", "nats")}

    return of


@pytest.mark.parametrize("name", wrongs.formulas(8))
def test_the_float64_pass_says_the_same(name, made, expected):
    """Within the noise of two float32 runs at every norm; in the logits within some roundings of the largest."""
    effect, right_one = by_name(made)[name], expected(name)
    slack = 4 * made.noise.max()
    np.testing.assert_allclose(effect.norms, right_one["norms"], rtol=1e-5, atol=slack)
    np.testing.assert_allclose(effect.logits, right_one["logits"], rtol=1e-5, atol=slack)
    np.testing.assert_allclose(effect.nats, right_one["nats"], rtol=1e-6, atol=0)
    for key in ("kl", "kl_worst"):
        np.testing.assert_allclose(getattr(effect, key), right_one[key], rtol=2e-3, atol=1e-10)
    assert effect.flips == right_one["flips"]
    assert made.breaks(effect) is None


def test_what_was_read(small, made):
    assert (made.documents, made.tokens, made.scored) == (3, 16, 13)
    assert made.norms == ("h0/ln_1", "h0/ln_2", "h1/ln_1", "h1/ln_2", "ln_f")
    seen = [small.observe(ids, "@ln") for ids in IDS]
    for n, norm in enumerate(made.norms):
        var = np.concatenate([taps[f"{norm}/var"] for taps in seen])
        assert (made.var[0, n], made.var[1, n]) == (var.min(), var.max())
        off = [
            np.abs(taps[f"{norm}/out"] - small.reference(ids)[f"{norm}/out"]).max()
            for ids, taps in zip(IDS, seen, strict=True)
        ]
        assert made.noise[n] == max(off)
        assert 1e-8 < made.noise[n] < 1e-5
    first = np.concatenate([taps["h0/ln_1/out"] for taps in seen]).astype(np.float64)
    np.testing.assert_allclose(made.rms, np.sqrt((first**2).mean()), rtol=1e-12)
    exact = [wrongs.log_softmax(small.logits(ids).astype(np.float64)) for ids in IDS]
    nats = -sum(p[np.arange(len(ids) - 1), ids[1:]].sum() for p, ids in zip(exact, IDS, strict=True))
    np.testing.assert_allclose(made.nats, nats, rtol=1e-12)


def test_where_each_starts_to_matter(made):
    starts = {name: made.starts(effect) for name, effect in by_name(made).items()}
    harmless = ("one-pass", "keras", "division", "folded")
    expected = dict.fromkeys(NAMES, "h0/ln_1") | dict.fromkeys(harmless) | {"no-ln-f": "ln_f"}
    assert starts == expected
    effect = by_name(made)["eps-1e-3"]
    for n in range(5):  # ten times the noise is no more than that: it has to be passed
        effect_at = effect.norms.copy()
        effect_at[:n], effect_at[n:] = 10 * made.noise[:n], 10.01 * made.noise[n:]
        again = type(effect)(effect.mistake, effect_at)
        assert made.starts(again) == made.norms[n]


def test_the_right_norm_is_no_mistake(small, monkeypatch):
    """Exactly nothing, at every norm and token, though it is put in by the same way; one graph for all texts."""
    engines = []

    class Counted(Exact):
        def __init__(self, *args, **how):
            super().__init__(*args, **how)
            engines.append(self)

    monkeypatch.setattr("gpt2ln.study.Exact", Counted)
    monkeypatch.setitem(OTHERS, "right", in_place(right))
    found = study(small.exact, IDS, [RIGHT])
    assert [engine.traces for engine in engines] == [1]
    (effect,) = found.effects
    np.testing.assert_array_equal(effect.norms, 0)
    assert (effect.logits, effect.kl, effect.kl_worst, effect.flips) == (0, 0, 0, 0)
    assert effect.nats == found.nats
    assert (found.starts(effect), found.breaks(effect)) == (None, None)


def test_texts_add_up(small, made):
    """All of them together are each alone: sums, largest values, and the worst token by its place."""
    only = choose("eps-1e-3")
    alone = [study(small.exact, [ids], only) for ids in IDS]
    for k, mistake in enumerate(only):
        whole, parts = by_name(made)[mistake.name], [found.effects[k] for found in alone]
        for key in ("kl", "nats", "flips"):
            np.testing.assert_allclose(getattr(whole, key), sum(getattr(part, key) for part in parts), rtol=1e-12)
        for key in ("norms", "logits", "kl_worst"):
            np.testing.assert_array_equal(getattr(whole, key), np.max([getattr(part, key) for part in parts], axis=0))
        worst = int(np.argmax([part.kl_worst for part in parts]))
        assert whole.worst_at == (worst, parts[worst].worst_at[1])


def test_a_text_of_several_chunks(long):
    """600 tokens, read in three: every token is counted once, with the token that follows it."""
    ids = np.random.default_rng(3).integers(0, 260, 600).tolist()
    seen = []
    found = study(long.exact, [ids], choose("eps-1e-3"), progress=seen.append)
    norms = found.norms
    exact = {tap: x for tap, x in long.observe(ids, "@ln,logits").items() if tap.endswith(("/out", "logits"))}
    wrong = wrongs.outputs(long.hparams, ids, long.weights, "eps-1e-3", norms)
    expected, effect = wrongs.said_of(exact, wrong, ids, norms), found.effects[0]
    assert seen == [600, 600, 600]
    assert (found.tokens, found.scored, effect.worst_at) == (600, 599, (0, expected["at"]))
    np.testing.assert_allclose(effect.norms, expected["norms"], rtol=1e-3)
    for key in ("logits", "kl", "kl_worst"):
        np.testing.assert_allclose(getattr(effect, key), expected[key], rtol=2e-3)
    np.testing.assert_allclose(effect.nats, expected["nats"], rtol=1e-6)
    assert effect.flips == expected["flips"]


# what makes a mistake large


def test_a_small_residual_stream_makes_epsilon_large(made, tmp_path):
    """Case V35: wte and wpe a thousandth as large; what was a ten-thousandth is now most of the output."""

    def small(w):
        for name in ("wte", "wpe"):
            w[f"model/{name}"] *= 0.001

    found, effect = studied(small, "eps-1e-6", tmp_path)
    assert found.var[1, 0] < 1e-6
    assert by_name(made)["eps-1e-6"].norms[0] < 1e-3
    assert effect.norms[0] / found.rms > 1
    assert found.starts(effect) == "h0/ln_1"


def test_a_large_mean_makes_one_pass_large(made, tmp_path):
    """Case V36: 1000 more in all of wpe."""

    def shifted(w):
        w["model/wpe"] += 1000

    found, effect = studied(shifted, "one-pass", tmp_path)
    assert made.starts(by_name(made)["one-pass"]) is None
    assert effect.norms[0] > 100 * found.noise[0] > 0
    assert found.starts(effect) == "h0/ln_1"


def test_what_is_not_finite_is_a_result(tmp_path):
    """1e5 more: a variance below 0 by more than epsilon, and its root NaN; the exact graph is finite still."""

    def shifted(w):
        w["model/wpe"] += 1e5

    found, effect = studied(shifted, "one-pass", tmp_path)
    assert found.breaks(effect) == found.starts(effect) == "h0/ln_1"
    assert np.isnan(effect.norms).all()
    assert np.isnan(effect.logits)


def test_what_breaks_in_the_logits_alone(made):
    effect = type(made.effects[0])(MISTAKES[0], np.zeros(5), logits=np.inf)
    assert (made.breaks(effect), made.starts(effect)) == ("logits", None)
