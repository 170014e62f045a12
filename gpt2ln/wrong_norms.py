"""What ports do otherwise in a LayerNorm, and in what surrounds it: sums, positions, the last norm."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from .hypothesis import Formulas, Hypothesis, wrong
from .reference import FORMULAS, Formula, Reference, input_of
from .spec import EPSILON, HParams
from .taps import norm_scopes

EPSILONS = (1e-12, 1e-8, 1e-7, 1e-6, 1e-4, 1e-3, 1e-2, 0.0)  # those in use; of equals the likeliest first


POST_NORM = ("post-norm", "each norm comes after its addition, expected before attention and MLP")


def epsilon(value: float) -> Hypothesis:
    form = {"ln/rstd": lambda t, at: 1 / np.sqrt(t[f"{at}/var"] + value)}
    return wrong(f"epsilon {value:g}", f"rstd fits epsilon {value:g}, expected {EPSILON:g}", form)


def _sample_variance(t: Reference, at: str) -> np.ndarray:
    return FORMULAS["ln/var"](t, at) * t.hparams.n_embd / (t.hparams.n_embd - 1)


def _mean_square(t: Reference, at: str) -> np.ndarray:
    return np.square(t.input(at)).mean(-1, keepdims=True)


def _bessel() -> Iterator[Hypothesis]:
    inside = {"ln/rstd": lambda t, at: 1 / np.sqrt(_sample_variance(t, at) + EPSILON)}
    says = "the variance is divided by C - 1, expected by C"
    yield wrong("Bessel", says, {"ln/var": _sample_variance}, inside)
    root = {"ln/rstd": lambda t, at: 1 / (t[f"{at}/var"] + EPSILON)}
    yield wrong("root missing", "rstd is 1 / (var + epsilon), expected rsqrt(var + epsilon)", root)
    outside = {"ln/rstd": lambda t, at: 1 / (np.sqrt(t[f"{at}/var"]) + EPSILON)}
    says = "rstd is 1 / (sqrt(var) + epsilon), expected rsqrt(var + epsilon)"
    yield wrong("epsilon outside the root", says, outside)
    both = {"ln/rstd": lambda t, at: 1 / (np.sqrt(_sample_variance(t, at)) + EPSILON)}
    says = "rstd is 1 / (sample deviation + epsilon), expected rsqrt(var + epsilon) with the biased variance"
    yield wrong("Bessel, epsilon outside the root", says, {"ln/var": _sample_variance} | outside, both)


def _rms() -> Hypothesis:
    reported = {"ln/mean": lambda t, at: np.zeros((len(t.ids), 1)), "ln/var": _mean_square}
    inside = {"ln/norm": lambda t, at: t.input(at) / np.sqrt(_mean_square(t, at) + EPSILON)}
    return wrong("RMSNorm", "the mean is not subtracted: x / sqrt(mean(x^2) + epsilon)", reported, inside)


def _affine(formula: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]) -> Formulas:
    """out of norm, g and b"""
    return {"ln/out": lambda t, at: formula(t[f"{at}/norm"], t.weight(f"{at}/g"), t.weight(f"{at}/b"))}


def _gains() -> Iterator[Hypothesis]:
    yield wrong("gain missing", "out is norm + b", _affine(lambda n, g, b: n + b))
    yield wrong("bias missing", "out is norm * g", _affine(lambda n, g, b: n * g))
    yield wrong("gain and bias missing", "out is norm, and so is what follows", _affine(lambda n, g, b: n))
    yield wrong("gain and bias swapped", "out is norm * b + g", _affine(lambda n, g, b: n * b + g))
    yield wrong("gain counted from one", "out is norm * (1 + g) + b", _affine(lambda n, g, b: n * (1 + g) + b))
    other = {"ln/out": lambda t, at: t[f"{at}/norm"] * t.weight(f"{_other(at)}/g") + t.weight(f"{_other(at)}/b")}
    yield wrong("ln_1 and ln_2 swapped", "gain and bias are those of the block's other norm", other)


def _other(at: str) -> str:
    return at.replace("ln_1", "ln_x").replace("ln_2", "ln_1").replace("ln_x", "ln_2")


def scales_reused(here: str, right: Reference) -> Iterator[Hypothesis]:
    """The norm `here` divides by what belongs to another norm.  right: the pass without a mistake."""
    for norm in norm_scopes(right.hparams):
        if norm != here:
            name = "final scale reused" if norm == "ln_f" else f"scale of {norm} reused"
            yield wrong(name, f"rstd of {here} is that of {norm}", {"ln/rstd": _reused(here, norm, right)})


def _reused(here: str, norm: str, right: Reference) -> Formula:
    return lambda t, at: right[f"{norm}/rstd"] if at == here else FORMULAS["ln/rstd"](t, at)


def _at_the_end(formula: Formula) -> Formulas:
    """Of ln_f alone."""
    return {"ln/out": lambda t, at: formula(t, at) if at == "ln_f" else FORMULAS["ln/out"](t, at)}


def _logits(formula: Formula) -> Formulas:
    """Of something else than ln_f/out, which may be reported as it should be."""
    return {"logits": lambda t, at: formula(t, "ln_f") @ t.weight("wte").T}


def _twice(t: Reference, at: str) -> np.ndarray:
    once = FORMULAS["ln/out"](t, at)
    last = input_of(at, t.hparams)
    return Reference(t.hparams, t.ids, t.weights, given={last: once})[f"{at}/out"]


def _last_norm() -> Iterator[Hypothesis]:
    missing = [form(lambda t, at: t.input(at)) for form in (_at_the_end, _logits)]
    yield wrong("ln_f missing", "what should be the output of ln_f is its input", *missing)
    twice = [form(_twice) for form in (_at_the_end, _logits)]
    yield wrong("ln_f applied twice", "ln_f is applied to its own output once more", *twice)


def _post_norm(t: Reference, at: str) -> np.ndarray:
    block, _, norm = at.partition("/")
    if norm == "ln_1":
        return t[f"{block}/mid"]
    return t[f"{block}/ln_1/out"] + t[f"{block}/mlp/out"] if norm == "ln_2" else t[input_of(at, t.hparams)]


def _order() -> Iterator[Hypothesis]:
    post = {
        "ln/x": _post_norm,
        "attn/c_attn": lambda t, at: t.conv1d(t[at.replace("attn", "in")], f"{at}/c_attn"),
        "mlp/fc": lambda t, at: t.conv1d(t[at.replace("mlp", "ln_1/out")], f"{at}/c_fc"),
        "out": lambda t, at: t[f"{at}/ln_2/out"],
    }
    yield from _skips()
    yield Hypothesis(*POST_NORM, (post,), everywhere=True)
    parallel = {"ln/x": lambda t, at: t[at.replace("ln_2", "in") if at.endswith("ln_2") else input_of(at, t.hparams)]}
    yield wrong("parallel block", "ln_2 reads the input of the block, expected mid", parallel)
    normed = {
        "mid": lambda t, at: t[f"{at}/ln_1/out"] + t[f"{at}/attn/out"],
        "out": lambda t, at: t[f"{at}/ln_2/out"] + t[f"{at}/mlp/out"],
    }
    yield wrong("residual from the norm", "the output of the norm is added, expected its input", normed)
    mid, out = {"mid": lambda t, at: t[f"{at}/attn/out"]}, {"out": lambda t, at: t[f"{at}/mlp/out"]}
    yield wrong("residual missing", "an output replaces the residual stream, expected a sum", mid | out, mid, out)


def _skips() -> Iterator[Hypothesis]:
    for norm, of, kind in (("ln_1", "attn", "attn/c_attn"), ("ln_2", "mlp", "mlp/fc")):
        yield wrong(f"{norm} missing", f"{of} reads what {norm} should normalize", {kind: _skipped(norm, of)})


def _skipped(norm: str, of: str) -> Formula:
    def formula(t, at):
        x = t.input(f"{at.removesuffix(of)}{norm}")
        return t.conv1d(x, f"{at}/{'c_attn' if of == 'attn' else 'c_fc'}")

    return formula


def _positions(by: int) -> Formulas:
    def wpe(t, at):
        w = t.weight("wpe")
        return w[np.clip(np.arange(len(t.ids)) + by, 0, len(w) - 1)]

    return {"wpe/out": wpe}


def _embeddings() -> Iterator[Hypothesis]:
    for by, which in ((1, "t + 1"), (-1, "t - 1")):
        yield wrong("wpe off by one", f"position t gets row {which} of wpe", _positions(by))
    nothing = {"wpe/out": lambda t, at: 0 * FORMULAS["wpe/out"](t, at)}
    yield wrong("wpe missing", "no positions are added", {"embed": lambda t, at: t["wte/out"]}, nothing)
    scaled = {"wte/out": lambda t, at: FORMULAS["wte/out"](t, at) * np.sqrt(t.hparams.n_embd)}
    yield wrong("wte scaled", "wte is multiplied by sqrt(C)", scaled)


def wte_scaled(hparams: HParams, value: float) -> Hypothesis:
    """By a constant, named where it is a usual one."""
    root = float(np.sqrt(hparams.n_embd))
    usual = [(word, x) for word, x in (("sqrt(C) = ", root), ("1 / sqrt(C) = ", 1 / root)) if abs(value - x) < 1e-4 * x]
    word, value = usual[0] if usual else ("", value)
    scaled = {"wte/out": lambda t, at: FORMULAS["wte/out"](t, at) * value}
    unseen = {"embed": lambda t, at: t["wte/out"] * value + t["wpe/out"]}
    return wrong("wte scaled", f"wte is multiplied by {word}{value:.6g}", scaled, unseen)


WRONG_NORMS: Sequence[Hypothesis] = (
    *map(epsilon, EPSILONS),
    *_bessel(),
    _rms(),
    *_gains(),
    *_last_norm(),
    *_order(),
    *_embeddings(),
)
