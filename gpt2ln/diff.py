"""Two sets of tensors against each other: names, shapes, dtypes and sums first, values only where they are asked for.

Two checkpoints are compared by the sums in their indexes, and no data is read.  A file of another kind has no sums: its
values are read, and summed as a checkpoint would.  Names are ours on both sides; a `conv1d` weight is the same with
and without its axis of length 1.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite, sqrt
from typing import TYPE_CHECKING

from .checkpoint import Bundle, Entry, bad_sum, in_numpy, size_problems
from .errors import Damaged, NotFound, first_five
from .hf import spelling
from .table import crc32c
from .tensors import Tensors

if TYPE_CHECKING:
    import numpy as np

_CHUNK = 1 << 18  # values compared at a time
VALUES, TRANSPOSED = "values", "equal after transpose"
_LAYER = re.compile(r"model/(?:(?P<top>wte|wpe|ln_f)|(?P<block>h\d{1,9}))(?:/.*)?")
_NUMBER = re.compile(r"(?:u?int|float)(?:8|16|32|64)|bool")
_LAST = 10**9  # behind every block


@dataclass(frozen=True)
class Distance:
    """How far values are apart; of several tensors together with `+`.

    differ: values not equal bit for bit.  finite: places where both are; these alone enter what follows.  unmatched:
    places where one is NaN or infinite and the other is not the same.  ulp: steps from one float32 to the next, None
    for other numbers.  squares: of A, of B.
    """

    finite: int = 0
    differ: int = 0
    unmatched: int = 0
    largest: float = 0.0
    where: tuple[int, ...] | None = None
    ulp: int | None = None
    dot: float = 0.0
    squares: tuple[float, float] = (0.0, 0.0)

    def __add__(self, other: "Distance") -> "Distance":
        far = max(self, other, key=lambda d: d.largest)
        ulps = [d.ulp for d in (self, other) if d.ulp is not None]
        return Distance(
            self.finite + other.finite,
            self.differ + other.differ,
            self.unmatched + other.unmatched,
            far.largest,
            far.where,
            max(ulps, default=None),
            self.dot + other.dot,
            (self.squares[0] + other.squares[0], self.squares[1] + other.squares[1]),
        )

    @property
    def relative(self) -> float | None:
        """Largest difference, in units of the root mean square of A."""
        rms = sqrt(self.squares[0] / self.finite) if self.finite else 0.0
        return self.largest / rms if rms and isfinite(rms) else None

    @property
    def cosine(self) -> float | None:
        norms = sqrt(self.squares[0]) * sqrt(self.squares[1])
        return max(-1.0, min(1.0, self.dot / norms)) if norms and isfinite(norms) else None


@dataclass(frozen=True)
class Row:
    """One variable.  how: None where it is equal, else in words; distance where values were compared."""

    name: str
    how: str | None
    distance: Distance | None = None

    @property
    def layer(self) -> str:
        match = _LAYER.fullmatch(self.name)
        if not match:
            return "other"
        return match["block"] or {"ln_f": "ln_f"}.get(match["top"], "embedding")


@dataclass(frozen=True)
class Side:
    """One of the two, under our names.  notes: what of it is left out."""

    letter: str
    tensors: Tensors
    entries: Mapping[str, Entry]
    own_head: bool = False
    notes: tuple[str, ...] = field(default=())


def side(letter: str, tensors: Tensors) -> Side:
    """Damaged where two of its tensors are one variable."""
    if isinstance(tensors, Bundle):
        return Side(letter, tensors, tensors.entries)
    spelt = spelling(tensors.entries)
    if spelt.twice:
        raise Damaged(f"{tensors.where}: {first_five(spelt.twice)} twice, with and without transformer. in front")
    ours = {name: tensors.entries[theirs] for name, theirs in spelt.ours.items()}
    out = Side(letter, tensors, ours)
    left = [f"{len(spelt.masks)} masks"] * bool(spelt.masks)
    own_head = False
    if spelt.tied:
        head, wte = tensors.entries[spelt.tied], ours.get("model/wte")
        own_head = wte is None or (head.dtype, head.shape) != (wte.dtype, wte.shape)
        if not own_head and in_numpy(head):
            own_head = _sum(out, head) != _sum(out, wte)
        left += [f"{spelt.tied}, which is wte"] * (not own_head and in_numpy(head))
        left += [f"{spelt.tied} ({head.dtype}, not compared)"] * (not own_head and not in_numpy(head))
    return replace(out, own_head=own_head, notes=tuple(left))


def diff(a: Side, b: Side, *, values: bool = False) -> list[Row]:
    """One row a variable, in the order of the forward pass.

    values: hold all of them against their sums, and measure how far they are apart.  Damaged where values that are read
    do not fit their sums, NotFound where there are none.  Whether a matrix lies transposed in B is looked at with
    `values`, or where all that differs may.
    """
    for one in (a, b) if values else ():
        _check(one, one.entries.values())
    rows = [Row(name, _how(a, b, name)) for name in sorted({*a.entries, *b.entries}, key=_order)]
    differ = [row.name for row in rows if row.how]
    turned = [name for name in differ if _may_be_transposed(a, b, name)]
    apart = [name for name in differ if values and _measurable(a, b, name)]
    if values or len(turned) == len(differ):
        rows = _read(a, b, rows, turned, apart, needed=values)
    heads = [one.letter for one in (a, b) if one.own_head]
    return rows + [Row("lm_head.weight", f"is not wte in {' and '.join(heads)}")] * bool(heads)


def _read(a: Side, b: Side, rows: list[Row], turned: list[str], apart: list[str], *, needed: bool) -> list[Row]:
    """The rows, with what their values say."""
    try:
        for one in (a, b):
            _check(one, [one.entries[name] for name in dict.fromkeys([*turned, *apart])])
    except NotFound:
        if needed:
            raise
        return rows
    found = {name: Row(name, TRANSPOSED) for name in turned if _transposed(a, b, name)}
    hows = {row.name: row.how for row in rows}
    found |= {name: Row(name, hows[name], _distance(a, b, name)) for name in apart if name not in found}
    return [found.get(row.name, row) for row in rows]


def by_layer(rows: Iterable[Row]) -> dict[str, tuple[int, Distance]]:
    """Of the rows with a distance: layer -> how many, all of them together."""
    out: dict[str, tuple[int, Distance]] = {}
    for row in rows:
        if row.distance:
            count, distance = out.get(row.layer, (0, Distance()))
            out[row.layer] = count + 1, distance + replace(row.distance, where=None)
    return out


def _order(name: str) -> tuple:
    match = _LAYER.fullmatch(name)
    if not match:
        return _LAST + 1, name
    block = int(match["block"][1:]) if match["block"] else {"ln_f": _LAST}.get(match["top"], -1)
    return block, {"model/wte": ""}.get(name, name)


def _shape(name: str, entry: Entry) -> tuple[int, ...]:
    """Without the axis of length 1 that `conv1d` has in front."""
    is_conv = name.endswith("/w") and len(entry.shape) == 3 and entry.shape[0] == 1
    return entry.shape[1:] if is_conv else entry.shape


def _how(a: Side, b: Side, name: str) -> str | None:
    """In words how a variable differs, None where it does not."""
    for one, other in ((a, b), (b, a)):
        if name not in other.entries:
            return f"only in {one.letter}"
    x, y = a.entries[name], b.entries[name]
    if _shape(name, x) != _shape(name, y):
        return f"shape {list(x.shape)} / {list(y.shape)}"
    if x.dtype != y.dtype:
        return f"dtype {x.dtype} / {y.dtype}"
    if x.sliced or y.sliced:
        return "stored in slices, not compared"
    if not in_numpy(x) and not (isinstance(a.tensors, Bundle) and isinstance(b.tensors, Bundle)):
        return f"{x.dtype}, not compared"
    return None if _sum(a, x) == _sum(b, y) else VALUES


def _sum(one: Side, entry: Entry) -> int:
    """CRC32C of the values, least significant byte first: as the index says, else from the values themselves."""
    if isinstance(one.tensors, Bundle) and (one.tensors.byte_order == "<" or not in_numpy(entry)):
        return entry.crc
    import numpy as np

    _check(one, [entry])
    x = one.tensors.array(entry)
    x = np.ascontiguousarray(x, x.dtype.newbyteorder("<"))
    crc = crc32c(memoryview(x.reshape(-1).view(np.uint8)))
    one.tensors.release(entry)
    return crc


def _check(one: Side, entries: Iterable[Entry]) -> None:
    """Hold a checkpoint against its sums, before a value of it is used; other files have none."""
    bundle = one.tensors
    if not isinstance(bundle, Bundle) or not (entries := list(entries)):
        return
    problems, _ = size_problems(bundle)
    if problems := problems or [problem for entry in entries if (problem := bad_sum(bundle, entry))]:
        raise Damaged(f"{bundle.prefix}: damaged: {first_five(problems)}; fetch the file again")


def _both(a: Side, b: Side, name: str) -> tuple[Entry, Entry] | None:
    """Where both have it, as numbers of at most 64 bits."""
    pair = a.entries.get(name), b.entries.get(name)
    return pair if all(entry and not entry.sliced and _NUMBER.fullmatch(entry.dtype) for entry in pair) else None


def _may_be_transposed(a: Side, b: Side, name: str) -> bool:
    if not (pair := _both(a, b, name)):
        return False
    x, y = (_shape(name, entry) for entry in pair)
    return len(x) == 2 and x == y[::-1] and pair[0].dtype == pair[1].dtype


def _measurable(a: Side, b: Side, name: str) -> bool:
    pair = _both(a, b, name)
    return pair is not None and _shape(name, pair[0]) == _shape(name, pair[1])


def _arrays(a: Side, b: Side, name: str) -> "tuple[np.ndarray, np.ndarray]":
    x, y = (one.tensors.array(one.entries[name]).reshape(_shape(name, one.entries[name])) for one in (a, b))
    return x, y


def _release(a: Side, b: Side, name: str) -> None:
    for one in (a, b):
        one.tensors.release(one.entries[name])


def _transposed(a: Side, b: Side, name: str) -> bool:
    x, y = _arrays(a, b, name)
    same = bool((_bits(x) == _bits(y).T).all())
    _release(a, b, name)
    return same


def _bits(x: "np.ndarray") -> "np.ndarray":
    """The values as they are stored, least significant byte first."""
    return x.astype(x.dtype.newbyteorder("<"), copy=False).view(f"<u{x.dtype.itemsize}")


def _distance(a: Side, b: Side, name: str) -> Distance:
    """A chunk in memory at a time, of what is mapped."""
    x, y = _arrays(a, b, name)
    flat, total = (x.reshape(-1), y.reshape(-1)), Distance()
    for start in range(0, x.size, _CHUNK):
        total += _measure(*(z[start : start + _CHUNK] for z in flat), start, x.shape)
        _release(a, b, name)
    return total


def _measure(x: "np.ndarray", y: "np.ndarray", start: int, shape: tuple[int, ...]) -> Distance:
    """One chunk, in float64."""
    import numpy as np

    p, q = x.astype(np.float64), y.astype(np.float64)
    finite = np.isfinite(p) & np.isfinite(q)
    same = (p == q) | (np.isnan(p) & np.isnan(q))
    differ = ~same if x.dtype.name != y.dtype.name else _bits(x) != _bits(y)
    with np.errstate(all="ignore"):  # float64 has no room above
        p, q = np.where(finite, p, 0), np.where(finite, q, 0)
        d = np.abs(p - q)
        sums = float(p @ q), (float(p @ p), float(q @ q))
    at = int(d.argmax())
    where = tuple(int(i) for i in np.unravel_index(start + at, shape)) if d[at] else None
    unmatched = int((~finite & ~same).sum())
    ulp = _ulp(x[finite], y[finite])
    return Distance(int(finite.sum()), int(differ.sum()), unmatched, float(d[at]), where, ulp, *sums)


def _ulp(x: "np.ndarray", y: "np.ndarray") -> int | None:
    """Steps from one float32 to the next, at most."""
    from .apart import steps

    if not {x.dtype.name, y.dtype.name} <= {"float16", "float32"}:
        return None
    return int(steps(x, y).max(initial=0))
