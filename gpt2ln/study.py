"""What each wrong LayerNorm would do to a model on given texts: the exact graph and the wrong ones, side by side.

Every number is a distance from the exact graph, which has run on the same text.  What float32 itself is off by is known
from the float64 pass of the same weights, and a mistake starts to matter where it rises above that.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from .engine import Exact
from .mistakes import Mistake
from .reference import Reference
from .sample import log_softmax
from .taps import norm_scopes
from .variants import OTHERS

MATTERS = 10  # a difference matters where it is that many times the noise of float32
_ROWS = 32  # of logits reduced at once, in float64


@dataclass
class Effect:
    """Of one mistake, over all tokens of all texts, against the exact graph; NaN or Inf where it gave such."""

    mistake: Mistake
    norms: np.ndarray  # [N] largest |difference| of the output of each norm
    logits: float = 0.0  # largest |difference|
    kl: float = 0.0  # sum over tokens, nats, of the exact distribution from this
    kl_worst: float = 0.0
    worst_at: tuple[int, int] = (0, 0)  # document, position
    flips: int = 0  # tokens with another argmax
    nats: float = 0.0  # sum of -log p of the tokens that are scored


@dataclass
class Study:
    """What the exact graph did at N norms, and the effects; `noise` is the largest |exact - float64| of each output."""

    norms: tuple[str, ...]
    effects: list[Effect]
    noise: np.ndarray
    var: np.ndarray  # [2, N] smallest and largest variance of each input, over tokens
    squares: float = 0.0  # sum over tokens of the mean square of what the first norm gives
    documents: int = 0
    tokens: int = 0
    scored: int = 0  # tokens that have one before them
    nats: float = 0.0

    @property
    def rms(self) -> float:
        """Of the output of the first norm."""
        return float(np.sqrt(self.squares / self.tokens))

    def starts(self, effect: Effect) -> str | None:
        """The first norm at which it matters; what is not finite does."""
        return self._first(~(effect.norms <= MATTERS * self.noise))

    def breaks(self, effect: Effect) -> str | None:
        """The first norm, or `logits`, where something is not finite."""
        return self._first(~np.isfinite(effect.norms)) or (None if np.isfinite(effect.logits) else "logits")

    def _first(self, true: np.ndarray) -> str | None:
        return self.norms[int(true.argmax())] if true.any() else None


@dataclass(frozen=True)
class _Text:
    """One text and what the exact graph made of it, in the chunks in which it came."""

    number: int
    ids: Sequence[int]
    chunks: list[dict[str, np.ndarray]] = field(default_factory=list)

    def along(self, other: Iterable) -> Iterable[tuple[int, dict, dict]]:
        """Beside another run in the same chunks: first position, exact, other."""
        start = 0
        for exact, (wrong, _) in zip(self.chunks, other, strict=True):
            yield start, exact, wrong
            start += len(exact["logits"])


def study(
    engine: Exact,
    documents: Sequence[Sequence[int]],
    mistakes: Sequence[Mistake],
    *,
    progress: Callable[[int], object] = lambda tokens: None,
) -> Study:
    """Run every text through the exact graph, in float64, and with each mistake.

    documents: token ids, at most n_ctx each.  progress: called with the tokens of each of these passes.  NonFinite
    where the exact graph is not finite.
    """
    norms = tuple(norm_scopes(engine.hparams))
    N = len(norms)
    effects = [Effect(mistake, np.zeros(N)) for mistake in mistakes]
    made = Study(norms, effects, np.zeros(N), np.array([[np.inf] * N, [0.0] * N]))
    wrong: dict[str, Exact] = {}  # each is traced once, and goes with its last text: a graph takes memory
    weights = {name: np.asarray(x) for name, x in engine.weights.items()}
    for number, ids in enumerate(documents):
        text = _Text(number, ids)
        _read(made, text, engine)
        progress(len(ids))
        _add_noise(made, text, Reference(engine.hparams, ids, weights))
        progress(len(ids))
        for effect in effects:
            name = effect.mistake.name
            other = wrong.pop(name, None) or Exact(engine.hparams, engine.weights, others=OTHERS[name])
            for start, exact, seen in text.along(other.watch(ids, [*_outputs(norms), "logits"])):
                _add(made, effect, text, start, exact, seen)
            if number + 1 < len(documents):
                wrong[name] = other
            progress(len(ids))
    return made


def _outputs(norms: Sequence[str]) -> list[str]:
    return [f"{norm}/out" for norm in norms]


def _read(made: Study, text: _Text, engine: Exact) -> None:
    """The exact pass: its taps are kept in `text`, what is said of all texts in `made`."""
    variances = [f"{norm}/var" for norm in made.norms]
    for taps, finite in engine.watch(text.ids, [*variances, *_outputs(made.norms), "logits"]):
        if not finite:
            raise engine.not_finite(text.ids)
        var = np.stack([taps.pop(name)[:, 0] for name in variances])
        made.var = np.stack([np.minimum(made.var[0], var.min(1)), np.maximum(made.var[1], var.max(1))])
        made.squares += float(np.square(taps[f"{made.norms[0]}/out"], dtype=np.float64).mean(-1).sum())
        start = sum(len(chunk["logits"]) for chunk in text.chunks)
        for row in range(0, len(taps["logits"]), _ROWS):
            made.nats += nats(log_softmax(taps["logits"][row : row + _ROWS]), text.ids[start + row + 1 :])
        text.chunks.append(taps)
    made.documents += 1
    made.tokens += len(text.ids)
    made.scored += len(text.ids) - 1


def _add_noise(made: Study, text: _Text, reference: Reference) -> None:
    outputs = _outputs(made.norms)
    for n, (name, right) in enumerate(reference.walk(outputs)):
        exact = np.concatenate([taps[name] for taps in text.chunks])
        made.noise[n] = max(made.noise[n], np.abs(exact - right).max())


def _add(made: Study, effect: Effect, text: _Text, start: int, exact: dict, wrong: dict) -> None:
    """Some positions of one text."""
    with np.errstate(invalid="ignore", over="ignore"):
        apart = [np.abs(exact[name] - wrong[name]).max() for name in _outputs(made.norms)]
        effect.norms = np.maximum(effect.norms, apart)  # NaN stays
        for row in range(0, len(exact["logits"]), _ROWS):
            here = slice(row, row + _ROWS)
            _add_logits(effect, text, start + row, exact["logits"][here], wrong["logits"][here])


def _add_logits(effect: Effect, text: _Text, start: int, exact: np.ndarray, wrong: np.ndarray) -> None:
    """[t, V] of each."""
    p, q = log_softmax(exact), log_softmax(wrong)
    kl = np.maximum((np.exp(p) * (p - q)).sum(-1), 0)  # what rounding takes below 0
    effect.logits = np.maximum(effect.logits, np.abs(exact - wrong).max())
    effect.kl += kl.sum()
    if kl.max() > effect.kl_worst:
        effect.kl_worst, effect.worst_at = float(kl.max()), (text.number, start + int(kl.argmax()))
    effect.flips += int((exact.argmax(-1) != wrong.argmax(-1)).sum())
    effect.nats += nats(q, text.ids[start + 1 :])


def nats(log_probs: np.ndarray, after: Sequence[int]) -> float:
    """-log p of the ids that follow; nothing follows the last id of a text."""
    after = np.asarray(after[: len(log_probs)], np.int64)
    return float(-log_probs[np.arange(len(after)), after].sum())
