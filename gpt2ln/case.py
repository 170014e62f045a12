"""One difference between two dumps: what B put into the operation that differs, and the weights, or what A shows of
them.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property

import numpy as np

from .hypothesis import Formulas, in_rows
from .reference import Reference
from .spec import HParams
from .taps import all_taps, norm_scopes

Taps = Mapping[str, np.ndarray]
ULP = 2.0**-24  # half a step of float32, relative
SUMS = 4  # of these, for what a sum of products rounds on its way
LEAST = -1e5  # scores below it are hidden, and all alike
AHEAD = 12  # taps after the first, to tell apart what that one cannot
ROOM = 1.2e9  # bytes of weights kept in float64; those of 124M take a gigabyte
EMBEDDINGS = ("wte/out", "wpe/out", "embed", "h0/in")


class Case:
    """The first tap that differs, in one text.  A is right, B is asked about; positions first.

    given: what B held before it, which agrees with A.  noise: rms of float32's own error at that tap.  rows: [T],
    where alone another formula is put in place of the right one; None: everywhere.
    """

    rows: np.ndarray | None = None

    def __init__(self, a: Taps, b: Taps, first: str, hparams: HParams, ids: Sequence[int], weights: Taps, noise: float):
        self.a, self.b, self.first, self.hparams, self.ids = a, b, first, hparams, tuple(ids)
        self.noise = noise
        if not isinstance(weights, Widened):
            weights = Widened(weights or weights_shown(a, first, hparams, self.ids))
        self.weights = weights
        names = [tap.name for tap in all_taps(hparams)]
        before, after = names[: names.index(first)], names[names.index(first) + 1 :]
        self.given = {name: b[name] for name in before if name in b} | self._thirds()
        self.ahead = [name for name in after if name in b][:AHEAD]

    def _thirds(self) -> dict[str, np.ndarray]:
        """Without weights: what A shows of c_attn, in the block of the first tap."""
        at = f"{self.first.partition('/')[0]}/attn"
        known = f"model/{at}/c_attn/w" in self.weights or not self.first.startswith(f"{at}/")
        if known or any(f"{at}/{leaf}" not in self.a for leaf in "qkv"):
            return {}
        return {f"{at}/c_attn": np.concatenate([rows_of(self.a[f"{at}/{leaf}"]) for leaf in "qkv"], -1)}

    def beginning(self, T: int) -> "Case":
        """The same at the first T positions."""
        a, b = ({name: cut(x, name, T) for name, x in taps.items()} for taps in (self.a, self.b))
        return Case(a, b, self.first, self.hparams, self.ids[:T], self.weights, self.noise)

    def at(self, name: str) -> "Case":
        """The same, asked about a tap before."""
        return Case(self.a, self.b, name, self.hparams, self.ids, self.weights, 0.0)

    def without(self, scope: str) -> "Case":
        """Nothing given below that scope: for what is too small to be seen there, before it adds up."""
        other = Case(self.a, self.b, self.first, self.hparams, self.ids, self.weights, self.noise)
        other.given = {name: x for name, x in self.given.items() if not name.startswith(scope)}
        return other

    def only(self, rows: np.ndarray) -> "Case":
        """The same, asked about a mistake in these rows alone."""
        other = copy(self)
        other.rows = rows
        return other

    @property
    def asked(self) -> np.ndarray:
        """The numbers of the rows in question."""
        return np.arange(len(self.ids)) if self.rows is None else np.flatnonzero(self.rows)

    def run(self, formulas: Formulas | None = None) -> Reference:
        if formulas and self.rows is not None:
            formulas = in_rows(formulas, self.rows)
        return Reference(self.hparams, self.ids, self.weights, given=self.given, formulas=formulas)

    @cached_property
    def right(self) -> Reference:
        return self.run()

    @property
    def norm(self) -> str | None:
        """The norm that the first tap is of."""
        scope = self.first.rpartition("/")[0]
        return scope if scope in norm_scopes(self.hparams) else None

    @property
    def layer(self) -> int | None:
        block = self.first.partition("/")[0]
        return int(block[1:]) if block.startswith("h") else None

    @property
    def blocks(self) -> list[int]:
        """The block of the first tap, and the one before where that made it."""
        last = self.hparams.n_layer - 1
        if self.layer is None:
            return [last] if self.first == "logits" or self.norm else []
        return [self.layer] + [self.layer - 1] * (self.first.endswith("/in") and self.layer > 0)

    def left(self, taps: Taps, name: str) -> float:
        """rms of what B holds, less what is expected; where that is NaN nothing is known, and NaN if so everywhere."""
        expected = seen(taps[name], name)
        known = ~np.isnan(expected)
        return rms((seen(self.b[name], name) - expected)[known]) if known.any() else np.nan

    def left_in_sight(self, taps: Taps) -> float:
        """Of scores: rms of B's less what is expected, where neither is hidden."""
        expected, b = seen(taps[self.first], self.first), seen(self.b[self.first], self.first)
        return rms((b - expected)[(b > LEAST) & (expected > LEAST)])

    def left_by_row(self, taps: Taps) -> np.ndarray:
        """[T]: the same of each row of the first tap; Inf where B hides other scores than it should."""
        expected, b = seen(taps[self.first], self.first), seen(self.b[self.first], self.first)
        off = b - expected
        if self.first.endswith("/scores"):
            off = np.where((b > LEAST) == (expected > LEAST), off, np.inf)
        known = ~np.isnan(rows_of(off))
        return np.sqrt(np.square(np.where(known, rows_of(off), 0)).sum(-1) / known.sum(-1))

    @cached_property
    def rounding(self) -> float:
        """rms that the first tap may be off by in float32."""
        return max(self.noise, ULP * size(self.b[self.first]))

    @cached_property
    def rounding_by_row(self) -> np.ndarray:
        """[T]: the same of each row, in its own measure; for a mean, which may be 0, that of what it is the mean of."""
        x = self.right.input(self.norm) if self.first.endswith("/mean") else self.b[self.first]
        x = rows_of(np.asarray(x, np.float64))
        scale = np.sqrt(np.square(np.where(x > LEAST, x, 0)).mean(-1))
        return max(SUMS * ULP, self.noise / (rms(scale) or 1.0)) * scale


class Widened(Mapping[str, np.ndarray]):
    """Weights in float64, which are asked for again and again; kept while there is room."""

    def __init__(self, weights: Taps):
        self._weights, self._kept, self._room = weights, {}, ROOM

    def __getitem__(self, name: str) -> np.ndarray:
        if name in self._kept:
            return self._kept[name]
        w = np.asarray(self._weights[name], np.float64)
        if w.nbytes <= self._room:
            self._kept[name], self._room = w, self._room - w.nbytes
        return w

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def seen(x: np.ndarray, name: str) -> np.ndarray:
    """float64; hidden scores all alike, whatever the mask."""
    x = np.asarray(x, np.float64)
    return np.maximum(x, LEAST) if name.endswith("/scores") else x


def cut(x: np.ndarray, name: str, T: int) -> np.ndarray:
    """The first T positions of a tap."""
    return x[:T, ..., :T] if name.endswith(("/scores", "/probs")) else x[:T]


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(x)))) if x.size else 0.0


def size(x: np.ndarray) -> float:
    """rms, hidden scores apart."""
    x = np.asarray(x, np.float64)
    return rms(x[x > LEAST])


def rows_of(x: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), -1)


def weights_shown(a: Taps, first: str, hparams: HParams, ids: Sequence[int]) -> dict[str, np.ndarray]:
    """What a dump shows of the weights, as far as the tap `first` needs it; NaN for rows that no token has.

    wte at the text's tokens, wpe at its positions, g and b of a norm with its norm and out, and c_proj of attention.
    """
    found = {}
    if "wpe/out" in a:
        found["model/wpe"] = np.concatenate([a["wpe/out"], np.full_like(a["wpe/out"][:1], np.nan)])
    if "wte/out" in a and first in EMBEDDINGS and _fits(a["wte/out"], ids, hparams):
        found["model/wte"] = np.full((hparams.n_vocab, a["wte/out"].shape[-1]), np.nan)
        found["model/wte"][list(ids)] = a["wte/out"]
    for name in a:
        at = name.removesuffix("/norm")
        if name.endswith("/norm") and f"{at}/out" in a and len(a[name]) > 2:
            found |= _gain_shown(at, *(np.asarray(a[f"{at}/{leaf}"], np.float64) for leaf in ("norm", "out")))
    if first.endswith("/attn/out") and f"{first.removesuffix('out')}z" in a:
        found |= _linear_shown(first, *(np.asarray(a[f"{first.removesuffix('out')}{leaf}"]) for leaf in ("z", "out")))
    return found


def _fits(x: np.ndarray, ids: Sequence[int], hparams: HParams) -> bool:
    return x.shape == (len(ids), hparams.n_embd) and max(ids, default=0) < hparams.n_vocab


def _gain_shown(at: str, n: np.ndarray, out: np.ndarray) -> dict[str, np.ndarray]:
    centred = n - n.mean(0)
    g = (centred * out).sum(0) / np.square(centred).sum(0)
    return {f"model/{at}/g": g, f"model/{at}/b": out.mean(0) - g * n.mean(0)}


def _linear_shown(first: str, x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """The matrix and bias that make y of x, where there are rows enough to solve for them.

    Not of what reads a norm: norms are centred, so its bias cannot be told from its matrix.
    """
    x = np.concatenate([x, np.ones_like(x[:, :1])], -1, dtype=np.float64)
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return {}
    w, _, rank, _ = np.linalg.lstsq(x, np.asarray(y, np.float64))
    if rank < x.shape[1]:
        return {}
    at = f"model/{first.removesuffix('out')}c_proj"
    return {f"{at}/w": w[:-1], f"{at}/b": w[-1]}
