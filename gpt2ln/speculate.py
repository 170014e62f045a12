"""Guess the next ids, so that one pass over the weights reads several tokens; the ids that come out are the same.

Rows of a pass do not see each other and each draw has a key of its own: what the model draws from the row behind a
guess is what it would have drawn without one, as long as the guesses before it were right.  So a guess costs time when
it is wrong, and never changes a text, greedy or sampled.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import NonFinite, UsageError

GUESSES = 6
ROWS = 7  # the kernel works on so many at once: a pass over 2 to 7 rows takes 1.6 times one over 1, however many
MOST = 13  # with the id before them two times ROWS: beyond that a pass takes longer by as much as it can gain
PAYS = 0.6  # so guesses pay where more than that many of them are accepted in a pass, on average
WEIGHT = 1 / 4  # of the last pass in that average
LONGEST_REST = 32
SIZES = (3, 2)  # of the end of a text that is looked up; one token says too little

Draw = Callable[[np.ndarray, int], int]  # logits, how many ids ahead -> the id that the text would go on with


class Pace:
    """Whether guessing pays.  Where the average falls to PAYS it rests for 1 pass, then 2, 4, ... LONGEST_REST.

    After a rest it tries once: what repeats nothing costs little, and a text that begins to repeat is noticed.
    """

    def __init__(self):
        self.average, self._rest, self._left = 1.0, 1, 0

    @property
    def due(self) -> bool:
        return self._left == 0

    def learn(self, accepted: int) -> None:
        """After a pass with guesses."""
        self.average += (accepted - self.average) * WEIGHT
        if self.average > PAYS:
            self._rest = 1
        else:
            self._left, self._rest = self._rest, min(2 * self._rest, LONGEST_REST)

    def rest(self) -> None:
        """After a pass without."""
        self._left = max(self._left - 1, 0)


class Lookup:
    """A text that knows what followed its last few tokens where they stood before; the index grows with the text."""

    def __init__(self, ids: Sequence[int] = ()):
        self._ids: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # a few tokens -> where the text went on behind them, last time
        self.extend(ids)

    def extend(self, ids: Sequence[int]) -> None:
        for i in ids:
            at = len(self._ids)
            for size in SIZES:
                if size <= at:
                    self._after[tuple(self._ids[at - size :])] = at
            self._ids.append(i)

    def copy(self) -> "Lookup":
        other = Lookup()
        other._ids, other._after = list(self._ids), dict(self._after)
        return other

    def guess(self, most: int) -> list[int]:
        """What followed the longest end of the text that stood before; a repetition goes round and round."""
        ends = (tuple(self._ids[-size:]) for size in SIZES)
        at = next((self._after[end] for end in ends if end in self._after), None)
        if at is None:
            return []
        period = len(self._ids) - at
        return [self._ids[at + n % period] for n in range(most)]


class Draft:
    """A text as a smaller model reads it.  Guesses that were wrong stay in its cache until it reads on."""

    def __init__(self, ids: Sequence[int], cache: Any):
        self.cache, self._ids, self._sure = cache, list(ids), len(ids)

    def extend(self, ids: Sequence[int]) -> None:
        self._ids += ids

    def copy(self) -> "Draft":
        other = Draft(self._ids, self.cache.copy())
        other._sure = self._sure
        return other

    def room(self, n_ctx: int) -> int:
        """Ids that can be guessed until the smaller model's context is full, the last unread; negative past it."""
        return n_ctx + 1 - len(self._ids)

    def unread(self) -> list[int]:
        """The ids behind what the cache holds of the text, one at least: their last row is what it guesses from."""
        held, at = self.cache.ids, self._sure
        while at < min(len(held), len(self._ids)) and held[at] == self._ids[at]:
            at += 1
        at = min(at, len(self._ids) - 1)
        self.cache.cut(at)
        self._sure = at
        return self._ids[at:]


def append(engine: Any, ids: Sequence[Sequence[int]], caches: Sequence[Any]) -> list[np.ndarray]:
    """Append ids to each sequence, some at a time where the engine can -> the [V] logits after the last of each."""
    width = ROWS if hasattr(engine, "several") else 1
    out: list = [None] * len(ids)
    for start in range(0, max(map(len, ids)), width):
        going = [n for n in range(len(ids)) if start < len(ids[n])]
        news = [list(ids[n][start : start + width]) for n in going]
        held = [caches[n] for n in going]
        rows = engine.step([i for (i,) in news], held) if width == 1 else [r[-1] for r in engine.several(news, held)]
        for n, row in zip(going, rows, strict=True):
            out[n] = row
    return out


def draft(engine: Any, drafts: Sequence[Draft], counts: Sequence[int], draws: Sequence[Draw]) -> list[list[int]]:
    """`counts[n]` guesses for each text, drawn as the text itself is: same settings, same key, other logits."""
    out: list[list[int]] = [[] for _ in drafts]
    going = [n for n, count in enumerate(counts) if count > 0]
    rows = append(engine, [drafts[n].unread() for n in going], [drafts[n].cache for n in going]) if going else []
    while going:
        for n, row in zip(going, rows, strict=True):
            out[n].append(draws[n](row, len(out[n])))
        going = [n for n in going if len(out[n]) < counts[n]]
        if going:
            rows = engine.step([out[n][-1] for n in going], [drafts[n].cache for n in going])
    return out


def shared(wanted: Sequence[int], total: int) -> list[int]:
    """No more than wanted and `total` in all, one to each in turn."""
    given = [0] * len(wanted)
    for turn in range(max(wanted, default=0)):
        for n, count in enumerate(wanted):
            if turn < count and total > 0:
                given[n] += 1
                total -= 1
    return given


@dataclass(frozen=True)
class Speculation:
    """At most `guesses` in a pass, of all its sequences; by the engine `guesser`, or looked up in prompt and text."""

    guesses: int = GUESSES
    guesser: Any = None

    def __post_init__(self):
        if not 1 <= self.guesses <= MOST:
            raise UsageError(f"guesses {self.guesses}, expected 1 to {MOST}")

    def read(self, ids: Sequence[int]) -> Lookup | Draft | None:
        """A prompt, for the guesses to come; None: longer than the guesser's context, nothing is guessed."""
        if self.guesser is None:
            return Lookup(ids)
        if len(ids) > self.guesser.hparams.n_ctx:
            return None
        with _of_the_guesser():
            return Draft(ids, self.guesser.prefill(ids)[1])

    def guess(
        self, texts: Sequence[Lookup | Draft | None], most: Sequence[int], draws: Sequence[Draw]
    ) -> list[list[int]]:
        """Guesses for each text, at most so many; none where there is nothing to go by.

        With the sequences themselves they fill the rows that the kernel works on at once, or `guesses` + 1 of them.
        """
        room = min(self.guesses, max(1 + self.guesses, -(-len(texts) // ROWS) * ROWS) - len(texts))
        if self.guesser is None:
            found = [text.guess(n) for text, n in zip(texts, most, strict=True)]
            return [ids[:n] for ids, n in zip(found, shared([len(ids) for ids in found], room), strict=True)]
        n_ctx = self.guesser.hparams.n_ctx
        wanted = [0 if t is None else min(n, t.room(n_ctx)) for t, n in zip(texts, most, strict=True)]
        with _of_the_guesser():
            return draft(self.guesser, texts, shared(wanted, room), draws)


def check(engine: Any, run: str = "gpt2ln prepare NAME") -> None:
    """Refuse an engine that computes a token otherwise when others are beside it.  run: makes one that does not."""
    if not hasattr(engine, "several"):
        raise one_by_one(engine.name, run)


def one_by_one(engine: str, run: str) -> UsageError:
    return UsageError(
        f"--speculate: the {engine} engine computes several tokens at once with other roundings than one by one, which"
        f" could change a text, expected --engine fast; run: {run}"
    )


@contextlib.contextmanager
def _of_the_guesser() -> Iterator[None]:
    """Say whose numbers are not finite: the model's own may be."""
    try:
        yield
    except NonFinite as cause:
        raise NonFinite(f"--speculate, in the model that guesses: {cause}") from None
