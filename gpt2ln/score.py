"""How likely a model holds a text: log-probability, rank and entropy of each of its tokens.

A pass reads `window` tokens and scores each token that comes after one of them, so the last token of a text is scored
and never read, and the first one is read and never scored.  A text past the window is read in several passes, `stride`
tokens further each; every token is scored once, by the first pass that reaches it, so its numbers depend on nothing
that comes after it.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .bpe import Bpe
from .errors import BadInput, UsageError

if TYPE_CHECKING:
    from .engine import Exact

AT_ONCE = 2**18  # logits that are float64 at one time
PREFIXES = ("none", "eot")
Weighed = dict[str, np.ndarray]  # what `Scores` has of each token


@dataclass(frozen=True)
class Scoring:
    """What scores depend on beside model and text.  top: how many of the likeliest tokens are kept at each place."""

    window: int
    stride: int
    prefix_token: str = "none"
    top: int = 0

    @classmethod
    def within(cls, n_ctx: int, *, window: int | None = None, stride: int | None = None, **how) -> "Scoring":
        """By default the whole context, half of it further each time: half a window is before all but the first."""
        window = n_ctx if window is None else window
        if not 1 <= window <= n_ctx:
            raise UsageError(f"window {window}, expected 1 to {n_ctx}, the context")
        return cls(window, max(window // 2, 1) if stride is None else stride, **how)

    def __post_init__(self):
        if not 1 <= self.stride <= self.window:
            raise UsageError(f"stride {self.stride}, expected 1 to {self.window}, the window: each token is scored")
        if self.prefix_token not in PREFIXES:
            raise UsageError(f"prefix_token {self.prefix_token!r}, expected {' or '.join(PREFIXES)}")
        if self.top < 0:
            raise UsageError(f"top {self.top}, expected 0 or more")

    def passes(self, n: int) -> list["Pass"]:
        """All of a text of n tokens: one pass up to window + 1 of them."""
        found, scored = [], 1
        while scored < n:
            start = len(found) * self.stride
            stop = min(start + self.window, n - 1)
            found.append(Pass(start, stop, scored))
            scored = stop + 1
        return found


@dataclass(frozen=True)
class Pass:
    """Reads tokens start ... stop - 1 of a text, scores first ... stop."""

    start: int
    stop: int
    first: int


@dataclass(frozen=True)
class Totals:
    """Of some text, as far as it is scored: its first token counts only after a prefix."""

    documents: int = 0
    tokens: int = 0
    bytes: int = 0
    words: int = 0
    nats: float = 0.0

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))

    @property
    def bits_a_byte(self) -> float:
        return self.nats / math.log(2) / self.bytes if self.bytes else math.nan

    @property
    def token_perplexity(self) -> float:
        return _perplexity(self.nats, self.tokens)

    @property
    def word_perplexity(self) -> float:
        """NaN where no word is."""
        return _perplexity(self.nats, self.words)


def _perplexity(nats: float, count: int) -> float:
    if not count:
        return math.nan
    return math.exp(nats / count) if nats / count < 709 else math.inf


@dataclass(frozen=True)
class Scores:
    """One text.  Each array has a number a scored token: of ids, [n]; top: [n, N] ids, and their log-probabilities.

    positions: in the text, a prefix is 0.  logprobs, entropies: float64 nats; the entropy is of what the model expects
    there.  ranks: 1 is the likeliest; of equals the smaller id comes first, as in greedy text.  contexts: how many
    tokens the model had read there.
    """

    positions: np.ndarray
    ids: np.ndarray
    logprobs: np.ndarray
    ranks: np.ndarray
    entropies: np.ndarray
    contexts: np.ndarray
    top_ids: np.ndarray
    top_logprobs: np.ndarray
    totals: Totals
    scoring: Scoring

    @property
    def nats(self) -> float:
        return self.totals.nats


def score(
    engine: "Exact",
    bpe: Bpe,
    documents: Iterable[Sequence[int]],
    scoring: Scoring,
    *,
    mapped: Callable[[Callable, Iterable], Iterator] = map,
    progress: Callable[[int], object] = lambda tokens: None,
) -> Iterator[Scores]:
    """Texts in their order.

    documents: token ids, at least two each, the prefix among them.  mapped: `map`, or what does the same several at a
    time.  BadInput where nothing has a context; NonFinite names the first tap that is not finite.
    """
    documents = list(documents)
    for ids in documents:
        check_length(ids, scoring.prefix_token)
    todo = [(n, ids, one) for n, ids in enumerate(documents) for one in scoring.passes(len(ids))]
    parts: list[Weighed] = []
    for (n, _, one), part in zip(todo, mapped(lambda work: _pass(engine, *work[1:], scoring), todo), strict=True):
        parts.append(part)
        progress(one.stop - one.start)
        if one.stop == len(documents[n]) - 1:
            yield _scores(bpe, parts, scoring)
            parts = []


def check_length(ids: Sequence[int], prefix_token: str) -> None:
    if len(ids) > 1:
        return
    if not ids:
        raise BadInput("nothing to score: the text is empty")
    if prefix_token == "none":
        raise BadInput("nothing to score: the first token has no context; --prefix-token eot gives it one")
    raise BadInput("nothing to score: no token comes after the prefix")


def unscored(scoring: Scoring) -> Scores:
    """Of a text no token of which has a context: no number, and no document."""
    nothing = np.zeros(0)
    return Scores(*[nothing] * 8, totals=Totals(), scoring=scoring)


def _pass(engine: "Exact", ids: Sequence[int], one: Pass, scoring: Scoring) -> Weighed:
    """One pass, a chunk of positions at a time: the logits of all of them are never held."""
    parts, start = [], one.start
    for taps, finite in engine.watch(ids[one.start : one.stop], ["logits"]):
        if not finite:
            raise engine.not_finite(ids[one.start : one.stop])
        logits = taps["logits"]
        seen = max(one.first - 1 - start, 0)  # rows whose tokens an earlier pass has scored
        rows = logits[seen:]
        here = np.arange(start + seen, start + len(logits)) + 1
        if len(rows):
            part = weigh(rows, np.asarray(ids)[here], scoring.top)
            parts.append({"positions": here, "contexts": here - one.start, **part})
        start += len(logits)
    return _joined(parts)


def _joined(parts: Sequence[Weighed]) -> Weighed:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def weigh(logits: np.ndarray, ids: np.ndarray, top: int = 0) -> Weighed:
    """What each row says of the token after it.  logits: [t, V], ids: [t] -> [t] each, [t, N] of the likeliest."""
    rows = max(AT_ONCE // logits.shape[1], 1)
    return _joined([_rows(logits[i : i + rows], ids[i : i + rows], top) for i in range(0, len(ids), rows)])


def _rows(logits: np.ndarray, ids: np.ndarray, top: int) -> Weighed:
    t = np.arange(len(ids))
    x = logits.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    ex = np.exp(x)
    total = ex.sum(-1)
    log_total = np.log(total)
    likeliest = np.stack([_likeliest(row, min(top, x.shape[1])) for row in logits])
    return {
        "ids": ids,
        "logprobs": x[t, ids] - log_total,
        "ranks": _ranks(logits, ids),
        "entropies": log_total - np.einsum("tv,tv->t", ex, x) / total,
        "top_ids": likeliest,
        "top_logprobs": np.take_along_axis(x, likeliest, -1) - log_total[:, None],
    }


def _ranks(logits: np.ndarray, ids: np.ndarray) -> np.ndarray:
    own = np.take_along_axis(logits, ids[:, None], -1)
    before = np.arange(logits.shape[1]) < ids[:, None]
    return 1 + (logits > own).sum(-1) + ((logits == own) & before).sum(-1)


def _likeliest(logits: np.ndarray, n: int) -> np.ndarray:
    """[V] -> [n] ids; of equals the smaller comes first."""
    if not n:
        return np.zeros(0, np.int64)
    among = np.flatnonzero(logits >= np.partition(logits, -n)[-n])
    return among[np.argsort(-logits[among], kind="stable")[:n]]


def _scores(bpe: Bpe, parts: Sequence[Weighed], scoring: Scoring) -> Scores:
    arrays = _joined(parts)
    text = bpe.decode_bytes(arrays["ids"].tolist())
    words = len(text.decode("utf-8", "replace").split())
    totals = Totals(1, len(arrays["ids"]), len(text), words, 0.0 - float(arrays["logprobs"].sum()))
    return Scores(**arrays, totals=totals, scoring=scoring)
