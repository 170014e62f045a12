"""How far two arrays are apart, token by token: what is not equal, steps of float32, error in units of a row, cosine.

A row is what one token has.  Residual streams of GPT-2 reach 3000 at the first token and 1 at the next, so one limit
serves all of them only where each row is its own measure.
"""

from dataclasses import dataclass, field

import numpy as np

BINS = ("0", "1", "2", "3-4", "5-16", "17-256", "more")  # of steps from one float32 to the next
_EDGES = (1, 2, 3, 5, 17, 257)


@dataclass(frozen=True)
class Apart:
    """Of two arrays [T, ...].

    differ: values that are not equal.  unmatched: places where one is NaN or infinite and the other is not the same.
    nonfinite: values of A and of B that are NaN or infinite; they enter nothing that follows.  largest: max |d|.
    relative: max |d| over the scale of its row, at `row` and `channel`, which are those of what is unmatched if
    anything is.  steps: how many values lie in each of BINS.
    far: max |d| of each row, [T].
    """

    values: int
    differ: int
    unmatched: int
    nonfinite: tuple[int, int]
    largest: float
    relative: float
    row: int
    channel: tuple[int, ...]
    steps: tuple[int, ...]
    cosine: float | None
    far: np.ndarray = field(repr=False, compare=False)


def steps(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """From one float32 to the next: int64; -0 and 0 are the same place."""
    bits = [z.astype(np.float32).view(np.int32).astype(np.int64) for z in (x, y)]
    p, q = (np.where(i < 0, -(i & 0x7FFFFFFF), i) for i in bits)
    return np.abs(p - q)


def rows(x: np.ndarray) -> np.ndarray:
    """[T, ...] -> [T, n], with no row of length 0"""
    return x.reshape(len(x), -1) if x.size else np.zeros((len(x), 1), x.dtype)


def rms(x: np.ndarray) -> np.ndarray:
    """Root mean square of what is finite in each row: [T, ...] -> [T] float64"""
    x = rows(np.asarray(x, np.float64))
    finite = np.isfinite(x)
    x = np.where(finite, x, 0)
    largest = np.abs(x).max(1)
    unit = np.where(largest > 0, largest, 1)  # no square is past float64
    return unit * np.sqrt(np.square(x / unit[:, None]).sum(1) / np.maximum(finite.sum(1), 1))


def equal(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Where both are the same number, or both NaN; what is Inf in one type alone only for being past it is the same."""
    with np.errstate(over="ignore"):
        over = np.isinf(x) & (y.astype(x.dtype) == x) | np.isinf(y) & (x.astype(y.dtype) == y)
    return (x == y) | (np.isnan(x) & np.isnan(y)) | over


def measure(x: np.ndarray, y: np.ndarray, scale: np.ndarray, left_out: np.ndarray | None = None) -> Apart:
    """Of [T, ...] and [T, ...].

    scale: [T], what a difference is relative to.  left_out: places [T, ...] that are no part of either.
    """
    shape, kept = x.shape, np.ones(x.shape, bool) if left_out is None else ~np.broadcast_to(left_out, x.shape)
    same = equal(x, y) | ~kept
    both = kept & np.isfinite(x) & np.isfinite(y)
    with np.errstate(over="ignore", invalid="ignore"):  # float64 has no room above
        p, q = (np.where(both, z, 0).astype(np.float64) for z in (x, y))
        d = rows(np.abs(p - q))
        dot, squares = float((p * q).sum()), float(np.square(p).sum()) * float(np.square(q).sum())
        narrow = [z[both].astype(np.float32) for z in (x, y)]
    each = d.max(1) / np.where(scale > 0, scale, 1)
    lost = rows(~same & ~both)
    telling = lost if lost.any() else each[:, None] * (d == d.max(1, keepdims=True))
    row, worst = np.unravel_index(int(telling.argmax()), telling.shape) if telling.size else (0, 0)
    counts = np.bincount(np.digitize(steps(*narrow), _EDGES), minlength=len(BINS))
    return Apart(
        values=int(kept.sum()),
        differ=int((~same).sum()),
        unmatched=int(lost.sum()),
        nonfinite=tuple(int((kept & ~np.isfinite(z)).sum()) for z in (x, y)),
        largest=float(d.max(initial=0)),
        relative=float(each.max(initial=0)),
        row=int(row),
        channel=tuple(int(i) for i in np.unravel_index(worst, shape[1:])) if x.size else (),
        steps=tuple(int(n) for n in counts),
        cosine=dot / squares**0.5 if 0 < squares < np.inf and np.isfinite(dot) else None,
        far=d.max(1),
    )
