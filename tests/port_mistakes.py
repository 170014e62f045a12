"""The mistakes of ports: a name that `compare` must give to each, and the switches of `numpy_port.run` that make it.

`what` tells apart several of one name.  Those of HARMLESS are the same model, written down otherwise.
"""

from dataclasses import dataclass, field

import numpy as np

from . import numpy_port as p


@dataclass(frozen=True)
class Port:
    name: str
    what: str = ""
    switches: dict = field(default_factory=dict)
    weights: object = None  # a function of the weights

    def __str__(self) -> str:
        return f"{self.name} ({self.what})" if self.what else self.name

    def run(self, weights, ids, n_head):
        with np.errstate(all="ignore"):
            return p.run(self.weights(weights) if self.weights else weights, ids, n_head, **self.switches)


def _port(name, what="", weights=None, **switches) -> Port:
    return Port(name, what, switches, weights)


def half(x):
    return x.astype(np.float16).astype(np.float32)


MISTAKES = (
    _port("epsilon 1e-06", norm=p.epsilon(1e-6)),
    _port("epsilon 1e-12", norm=p.epsilon(1e-12)),
    _port("epsilon 0.001", norm=p.epsilon(1e-3)),
    _port("epsilon 3e-05", "of no known project", norm=p.epsilon(3e-5)),
    _port("epsilon 3e-06", "of no known project", norm=p.epsilon(3e-6)),
    _port("Bessel", "reported", norm=p.bessel),
    _port("Bessel", "not reported", norm=p.hidden_bessel),
    _port("epsilon outside the root", norm=p.outside),
    _port("Bessel, epsilon outside the root", "the annotated Transformer", norm=p.annotated),
    _port("RMSNorm", "reported", norm=p.rms),
    _port("RMSNorm", "not reported", norm=p.hidden_rms),
    _port("gain missing", norm=p.no_gain),
    _port("bias missing", "norm", norm=p.no_bias),
    _port("gain and bias swapped", norm=p.swapped),
    _port("gain and bias missing", norm=p.plain),
    _port("gain counted from one", norm=p.plus_one),
    _port("scale of h2/ln_2 reused", reuse={"ln_f": "h2/ln_2"}),
    _port("ln_f missing", ends="missing"),
    _port("ln_f applied twice", ends="twice"),
    _port("post-norm", post=True),
    _port("parallel block", parallel=True),
    _port("residual missing", residual=False),
    _port("root missing", norm=p.no_root),
    _port("wpe off by one", "one too far", wpe_at=1),
    _port("wpe off by one", "one too near", wpe_at=-1),
    _port("wte scaled", wte_scale=48**0.5),
    _port("q, k, v order", "k, q, v", order=(1, 0, 2)),
    _port("q, k, v order", "v, q, k", order=(2, 0, 1)),
    _port("q, k, v order", "q, v, k", order=(0, 2, 1)),
    _port("q, k, v order", "by head", interleaved=True),
    _port("head split order", "[D, H]", split=p.split_inner),
    _port("head split order", "no transposition", split=p.split_flat),
    _port("head merge order", "[D, H]", merge=p.merge_inner),
    _port("head merge order", "no transposition", merge=p.merge_flat),
    _port("scale missing", scale=lambda D, C, layer: 1),
    _port("scale missing", "and another mask", scale=lambda D, C, layer: 1, mask=p.put_mask(-3.4e38)),
    _port("scale by C", scale=lambda D, C, layer: C**-0.5),
    _port("scale by layer", scale=lambda D, C, layer: D**-0.5 / (layer + 1)),
    _port("mask missing", mask=p.same),
    _port("mask off by one", "sees the next", mask=p.near_mask(2)),
    _port("mask off by one", "does not see itself", mask=p.near_mask(0)),
    _port("softmax over queries", softmax=p.softmax_queries),
    *(_port("missing transposition", at, turned=at) for at in ("c_attn", "attn/c_proj", "c_fc", "mlp/c_proj")),
    *(_port("bias missing", at, no_bias=at) for at in ("c_attn", "attn/c_proj", "c_fc", "mlp/c_proj")),
    _port("erf GELU", gelu=p.erf_gelu),
    _port("sigmoid GELU", gelu=p.sigmoid_gelu),
    _port("SiLU", gelu=lambda x: x / (1 + np.exp(-x))),
    _port("ReLU", gelu=lambda x: np.maximum(x, 0)),
    _port("blocks in another order", "0, 2, 1", layers=(0, 2, 1)),
    _port("TF32 products", factor=p.fewer_bits(10)),
    _port("bfloat16 products", factor=p.fewer_bits(7)),
    _port("float16 arithmetic", r=half),
    _port("bfloat16 arithmetic", r=p.fewer_bits(7)),
    _port("float16 weights", weights=lambda w: {k: half(v) for k, v in w.items()}),
)
PROMPT = 9  # tokens; those after it are read one by one
LATER = np.arange(64) >= PROMPT


def _later(name, what="", **switches) -> Port:
    """The switches in the rows after the prompt alone."""
    return Port(name, what, {"later": LATER, **switches})


def _cache(slots):
    """Keys and values where row t finds them: slots(t) -> for each slot the row that it holds, -1 for none."""

    def cache(x):
        T = x.shape[1]
        empty = np.concatenate([x, 0 * x[:, :1]], 1)
        return [empty[:, slots(t, T)] if t >= PROMPT else x for t in range(T)]

    return cache


def _one_late(t, T):
    """The slot of the newest token still holds the one before."""
    slots = np.arange(T)
    slots[t] = t - 1
    return slots


def _one_far(t, T):
    """What is read after the prompt is put one slot too far."""
    slots = np.arange(T)
    slots[PROMPT:] = [-1, *slots[PROMPT:-1]]
    return slots


AFTER_PROMPT = (
    _later("wpe off by one", "one too far", wpe_at=1),
    _later("wpe off by one", "one too near", wpe_at=-1),
    _later("wpe shifted", "counted from 0", wpe_at=-PROMPT),
    _later("wpe stuck", wpe_at=lambda t: 0 * t),
    _later("mask off by one", "does not see itself", mask=p.near_mask(0)),
    _later("epsilon 0.001", norm=p.epsilon(1e-3)),
    _later("epsilon 3e-05", "of no known project", norm=p.epsilon(3e-5)),
    _later("Bessel", norm=p.bessel),
    _later("erf GELU", gelu=p.erf_gelu),
    _later("scale missing", scale=lambda D, C, layer: 1),
    _port("cache one step late", cache=_cache(_one_late)),
    _port("cache one place too far", cache=_cache(_one_far)),
)
HARMLESS = (
    _port("mask value", "-1e4", mask=p.put_mask(-1e4)),
    _port("folded gain", weights=p.folded),
    _port("centred weights", weights=p.centred),
)
