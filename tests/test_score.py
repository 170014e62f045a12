"""Scores against a float64 pass, windows against single passes, and every place where one may be off by one."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpt2ln
from gpt2ln import score as scoring
from gpt2ln.errors import BadInput, NonFinite, UsageError
from gpt2ln.score import Scoring, Totals, weigh

from . import oracle
from . import tiny as made_up
from .tiny import ID

IDS = np.random.default_rng(5).integers(0, 260, 45).tolist()


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - x.max() - math.log(np.exp(x - x.max()).sum())


def one(model, ids) -> float:
    """Log-probability of the last of ids after all others, from a pass of its own."""
    return log_softmax(model.logits(ids[:-1])[-1].astype(np.float64))[ids[-1]]


@pytest.fixture(scope="module")
def flat(tmp_path_factory):
    """Every token has probability 1/260."""
    return gpt2ln.load(made_up.tiny(tmp_path_factory.mktemp("flat") / "m", made_up.zeros))


# the numbers


@pytest.mark.parametrize("name", ["small", "golden_model"])
def test_the_float64_oracle(request, name):
    model = request.getfixturevalue(name)
    n = model.hparams.n_ctx + 1  # the last token is not read
    ids = np.random.default_rng(1).integers(0, model.hparams.n_vocab, n).tolist()
    found = model.score(ids, top=3)
    w = {name: np.array(x) for name, x in model.weights.items()}
    logits = oracle.forward(w, np.array([ids[:-1]]), model.hparams.n_head, model.hparams.n_layer)["logits"][0]
    assert len(found.ids) == n - 1
    for row, i in enumerate(ids[1:]):
        logp = log_softmax(logits[row])
        assert found.ids[row] == i
        assert found.logprobs[row] == pytest.approx(logp[i], abs=1e-4)
        assert found.entropies[row] == pytest.approx(-(np.exp(logp) * logp).sum(), abs=1e-4)
        assert found.ranks[row] == 1 + (logits[row] > logits[row][i]).sum()
        np.testing.assert_array_equal(found.top_ids[row], np.argsort(-logits[row])[:3])
        np.testing.assert_allclose(found.top_logprobs[row], np.sort(logp)[::-1][:3], rtol=0, atol=1e-4)
    assert found.nats == pytest.approx(-found.logprobs.sum(), abs=1e-9)


def test_the_float64_reference(small):
    logits = small.reference(IDS[:15])["logits"]
    expected = [log_softmax(row)[i] for row, i in zip(logits, IDS[1:16], strict=True)]
    np.testing.assert_allclose(small.score(IDS[:16]).logprobs, expected, rtol=0, atol=1e-4)


def test_a_text_that_the_model_says_itself(tmp_path):
    """Off by one either way, the tokens that follow greedily are not the likeliest."""
    says = [ID[b] for b in b"abcabdabcabd!?"] + [259, ID[ord("x")]]
    model = gpt2ln.load(made_up.tiny(tmp_path / "words", made_up.says(says), n_embd=16))
    found = model.score("xabcabdabcabd!?")
    np.testing.assert_array_equal(found.ranks, [1] * 14)
    np.testing.assert_array_equal(found.positions, np.arange(1, 15))
    np.testing.assert_array_equal(found.contexts, np.arange(1, 15))
    assert model.score("xbcabdabcabd!?x").ranks.min() > 1


def test_every_token_equally_likely(flat):
    found = flat.score("abc")
    np.testing.assert_allclose(found.logprobs, [-5.560682] * 2, rtol=0, atol=1e-6)
    np.testing.assert_allclose(found.entropies, [5.560682] * 2, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(found.ranks, [ID[ord("b")] + 1, ID[ord("c")] + 1])  # of equals the smaller id first
    assert found.nats == pytest.approx(11.121363, abs=1e-6)
    assert flat.score("abc", prefix_token="eot").nats == pytest.approx(16.682045, abs=1e-6)


@given(st.lists(st.sampled_from([-2.0, 0.0, 0.5, 3.0]), min_size=1, max_size=9), st.data())
def test_ranks_and_the_likeliest_are_those_of_a_stable_order(row, data):
    i, n = data.draw(st.integers(0, len(row) - 1)), data.draw(st.integers(0, 12))
    logits = np.array([row, row[::-1]], "f4")
    found = weigh(logits, np.array([i, i]), n)
    for t, x in enumerate(logits):
        order = sorted(range(len(row)), key=lambda j: (-x[j], j))
        assert found["ranks"][t] == 1 + order.index(i)
        assert found["top_ids"][t].tolist() == order[:n]
        np.testing.assert_allclose(found["top_logprobs"][t], log_softmax(x.astype(float))[order[:n]], atol=1e-12)


def test_logits_as_far_apart_as_float32_goes():
    found = weigh(np.array([[3e38, -3e38, 0]] * 2, "f4"), np.array([0, 1]), 2)
    np.testing.assert_allclose(found["logprobs"], [0, -6e38], rtol=1e-6)
    np.testing.assert_array_equal(found["ranks"], [1, 3])
    np.testing.assert_array_equal(found["entropies"], [0, 0])


def test_rows_at_a_time_change_no_bit(monkeypatch):
    logits = np.random.default_rng(0).normal(0, 3, (50, 260)).astype("f4")
    ids = np.arange(50)
    together = weigh(logits, ids, 4)
    for at_once in (1, 7 * 260, 49 * 260):
        monkeypatch.setattr(scoring, "AT_ONCE", at_once)
        found = weigh(logits, ids, 4)
        for name, x in together.items():
            np.testing.assert_array_equal(found[name], x)


# windows


@given(st.integers(1, 12), st.data())
def test_each_token_is_scored_once(window, data):
    stride, n = data.draw(st.integers(1, window)), data.draw(st.integers(2, 60))
    scored = []
    for one in Scoring(window, stride).passes(n):
        assert 1 <= one.stop - one.start <= window
        assert one.start < one.first <= one.stop < n
        scored += range(one.first, one.stop + 1)
        if one.start:
            assert one.first - one.start == window - stride + 1  # the least context that the help promises
    assert scored == list(range(1, n))


@pytest.mark.parametrize(("window", "stride"), [(16, 1), (16, 8), (16, 16), (5, 2), (1, 1), (3, 1)])
def test_windows_are_passes_of_their_own(small, window, stride):
    found = small.score(IDS, window=window, stride=stride)
    np.testing.assert_array_equal(found.ids, IDS[1:])
    np.testing.assert_array_equal(found.positions, range(1, 45))
    for i, context in zip(found.positions, found.contexts, strict=True):
        assert context == (i if i <= window else window - stride + 1 + (i - window - 1) % stride)
    for k in (0, window - 1, window, window + stride - 1, 30, 43):
        i, context = found.positions[k], found.contexts[k]
        assert found.logprobs[k] == pytest.approx(one(small, IDS[i - context : i + 1]), abs=1e-5)


def test_where_the_context_is_the_same_so_are_the_numbers(small):
    """A text within the context is one pass, whatever the stride; in a longer one its first tokens are as they were."""
    alone = small.score(IDS[:17])
    for stride in (1, 8, 16):
        np.testing.assert_array_equal(small.score(IDS[:17], stride=stride).logprobs, alone.logprobs)
        longer = small.score(IDS, stride=stride)
        np.testing.assert_allclose(longer.logprobs[:16], alone.logprobs, rtol=0, atol=1e-6)
    assert len(Scoring(16, 8).passes(17)) == 1
    assert len(Scoring(16, 8).passes(18)) == 2


def test_what_comes_after_changes_nothing(small):
    whole = small.score(IDS, window=8, stride=3)
    for n in (9, 10, 20, 21):
        part = small.score(IDS[:n], window=8, stride=3)
        np.testing.assert_array_equal(part.contexts, whole.contexts[: n - 1])
        np.testing.assert_allclose(part.logprobs, whole.logprobs[: n - 1], rtol=0, atol=1e-6)


def test_windows_of_a_flat_model(flat, small):
    """V55: perplexity 260 under every window; of a model that reads, not the same number twice."""
    for window, stride in product((16, 7), (1, 4, 7)):
        found = flat.score(IDS[:40], window=window, stride=stride)
        assert found.totals.token_perplexity == pytest.approx(260, abs=1e-3)
        assert found.totals.tokens == 39
    assert small.score(IDS, stride=1).nats != pytest.approx(small.score(IDS, stride=8).nats, abs=1e-2)


def test_by_default_the_context_and_half_of_it(small):
    assert small.score("abc").scoring == Scoring(16, 8, "none", 0)
    assert small.score("abc", window=5).scoring == Scoring(5, 2)
    assert small.score("abc", window=1).scoring == Scoring(1, 1)


def test_chunks_do_not_show(long):
    """Past 256 positions logits come in several pieces; the second window's first rows are no one's."""
    ids = np.random.default_rng(3).integers(0, 260, 900).tolist()
    found = long.score(ids, stride=400)
    for start, first, last in ((0, 1, 700), (400, 701, 899)):
        logits = long.logits(ids[start:last]).astype(np.float64)
        expected = [log_softmax(logits[i - start - 1])[ids[i]] for i in range(first, last + 1)]
        np.testing.assert_allclose(found.logprobs[first - 1 : last], expected, rtol=0, atol=1e-9)
    assert found.contexts[699:701].tolist() == [700, 301]


def test_two_at_a_time_are_one_after_the_other(small):
    documents = [IDS[:9], IDS, IDS[3:5]]
    how = Scoring(6, 4, top=2)
    done = []
    single = list(scoring.score(small.exact, small.bpe, documents, how, progress=done.append))
    assert [len(found.ids) for found in single] == [8, 44, 1]
    assert sum(done) == sum(p.stop - p.start for ids in documents for p in how.passes(len(ids)))
    for ids, found in zip(documents, single, strict=True):
        other = small.score(ids, window=6, stride=4, top=2)
        for name in ("ids", "logprobs", "ranks", "entropies", "contexts", "top_ids", "top_logprobs"):
            np.testing.assert_array_equal(getattr(other, name), getattr(found, name))


# totals


def test_only_what_is_scored_counts(flat):
    found = flat.score("é the\n x").totals
    ids = flat.encode("é the\n x")
    assert (found.documents, found.tokens, found.bytes, found.words) == (1, len(ids) - 1, 8, 3)  # é: its second byte
    assert found.bits_a_byte == pytest.approx(found.nats / math.log(2) / 8)
    assert found.word_perplexity == pytest.approx(math.exp(found.nats / 3))
    found = flat.score("é the\n x", prefix_token="eot").totals
    assert (found.tokens, found.bytes, found.words) == (len(ids), 9, 3)


def test_totals_add_up_and_have_no_number_where_there_is_none(flat):
    a, b = flat.score("abc").totals, flat.score("x  ").totals
    assert a + b == Totals(2, 4, 4, 1, a.nats + b.nats)
    assert math.isnan(b.word_perplexity)
    assert math.isnan(Totals().bits_a_byte)
    assert Totals(1, 1, 1, 1, 710.0).token_perplexity == math.inf
    assert (a + b).token_perplexity == pytest.approx(260)


# refusals


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"window": 17}, "window 17, expected 1 to 16, the context"),
        ({"window": 0}, "window 0, expected 1 to 16"),
        ({"window": 4, "stride": 5}, "stride 5, expected 1 to 4, the window"),
        ({"stride": 0}, "stride 0, expected 1 to 16"),
        ({"prefix_token": "bos"}, "prefix_token 'bos', expected none or eot"),
        ({"top": -1}, "top -1, expected 0 or more"),
    ],
)
def test_what_cannot_be_asked_for(small, how, said):
    with pytest.raises(UsageError, match=said):
        small.score("abc", **how)


def test_nothing_to_score(small):
    with pytest.raises(BadInput, match=r"^nothing to score: the first token has no context; --prefix-token eot"):
        small.score("a")
    with pytest.raises(BadInput, match="0 tokens"):
        small.score("", prefix_token="eot")
    with pytest.raises(BadInput, match="token id 260 outside"):
        small.score([1, 260])


def test_what_is_not_finite(broken):
    with pytest.raises(NonFinite, match=r"^h1/ln_2/out: NaN or Inf in the forward pass of 2 tokens"):
        gpt2ln.load(broken).score("abc")
