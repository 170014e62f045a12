"""LayerNorms that are made up: their inputs, and the taps that a forward pass would offer of them, float32."""

import numpy as np

from gpt2ln.runs import Run
from gpt2ln.stats import LnStats
from gpt2ln.taps import FORMULAS_VERSION

NORMS = ("h0/ln_1", "h0/ln_2", "ln_f")
WIDTH = 6
LENGTHS = (7, 1, 12, 3)


def taps_of(inputs: dict[str, np.ndarray], g: float = 2, b: float = 0.5) -> dict[str, np.ndarray]:
    """Name of the norm -> its input [T, C]; gives what `ln_stats` asks of a model."""
    taps = {}
    for norm, x in inputs.items():
        u = x.mean(-1, keepdims=True)
        s = ((x - u) ** 2).mean(-1, keepdims=True)
        r = 1 / np.sqrt(s + np.float32(1e-5))
        values = {"mean": u, "var": s, "rstd": r, "norm": (x - u) * r, "out": (x - u) * r * g + b}
        taps |= {f"{norm}/{leaf}": value.astype(np.float32) for leaf, value in values.items()}
    return taps


def inputs(seed: int, lengths=LENGTHS, norms=NORMS, width: int = WIDTH) -> list[dict[str, np.ndarray]]:
    """Of some texts: position 0 large, position 2 of small variance, one channel that often stands out."""
    rng, texts = np.random.default_rng(seed), []
    for T in lengths:
        text = {}
        for n, norm in enumerate(norms):
            x = rng.normal(0.3, 1 + n, (T, width))
            x[:, (3 + n) % width] += rng.choice([-9, 0, 9], T)
            x[0] *= 40
            x[2:3] *= 1e-3
            text[norm] = x.astype(np.float32)
        texts.append(text)
    return texts


def stats_of(texts: list[dict[str, np.ndarray]], piece: int = 10**6) -> LnStats:
    """As `ln_stats` does it, each text in pieces of so many positions."""
    norms = list(texts[0])
    stats = LnStats.empty(norms, texts[0][norms[0]].shape[1])
    for taps in map(taps_of, texts):
        for start in range(0, len(taps[f"{norms[0]}/mean"]), piece):
            stats.add(stats.part({name: x[start : start + piece] for name, x in taps.items()}, start))
        stats.documents += 1
    return stats


def gains_of(stats: LnStats) -> dict[str, dict[str, np.ndarray]]:
    """Another g and b for every norm and channel."""
    C = np.arange(stats.width, dtype=np.float32)
    return {norm: {"g": n + C / 8, "b": -n - C / 16} for n, norm in enumerate(stats.norms)}


def run_of(stats: LnStats, documents=(), **provenance) -> Run:
    hparams = {"n_vocab": 260, "n_ctx": 16, "n_embd": stats.width, "n_head": 1, "n_layer": len(stats.norms) // 2}
    facts = {"formulas_version": FORMULAS_VERSION, "model": {"index_sha256": "5" * 64, "hparams": hparams}}
    facts |= {"tokenizer_sha256": {"vocab.bpe": "7" * 64}, "threads": 2, "command": ["gpt2ln", "ln-stats"]}
    return Run(facts | provenance, stats, gains_of(stats), list(documents))


def deep(layers: int, width: int, lengths=(16, 16)) -> LnStats:
    """A model of many layers: its residual stream grows, two channels of it are massive, two more at position 0."""
    rng = np.random.default_rng(0)
    names = [f"h{i}/ln_{k}" for i in range(layers) for k in (1, 2)] + ["ln_f"]
    texts = []
    for T in lengths:
        text = {}
        for n, norm in enumerate(names):
            x = rng.normal(0.02, 1, (T, width))
            x[:, [138 % width, 378 % width]] += 0.9 * width**0.5, -0.3 * width**0.5
            x[0, [447 % width, 448 % width]] += 20 * width**0.5, 14 * width**0.5
            text[norm] = (x * 0.3 * 1.06**n).astype(np.float32)
        texts.append(text)
    return stats_of(texts)
