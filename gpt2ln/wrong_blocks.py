"""What ports do otherwise in attention and MLP: thirds, heads, scale, mask, matrices, GELU."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import permutations

import numpy as np

from .hypothesis import Formulas, Hypothesis, Moved, wrong
from .reference import FORMULAS, Reference, heads, hidden, products, softmax
from .spec import HParams

LINEAR = {"attn/c_attn": "c_attn", "attn/out": "c_proj", "mlp/fc": "c_fc", "mlp/out": "c_proj"}
MASKS = (-1e4, -1e5, -1e9)


def _thirds(third: Callable[[Reference, str, int], np.ndarray]) -> Formulas:
    """q, k, v: third(taps, attn, which) -> [T, H, D]"""
    return {f"attn/{leaf}": (lambda t, at, n=n: third(t, at, n)) for n, leaf in enumerate("qkv")}


def _orders() -> Iterator[Hypothesis]:
    for order in list(permutations("qkv"))[1:]:
        forms = {f"attn/{leaf}": FORMULAS[f"attn/{'qkv'[order.index(leaf)]}"] for leaf in "qkv"}
        yield wrong("q, k, v order", f"c_attn is taken as {', '.join(order)}, expected q, k, v", forms)

    def by_head(t, at, n):
        c = t[f"{at}/c_attn"]
        return c.reshape(len(c), t.hparams.n_head, 3, -1)[:, :, n]

    yield wrong("q, k, v order", "c_attn is taken as [H, 3, D], expected [3, H, D]", _thirds(by_head))


def _split(formula: Callable[[np.ndarray, int], np.ndarray]) -> Formulas:
    return _thirds(lambda t, at, n: formula(np.split(t[f"{at}/c_attn"], 3, -1)[n], t.hparams.n_head))


def _merge(formula: Callable[[np.ndarray], np.ndarray]) -> Formulas:
    """formula: [T, H, D] -> anything of that size"""

    def z(t, at):
        a = heads(t, at)
        return formula(a).reshape(len(a), -1)

    return {"attn/z": z}


def _heads() -> Iterator[Hypothesis]:
    inner = _split(lambda c, H: c.reshape(len(c), -1, H).swapaxes(1, 2))
    flat = _split(lambda c, H: c.reshape(H, len(c), -1).swapaxes(0, 1))
    yield wrong("head split order", "C is split as [D, H], expected [H, D]", inner)
    yield wrong("head split order", "[T, C] is reshaped to [H, T, D], expected a transposition", flat)
    merged = _merge(lambda a: a.swapaxes(1, 2)), _merge(lambda a: a.swapaxes(0, 1))
    yield wrong("head merge order", "heads are merged as [D, H] or as [H, T, D], expected [T, H, D]", *merged)


def _scores(formula: Callable[[np.ndarray, np.ndarray], np.ndarray], scale: Callable | None = None) -> Formulas:
    """formula: scaled products [T, H, T], and where the future is -> scores"""

    def scores(t, at):
        by = 1 / math.sqrt(t.hparams.head_dim) if scale is None else scale(t.hparams, int(at.partition("/")[0][1:]))
        w = products(t, at) * by
        return formula(w, hidden(len(w)))

    return {"attn/scores": scores}


def _official(w: np.ndarray, future: np.ndarray) -> np.ndarray:
    return np.where(future, -1e10, w)


def _scales() -> Iterator[Hypothesis]:
    yield wrong("scale missing", "q k^T is not divided by sqrt(D)", _scores(_official, lambda hp, layer: 1))
    by_C = _scores(_official, lambda hp, layer: 1 / math.sqrt(hp.n_embd))
    yield wrong("scale by C", "q k^T is divided by sqrt(C), expected by sqrt(D)", by_C)
    by_layer = _scores(_official, lambda hp, layer: 1 / math.sqrt(hp.head_dim) / (layer + 1))
    yield wrong("scale by layer", "q k^T is also divided by the number of the block", by_layer)


def _masks() -> Iterator[Hypothesis]:
    for value in MASKS:
        put, added = _scores(lambda w, f, v=value: np.where(f, v, w)), _scores(lambda w, f, v=value: w + v * f)
        yield wrong("mask value", f"the mask is {value:g}, expected -1e+10", put, added)
    yield wrong("mask missing", "the future is not hidden", _scores(lambda w, f: w))
    for by, says in ((1, "each position sees the next one"), (-1, "each position does not see itself")):

        def shifted(w, f, by=by):
            return np.where(np.triu(np.ones((len(w), len(w)), bool), 1 + by)[:, None], -1e10, w)

        yield wrong("mask off by one", says, _scores(shifted))
    queries = {"attn/probs": lambda t, at: softmax(t[f"{at}/scores"].swapaxes(0, 2)).swapaxes(0, 2)}
    yield wrong("softmax over queries", "probs sum to 1 over the queries, expected over the keys", queries)


def _cache() -> Iterator[Hypothesis]:
    """One row of the cache that is written too late, as each token sees it."""

    def before(x):
        return np.concatenate([x[:1], x[:-1]])

    def scores(t, at):
        q, k = (t[f"{at}/{leaf}"] for leaf in "qk")
        w, own = FORMULAS["attn/scores"](t, at).copy(), np.arange(len(t.ids))
        w[own, :, own] = (q * before(k)).sum(-1) / math.sqrt(t.hparams.head_dim)
        return w

    def z(t, at):
        probs, v = (t[f"{at}/{leaf}"] for leaf in ("probs", "v"))
        own = np.arange(len(v))
        a = heads(t, at) + probs[own, :, own][..., None] * (before(v) - v)
        return a.reshape(len(v), -1)

    says = "each position sees the key and the value of the one before in place of its own"
    yield wrong("cache one step late", says, {"attn/scores": scores, "attn/z": z})


def cache_late(start: int) -> Hypothesis:
    """Keys and values of the positions from `start` on lie one further than they should; that of `start` is empty."""

    def late(x):
        return np.concatenate([x[:start], 0 * x[:1], x[start:-1]])

    def with_late(leaf, kind):
        return {kind: lambda t, at: FORMULAS[kind](_Lent(t, t.weights, {f"{at}/{leaf}": late(t[f"{at}/{leaf}"])}), at)}

    says = f"keys and values lie one place too far, and place {start} is empty"
    return wrong("cache one place too far", says, with_late("k", "attn/scores") | with_late("v", "attn/z"))


class _Linear:
    """Taps as a formula sees them, with another conv1d."""

    def __init__(self, t: Reference, product: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]):
        self._t, self._product = t, product

    def __getitem__(self, tap: str) -> np.ndarray:
        return self._t[tap]

    def conv1d(self, x: np.ndarray, at: str) -> np.ndarray:
        return self._product(x, self._t.weight(f"{at}/w"), self._t.weight(f"{at}/b"))


def linear(product: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray], *kinds: str) -> Formulas:
    """These conv1d with another product of x, w and b."""
    return {kind: (lambda t, at, kind=kind: FORMULAS[kind](_Linear(t, product), at)) for kind in kinds}


def _linears() -> Iterator[Hypothesis]:
    for kind, leaf in LINEAR.items():
        at = f"{kind.partition('/')[0]}/{leaf}"
        yield wrong("bias missing", f"the bias of {at} is missing", linear(lambda x, w, b: x @ w, kind))
        turned = linear(lambda x, w, b: x @ w.reshape(w.shape[::-1]).T + b, kind)
        yield wrong("missing transposition", f"{at}/w is read as [nf, nx], expected [nx, nf]", turned)


def erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf, otypes=[float])(x)


def _tanh(inner: np.ndarray, x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * inner))


def _gelus() -> Iterator[Hypothesis]:
    for name, says, formula in (
        ("erf GELU", "the erf form", lambda x: x / 2 * (1 + erf(x / math.sqrt(2)))),
        ("sigmoid GELU", "x * sigmoid(1.702 x)", lambda x: x / (1 + np.exp(-1.702 * x))),
        ("SiLU", "x * sigmoid(x)", lambda x: x / (1 + np.exp(-x))),
        ("GELU constant", "the tanh form with 0.0044715", lambda x: _tanh(x + 0.0044715 * x * x * x, x)),
        ("ReLU", "max(x, 0)", lambda x: np.maximum(x, 0)),
    ):
        form = {"mlp/gelu": lambda t, at, f=formula: f(t[f"{at}/fc"])}
        yield wrong(name, f"GELU is {says}, expected the tanh form", form)


def _unembedding() -> Iterator[Hypothesis]:
    scaled = {"logits": lambda t, at: FORMULAS["logits"](t, at) / math.sqrt(t.hparams.n_embd)}
    yield wrong("logits scaled", "logits are divided by sqrt(C)", scaled)


def blocks_exchanged(hparams: HParams, layer: int) -> Iterator[Hypothesis]:
    """One block with the weights of another, as when h10 comes before h2."""
    for other in range(hparams.n_layer):
        if other != layer:
            says = f"block {layer} has the weights of block {other}"
            yield wrong("blocks in another order", says, _moved(layer, other))


def _moved(layer: int, other: int) -> Formulas:
    def formula(kind):
        def moved(t, at):
            weights = Moved(t.weights, f"h{layer}", f"h{other}")
            return FORMULAS[kind](_Lent(t, weights), at)

        return moved

    return {kind: formula(kind) for kind in ("ln/out", *LINEAR)}


class _Lent(Reference):
    """Taps of a pass, with the weights of another, or some of its taps."""

    def __init__(self, t: Reference, weights: Mapping[str, np.ndarray], taps: Mapping[str, np.ndarray] | None = None):
        super().__init__(t.hparams, t.ids, weights)
        self._t, self._taps = t, taps or {}

    def __getitem__(self, tap: str) -> np.ndarray:
        return self._taps[tap] if tap in self._taps else self._t[tap]


WRONG_BLOCKS: Sequence[Hypothesis] = (
    *_orders(),
    *_heads(),
    *_scales(),
    *_masks(),
    *_cache(),
    *_linears(),
    *_gelus(),
    *_unembedding(),
)
