"""What the values of a tensor look like, and with that the gain and the bias of every LayerNorm: from weights alone.

Values are read once, a piece at a time, and added up in float64.  A channel stands out where its gain or its bias lies
far from the median of its vector, measured with the median of such distances, which no outlier moves.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import Damaged, UsageError, first_five
from .hf import from_hf
from .tensors import Tensors, readable, values

if TYPE_CHECKING:
    import numpy as np

STANDS_OUT = 10.0  # deviations from the median
_SIGMA = 1.4826  # times the median distance from the median: a standard deviation, where values are normal
_PIECE = 1 << 18
_VECTOR = re.compile(r"(?:model/)?(?P<norm>h\d{1,9}/ln_[12]|ln_f)/(?P<leaf>[gb])")
_LEAVES = {"g": "gain", "b": "bias"}


@dataclass(frozen=True)
class Spread:
    """Of the finite values of a tensor, and how many are 0, NaN or Inf.  argmin, argmax: where, counted flat.

    None where nothing is finite, or where float64 does not hold it.
    """

    min: float | None
    argmin: int | None
    max: float | None
    argmax: int | None
    mean: float | None
    std: float | None  # divided by n, not n - 1
    zeros: int
    nan: int
    inf: int


def spread(x: "np.ndarray") -> Spread:
    """One pass; the sums of two pieces are joined as Chan, Golub and LeVeque do (1983)."""
    import numpy as np

    flat = x.reshape(-1)
    low, high, count, mean, squares = (math.inf, None), (-math.inf, None), 0, 0.0, 0.0
    zeros = nan = inf = 0
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, flat.size, _PIECE):
            piece = flat[start : start + _PIECE].astype(np.float64)
            at = np.flatnonzero(np.isfinite(piece))
            zeros, nan, inf = zeros + np.sum(piece == 0), nan + np.isnan(piece).sum(), inf + np.isinf(piece).sum()
            if not at.size:
                continue
            fine = piece[at]
            least, most = int(fine.argmin()), int(fine.argmax())
            low = min(low, (float(fine[least]), start + int(at[least])), key=lambda found: found[0])
            high = max(high, (float(fine[most]), start + int(at[most])), key=lambda found: found[0])
            off = fine.mean() - mean
            squares += np.square(fine - fine.mean()).sum() + off * off * (count * fine.size / (count + fine.size))
            mean += off * (fine.size / (count + fine.size))
            count += fine.size
        std = np.sqrt(squares / count) if count else math.nan
    held = [float(v) if count and math.isfinite(v) else None for v in (low[0], high[0], mean, std)]
    return Spread(held[0], low[1], held[1], high[1], *held[2:], int(zeros), int(nan), int(inf))


@dataclass(frozen=True)
class Vector:
    """The gain or the bias of a norm.  values: [C], float64; deviations: [C], from the median, 0 where not finite."""

    name: str
    values: "np.ndarray"
    spread: Spread
    deviations: "np.ndarray"

    @property
    def negative(self) -> list[int]:
        return (self.values < 0).nonzero()[0].tolist()

    @property
    def stands_out(self) -> list[int]:
        """The channels, farthest first."""
        return [c for c in (-self.deviations).argsort(kind="stable").tolist() if self.deviations[c] > STANDS_OUT]


@dataclass(frozen=True)
class Norm:
    """g, b: None where the file does not hold it."""

    name: str
    g: Vector | None
    b: Vector | None

    @property
    def vectors(self) -> dict[str, Vector]:
        return {leaf: vector for leaf in _LEAVES if (vector := getattr(self, leaf)) is not None}

    @property
    def stands_out(self) -> list[int]:
        """In gain or bias, farthest first."""
        far: dict[int, float] = {}
        for vector in self.vectors.values():
            for channel in vector.stands_out:
                far[channel] = max(far.get(channel, 0.0), float(vector.deviations[channel]))
        return sorted(far, key=lambda channel: -far[channel])


def vector_of(name: str) -> tuple[str, str] | None:
    """`model/h3/ln_1/g`, without `model/`, or as Hugging Face calls it -> `h3/ln_1`, `g`; None for another variable."""
    match = _VECTOR.fullmatch(from_hf(name) or name)
    return (match["norm"], match["leaf"]) if match else None


def norms_in(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Norm -> leaf -> the variable's name, in the order of the forward pass.  Damaged where one has two names."""
    found: dict[str, dict[str, str]] = {}
    twice = []
    for name in names:
        if place := vector_of(name):
            norm, leaf = place
            if (first := found.setdefault(norm, {}).setdefault(leaf, name)) != name:
                twice.append(f"{norm}/{leaf} is there as {first} and as {name}")
    if twice:
        raise Damaged(first_five(twice))
    return dict(sorted(found.items(), key=lambda item: _depth(item[0])))


def _depth(norm: str) -> tuple[float, ...]:
    return (math.inf,) if norm == "ln_f" else tuple(map(int, re.findall(r"\d+", norm)))


def read_norms(tensors: Tensors, chosen: Mapping[str, Mapping[str, str]]) -> list[Norm]:
    """The vectors of these norms.  UsageError, naming all, where some are none."""
    entries = [tensors.entries[name] for leaves in chosen.values() for name in leaves.values()]
    odd = [e for e in entries if len(e.shape) != 1 or not e.shape[0] or not readable(e) or "float" not in e.dtype]
    if odd:
        listed = first_five([f"{e.name} is {e.dtype} {list(e.shape)}{', in slices' * e.sliced}" for e in odd])
        raise UsageError(f"{tensors.where}: {listed}; expected a vector of floating-point numbers")
    return [
        Norm(norm, *(_vector(tensors, leaves[leaf]) if leaf in leaves else None for leaf in _LEAVES))
        for norm, leaves in chosen.items()
    ]


def _vector(tensors: Tensors, name: str) -> Vector:
    import numpy as np

    x = values(tensors, tensors.entries[name]).astype(np.float64)
    return Vector(name, x, spread(x), deviations(x))


def deviations(x: "np.ndarray") -> "np.ndarray":
    """How far from the median, in robust standard deviations; Inf where more than half of the values are the median.

    x: [C] -> [C]
    """
    import numpy as np

    fine = np.isfinite(x)
    if not fine.any():
        return np.zeros(x.shape)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        away = np.where(fine, np.abs(x - np.median(x[fine])), 0)
        return np.nan_to_num(away / (_SIGMA * np.median(away[fine])), nan=0.0, posinf=np.inf)


def counted(norms: Iterable[Norm]) -> list[tuple[int, int]]:
    """(channel, in how many norms it stands out), most often first."""
    counts = Counter(channel for norm in norms for channel in norm.stands_out)
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
