"""Speculation on the prepared engine, where it is used, and many samples of it in one pass."""

import numpy as np
import pytest

import gpt2ln
from gpt2ln.generate import generate
from gpt2ln.prompt import Prompt
from gpt2ln.sample import Sampling
from gpt2ln.settings import Settings
from gpt2ln.speculate import MOST, Speculation

from .guessing import CASES, GREEDY, LOW, Noisy, facts, same, texts


@pytest.fixture(scope="module")
def demo(engines):
    return gpt2ln.load("demo", engine="fast", cache_dir=engines)


@pytest.fixture(scope="module")
def prompts(demo):
    return [demo.encode(text) for text in ("ROMEO:\nMy lord, my lord, my", "The", "KING:\nI am, I am, I am not. I am")]


@pytest.fixture
def speculation(request, demo):
    guessers = {
        "lookup": Speculation,
        "lookup, most": lambda: Speculation(MOST),
        "itself": lambda: Speculation(6, demo.engine),
        "exact": lambda: Speculation(6, demo.exact),
        "often right": lambda: Speculation(6, Noisy(demo.exact, 1.0)),
    }
    return guessers[request.param]()


WHO = ["lookup", "lookup, most", "itself", "exact", "often right"]
TRIED = [(who, case) for who in WHO for case in CASES if who == "lookup" or case in ("greedy", "a batch", "nucleus")]


@pytest.mark.parametrize(("speculation", "case"), TRIED, indirect=["speculation"])
def test_texts_are_the_same(demo, prompts, speculation, case):
    same(demo.engine, demo.bpe, prompts, speculation, **CASES[case])


def test_guesses_are_right_now_and_then(demo, prompts):
    for guesser, sampling in ((None, GREEDY), (demo.exact, LOW)):
        for sample in same(demo.engine, demo.bpe, prompts[:1], Speculation(6, guesser), sampling=sampling, length=120):
            assert sample.accepted > 40
            assert sample.passes == 119 - sample.accepted


def test_the_context_may_be_filled_and_passed(demo, prompts):
    """To n_ctx + 1 tokens, over a growth of the cache, and sliding from there."""
    room = 257 - len(prompts[0])
    for guesser in (None, demo.engine):
        how = Speculation(6, guesser)
        same(demo.engine, demo.bpe, prompts[:1], how, sampling=GREEDY, length=room, logprobs=0)
        same(demo.engine, demo.bpe, prompts[:1], how, sampling=GREEDY, length=room + 5, overflow="slide")


def test_stops_in_the_middle_of_guesses(demo, prompts):
    for stop in (",", ".", "\n\n", "lord, my"):
        same(demo.engine, demo.bpe, prompts, Speculation(), sampling=GREEDY, length=60, stop=(stop,), batch_size=2)


def test_what_stays_of_wrong_guesses_is_not_seen(demo, prompts):
    """Whatever the cache held past its length: rows after a cut are bit-equal to those of a clean one."""
    _, cache = demo.engine.prefill(prompts[0])
    clean = cache.copy()
    demo.engine.several([[5, 6, 7, 8, 9, 10]], [cache])
    cache.kv[:, :, :, len(prompts[0]) + 1 : len(prompts[0]) + 6] = np.nan
    cache.cut(len(prompts[0]) + 1)
    demo.engine.step([5], [clean])
    (rows,) = demo.engine.several([[20, 21, 22]], [cache])
    for row, i in zip(rows, (20, 21, 22), strict=True):
        np.testing.assert_array_equal(row, demo.engine.step([i], [clean])[0])


# --- many samples -------------------------------------------------------------------------------------------------


class Counting:
    """An engine in front of another, that notes prompts read and rows a pass."""

    def __init__(self, engine):
        self._engine, self.hparams, self.read, self.rows = engine, engine.hparams, [], []

    def prefill(self, ids):
        self.read.append(tuple(ids))
        return self._engine.prefill(ids)

    def step(self, ids, caches):
        self.rows.append(len(ids))
        return self._engine.step(ids, caches)


@pytest.mark.parametrize("engine", ["exact", "fast"])
def test_many_samples_read_their_prompt_once(demo, prompts, engine):
    """16 samples of 9 tokens, 8 side by side: a pass of 8 rows for each token, not one more."""
    counting = Counting(getattr(demo, engine))
    samples = texts(counting, demo.bpe, prompts[:1], nsamples=16, batch_size=8, length=9)
    assert counting.read == [tuple(prompts[0])]
    assert counting.rows == [8] * 16
    alone = texts(getattr(demo, engine), demo.bpe, prompts[:1], nsamples=16, length=9)
    assert [facts(sample) for sample in samples] == [facts(sample) for sample in alone]
    assert len({tuple(sample.tokens) for sample in samples}) == 16


def test_python_speculates_too(demo, prompts):
    (plain,) = generate(demo.engine, demo.bpe, [Prompt(tuple(prompts[0]))], Settings(length=9, seed=1))
    (sample,) = generate(
        *(demo.engine, demo.bpe, [Prompt(tuple(prompts[0]))], Settings(length=9, seed=1, sampling=Sampling())),
        speculation=Speculation(3),
    )
    assert facts(sample) == facts(plain)
