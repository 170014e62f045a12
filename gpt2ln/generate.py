"""Continue texts: what fits is decided first, then prompts are read once and their samples advance side by side.

Sample i of a prompt is a function of (checkpoint, prompt, settings, seed, i): batch size, order and restarts change
nothing.  `length` counts new tokens; the last of them is never fed back, so prompt + length may reach n_ctx + 1.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from .bpe import Bpe
from .engine import Cache, Exact
from .prompt import Prompt
from .sample import log_softmax, next_id
from .settings import Settings, fit


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
    """A sample on its way."""

    def __init__(self, sample: Sample, logits: np.ndarray, cache: Cache, bpe: Bpe, settings: Settings):
        self.sample, self.logits, self.cache = sample, logits, cache
        self._bpe, self._settings, self._text = bpe, settings, TextStream(bpe, settings.stop)

    def draw(self) -> str:
        """Draw the next id -> the text that it makes certain."""
        sample, settings = self.sample, self._settings
        key = dict(seed=sample.seed, sample=sample.index, position=len(sample.tokens))
        i = next_id(self.logits, settings.sampling, **key)
        sample.tokens.append(i)
        if settings.logprobs is not None:
            sample.logprobs.append(_logprobs(self.logits, i, settings.logprobs))
        if settings.stop_eot and i == self._bpe.eot:
            return self.end("eot")
        piece = self._text.feed(i)
        sample.text += piece
        if self._text.stopped:
            sample.finish = "stop"
        elif len(sample.tokens) == sample.length:
            return piece + self.end("length")
        return piece

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
    engine: Exact,
    bpe: Bpe,
    prompts: Sequence[Prompt],
    settings: Settings,
    *,
    on_text: Callable[[Sample, str], None] = lambda sample, piece: None,
    clock: Callable[[], float] = lambda: 0.0,
) -> Iterator[Sample]:
    """Samples in the order of prompts, then of index.  After Ctrl-C what was begun comes out `interrupted` first."""
    n_ctx = engine.hparams.n_ctx
    fits = [fit(len(prompt.ids), settings.length, n_ctx, settings.overflow) for prompt in prompts]
    last = settings.start_index + settings.nsamples
    jobs = ((n, index) for n in range(len(prompts)) for index in range(settings.start_index, last))
    read: dict[int, tuple] = {}
    while batch := list(islice(jobs, settings.batch_size)):
        runs: list[_Run] = []
        try:
            for n, index in batch:
                prompt, (kept, length, _) = prompts[n], fits[n]
                if n not in read:
                    began = clock()
                    read = {n: (*engine.prefill(prompt.ids[-kept:]), clock() - began)}
                logits, cache, seconds = read[n]
                seed = settings.seed if prompt.seed is None else prompt.seed
                sample = Sample(prompt, index, seed, prompt.ids[-kept:], length, prefill_s=seconds)
                own = cache if index == last - 1 else cache.copy()
                runs.append(_Run(sample, logits, own, bpe, settings))
            _advance(engine, runs, on_text, clock)
        except KeyboardInterrupt:
            for run in runs:
                if run.sample.finish is None:
                    on_text(run.sample, run.end("interrupted"))
            yield from (run.sample for run in runs)
            raise
        yield from (run.sample for run in runs)


def _advance(engine: Exact, runs: list[_Run], on_text: Callable, clock: Callable[[], float]) -> None:
    """Draw and step until every run has ended."""
    began, live = clock(), runs
    while live:
        for run in live:
            on_text(run.sample, run.draw())
            run.sample.decode_s = clock() - began
        live = [run for run in live if run.sample.finish is None]
        stepping = [run for run in live if run.cache.length < engine.hparams.n_ctx]
        if stepping:
            ids = [run.sample.tokens[-1] for run in stepping]
            for run, logits in zip(stepping, engine.step(ids, [run.cache for run in stepping]), strict=True):
                run.logits = logits
        for run in live:
            if run not in stepping:
                _slide(engine, run)


def _slide(engine: Exact, run: _Run) -> None:
    """Past a full context each step is a fresh pass over the last n_ctx tokens, at positions 0 and up."""
    ids = [*run.cache.ids, run.sample.tokens[-1]][-engine.hparams.n_ctx :]
    run.logits, run.cache = engine.prefill(ids)
