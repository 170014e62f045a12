"""Engines to speculate with: several tokens at once by single steps, and guessers that are right now and then."""

import numpy as np

from gpt2ln.generate import generate
from gpt2ln.prompt import Prompt
from gpt2ln.sample import Sampling
from gpt2ln.settings import Settings


class Stepwise:
    """`Exact` with `several` as `Fast` has it, true by construction.  It notes the rows of each call."""

    name = "stepwise"

    def __init__(self, engine):
        self._engine, self.hparams = engine, engine.hparams
        self.prefills, self.steps, self.severals = [], [], []

    def prefill(self, ids):
        self.prefills.append(len(ids))
        return self._engine.prefill(ids)

    def step(self, ids, caches):
        self.steps.append(len(ids))
        return self._engine.step(ids, caches)

    def several(self, ids, caches):
        self.severals.append([len(row) for row in ids])
        return [np.stack([self._engine.step([i], [c])[0] for i in row]) for row, c in zip(ids, caches, strict=True)]


class Noisy:
    """An engine whose logits are off: a guesser that is right in part."""

    name = "noisy"

    def __init__(self, engine, scale):
        self._engine, self._scale, self.hparams = engine, scale, engine.hparams

    def _off(self, logits, cache):
        draw = np.random.default_rng([cache.length, cache.ids[-1]]).normal
        return (logits + draw(0, self._scale, logits.shape)).astype(np.float32)

    def prefill(self, ids):
        logits, cache = self._engine.prefill(ids)
        return self._off(logits, cache), cache

    def step(self, ids, caches):
        rows = self._engine.step(ids, caches)
        return [self._off(row, cache) for row, cache in zip(rows, caches, strict=True)]


GREEDY = Sampling(temperature=0.0)
LOW = Sampling(temperature=0.3, top_k=5)
ROWS = [[64, 65, 66] * 4, [70, 71], [(37 * n) % 256 for n in range(30)], [*range(80, 86)] * 5]
CASES = {
    "greedy": dict(sampling=GREEDY, length=30),
    "sampled": dict(sampling=LOW, length=30),
    "sampled freely": dict(length=30),
    "nucleus": dict(sampling=Sampling(temperature=0.2, top_p=0.9, nucleus="hf"), length=30),
    "a batch": dict(sampling=LOW, length=30, nsamples=3, batch_size=4),
    "a batch of one size with the kernel": dict(sampling=GREEDY, length=30, nsamples=4, batch_size=7),
    "a large batch": dict(sampling=LOW, length=30, nsamples=5, batch_size=16),
    "log-probabilities": dict(sampling=LOW, length=30, logprobs=3, batch_size=2),
    "a range": dict(sampling=LOW, length=30, start_index=5, nsamples=2),
    "one token": dict(length=1, nsamples=2),
    "two tokens": dict(sampling=GREEDY, length=2),
}


def facts(sample):
    return sample.index, sample.seed, sample.tokens, sample.text, sample.finish, sample.logprobs


def texts(engine, bpe, rows, speculation=None, **settings):
    """Samples, and the pieces of text that each was told of."""
    pieces = {}

    def told(sample, piece):
        pieces.setdefault(id(sample), []).append(piece)

    prompts = [Prompt(tuple(row)) for row in rows]
    how = dict(speculation=speculation, on_text=told)
    samples = list(generate(engine, bpe, prompts, Settings(**{"seed": 3} | settings), **how))
    assert ["".join(pieces[id(sample)]) for sample in samples] == [sample.text for sample in samples]
    return samples


def same(engine, bpe, rows, speculation, **settings):
    """The samples with speculation, which are those without it: ids, text, end, log-probabilities."""
    plain = texts(engine, bpe, rows, **settings)
    guessed = texts(engine, bpe, rows, speculation, **settings)
    assert [facts(sample) for sample in guessed] == [facts(sample) for sample in plain]
    assert all(sample.guesses is None for sample in plain)
    assert all(0 <= sample.accepted <= sample.guesses for sample in guessed)
    assert all(sample.passes <= before.passes for sample, before in zip(guessed, plain, strict=True))
    return guessed
