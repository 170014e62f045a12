"""The wrong LayerNorms once more, as formulas of the float64 pass; and what a study is to say, from its logits."""

import numpy as np

from gpt2ln.reference import Reference

NOTHING = {}  # the same function, spelt otherwise


def _rstd(root):
    return {"ln/rstd": lambda t, at: 1 / root(t[f"{at}/var"])}


def _bessel(s, C):
    return np.sqrt(s * C / (C - 1) + 1e-5)


RMS = {
    "ln/mean": lambda t, at: np.zeros((len(t.ids), 1)),
    "ln/var": lambda t, at: np.square(t.input(at)).mean(-1, keepdims=True),
}


def _without_ln_f(t, at):
    x = t.input(at)
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return x if at == "ln_f" else (x - mean) / np.sqrt(var + 1e-5) * t.weight(f"{at}/g") + t.weight(f"{at}/b")


def _summed(t, at):
    """What a norm after the sum normalizes."""
    block = at.split("/")[0]
    if at == "ln_f":
        return t[f"h{t.hparams.n_layer - 1}/out"]
    return (
        t[f"{block}/in"] + t[f"{block}/attn/out"]
        if at.endswith("1")
        else t[f"{block}/ln_1/out"] + t[f"{block}/mlp/out"]
    )


POST = {
    "ln/x": _summed,
    "attn/c_attn": lambda t, at: t.conv1d(t[f"{at.split('/')[0]}/in"], f"{at}/c_attn"),
    "mlp/fc": lambda t, at: t.conv1d(t[f"{at.split('/')[0]}/ln_1/out"], f"{at}/c_fc"),
    "out": lambda t, at: t[f"{at}/ln_2/out"],
}


def formulas(C: int) -> dict[str, dict]:
    """Of every mistake whose statistics are not rounded."""
    return {
        "eps-1e-6": _rstd(lambda s: np.sqrt(s + 1e-6)),
        "eps-1e-12": _rstd(lambda s: np.sqrt(s + 1e-12)),
        "eps-1e-3": _rstd(lambda s: np.sqrt(s + 1e-3)),
        "eps-outside": _rstd(lambda s: np.sqrt(s) + 1e-5),
        "bessel": _rstd(lambda s: _bessel(s, C)),
        "rms": RMS,
        "one-pass": NOTHING,
        "post-norm": POST,
        "no-ln-f": {"ln/out": _without_ln_f},
        "keras": NOTHING,
        "keras-1e-3": _rstd(lambda s: np.sqrt(s + 1e-3)),
        "division": NOTHING,
        "folded": NOTHING,
    }


def outputs(hparams, ids, weights, name: str | None, norms) -> dict[str, np.ndarray]:
    """Of each norm, and `logits`: [T, ...] float64."""
    how = {} if name is None else formulas(hparams.n_embd)[name]
    seen = Reference(hparams, ids, weights, formulas=how)
    return {tap: seen[tap] for tap in [*(f"{norm}/out" for norm in norms), "logits"]}


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)) - x.max(-1, keepdims=True)


def said_of(exact: dict, wrong: dict, ids, norms) -> dict:
    """Of one text, from the definitions."""
    p, q = (log_softmax(taps["logits"].astype(np.float64)) for taps in (exact, wrong))
    kl = (np.exp(p) * (p - q)).sum(-1)
    T = np.arange(len(ids) - 1)
    return {
        "norms": np.array([np.abs(exact[f"{norm}/out"] - wrong[f"{norm}/out"]).max() for norm in norms]),
        "logits": np.abs(exact["logits"] - wrong["logits"]).max(),
        "kl": kl.sum(),
        "kl_worst": kl.max(),
        "at": int(kl.argmax()),
        "flips": int((p.argmax(-1) != q.argmax(-1)).sum()),
        "nats": -q[T, np.asarray(ids)[1:]].sum(),
    }
