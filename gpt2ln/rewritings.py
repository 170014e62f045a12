"""The right formulas in other numbers: rounded factors and weights; and the same model under other names, centred or
folded, as TransformerLens has it by default.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from .hypothesis import Formulas, Hypothesis, rewritten, wrong
from .reference import FORMULAS, Reference, hidden
from .spec import EPSILON
from .wrong_blocks import LINEAR, linear

BITS = {"TF32": 10, "bfloat16": 7}  # behind the leading one; float16 has as many as TF32, and a smaller range


def rounded(x: np.ndarray, bits: int, *, cut: bool = False) -> np.ndarray:
    """To that many bits behind the leading one, ties to even; cut: towards 0."""
    dropped = np.int64(52 - bits)
    x = np.ascontiguousarray(x, np.float64).view(np.int64)
    if not cut:
        x = x + (((x >> dropped) & 1) + (np.int64(1) << (dropped - 1)) - 1)
    return (x >> dropped << dropped).view(np.float64)


def _products(less: Callable[[np.ndarray], np.ndarray]) -> Formulas:
    """Every product of factors with less bits, added up with all of them."""

    def scores(t, at):
        q, k = (less(t[f"{at}/{leaf}"]).swapaxes(0, 1) for leaf in "qk")
        w = (q @ k.swapaxes(1, 2)).swapaxes(0, 1) / np.sqrt(t.hparams.head_dim)
        return np.where(hidden(len(w)), -1e10, w)

    def z(t, at):
        probs, v = (less(t[f"{at}/{leaf}"]).swapaxes(0, 1) for leaf in ("probs", "v"))
        return (probs @ v).swapaxes(0, 1).reshape(len(t.ids), -1)

    return linear(lambda x, w, b: less(x) @ less(w) + b, *LINEAR) | {
        "attn/scores": scores,
        "attn/z": z,
        "logits": lambda t, at: less(t["ln_f/out"]) @ less(t.weight("wte")).T,
    }


class _Rounded(Reference):
    """Taps of a pass, weights with less bits."""

    def __init__(self, t: Reference, less: Callable[[np.ndarray], np.ndarray]):
        super().__init__(t.hparams, t.ids, t.weights)
        self._t, self._less = t, less

    def __getitem__(self, tap: str) -> np.ndarray:
        return self._t[tap]

    def weight(self, name: str) -> np.ndarray:
        return self._less(super().weight(name))


def _weights(less: Callable[[np.ndarray], np.ndarray]) -> Formulas:
    kinds = ("wte/out", "wpe/out", "ln/out", *LINEAR, "logits")
    return {kind: (lambda t, at, kind=kind: FORMULAS[kind](_Rounded(t, less), at)) for kind in kinds}


def _arithmetic() -> Iterator[Hypothesis]:
    for name, bits in BITS.items():
        ways = [lambda x, b=bits, c=cut: rounded(x, b, cut=c) for cut in (False, True)]
        says = f"the factors of products have {bits} bits behind the leading one"
        yield wrong(f"{name} products", says, *map(_products, ways))
        kept = "float16" if bits == BITS["TF32"] else name
        yield wrong(f"{kept} weights", f"weights have {bits} bits behind the leading one", *map(_weights, ways))


def _centring(kinds: Iterable[str]) -> Formulas:
    def centred(t, at, kind):
        x = FORMULAS[kind](t, at)
        return x - x.mean(-1, keepdims=True)

    return {kind: (lambda t, at, kind=kind: centred(t, at, kind)) for kind in kinds}


def _normalized(t: Reference, at: str) -> np.ndarray:
    x = FORMULAS["logits"](t, at)
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def _same_model() -> Iterator[Hypothesis]:
    says = "what is written into the residual stream is centred over C (center_writing_weights of TransformerLens?)"
    yield rewritten("centred weights", says, _centring(("wte/out", "wpe/out", "attn/out", "mlp/out")))
    says = "logits differ by a constant per position; softmax equal (center_unembed of TransformerLens?)"
    yield rewritten("centred unembedding", says, _centring(["logits"]))
    yield rewritten("log-probabilities", "logits are log-probabilities: softmax equal", {"logits": _normalized})
    inverse = {"ln/rstd": lambda t, at: np.sqrt(t[f"{at}/var"] + EPSILON)}
    says = "rstd holds its inverse, sqrt(var + epsilon), as hook_scale of TransformerLens does; what follows is right"
    yield rewritten("rstd inverted", says, inverse, renamed=True)
    before = {"ln/out": lambda t, at: t[f"{at}/norm"]}
    says = "out is norm: the ratio is g, gain and bias folded away or reported before them; what follows is right"
    yield rewritten("folded gain", says, before, renamed=True)

    def after(t, at):
        return FORMULAS["ln/norm"](t, at) * t.weight(f"{at}/g") + t.weight(f"{at}/b")

    says = "norm is our out: after gain and bias, expected before"
    yield rewritten("norm after gain and bias", says, {"ln/norm": after}, renamed=True)


REWRITINGS: Sequence[Hypothesis] = (*_arithmetic(), *_same_model())
