"""Texts with guesses are those without: ids, text, end and log-probabilities, whoever guesses and however wrong."""

from collections import Counter

import numpy as np
import pytest

import gpt2ln
from gpt2ln.errors import NonFinite, UsageError
from gpt2ln.generate import generate
from gpt2ln.prompt import Prompt
from gpt2ln.runtime import tf
from gpt2ln.sample import Sampling, log_softmax
from gpt2ln.settings import Settings
from gpt2ln.speculate import Speculation

from . import tiny as made_up
from .guessing import CASES, GREEDY, LOW, ROWS, Noisy, Stepwise, same, texts
from .tiny import ID


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A model that knows nothing of the others."""
    return gpt2ln.load(made_up.tiny(tmp_path_factory.mktemp("guesser") / "other", seed=1, n_ctx=700))


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    ids = [ID[b] for b in b"abcabdabcabd!?"] + [259, ID[ord("x")]]
    folder = made_up.tiny(tmp_path_factory.mktemp("speculate") / "words", made_up.says(ids), n_embd=16)
    return gpt2ln.load(folder)


@pytest.fixture
def speculation(request, long, other, small):
    """By the name of who guesses."""
    return {
        "lookup": Speculation,
        "lookup, 1 guess": lambda: Speculation(1),
        "lookup, 13 guesses": lambda: Speculation(13),
        "often right": lambda: Speculation(6, Noisy(long.engine, 0.1)),
        "itself": lambda: Speculation(6, Stepwise(long.engine)),
        "another model": lambda: Speculation(6, other.engine),
        "a short context": lambda: Speculation(6, small.engine),
    }[request.param]()


WHO = ["lookup", "often right", "lookup, 1 guess", "lookup, 13 guesses", "itself", "another model", "a short context"]


TRIED = [(who, case) for who in WHO for case in CASES if who in WHO[:2] or case in ("greedy", "a batch")]


@pytest.mark.parametrize(("speculation", "case"), TRIED, indirect=["speculation"])
def test_texts_are_the_same(long, speculation, case):
    same(Stepwise(long.engine), long.bpe, ROWS, speculation, **CASES[case])


def counts(samples):
    return [sum(getattr(sample, name) or 0 for sample in samples) for name in ("guesses", "accepted", "passes")]


def test_guesses_are_right_now_and_then(long):
    """Or nothing was tested above."""
    engine = Stepwise(long.engine)
    for guesser, sampling in ((None, GREEDY), (Noisy(long.engine, 0.1), LOW)):
        samples = same(engine, long.bpe, ROWS, Speculation(6, guesser), sampling=sampling, length=60)
        guesses, accepted, passes = counts(samples)
        assert 40 < accepted < guesses - 40, (guesses, accepted, passes)
        assert passes == 4 * 59 - accepted  # each pass gives the guesses that were right and one token more


def test_a_model_that_guesses_for_itself_is_always_right(long):
    for sampling in (GREEDY, Sampling()):
        samples = same(
            Stepwise(long.engine), long.bpe, ROWS[:1], Speculation(6, long.engine), sampling=sampling, length=57
        )
        assert counts(samples) == [48, 48, 8]  # 56 tokens after the first, 7 a pass


def test_the_price_is_counted(long):
    """Passes are those of the engine; rows are a guess each, and one."""
    engine = Stepwise(long.engine)
    (sample,) = texts(engine, long.bpe, ROWS[:1], Speculation(), sampling=GREEDY, length=60)
    rows = [n for (n,) in engine.severals]
    assert sample.passes == len(engine.steps) + len(rows)
    assert sample.guesses == sum(rows) - len(rows)
    assert max(rows) == 7
    assert len(sample.tokens) == 60 == 1 + sample.passes + sample.accepted


def test_guesses_that_are_always_wrong_are_few(long):
    """In 59 passes: 0, 1, 3, 6, 11, 20, 37 are tried, and the text is there all the same."""
    engine = Stepwise(long.engine)
    (sample,) = same(engine, long.bpe, ROWS[:1], Speculation(6, Noisy(long.engine, 100)), sampling=GREEDY, length=60)
    assert (sample.guesses, sample.accepted, sample.passes) == (7 * 6, 0, 59)
    assert len(engine.severals) == 7


def test_no_guess_goes_past_the_end(long):
    """The last token is drawn and never fed: a cache holds prompt and length less one, at most."""
    fed = []

    class Watching(Stepwise):
        def step(self, ids, caches):
            rows = super().step(ids, caches)
            fed.extend(cache.length for cache in caches)
            return rows

        def several(self, ids, caches):
            rows = super().several(ids, caches)
            fed.extend(cache.length for cache in caches)
            return rows

    for length in range(2, 20):
        texts(Watching(long.engine), long.bpe, ROWS[:1], Speculation(6, long.engine), sampling=GREEDY, length=length)
        assert max(fed) == 12 + length - 1
        fed.clear()


# --- ends ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("speculation", ["lookup", "itself"])
@pytest.mark.parametrize("stop", [["abd"], ["d"], ["a"], ["abd", "ca"], ["abcabd!"], ["?<|endoftext|>"], ["zebra"]])
@pytest.mark.parametrize("stop_eot", [False, True])
def test_a_stop_in_the_middle_of_guesses(words, speculation, stop, stop_eot):
    how = Speculation(6, words.engine if speculation == "itself" else None)
    same(
        *(Stepwise(words.engine), words.bpe, [[ID[ord("x")]]], how),
        **dict(sampling=GREEDY, length=15, stop=tuple(stop), stop_eot=stop_eot),
    )


def test_what_comes_after_a_stop_is_not_drawn(words):
    """A pass brings a, b, c, a, b, d, a; the text ends at the d, with its log-probabilities."""
    (sample,) = texts(
        *(Stepwise(words.engine), words.bpe, [[ID[ord("x")]]], Speculation(6, words.engine)),
        **dict(sampling=GREEDY, length=15, stop=("abd",), logprobs=0),
    )
    assert (sample.text, len(sample.tokens), len(sample.logprobs), sample.accepted) == ("abc", 6, 6, 5)


@pytest.mark.parametrize("guesser", [False, True])
@pytest.mark.parametrize("P", [1, 9, 14, 15, 16])
def test_the_context_may_be_filled(small, P, guesser):
    how = Speculation(6, small.engine if guesser else None)
    same(Stepwise(small.engine), small.bpe, [([5, 6] * 8)[:P]], how, sampling=GREEDY, length=17 - P, logprobs=0)


@pytest.mark.parametrize("guesser", [False, True])
def test_past_the_context_it_slides_as_without(small, guesser):
    rows = [[5, 6] * 4, [5, 6, 5] * 3, [5, 6] * 8, [5, 6] * 10, [7]]  # the second is full after a pass of 7, all right
    how = Speculation(6, small.engine if guesser else None)
    for batch_size in (1, 3):
        settings = dict(sampling=GREEDY, length=25, logprobs=1, batch_size=batch_size)
        same(Stepwise(small.engine), small.bpe, rows, how, overflow="slide", **settings)


def test_a_long_prompt_and_a_cache_that_grows(long):
    """Over two chunks and two growths of the cache, among guesses that are cut again."""
    row = [(37 * n + n // 7) % 256 for n in range(250)] + [3, 4, 5] * 3
    same(Stepwise(long.engine), long.bpe, [row], Speculation(6, Noisy(long.engine, 0.1)), sampling=LOW, length=300)


# --- what goes wrong ----------------------------------------------------------------------------------------------


class Cracked(Stepwise):
    """Not finite behind one id, as a damaged row of a matrix may be."""

    def __init__(self, engine, at):
        super().__init__(engine)
        self._at = at

    def _check(self, ids):
        if self._at in ids:
            raise NonFinite("behind it")

    def step(self, ids, caches):
        rows = super().step(ids, caches)
        self._check(ids)
        return rows

    def several(self, ids, caches):
        rows = super().several(ids, caches)
        self._check(i for row in ids for i in row)
        return rows


def test_a_wrong_guess_that_is_not_finite_fails_nothing(long):
    """Ids are guessed that never come; what lies behind them is not the text's."""
    guesser = Noisy(long.engine, 0.5)
    (plain,) = texts(long.engine, long.bpe, ROWS[:1], sampling=LOW, length=60)
    guessed = set()

    class Noting(Stepwise):
        def several(self, ids, caches):
            guessed.update(i for row in ids for i in row)
            return super().several(ids, caches)

    texts(Noting(long.engine), long.bpe, ROWS[:1], Speculation(6, guesser), sampling=LOW, length=60)
    wrong = sorted(guessed - set(plain.tokens))
    assert wrong
    (sample,) = texts(
        Cracked(long.engine, wrong[0]), long.bpe, ROWS[:1], Speculation(6, guesser), sampling=LOW, length=60
    )
    assert sample.tokens == plain.tokens


def test_what_is_not_finite_without_guesses_is_so_with_them(long):
    (plain,) = texts(long.engine, long.bpe, ROWS[:1], sampling=GREEDY, length=30)
    engine = Cracked(long.engine, plain.tokens[9])
    for how in (None, Speculation(), Speculation(6, long.engine)):
        with pytest.raises(NonFinite, match="behind it"):
            texts(engine, long.bpe, ROWS[:1], how, sampling=GREEDY, length=30)


def test_an_engine_without_several_is_refused(small):
    with pytest.raises(UsageError, match="--speculate: the exact engine"):
        texts(small.engine, small.bpe, [[1]], Speculation(), length=2)


def test_ctrl_c_among_guesses_keeps_what_was_drawn(long):
    """The third pass is interrupted."""
    passes = iter(range(3))

    class Pressed(Stepwise):
        def several(self, ids, caches):
            if next(passes) == 2:
                raise KeyboardInterrupt
            return super().several(ids, caches)

    (plain,) = texts(long.engine, long.bpe, ROWS[:1], length=40)
    samples, pieces = [], []
    coming = generate(
        *(Pressed(long.engine), long.bpe, [Prompt(tuple(ROWS[0]))], Settings(length=40, seed=3)),
        **dict(speculation=Speculation(6, long.engine), on_text=lambda _, piece: pieces.append(piece)),
    )
    with pytest.raises(KeyboardInterrupt):
        samples.extend(coming)
    (sample,) = samples
    assert (sample.finish, sample.tokens) == ("interrupted", plain.tokens[:15])
    assert "".join(pieces) == sample.text == long.decode(sample.tokens)


def test_stale_positions_of_a_cut_cache_are_not_seen(long):
    """`cut`, on the exact engine too: what a wrong guess left behind changes no bit."""
    _, cache = long.engine.prefill(ROWS[0])
    clean = cache.copy()
    for i in (7, 8, 9):
        long.engine.step([i], [cache])
    cache.cut(13)
    assert (cache.length, cache.ids) == (13, [*ROWS[0], 7])
    long.engine.step([7], [clean])
    for i in (20, 21, 22, 23):
        np.testing.assert_array_equal(long.engine.step([i], [cache]), long.engine.step([i], [clean]))
    assert all(tf.reduce_all(a == b) for a, b in zip(cache.k, clean.k, strict=True))


# --- statistics ---------------------------------------------------------------------------------------------------


def chances(engine, ids, top, depth):
    """Of the tokens that follow, by the model's own logits: {(first, second, ...): p}."""
    if not depth:
        return {(): 1.0}
    row, _ = engine.prefill(ids)
    best = np.argsort(-row)[:top]
    out = {}
    for i, p in zip(best.tolist(), np.exp(log_softmax(row[best])), strict=True):
        out |= {(i, *rest): p * q for rest, q in chances(engine, [*ids, i], top, depth - 1).items()}
    return out


@pytest.mark.slow
@pytest.mark.parametrize("lookup", [True, False])
def test_sampled_texts_are_distributed_as_the_model_says(lookup):
    """1,000 samples of demo: three tokens after a prompt that repeats itself, the last drawn behind a guess, often.

    Chi-square of the cells that are expected five times or more, the others in one: within 4 standard deviations.
    """
    demo, n = gpt2ln.load("demo"), 1000
    ids = demo.encode("my lord, my lord, my lord, my")
    expected = {cell: n * p for cell, p in chances(demo.engine, ids, 3, 3).items()}
    how = Speculation(6, None if lookup else Noisy(demo.engine, 0.5))
    settings = dict(nsamples=n, batch_size=2, sampling=Sampling(top_k=3), length=3, seed=5)
    samples = texts(Stepwise(demo.engine), demo.bpe, [ids], how, **settings)
    guesses, accepted, _ = counts(samples)
    assert n / 10 < accepted < guesses - n / 10
    found = Counter(tuple(sample.tokens) for sample in samples)
    assert found.keys() <= expected.keys()
    cells = [cell for cell in expected if expected[cell] >= 5]
    pairs = [(found[cell], expected[cell]) for cell in cells]
    pairs.append((n - sum(f for f, _ in pairs), n - sum(e for _, e in pairs)))
    square, free = sum((f - e) ** 2 / e for f, e in pairs), len(pairs) - 1
    assert free >= 6
    assert abs(square - free) < 4 * np.sqrt(2 * free), (square, free)
