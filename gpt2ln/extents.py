"""Which rows of an array are which positions of which text, where a file holds several texts or not all of one.

Padded `[B, T]`, packed one after the other, some positions of each, or padded and some: an extent is what one text has
of all that.  What was cut away is said; what the file leaves open is refused.
"""

from collections.abc import Container
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from .errors import BadInput
from .marks import LONGEST, Marks, listed

Span = tuple[int, int, int]  # of a text: entry of the batch, place of its first token there, and of what is behind it


@dataclass(frozen=True)
class Spread:
    """What a file says of its texts.

    B, R: entries of a batch and rows of each, as activations lie; None where they alone say.  W: places for tokens in
    each entry, None where no array says.  stated: the name of what says so.  ids: [B, W], or of the rows alone, where
    W is None.  rows: [B, R], the positions that they are, None where that is each place in turn.
    """

    B: int | None = None
    R: int | None = None
    W: int | None = None
    stated: str = ""
    spans: tuple[Span, ...] = ()
    ids: np.ndarray | None = None
    rows: np.ndarray | None = None
    packed: bool = False
    notes: tuple[str, ...] = ()

    @property
    def grid(self) -> tuple[int, int] | None:
        return None if self.R is None else (self.B or 1, self.R)

    @property
    def keys(self) -> Container[int] | None:
        """Sizes that the axis of keys may have; None where it is as long as that of rows."""
        if self.packed:
            return {self.W, max(last - first for _, first, last in self.spans)}
        if self.rows is None:
            return None
        least = max((last for *_, last in self.spans), default=int(self.rows.max()) + 1)
        return range(least, LONGEST) if self.W is None else {self.W}


@dataclass(frozen=True)
class Extent:
    """One text: its entry of the batch, which rows there are its own, and which positions those are.

    span: its places in an axis of `width` tokens.  ids: of the whole text; some: of its rows, where no more is known.
    open: T is the least that it can be.
    """

    at: int
    cells: slice
    rows: np.ndarray
    T: int
    span: tuple[int, int]
    width: int | None = None
    ids: tuple[int, ...] | None = None
    some: tuple[int, ...] | None = None
    open: bool = False

    def cut(self, x: np.ndarray, *, attention: bool) -> np.ndarray:
        """[R, ...] -> its own rows, and of attention its own keys"""
        x = x[self.cells]
        if not attention:
            return x
        first, last = self.span if self.width in (None, x.shape[-1]) else (0, self.T)
        return x[..., first:last]


# what the file says


def spread(marks: Marks) -> Spread:
    """BadInput where what its arrays say does not go together."""
    plain = {kind: (name, x if kind == "ids" else x.astype(np.int64)) for kind, (name, x) in marks.items()}
    return _packed(plain) if "ends" in plain else _batch(plain)


def _packed(marks: Marks) -> Spread:
    name, ends = marks["ends"]
    total, lengths = int(ends[-1]), np.diff(ends)
    for other, x in (marks[kind] for kind in ("ids", "mask") if kind in marks):
        if x.size != total:
            raise BadInput(f"{name} ends at {total}, {other} is {list(x.shape)}")
    if "mask" in marks and not marks["mask"][1].all():
        raise BadInput(f"{name} is of packed texts, {marks['mask'][0]} of padded ones; expected one of them")
    if "lengths" in marks and not np.array_equal(marks["lengths"][1], lengths):
        raise BadInput(f"{name} and {marks['lengths'][0]} do not say the same lengths")
    ids = marks["ids"][1].reshape(1, total) if "ids" in marks else None
    spans = tuple((0, first, last) for first, last in pairwise(ends.tolist()))
    said = f"packed: {len(spans)} texts of {listed(lengths)} tokens, as {name} says"
    whole = Spread(1, total, total, name, spans, ids, None, True, (said,) * (len(spans) > 1))
    return _numbered(whole, *marks["positions"]) if "positions" in marks else whole


def _numbered(whole: Spread, name: str, x: np.ndarray) -> Spread:
    """Packed, and of that the rows that are counted over all; other numbers are how the program counted."""
    if name == "rows":
        rows = x.reshape(1, -1)
        _check_rows(name, rows, [whole.W])
        return replace(whole, R=rows.shape[1], stated=name, rows=rows)
    if x.size != whole.W:
        raise BadInput(f"{name} is {list(x.shape)} of {whole.W} packed tokens; name some of them with rows, over all")
    return _counted(whole, name, x.reshape(1, -1))


def _batch(marks: Marks) -> Spread:
    """[B, W], with or without padding."""
    held = {name: np.atleast_2d(x) for name, x in (marks[kind] for kind in ("ids", "mask") if kind in marks)}
    if len({x.shape for x in held.values()}) > 1:
        said = ", ".join(f"{name} is {list(x.shape)}" for name, x in held.items())
        raise BadInput(f"{said}; expected the same shape of both")
    stated, first = next(iter(held.items()), ("", None))
    B, W = (None, None) if first is None else first.shape
    ids = held[marks["ids"][0]] if "ids" in marks else None
    spans = _padded(marks, B, W)
    found = Spread(B or len(spans) or None, W, W, "token ids" if ids is not None else stated, spans, ids)
    return _partial(found, *marks["positions"]) if "positions" in marks else found


def _padded(marks: Marks, B: int | None, W: int | None) -> tuple[Span, ...]:
    """Where mask and lengths say that the tokens of each text lie; nothing where there are neither."""
    masked, said = (), ()
    if "mask" in marks:
        runs = [np.flatnonzero(text) for text in np.atleast_2d(marks["mask"][1])]
        masked = tuple((n, int(run[0]), int(run[-1]) + 1) for n, run in enumerate(runs))
    if "lengths" in marks:
        name, x = marks["lengths"]
        said = tuple((n, 0, last) for n, last in enumerate(x.tolist()))
        if B is not None and (len(x) != B or x.max() > W):
            raise BadInput(f"{name} is {listed(x)}; expected {B}, each of 1..{W}")
    if masked and said and [q - p for _, p, q in masked] != [q - p for _, p, q in said]:
        raise BadInput(f"{marks['mask'][0]} and {marks['lengths'][0]} do not say the same lengths")
    return masked or said


def _partial(whole: Spread, name: str, x: np.ndarray) -> Spread:
    """Some positions of each text; beside padding, as many as there are places are how the program counted."""
    rows = np.atleast_2d(x)
    if whole.B and len(rows) not in (1, whole.B):
        raise BadInput(f"{name} is {list(x.shape)}, expected [rows] or [{whole.B}, rows]: there are {whole.B} texts")
    rows = np.broadcast_to(rows, (whole.B or len(rows), rows.shape[1]))
    if whole.spans and rows.shape[1] == whole.W:
        return _counted(whole, name, rows)
    if rows.shape[1] == whole.W:
        whole = replace(whole, W=None)  # then the ids are those of the rows
    lengths = [last - first for _, first, last in whole.spans] or [whole.W or LONGEST] * len(rows)
    _check_rows(name, rows, lengths)
    return replace(whole, B=len(rows), R=rows.shape[1], stated=name, rows=rows)


def _check_rows(name: str, rows: np.ndarray, lengths: list[int]) -> None:
    """Each once, in order, and in the text."""
    for n, (text, length) in enumerate(zip(rows, lengths, strict=True)):
        where = f"{name} of text {n}" if len(rows) > 1 else name
        if (bad := np.flatnonzero(np.diff(text) <= 0)).size:
            first, second = text[bad[0]], text[bad[0] + 1]
            raise BadInput(f"{where} has {second} behind {first}, expected each position once, in order")
        if text[-1] >= length:
            raise BadInput(f"{where} holds {text[-1]}, expected less than {length}, the number of tokens")


def _counted(whole: Spread, name: str, numbers: np.ndarray) -> Spread:
    """With a note where the program did not count the tokens of each text from 0; that is its matter."""
    for n, (at, first, last) in enumerate(whole.spans):
        if not np.array_equal(numbers[at, first:last], np.arange(last - first)):
            held = listed(numbers[at, first:last][:3])
            said = f"{name} of text {n} is {held}, ...: its tokens are taken as positions 0, 1, 2, ... all the same"
            return replace(whole, notes=(*whole.notes, said))
    return whole


# texts


def extents(held: Spread, grid: tuple[int, int], widest: int) -> list[Extent]:
    """One of each text.  grid: B, R of the activations; widest: the axis of keys, 0 where there is none.  BadInput."""
    B, R = grid
    spans = held.spans
    if spans and not held.packed and (len(spans) != B or (held.W is None and held.rows is None and _past(spans, R))):
        longest = max(last for *_, last in spans)
        raise BadInput(f"lengths: {len(spans)} x {longest}, activations: {B} x {R}: not the same texts in both")
    if not spans:
        least = [R] * B if held.rows is None else [max(int(rows[-1]) + 1, widest) for rows in held.rows]
        spans = tuple((n, 0, held.W or least[n]) for n in range(B))
    found = [_extent(held, span, R) for span in spans]
    if any(one.ids is None for one in found):  # of some is of none
        found = [replace(one, ids=None) for one in found]
    return found


def _past(spans: tuple[Span, ...], R: int) -> bool:
    return max(last for *_, last in spans) > R


def _extent(held: Spread, span: Span, R: int) -> Extent:
    at, first, last = span
    T, ids, some, open_ = last - first, None, None, False
    cells, rows = slice(first, last), np.arange(T)
    if held.rows is not None:
        cells, rows = slice(0, R), held.rows[at]
        if held.packed:
            cells = slice(*np.searchsorted(rows, [first, last]).tolist())
            rows = rows[cells] - first
        open_ = held.W is None and not held.spans
    if held.ids is not None and held.W is not None:
        ids = tuple(held.ids[at, first:last].tolist())
    elif held.ids is not None:
        some = tuple(held.ids[at].tolist())
        ids = some if np.array_equal(rows, np.arange(T)) else None
    return Extent(at, cells, rows, T, (first, last), held.W, ids, some, open_)


def said(held: Spread, found: list[Extent], grid: tuple[int, int]) -> list[str]:
    """What was cut away, which positions the rows are, and what of the texts is not known."""
    notes = list(held.notes)
    places = grid[0] * (held.W or grid[1])
    left = 0 if held.packed or not held.spans else places - sum(one.T for one in found)
    if left > 0 and (held.W or held.rows is None):
        what = "tokens left out" if held.rows is not None else "rows left out, and keys as many"
        notes.append(f"padding: {left} of {places} {what}")
    if any(len(one.rows) < one.T for one in found):
        alike = len({tuple(one.rows.tolist()) for one in found}) == 1
        which = f"position{'s' * (len(found[0].rows) > 1)} {listed(found[0].rows)}" if alike else "the positions"
        notes.append(f"rows are {which}{' of each text' * (len(found) > 1)}, as {held.stated} says")
    if held.rows is not None and held.ids is None:
        notes.append("no token ids: rows are paired by position alone")
    elif any(one.open and one.ids is None for one in found):
        notes.append("token ids are those of the rows alone; save the whole text as tokens, and a cause may be found")
    return notes
