"""The forward pass in float64 NumPy, tap by tap: what a float32 one is held against.

A tap is computed when it is asked for, from the taps before it and the weights.  Some may be given, and then all that
follows is computed from those: what an operation makes of the very numbers that another program put into it.  Each kind
of tap has one formula, and a formula may be replaced by a wrong one, to see what that would have given.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from .spec import EPSILON, HParams
from .taps import all_taps

Formula = Callable[["Reference", str], np.ndarray]  # (taps so far, scope) -> [T, ...]


class Missing(KeyError):
    """Neither given nor to be computed: a weight that it needs is not there."""


class Reference(Mapping[str, np.ndarray]):
    """Tap -> [T, ...] float64 of one text, positions first; attention is [T, H, T].

    weights: `model/...` -> array, of any float type; without some of them only what needs none of these is computed.
    given: tap -> array, taken as it is.  formulas: `kind` -> formula, in place of ours.
    """

    def __init__(
        self,
        hparams: HParams,
        ids: Sequence[int],
        weights: Mapping[str, np.ndarray],
        *,
        given: Mapping[str, np.ndarray] | None = None,
        formulas: Mapping[str, Formula] | None = None,
    ):
        self.hparams, self.ids, self.weights = hparams, np.asarray(ids, np.int64), weights
        self.given, self._formulas = given or {}, FORMULAS | (formulas or {})
        self._known: dict[str, np.ndarray] = {}

    def __getitem__(self, tap: str) -> np.ndarray:
        if tap not in self._known:
            given = self.given.get(tap)
            self._known[tap] = self.computed(tap) if given is None else np.asarray(given, np.float64)
        return self._known[tap]

    def __iter__(self) -> Iterator[str]:
        return (tap.name for tap in all_taps(self.hparams))

    def __len__(self) -> int:
        return len(all_taps(self.hparams))

    def computed(self, tap: str) -> np.ndarray:
        """By its formula, though it may be given."""
        return self._formulas[kind(tap)](self, tap.rpartition("/")[0])

    def weight(self, name: str) -> np.ndarray:
        """float64, `w` of a conv1d as [nx, nf]."""
        try:
            w = self.weights[f"model/{name}"]
        except KeyError:
            raise Missing(name) from None
        return np.asarray(w[0] if w.ndim == 3 else w, np.float64)

    def conv1d(self, x: np.ndarray, at: str) -> np.ndarray:
        """[T, nx] -> [T, nf]"""
        return x @ self.weight(f"{at}/w") + self.weight(f"{at}/b")

    def input(self, norm: str) -> np.ndarray:
        """What a norm normalizes: [T, C]"""
        return self[f"{norm}/x"]

    def walk(self, wanted: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
        """The wanted taps in the order of the forward pass, a block in memory at a time."""
        wanted, block = set(wanted), ""
        for tap in all_taps(self.hparams):
            if not wanted:
                return
            scope = tap.name.partition("/")[0]
            if scope != block:
                self._leave(block)
                block = scope
            if tap.name in wanted:
                wanted.remove(tap.name)
                yield tap.name, self[tap.name]

    def _leave(self, block: str) -> None:
        """Forget a block but for its output."""
        if block.startswith("h"):
            self._known = {f"{block}/out": self[f"{block}/out"]}


def kind(tap: str) -> str:
    """The key of its formula: `h3/ln_1/mean` -> `ln/mean`, `h3/attn/q` -> `attn/q`, `h3/out` -> `out`."""
    *scopes, leaf = tap.split("/")
    scope = scopes[-1] if scopes else ""
    if scope.startswith("ln_"):
        return f"ln/{leaf}"
    return f"{scope}/{leaf}" if scope in ("attn", "mlp", "wte", "wpe") else leaf


def input_of(norm: str, hparams: HParams) -> str:
    """The tap that a norm normalizes: `h3/ln_1` -> `h3/in`"""
    if norm == "ln_f":
        return f"h{hparams.n_layer - 1}/out"
    return norm.replace("ln_1", "in").replace("ln_2", "mid")


def _in(t: Reference, at: str) -> np.ndarray:
    layer = int(at[1:])
    return t[f"h{layer - 1}/out"] if layer else t["embed"]


def _rstd(t: Reference, at: str) -> np.ndarray:
    return 1 / np.sqrt(t[f"{at}/var"] + EPSILON)


def _c_attn(t: Reference, at: str) -> np.ndarray:
    """[T, 3C]: queries, keys and values side by side."""
    return t.conv1d(t[f"{at.removesuffix('attn')}ln_1/out"], f"{at}/c_attn")


def split_heads(n: int) -> Formula:
    """The n-th third of c_attn: -> [T, H, D]"""

    def formula(t: Reference, at: str) -> np.ndarray:
        c = t[f"{at}/c_attn"]
        return np.split(c, 3, -1)[n].reshape(len(c), t.hparams.n_head, -1)

    return formula


def hidden(T: int) -> np.ndarray:
    """Where a position lies in the future of another: [T, 1, T]"""
    return np.triu(np.ones((T, T), bool), 1)[:, None]


def products(t: Reference, at: str) -> np.ndarray:
    """q k^T: -> [T, H, T]"""
    q, k = (t[f"{at}/{leaf}"].swapaxes(0, 1) for leaf in "qk")
    return (q @ k.swapaxes(1, 2)).swapaxes(0, 1)


def _scores(t: Reference, at: str) -> np.ndarray:
    w = products(t, at) / np.sqrt(t.hparams.head_dim)
    return np.where(hidden(len(w)), -1e10, w)


def softmax(x: np.ndarray) -> np.ndarray:
    ex = np.exp(x - x.max(-1, keepdims=True))
    return ex / ex.sum(-1, keepdims=True)


def heads(t: Reference, at: str) -> np.ndarray:
    """probs v: -> [T, H, D]"""
    probs, v = (t[f"{at}/{leaf}"].swapaxes(0, 1) for leaf in ("probs", "v"))
    return (probs @ v).swapaxes(0, 1)


def _z(t: Reference, at: str) -> np.ndarray:
    z = heads(t, at)
    return z.reshape(len(z), -1)


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x * x * x)))


FORMULAS: dict[str, Formula] = {
    "wte/out": lambda t, at: t.weight("wte")[t.ids],
    "wpe/out": lambda t, at: t.weight("wpe")[: len(t.ids)],
    "embed": lambda t, at: t["wte/out"] + t["wpe/out"],
    "in": _in,
    "ln/x": lambda t, at: t[input_of(at, t.hparams)],  # no tap: it has another name
    "ln/mean": lambda t, at: t.input(at).mean(-1, keepdims=True),
    "ln/var": lambda t, at: np.square(t.input(at) - t[f"{at}/mean"]).mean(-1, keepdims=True),
    "ln/rstd": _rstd,
    "ln/norm": lambda t, at: (t.input(at) - t[f"{at}/mean"]) * t[f"{at}/rstd"],
    "ln/out": lambda t, at: t[f"{at}/norm"] * t.weight(f"{at}/g") + t.weight(f"{at}/b"),
    "attn/c_attn": _c_attn,  # no tap either: its thirds are
    "attn/q": split_heads(0),
    "attn/k": split_heads(1),
    "attn/v": split_heads(2),
    "attn/scores": _scores,
    "attn/probs": lambda t, at: softmax(t[f"{at}/scores"]),
    "attn/z": _z,
    "attn/out": lambda t, at: t.conv1d(t[f"{at}/z"], f"{at}/c_proj"),
    "mid": lambda t, at: t[f"{at}/in"] + t[f"{at}/attn/out"],
    "mlp/fc": lambda t, at: t.conv1d(t[f"{at.removesuffix('mlp')}ln_2/out"], f"{at}/c_fc"),
    "mlp/gelu": lambda t, at: gelu(t[f"{at}/fc"]),
    "mlp/out": lambda t, at: t.conv1d(t[f"{at}/gelu"], f"{at}/c_proj"),
    "out": lambda t, at: t[f"{at}/mid"] + t[f"{at}/mlp/out"],
    "logits": lambda t, at: t["ln_f/out"] @ t.weight("wte").T,
}
