"""One difference between two dumps: what B put into the operation that differs, and what its numbers show by
themselves, such as the epsilon that fits them, a variance in one pass, or fewer bits than float32 has.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from .hypothesis import Formulas, Hypothesis, wrong
from .reference import Missing, Reference, kind
from .spec import EPSILON, HParams
from .taps import all_taps, norm_scopes
from .wrong_norms import EPSILONS, epsilon

Taps = Mapping[str, np.ndarray]
ULP = 2.0**-24  # half a step of float32, relative
LEAST = -1e5  # scores below it are hidden, and all alike
AHEAD = 12  # taps after the first, to tell apart what that one cannot
BIASED = ("ln/out", "attn/q", "attn/k", "attn/v", "attn/out", "mlp/fc", "mlp/out")
LARGEST = 0.1  # epsilon that anybody would write
ROUNDINGS = 8  # that a row's own epsilon may be off by, each of 8 half steps
ROOM = 1.2e9  # bytes of weights kept in float64; those of 124M take a gigabyte
ONE_PASS = 16  # roundings of mean(x^2) by which a variance in one pass may be off
HALVES = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # half a step of each, relative


class Case:
    """The first tap that differs, in one text.  A is right, B is asked about; positions first.

    given: what B held before it, which agrees with A.  noise: rms of float32's own error at that tap.
    """

    def __init__(self, a: Taps, b: Taps, first: str, hparams: HParams, ids: Sequence[int], weights: Taps, noise: float):
        self.a, self.b, self.first, self.hparams, self.ids = a, b, first, hparams, tuple(ids)
        self.weights, self.noise = (
            weights if isinstance(weights, Widened) else Widened(weights or weights_shown(a)),
            noise,
        )
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
        return {f"{at}/c_attn": np.concatenate([_rows(self.a[f"{at}/{leaf}"]) for leaf in "qkv"], -1)}

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

    def run(self, formulas: Formulas | None = None) -> Reference:
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
        """rms of what B holds, less what is expected; where that is NaN nothing is known."""
        expected = seen(taps[name], name)
        return rms((seen(self.b[name], name) - expected)[~np.isnan(expected)])

    @cached_property
    def rounding(self) -> float:
        """rms that the first tap may be off by in float32."""
        return max(self.noise, ULP * size(self.b[self.first]))


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


def _rows(x: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), -1)


def weights_shown(a: Taps) -> dict[str, np.ndarray]:
    """What a dump shows of the weights: wpe at its positions, and g and b of a norm with its norm and out."""
    found = {}
    if "wpe/out" in a:
        found["model/wpe"] = np.concatenate([a["wpe/out"], np.full_like(a["wpe/out"][:1], np.nan)])
    for name in a:
        at = name.removesuffix("/norm")
        if name.endswith("/norm") and f"{at}/out" in a and len(a[name]) > 2:
            n, out = (np.asarray(a[f"{at}/{leaf}"], np.float64) for leaf in ("norm", "out"))
            centred = n - n.mean(0)
            g = (centred * out).sum(0) / np.square(centred).sum(0)
            found |= {f"model/{at}/g": g, f"model/{at}/b": out.mean(0) - g * n.mean(0)}
    return found


def epsilons(case: Case) -> Iterator[Hypothesis]:
    """The epsilon that B's numbers fit best: 1/rstd^2 - var, over the rows; one in use where it is as good."""
    try:
        r = _rstd(case)
    except Missing:
        return
    if r is None or len(r) < 3:
        return
    each, slack = 1 / r**2 - _rows(case.right[f"{case.norm}/var"])[:, 0], 8 * ULP / r**2
    each, slack = each[np.isfinite(each)], slack[np.isfinite(each)]
    if not np.isfinite(slack).all() or not np.sum(slack**-2) > 0:
        return
    best, unsure = float(np.average(each, weights=slack**-2)), float(np.sum(slack**-2) ** -0.5)
    known = [value for value in EPSILONS if abs(value - best) <= 3 * unsure + 0.01 * abs(best)]
    value = known[0] if known else float(f"{best:.2g}")
    fits = np.all(np.abs(each - best) <= ROUNDINGS * slack)
    if fits and 0 <= value <= LARGEST:
        found = epsilon(value)
        says = f"rstd fits epsilon {value:g} (from {best - 3 * unsure:.3g} to {best + 3 * unsure:.3g})"
        yield wrong(found.name, f"{says}, expected {EPSILON:g}", *found.forms)


def epsilons_behind(case: Case) -> Iterator[Hypothesis]:
    """Where no norm is seen: step by step to the epsilon that leaves least (Gauss and Newton)."""
    if case.norm is not None:
        return
    value = EPSILON
    for _ in range(4):
        here, there = (_rows(case.run(epsilon(x).forms[0])[case.first]) for x in (value, 1.01 * value))
        slope, off = (there - here) / (0.01 * value), _rows(np.asarray(case.b[case.first], np.float64)) - here
        if not np.square(slope).sum() > 0:
            return
        value = max(value + float((slope * off).sum() / np.square(slope).sum()), value / 10)
    if value <= LARGEST:
        yield epsilon(float(f"{value:.2g}"))


def _rstd(case: Case) -> np.ndarray | None:
    """[T]: what the norm in question divided by, of whichever of its values differs."""
    leaf = case.first.rpartition("/")[2]
    if case.norm is None or leaf not in ("rstd", "norm", "out"):
        return None
    value = np.asarray(case.b[case.first], np.float64)
    if leaf == "rstd":
        return value[:, 0]
    if leaf == "out":
        if f"model/{case.norm}/g" not in case.weights:
            return None
        g, b = (case.right.weight(f"{case.norm}/{k}") for k in "gb")
        kept = np.abs(g) > np.abs(g).max() / 100
        value, x = ((value - b) / g)[:, kept], _centred(case)[:, kept]
    else:
        x = _centred(case)
    return (value * x).sum(-1) / np.square(x).sum(-1)


def _centred(case: Case) -> np.ndarray:
    return case.right.input(case.norm) - case.right[f"{case.norm}/mean"]


def in_one_pass(case: Case) -> str | None:
    """In words, where the variance is off by roundings of mean(x^2) and no less."""
    if case.norm is None:
        return None
    try:
        r, x = _rstd(case), case.right.input(case.norm)
    except Missing:
        return None
    if case.first.endswith("/var"):
        var = np.asarray(case.b[case.first], np.float64)[:, 0]
    elif r is not None:
        var = 1 / r**2 - EPSILON
    else:
        return None
    right, square = np.var(x, -1), np.square(x).mean(-1)
    off = np.abs(var - right)
    if not (np.all(off <= ONE_PASS * ULP * square) and rms(off) > ONE_PASS * ULP * rms(right)):
        return None
    return f"var is off by up to {off.max():.2g}, the rounding of mean(x^2) - mean(x)^2 in float32 ({square.max():.3g})"


def bits(x: np.ndarray) -> str | None:
    """The narrower format that holds every value of x."""
    x = np.asarray(x, np.float32)
    x = x[np.isfinite(x) & (x != 0) & (x > LEAST)]
    if x.size < 4:
        return None
    if not np.any(x.view(np.uint32) & 0xFFFF):
        return "bfloat16"
    with np.errstate(over="ignore"):
        return "float16" if np.all(x.astype(np.float16) == x) else None


def narrow(case: Case) -> str | None:
    """The narrower format that B's values fit into, from the first that differs on, and A's do not."""
    found = {bits(case.b[name]) for name in [case.first, *case.ahead]}
    (one,) = found if len(found) == 1 else (None,)
    return None if one is None or one == bits(case.a[case.first]) else one


def constant(case: Case) -> bool:
    """Whether B is off by the same in every row, as with another bias or none."""
    if kind(case.first) not in BIASED:
        return False
    off = _rows(np.asarray(case.b[case.first], np.float64) - np.asarray(case.a[case.first], np.float64))
    return len(off) > 2 and rms(off - off.mean(0)) <= 16 * case.rounding < rms(off)


def longer(case: Case) -> "Cut | None":
    """The pass over the same text after <|endoftext|>, whose row is cut off."""
    if len(case.ids) == case.hparams.n_ctx or "model/wte" not in case.weights:
        return None
    return Cut(Reference(case.hparams, (case.hparams.n_vocab - 1, *case.ids), case.weights))


class Cut:
    """Taps without their first position."""

    def __init__(self, taps: Reference):
        self._taps = taps

    def __getitem__(self, name: str) -> np.ndarray:
        x = self._taps[name][1:]
        return x[..., 1:] if name.endswith(("/scores", "/probs")) else x
