"""Accumulators over taps that merge: the statistics of two halves are those of the whole.

Moments follow Chan, Golub and LeVeque (1979): count, mean and sum of squared deviations, in float64.
"""

from dataclasses import dataclass, field

import numpy as np

STATISTICS = ("mean", "var", "rstd", "rms")


@dataclass(frozen=True)
class Moments:
    """Of a set of numbers: how many, their mean, squared deviations, extremes."""

    count: int = 0
    mean: float = 0.0
    m2: float = 0.0
    min: float = np.inf
    max: float = -np.inf

    @classmethod
    def of(cls, values: np.ndarray) -> "Moments":
        values = np.asarray(values, np.float64).ravel()
        if values.size == 0:
            return cls()
        mean = float(values.mean())
        return cls(values.size, mean, float(((values - mean) ** 2).sum()), float(values.min()), float(values.max()))

    def __add__(self, other: "Moments") -> "Moments":
        count = self.count + other.count
        if count == 0:
            return self
        delta = other.mean - self.mean
        mean = self.mean + delta * other.count / count
        m2 = self.m2 + other.m2 + delta * delta * self.count * other.count / count
        return Moments(count, mean, m2, min(self.min, other.min), max(self.max, other.max))

    @property
    def std(self) -> float:
        """Population standard deviation; 0 for a single number."""
        return float(np.sqrt(self.m2 / self.count)) if self.count else 0.0


def _squares(x: np.ndarray, axes: str) -> np.ndarray:
    """Sums of squares in float32, five times as fast; in float64 where they pass its range."""
    with np.errstate(over="ignore"):
        sums = np.einsum(axes, x, x)
    return sums if np.isfinite(sums).all() else np.einsum(axes, x, x, dtype=np.float64)


@dataclass(frozen=True)
class NormStats:
    """What one LayerNorm did: moments of its statistics over tokens, and which channels hold the variance.

    `rms` is the root mean square of the output over channels; `power` the sum over tokens of `norm` squared, [C].
    """

    moments: dict[str, Moments] = field(default_factory=lambda: dict.fromkeys(STATISTICS, Moments()))
    power: np.ndarray | float = 0.0

    @classmethod
    def of(cls, taps: dict[str, np.ndarray]) -> "NormStats":
        """taps: `mean`, `var`, `rstd` [T, 1], `norm`, `out` [T, C]"""
        rms = np.sqrt(_squares(taps["out"], "tc,tc->t") / taps["out"].shape[1])
        moments = {k: Moments.of(taps[k]) for k in ("mean", "var", "rstd")} | {"rms": Moments.of(rms)}
        return cls(moments, _squares(taps["norm"], "tc,tc->c").astype(np.float64))

    def __add__(self, other: "NormStats") -> "NormStats":
        moments = {k: self.moments[k] + other.moments[k] for k in STATISTICS}
        return NormStats(moments, self.power + other.power)

    def top_channels(self, k: int) -> list[tuple[int, float]]:
        """The k channels that hold most of the variance, each with its share of it, from 0 to 1."""
        power = np.asarray(self.power)
        order = np.argsort(-power, kind="stable")[:k]
        return [(int(c), float(power[c] / max(power.sum(), np.finfo(float).tiny))) for c in order]
