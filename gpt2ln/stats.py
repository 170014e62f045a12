"""What every LayerNorm did, over any number of texts, by position and by channel: accumulated, merged, written, read.

Moments follow Welford where a token is added and Chan, Golub and LeVeque (1979) where two runs are merged.  Everything
is kept by position, since position 0 is unlike all others; what is said of all tokens is pooled from that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from .errors import BadInput
from .spec import EPSILON
from .tally import BINS, Tally, bins, quantiles

STATISTICS = ("mean", "var", "rstd", "rms")  # rms: root mean square of the norm's output over channels
SKETCHED = ("mean", "var")  # kept as histograms too; rstd falls as var rises, its quantiles follow
MASSIVE = 0.1  # a channel is massive at a token where it alone holds that share of the variance
SMALL = 100 * EPSILON  # below it epsilon changes rstd by half a percent or more
_POSITIONS = 1 << 20


@dataclass(frozen=True)
class Moments:
    """Of a set of numbers."""

    count: int
    mean: float
    std: float  # population
    min: float
    max: float


def _squares(x: np.ndarray, axes: str) -> np.ndarray:
    """Sums of squares in float32, five times as fast; in float64 where they pass its range."""
    with np.errstate(over="ignore"):
        sums = np.einsum(axes, x, x)
    return sums if np.isfinite(sums).all() else np.einsum(axes, x, x, dtype=np.float64)


@dataclass
class Part:
    """What some positions of one text add: a fraction of the size of its taps."""

    start: int
    x: np.ndarray  # [N, 4, t] the statistics
    power: np.ndarray  # [N, C]
    peak: np.ndarray  # [N, C]
    peak_at: np.ndarray  # [N, C], this and the next set where the peak may be a new one
    peak_x: np.ndarray
    values: np.ndarray | None = None
    massive: list[np.ndarray] = field(default_factory=list)


def _peaks(a: "Part | LnStats", b: "Part | LnStats") -> list[np.ndarray]:
    """Of both: the higher; of equal ones the earlier, then the one with the lower x, so that no order shows."""
    earlier = (b.peak_at < a.peak_at) | (b.peak_at == a.peak_at) & (b.peak_x < a.peak_x)
    taken = (b.peak > a.peak) | (b.peak == a.peak) & earlier
    return [np.where(taken, getattr(b, k), getattr(a, k)) for k in ("peak", "peak_at", "peak_x")]


@dataclass
class LnStats:
    """N norms of width C over positions 0 ... P - 1; `moments` are mean, squared deviations, min, max [4, N, 4, P]."""

    norms: tuple[str, ...]
    width: int
    documents: int = 0
    count: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # [P] tokens
    moments: np.ndarray | None = None
    small: np.ndarray | None = None  # [N, P] tokens whose variance is below SMALL
    values: Tally = field(default_factory=Tally)  # norm, statistic, position, bin
    massive: Tally = field(default_factory=Tally)  # norm, channel, position
    power: np.ndarray | None = None  # [N, C] sum of `norm` squared over tokens
    peak: np.ndarray | None = None  # [N, C] largest |norm|, where it is, and the value of x there
    peak_at: np.ndarray | None = None
    peak_x: np.ndarray | None = None

    @classmethod
    def empty(cls, norms: Sequence[str], width: int) -> "LnStats":
        N, C = len(norms), width
        new = cls(tuple(norms), width, moments=np.zeros((4, N, 4, 0)), small=np.zeros((N, 0), np.int64))
        new.power, new.peak = np.zeros((N, C)), np.full((N, C), -1.0)
        new.peak_at, new.peak_x = np.zeros((N, C), np.int64), np.zeros((N, C))
        return new

    @property
    def tokens(self) -> int:
        return int(self.count.sum())

    @property
    def positions(self) -> int:
        return len(self.count)

    def _reserve(self, positions: int) -> None:
        more = positions - self.positions
        if more > 0:
            fill = np.broadcast_to(
                np.array([0, 0, np.inf, -np.inf])[:, None, None, None], (*self.moments.shape[:3], more)
            )
            self.moments = np.concatenate([self.moments, fill], axis=-1)
            self.small = np.pad(self.small, ((0, 0), (0, more)))
            self.count = np.pad(self.count, (0, more))

    def part(self, taps: Mapping[str, np.ndarray], start: int) -> Part:
        """Some positions of one text, reduced.  taps: `<norm>/mean`, `var`, `rstd` [t, 1], `norm`, `out` [t, C]"""
        t, N, C = len(taps[f"{self.norms[0]}/mean"]), len(self.norms), self.width
        channels = [np.zeros((N, C), dtype) for dtype in (float, float, np.int64, float)]
        part = Part(start, np.empty((N, 4, t)), *channels)
        for n, norm in enumerate(self.norms):
            for s, leaf in enumerate(("mean", "var", "rstd")):
                part.x[n, s] = taps[f"{norm}/{leaf}"][:, 0]
            part.x[n, 3] = np.sqrt(_squares(taps[f"{norm}/out"], "tc,tc->t") / C)
            self._channels(part, n, taps[f"{norm}/norm"])
        group = np.arange(N * 2).reshape(-1, 2, 1) * _POSITIONS + np.arange(start, start + t)
        part.values = group * BINS + bins(part.x[:, :2])
        return part

    def _channels(self, part: Part, n: int, norm: np.ndarray) -> None:
        part.power[n] = _squares(norm, "tc,tc->c")
        size = np.abs(norm)
        part.peak[n] = size.max(axis=0)
        high = np.flatnonzero(part.peak[n] >= self.peak[n])  # what is held now is at most what is held later
        at = size[:, high].argmax(axis=0)
        part.peak_at[n, high] = part.start + at
        part.peak_x[n, high] = norm[at, high] / part.x[n, 2, at] + part.x[n, 0, at]
        limit = np.sqrt(MASSIVE * self.width)
        channels = np.flatnonzero(part.peak[n] >= limit)
        at, which = np.nonzero(size[:, channels] >= limit)
        part.massive.append((n * self.width + channels[which]) * _POSITIONS + part.start + at)

    def add(self, part: Part) -> None:
        """Parts of a text in the order of its positions, texts in their order: the last digits depend on it."""
        t = part.x.shape[-1]
        self._reserve(part.start + t)
        here = slice(part.start, part.start + t)
        self.count[here] += 1
        mean, m2, low, high = self.moments[..., here]
        delta = part.x - mean
        mean += delta / self.count[here]
        m2 += delta * (part.x - mean)
        np.minimum(low, part.x, out=low)
        np.maximum(high, part.x, out=high)
        self.small[:, here] += part.x[:, 1] < SMALL
        self.power += part.power
        self.peak, self.peak_at, self.peak_x = _peaks(self, part)
        self.values.add(part.values)
        self.massive.add(np.concatenate(part.massive))

    def __add__(self, other: "LnStats") -> "LnStats":
        """Of both runs.  BadInput where they are not of the same norms."""
        if (self.norms, self.width) != (other.norms, other.width):
            raise BadInput(f"{len(self.norms)} norms of width {self.width}, and {len(other.norms)} of {other.width}")
        P = max(self.positions, other.positions)
        self._reserve(P)
        other._reserve(P)
        a, b, count = self.count, other.count, self.count + other.count
        (mean, m2, low, high), (mean_b, m2_b, low_b, high_b) = self.moments, other.moments
        delta = mean_b - mean
        moments = [mean + delta * b / count, m2 + m2_b + delta**2 * a * b / count]
        moments += [np.minimum(low, low_b), np.maximum(high, high_b)]
        peaks = _peaks(self, other)
        tallies = self.values + other.values, self.massive + other.massive
        documents, small = self.documents + other.documents, self.small + other.small
        power = self.power + other.power
        return LnStats(self.norms, self.width, documents, count, np.stack(moments), small, *tallies, power, *peaks)

    def pooled(self, n: int, statistic: str, positions: slice = slice(None)) -> Moments:
        """Of one norm, over tokens at these positions."""
        count = self.count[positions]
        mean, m2, low, high = self.moments[:, n, STATISTICS.index(statistic), positions]
        total = int(count.sum())
        middle = float((count * mean).sum() / total)
        squares = float(m2.sum() + (count * (mean - middle) ** 2).sum())
        return Moments(total, middle, float(np.sqrt(squares / total)), float(low.min()), float(high.max()))

    def quantiles(self, n: int, statistic: str, q: Sequence[float], positions: slice = slice(None)) -> list[float]:
        """Within 1.6 % of the value, never outside what was seen.  statistic: one of SKETCHED"""
        first, last, _ = positions.indices(self.positions)
        group = (n * 2 + SKETCHED.index(statistic)) * _POSITIONS
        keys, counts = self.values.between((group + first) * BINS, (group + last) * BINS)
        seen = self.pooled(n, statistic, positions)
        return np.clip(quantiles(keys % BINS, counts, q), seen.min, seen.max).tolist()

    def massive_of(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Channels of a norm that were massive, one entry a position, and at how many tokens there."""
        keys, counts = self.massive.between(n * self.width * _POSITIONS, (n + 1) * self.width * _POSITIONS)
        return keys // _POSITIONS % self.width, counts

    def massive_at(self, n: int, channel: int) -> tuple[np.ndarray, np.ndarray]:
        """Positions at which a channel was massive, and at how many tokens there."""
        group = n * self.width + channel
        keys, counts = self.massive.between(group * _POSITIONS, (group + 1) * _POSITIONS)
        return keys % _POSITIONS, counts

    def shares(self, n: int) -> np.ndarray:
        """[C] part of the variance that each channel holds, from 0 to 1."""
        return self.power[n] / max(self.power[n].sum(), np.finfo(float).tiny)

    def record(self) -> dict:
        """As JSON, every digit kept."""
        arrays = {k: getattr(self, k).tolist() for k in _ARRAYS}
        tallies = {"values": self.values.record(), "massive": self.massive.record()}
        return {"norms": list(self.norms), "width": self.width, "documents": self.documents, **arrays, **tallies}

    @classmethod
    def of(cls, record: Mapping) -> "LnStats":
        arrays = {k: np.array(record[k], dtype) for k, dtype in _ARRAYS.items()}
        new = cls(tuple(record["norms"]), record["width"], record["documents"], **arrays)
        new.values, new.massive = Tally.of(record["values"]), Tally.of(record["massive"])
        N, C, P = len(new.norms), new.width, new.positions
        shapes = {
            "moments": (4, N, 4, P),
            "small": (N, P),
            **dict.fromkeys(("power", "peak", "peak_at", "peak_x"), (N, C)),
        }
        for name, shape in shapes.items():
            if arrays[name].shape != shape:
                raise ValueError(f"{name} has shape {list(arrays[name].shape)}, expected {list(shape)}")
        return new


_ARRAYS = {"count": np.int64, "moments": np.float64, "small": np.int64, "power": np.float64,
           "peak": np.float64, "peak_at": np.int64, "peak_x": np.float64}  # fmt: skip
