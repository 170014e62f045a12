"""Continue texts: what fits is decided first, then prompts are read once and their samples advance side by side.

Sample i of a prompt is a function of (checkpoint, prompt, settings, seed, i): batch size, order and restarts change
nothing.  `length` counts new tokens; the last of them is never fed back, so prompt + length may reach n_ctx + 1.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .bpe import Bpe
from .errors import NonFinite
from .prompt import Prompt
from .sample import log_softmax, next_id
from .settings import Settings, fit
from .speculate import Pace, Speculation, check

TOGETHER = 512  # tokens of prompts that are read at once


@dataclass
class Sample:
    """One continuation.  `tokens` are the ids drawn; `text` ends before the stop string or `<|endoftext|>` met."""

    prompt: Prompt
    index: int
    seed: int
    context: tuple[int, ...]
    length: int
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish: str | None = None
    logprobs: list[dict] = field(default_factory=list)
    prefill_s: float = 0.0
    decode_s: float = 0.0
    passes: int = 0  # over the weights, after the prompt
    guesses: int | None = None  # with speculation; of them accepted
    accepted: int = 0


class TextStream:
    """Ids to text as they come; holds back what may yet become a stop string or a whole character.

    The text ends before the stop string that is complete first, however it is cut into tokens.
    """

    def __init__(self, bpe: Bpe, stop: Sequence[str]):
        self._stream, self._stop, self._held, self.stopped = bpe.stream(), stop, "", False

    def feed(self, i: int) -> str:
        return self._release(self._held + self._stream.feed(i))

    def finish(self) -> str:
        """What is still held; nothing after a stop string."""
        if self.stopped:
            return ""
        return self._release(self._held + self._stream.finish(), final=True)

    def _release(self, text: str, *, final: bool = False) -> str:
        found = [(at + len(stop), at) for stop in self._stop if (at := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)[1]]
        keep = 0 if final else max((self._overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    @staticmethod
    def _overlap(text: str, stop: str) -> int:
        """How much of the end of `text` is a beginning of `stop`."""
        return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)


class _Run:
    """A sample on its way: the rows that its next ids are drawn from, and the guesses they were computed behind."""

    def __init__(self, sample: Sample, bpe: Bpe, settings: Settings, logits: np.ndarray, cache, guessed):
        self.sample, self.rows, self.guesses = sample, [logits], []
        self.cache, self.guessed, self.pace = cache, guessed, Pace()
        self._bpe, self._settings, self._text = bpe, settings, TextStream(bpe, settings.stop)

    def pick(self, logits: np.ndarray, ahead: int = 0) -> int:
        """The id that these logits give, so many ids ahead."""
        key = dict(seed=self.sample.seed, sample=self.sample.index, position=len(self.sample.tokens) + ahead)
        return next_id(logits, self._settings.sampling, **key)

    def draw(self) -> Iterator[str]:
        """Draw the next id, and one more behind each guess that was right -> the text that each makes certain."""
        sample, before = self.sample, len(self.sample.tokens)
        for logits, guess in zip(self.rows, [*self.guesses, None], strict=True):
            yield self._draw(logits)
            if sample.finish is not None or sample.tokens[-1] != guess:
                break
        if self.guessed is not None:
            self._learn(sample.tokens[before:])

    def _draw(self, logits: np.ndarray) -> str:
        sample, settings = self.sample, self._settings
        i = self.pick(logits)
        sample.tokens.append(i)
        if settings.logprobs is not None:
            sample.logprobs.append(_logprobs(logits, i, settings.logprobs))
        if settings.stop_eot and i == self._bpe.eot:
            return self.end("eot")
        piece = self._text.feed(i)
        sample.text += piece
        if self._text.stopped:
            sample.finish = "stop"
        elif len(sample.tokens) == sample.length:
            return piece + self.end("length")
        return piece

    def _learn(self, drawn: Sequence[int]) -> None:
        """Forget the guesses that were wrong, and see whether guessing pays."""
        self.guessed.extend(drawn)
        if not self.guesses:
            return self.pace.rest()
        right = sum(i == guess for i, guess in zip(drawn, self.guesses, strict=False))
        self.sample.guesses += len(self.guesses)
        self.sample.accepted += right
        self.cache.cut(self.cache.length - len(self.guesses) + right)
        self.pace.learn(right)

    def end(self, why: str) -> str:
        """Finish for another reason than a stop string -> the text that was held back."""
        rest = self._text.finish()
        self.sample.text += rest
        self.sample.finish = "stop" if self._text.stopped else why
        return rest


def _logprobs(logits: np.ndarray, i: int, n: int) -> dict:
    """Log-probability in nats of the id drawn and of the n likeliest, before temperature and cuts."""
    logp = log_softmax(logits)
    best = np.argsort(-logp, kind="stable")[:n]
    return {"id": i, "logprob": float(logp[i]), "top": [[int(j), float(logp[j])] for j in best]}


def generate(
    engine: Any,
    bpe: Bpe,
    prompts: Sequence[Prompt],
    settings: Settings,
    *,
    speculation: Speculation | None = None,
    on_text: Callable[[Sample, str], None] = lambda sample, piece: None,
    clock: Callable[[], float] = lambda: 0.0,
) -> Iterator[Sample]:
    """Samples in the order of prompts, then of index.  After Ctrl-C what was begun comes out `interrupted` first.

    Where one sample ends another begins in its place: there are always `batch_size` side by side, while there are any.
    """
    if speculation is not None:
        check(engine)
    coming = _runs(engine, bpe, prompts, settings, speculation, clock)
    live: list[_Run] = []
    begun: deque[Sample] = deque()  # in their order; the first may still be on its way when others have ended
    try:
        while True:
            _begin(coming, settings.batch_size, live, begun)
            if not live:
                return
            _draw(live, on_text, clock)
            live = [run for run in live if run.sample.finish is None]
            while begun and begun[0].finish is not None:
                yield begun.popleft()
            _step(engine, live, speculation, clock)
    except KeyboardInterrupt:
        for run in live:
            if run.sample.finish is None:
                on_text(run.sample, run.end("interrupted"))
        yield from begun
        raise


def _runs(engine, bpe, prompts, settings: Settings, speculation, clock) -> Iterator[_Run]:
    """Every sample at its beginning; a prompt is read once, when its first sample begins, and copied for the others."""
    indices = range(settings.start_index, settings.start_index + settings.nsamples)
    for group in _together(engine, prompts, settings):
        began = clock()
        held = _read(engine, [context for _, context, _ in group], speculation)
        seconds = (clock() - began) / len(group)
        for prompt, context, length in group:
            logits, *own = held.pop(0)  # nothing here keeps a cache
            seed = settings.seed if prompt.seed is None else prompt.seed
            for index in indices:
                sample = Sample(prompt, index, seed, context, length, prefill_s=seconds)
                sample.guesses = None if speculation is None else 0
                yield _Run(sample, bpe, settings, logits, *_own(own, last=index == indices[-1]))


def _together(engine, prompts: Sequence[Prompt], settings: Settings) -> Iterator[list[tuple]]:
    """Prompts, what of each is read, and how much is written; as many as are read at once, where the engine can.

    They begin side by side, and are not read before there is room for one of them.
    """
    fits = [fit(len(prompt.ids), settings.length, engine.hparams.n_ctx, settings.overflow) for prompt in prompts]
    work = [(prompt, prompt.ids[-kept:], length) for prompt, (kept, length, _) in zip(prompts, fits, strict=True)]
    most = ahead(settings, len(prompts)) if hasattr(engine, "read") else 1
    group: list[tuple] = []
    for one in work:
        if group and (len(group) == most or sum(len(ids) for _, ids, _ in group) + len(one[1]) > TOGETHER):
            yield group
            group = []
        group.append(one)
    if group:
        yield group


def ahead(settings: Settings, prompts: int) -> int:
    """Prompts that are read at once, at most."""
    return max(min(settings.batch_size // settings.nsamples, prompts), 1)


def _read(engine, contexts: Sequence[Sequence[int]], speculation: Speculation | None) -> list[list]:
    """For each prompt: logits after it, its cache, and what guesses from it."""
    found = engine.read(contexts) if len(contexts) > 1 else [engine.prefill(contexts[0])]
    texts = [None if speculation is None else speculation.read(ids) for ids in contexts]
    return [[*one, text] for one, text in zip(found, texts, strict=True)]


def _own(held: list, *, last: bool) -> list:
    """Copies of what a prompt left; the last sample takes it itself, and it goes when that sample ends."""
    own = held[:] if last else [None if each is None else each.copy() for each in held]
    if last:
        held.clear()
    return own


def _begin(coming: Iterator[_Run], batch_size: int, live: list[_Run], begun: deque[Sample]) -> None:
    """Fill the batch.  Nothing here holds a run when it is over: its cache goes with it."""
    while len(live) < batch_size and (run := next(coming, None)):
        live.append(run)
        begun.append(run.sample)


def _draw(live: Sequence[_Run], on_text: Callable, clock: Callable[[], float]) -> None:
    began = clock()
    for run in live:
        for piece in run.draw():
            on_text(run.sample, piece)
        run.sample.decode_s += clock() - began


def _step(engine, live: Sequence[_Run], speculation: Speculation | None, clock: Callable[[], float]) -> None:
    """One pass over the weights for all; past a full context one for each."""
    began = clock()
    stepping = [run for run in live if run.cache.length < engine.hparams.n_ctx]
    if stepping:
        _pass(engine, stepping, _guesses(engine, stepping, speculation))
    for run in live:
        if run not in stepping:
            _slide(engine, run)
        run.sample.passes += 1
        run.sample.decode_s += clock() - began


def _guesses(engine, runs: Sequence[_Run], speculation: Speculation | None) -> list[list[int]]:
    """Ids that may be what each run draws next: no more than it may draw, or the context takes."""
    if speculation is None:
        return [[] for _ in runs]
    most = []
    for run in runs:
        left = min(run.sample.length - len(run.sample.tokens), engine.hparams.n_ctx - run.cache.length) - 1
        most.append(left if run.pace.due else 0)
    return speculation.guess([run.guessed for run in runs], most, [run.pick for run in runs])


def _pass(engine, runs: Sequence[_Run], guesses: Sequence[list[int]]) -> None:
    """Feed each run the id it drew last, and its guesses behind it -> its rows."""
    last, caches = [run.sample.tokens[-1] for run in runs], [run.cache for run in runs]
    rows = None
    if any(guesses):
        lengths = [cache.length for cache in caches]
        try:
            rows = engine.several([[i, *more] for i, more in zip(last, guesses, strict=True)], caches)
        except NonFinite:  # perhaps only behind a guess that is wrong: a step, which is to come, tells
            for cache, length in zip(caches, lengths, strict=True):
                cache.cut(length)
            guesses = [[] for _ in runs]
    if rows is None:
        rows = [[logits] for logits in engine.step(last, caches)]
    for run, its, guessed in zip(runs, rows, guesses, strict=True):
        run.rows, run.guesses = its, guessed


def _slide(engine, run: _Run) -> None:
    """Past a full context each step is a fresh pass over the last n_ctx tokens, at positions 0 and up."""
    ids = [*run.cache.ids, run.sample.tokens[-1]][-engine.hparams.n_ctx :]
    logits, run.cache = engine.prefill(ids)
    run.rows, run.guesses = [logits], []
