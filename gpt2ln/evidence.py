"""What the numbers of a difference show by themselves: the epsilon that fits them, the constant that wte is multiplied
by, the rows of wpe that were taken, a variance in one pass, or fewer bits than float32 has.
"""

from collections.abc import Iterator

import numpy as np

from .case import EMBEDDINGS, LEAST, ULP, Case, rms, rows_of
from .hypothesis import Hypothesis, wrong
from .reference import FORMULAS, Missing, Reference, kind
from .spec import EPSILON
from .wrong_norms import EPSILONS, POST_NORM, epsilon, wte_scaled

BIASED = ("ln/out", "attn/q", "attn/k", "attn/v", "attn/out", "mlp/fc", "mlp/out")
LARGEST = 0.1  # epsilon that anybody would write
ROUNDINGS = 8  # that a row's own epsilon may be off by, each of 8 half steps
ONE_PASS = 16  # roundings of mean(x^2) by which a variance in one pass may be off
HALVES = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # half a step of each, relative
LOOKED_UP = ("wte/out", "wpe/out")


def epsilons(case: Case) -> Iterator[Hypothesis]:
    """The epsilon that B's numbers fit best: 1/rstd^2 - var, over the rows; one in use where it is as good."""
    try:
        r = _rstd(case)
    except Missing:
        return
    if r is None:
        return
    r, var = r[case.asked], rows_of(case.right[f"{case.norm}/var"])[case.asked, 0]
    if len(r) < 3:
        return
    each, slack = 1 / r**2 - var, 8 * ULP / r**2
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
        here, there = (rows_of(case.run(epsilon(x).forms[0])[case.first]) for x in (value, 1.01 * value))
        slope, off = (there - here) / (0.01 * value), rows_of(np.asarray(case.b[case.first], np.float64)) - here
        if not np.square(slope).sum() > 0:
            return
        value = max(value + float((slope * off).sum() / np.square(slope).sum()), value / 10)
    if value <= LARGEST:
        yield epsilon(float(f"{value:.2g}"))


def scales(case: Case) -> Iterator[Hypothesis]:
    """The constant that wte is multiplied by, where what differs is made of wte (least squares)."""
    if (shown := _embedding(case, "wte/out")) is None or case.first == "wpe/out":
        return
    x, y = (x[case.asked] for x in shown)
    value = float((x * y).sum() / np.square(x).sum()) if x.any() else np.nan
    if np.isfinite(value):
        yield wte_scaled(case.hparams, value)


def positions(case: Case) -> Iterator[Hypothesis]:
    """The row of wpe that each position got, where they are all shifted by the same, or all one."""
    if (shown := _embedding(case, "wpe/out")) is None or case.first == "wte/out" or "model/wpe" not in case.weights:
        return
    w, rows = case.right.weight("wpe"), np.arange(len(case.ids))
    taken = _nearest(w, shown[1][case.asked])
    by = np.unique(taken - case.asked)
    if len(by) == 1 and abs(by[0]) > 1:
        says = f"position t gets row t {'+' if by[0] > 0 else '-'} {abs(by[0])} of wpe"
        yield wrong("wpe shifted", says, *_rows_of_wpe(np.clip(rows + by[0], 0, len(w) - 1)))
    elif len(taken) > 1 and (taken == taken[0]).all():
        says = f"every position gets row {taken[0]} of wpe"
        yield wrong("wpe stuck", says, *_rows_of_wpe(np.full_like(rows, taken[0])))


def _nearest(w: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """[n]: which row of w each row is nearest to; those of w that are NaN are none."""
    far = np.square(w).sum(-1) - 2 * rows @ np.nan_to_num(w).T
    return np.where(np.isnan(far), np.inf, far).argmin(-1)


def _rows_of_wpe(rows: np.ndarray) -> Iterator[dict]:
    def wpe(t, at):
        return t.weight("wpe")[rows]

    yield {"wpe/out": wpe}
    yield {"embed": lambda t, at: t["wte/out"] + wpe(t, at)}


def _embedding(case: Case, name: str) -> tuple[np.ndarray, np.ndarray] | None:
    """What `name` is in A, and what it would be in B if all else were right."""
    if case.first not in EMBEDDINGS:
        return None
    try:
        x, off = case.right.computed(name), np.asarray(case.b[case.first], np.float64) - case.right[case.first]
    except (Missing, ValueError):
        return None
    return x, x + off


def from_sums(case: Case) -> Iterator[Hypothesis]:
    """Post-norm, told by the sum that B itself reports behind the norm: attention need not be computed."""
    block = case.first.partition("/")[0]
    held = [case.b.get(f"{block}/{leaf}") for leaf in ("in", "attn/out")]
    if case.norm == f"{block}/ln_1" and not any(x is None for x in held):
        total = np.add(*held, dtype=np.float64)
        yield wrong(*POST_NORM, {"ln/x": lambda t, at: total if at == case.norm else FORMULAS["ln/x"](t, at)})


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
    names = [case.first, *case.ahead]
    if all(name in LOOKED_UP for name in names):  # what is only looked up shows no arithmetic
        return None
    found = {bits(case.b[name]) for name in names}
    (one,) = found if len(found) == 1 else (None,)
    return None if one is None or one == bits(case.a[case.first]) else one


def constant(case: Case) -> bool:
    """Whether B is off by the same in every row, as with another bias or none."""
    if kind(case.first) not in BIASED:
        return False
    off = rows_of(np.asarray(case.b[case.first], np.float64) - np.asarray(case.a[case.first], np.float64))
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
