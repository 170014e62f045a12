"""How often each of many keys was met; and, made of that, a histogram of floats whose quantiles merge exactly.

A float falls into a bin of its sign, exponent and first five bits of mantissa: 32 bins an octave, over the whole range
of float32.  A quantile read off is within 1.6 % of the value (half a bin), however many parts were merged.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

QUANTILE_ERROR = 1 / 64  # of the value
BINS = 1 << 14
_SHIFT = 18  # bits of a float32 that a bin does not tell apart
_BUFFER = 1 << 20


@dataclass
class Tally:
    """Keys, rising, with their counts; what was added last waits in `_new` until it is worth sorting."""

    keys: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    counts: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    _new: list[np.ndarray] = field(default_factory=list)

    def add(self, keys: np.ndarray) -> None:
        self._new.append(keys.ravel())
        if sum(map(len, self._new)) > _BUFFER:
            self.settle()

    def settle(self) -> "Tally":
        """Sort in what was added."""
        if self._new:
            new = np.concatenate(self._new)
            self._new = []
            self._merge(new, np.ones(len(new), np.int64))
        return self

    def _merge(self, keys: np.ndarray, counts: np.ndarray) -> None:
        keys, where = np.unique(np.concatenate([self.keys, keys]), return_inverse=True)
        total = np.zeros(len(keys), np.int64)
        np.add.at(total, where, np.concatenate([self.counts, counts]))
        self.keys, self.counts = keys, total

    def __add__(self, other: "Tally") -> "Tally":
        both = Tally(self.settle().keys, self.counts)
        both._merge(other.settle().keys, other.counts)
        return both

    def between(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys from `first` up to and without `last`, and their counts."""
        a, b = np.searchsorted(self.settle().keys, [first, last])
        return self.keys[a:b], self.counts[a:b]

    def record(self) -> dict:
        return {"keys": self.settle().keys.tolist(), "counts": self.counts.tolist()}

    @classmethod
    def of(cls, record: dict) -> "Tally":
        return cls(np.array(record["keys"], np.int64), np.array(record["counts"], np.int64))


def bins(values: np.ndarray) -> np.ndarray:
    """float32 -> number of the bin; a greater value never has a smaller one."""
    bits = np.ascontiguousarray(values, np.float32).view(np.int32)
    size = (bits & 0x7FFFFFFF) >> _SHIFT
    return np.where(bits < 0, BINS // 2 - 1 - size, BINS // 2 + size).astype(np.int64)


def middles(numbers: np.ndarray) -> np.ndarray:
    """Number of the bin -> the value in the middle of it, float64."""
    positive = numbers >= BINS // 2
    size = np.where(positive, numbers - BINS // 2, BINS // 2 - 1 - numbers).astype(np.int32)
    low, high = ((edge << _SHIFT).astype(np.int32).view(np.float32).astype(np.float64) for edge in (size, size + 1))
    return np.where(positive, 1, -1) * (low + np.where(np.isfinite(high), high, low)) / 2


def quantiles(numbers: np.ndarray, counts: np.ndarray, q: Iterable[float]) -> list[float]:
    """Quantiles of what was counted into bins, between ranks as NumPy does it."""
    order = np.argsort(numbers, kind="stable")
    values, upto = middles(numbers[order]), np.cumsum(counts[order])
    ranks = np.asarray(list(q)) * (upto[-1] - 1)
    low, high = (values[np.searchsorted(upto, edge, side="right")] for edge in (np.floor(ranks), np.ceil(ranks)))
    return (low + (high - low) * (ranks - np.floor(ranks))).tolist()
