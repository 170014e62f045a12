"""A batch stays full: where one sample ends the next begins.  Nothing of it shows but the speed."""

import weakref

import pytest

from gpt2ln.commands.options import Globals
from gpt2ln.engine import Cache
from gpt2ln.generate import generate
from gpt2ln.prompt import Prompt
from gpt2ln.settings import Settings
from gpt2ln.speculate import Speculation

from .guessing import Stepwise, facts, texts

ENDS = dict(length=60, stop=("e", "a", "1"))  # after 3 to 60 tokens
ROWS = [[64, 65, 66] * 4, [70, 71], [72]]


class Counting:
    """An engine in front of another, that notes the rows of each pass."""

    def __init__(self, engine):
        self._engine, self.hparams, self.rows = engine, engine.hparams, []

    def prefill(self, ids):
        return self._engine.prefill(ids)

    def step(self, ids, caches):
        self.rows.append(len(ids))
        return self._engine.step(ids, caches)


@pytest.fixture
def caches(monkeypatch):
    """How many caches there were at once, and how many there are."""
    alive, most = weakref.WeakSet(), []
    begin, copy = Cache.__init__, Cache.copy

    def count(cache):
        alive.add(cache)
        most.append(len(alive))
        return cache

    monkeypatch.setattr(Cache, "__init__", lambda self, *args: begin(self, *args) or (count(self) and None))
    monkeypatch.setattr(Cache, "copy", lambda self: count(copy(self)))
    return lambda: (max(most), len(alive))


@pytest.mark.parametrize("batch_size", [2, 3, 8])
def test_a_batch_stays_full_while_samples_are_left(long, batch_size):
    """Samples of very different lengths: until the last one has begun a pass has a row for each place."""
    counting = Counting(long.engine)
    alone = texts(long.engine, long.bpe, ROWS, nsamples=8, **ENDS)
    samples = texts(counting, long.bpe, ROWS, nsamples=8, batch_size=batch_size, **ENDS)
    assert [facts(sample) for sample in samples] == [facts(sample) for sample in alone]
    lengths = [len(sample.tokens) for sample in samples]
    assert len(set(lengths)) > 8
    assert sum(counting.rows) == sum(lengths) - len(lengths)
    tail = sum(sorted(lengths)[-batch_size:])  # what may run when none is left to begin
    full = sum(rows == batch_size for rows in counting.rows)
    assert full >= (sum(counting.rows) - tail) / batch_size - 2 * len(samples) / batch_size


def test_samples_come_as_soon_as_those_before_them_have(long):
    """The first to end waits for the first to begin, and no longer."""
    drawn = {}

    def told(sample, piece):
        drawn[sample.index] = sample

    coming = generate(
        *(long.engine, long.bpe, [Prompt((64, 65))], Settings(nsamples=12, batch_size=4, seed=3, **ENDS)),
        on_text=told,
    )
    ready = []
    for sample in coming:
        ready.append(sample.index)
        ended = [index for index, other in drawn.items() if other.finish is not None]
        others = [index for index in ended if index > sample.index]
        assert sample.finish is not None
        assert len(drawn) <= len(ready) + len(others) + 4
    assert ready == list(range(12))


def test_only_what_was_begun_comes_out_interrupted_in_order(long):
    """Some have ended and wait for the first; the others are on their way."""
    full = texts(long.engine, long.bpe, [[64, 65]], nsamples=12, **ENDS)

    class Pressed(Counting):
        def step(self, ids, caches):
            if len(self.rows) == 12:
                raise KeyboardInterrupt
            return super().step(ids, caches)

    samples = []
    coming = generate(
        Pressed(long.engine), long.bpe, [Prompt((64, 65))], Settings(nsamples=12, batch_size=4, seed=3, **ENDS)
    )
    with pytest.raises(KeyboardInterrupt):
        samples.extend(coming)
    assert [sample.index for sample in samples] == list(range(len(samples)))
    assert {sample.finish for sample in samples} == {"stop", "interrupted"}
    assert sum(sample.finish == "interrupted" for sample in samples) <= 4
    for sample, whole in zip(samples, full, strict=False):
        assert sample.tokens == whole.tokens[: len(sample.tokens)]
        assert sample.finish == "interrupted" or facts(sample) == facts(whole)


@pytest.mark.parametrize(
    ("nsamples", "prompts", "batch_size", "most"),
    [
        *[(1, 1, 1, 1), (1, 3, 1, 1), (1, 3, 2, 2), (3, 1, 1, 2), (3, 1, 2, 3), (3, 1, 3, 3), (3, 1, 9, 3)],
        *[(2, 3, 1, 2), (2, 3, 2, 3), (2, 3, 3, 4), (2, 3, 6, 6), (3, 3, 4, 5)],
    ],
)
def test_caches_are_those_that_the_command_counts_on(long, caches, nsamples, prompts, batch_size, most):
    """Those of the batch, and that of a prompt with samples to come; nothing is left behind."""
    texts(long.engine, long.bpe, ROWS[:prompts], nsamples=nsamples, batch_size=batch_size, **ENDS)
    assert caches() == (most, 0)


def test_seconds_are_those_of_a_samples_own_passes(long):
    """A tick a call of the clock: of two samples, one after the other, the second's do not hold the first's."""
    ticks = iter(range(10**6))
    settings = Settings(length=5, nsamples=2, seed=3)
    samples = list(generate(long.engine, long.bpe, [Prompt((64,))], settings, clock=lambda: float(next(ticks))))
    assert [sample.decode_s for sample in samples] == [9.0, 9.0]  # five draws, four steps
    assert [sample.passes for sample in samples] == [4, 4]


def test_with_guesses_a_batch_stays_full_too(long):
    engine = Stepwise(long.engine)
    alone = texts(long.engine, long.bpe, ROWS, nsamples=8, **ENDS)
    samples = texts(engine, long.bpe, ROWS, Speculation(6, long.engine), nsamples=8, batch_size=5, **ENDS)
    assert [facts(sample) for sample in samples] == [facts(sample) for sample in alone]
    rows = [len(row) for row in engine.severals]
    assert rows.count(5) > len(rows) / 2


@pytest.mark.parametrize(
    ("nsamples", "batch_size", "most"), [(1, 1, 1), (1, 2, 3), (2, 1, 2), (2, 2, 3), (2, 4, 6), (2, 6, 6), (2, 9, 6)]
)
def test_the_command_counts_on_them(cli, T, tmp_path, monkeypatch, warm, nsamples, batch_size, most):
    counted = []
    monkeypatch.setattr(Globals, "afford", lambda self, model, sequences, positions: counted.append(sequences))
    (tmp_path / "three").write_text("abc\nab\nc\n")
    args = ["--lines", tmp_path / "three", "--length", 2, "--seed", 1, "--nsamples", nsamples]
    assert cli("generate", "-m", T, *args, "--batch-size", batch_size).status == 0
    assert counted == [most]
