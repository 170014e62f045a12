"""Dumps as other programs write them, made of our own taps."""

from pathlib import Path

import numpy as np

from gpt2ln import aliases
from gpt2ln.readings import Document, Reading

IDS = (51, 78, 256, 68, 220, 257, 82)


def rows_as(x: np.ndarray, tap: str, heads: int = 2) -> np.ndarray:
    """[1, ...] of one tap, heads first where attention is."""
    if tap.endswith(("scores", "probs")):
        x = x.swapaxes(0, 1)
    return x[None]


def lens(taps: dict, n_layer: int = 2, heads: int = 2) -> dict[str, np.ndarray]:
    """TransformerLens, with `hook_scale`, `hook_normalized` of its version 3, and scores hidden with -inf."""
    out = {}
    for name, tap in aliases.same("tl", n_layer).items():
        x = taps[tap]
        out[name] = rows_as(x.reshape(len(x), heads, -1) if tap.endswith("attn/z") else x, tap)
    norms = {"ln_final": "ln_f"} | {f"blocks.{i}.ln{k}": f"h{i}/ln_{k}" for i in range(n_layer) for k in (1, 2)}
    for name, norm in norms.items():
        out[f"{name}.hook_scale"] = 1 / taps[f"{norm}/rstd"][None]
        out[f"{name}.hook_normalized"] = taps[f"{norm}/norm"][None]
    for i in range(n_layer):
        scores = rows_as(taps[f"h{i}/attn/scores"], "scores")
        out[f"blocks.{i}.attn.hook_attn_scores"] = np.where(scores < -1e9, np.float32(-np.inf), scores)
    return out


def transformers(taps: dict, n_layer: int = 2) -> dict[str, np.ndarray]:
    """Hugging Face's output of one call: tuples as arrays."""
    blocks = range(n_layer)
    return {
        "hidden_states": np.stack([*(taps[f"h{i}/in"] for i in blocks), taps["ln_f/out"]])[:, None],
        "attentions": np.stack([rows_as(taps[f"h{i}/attn/probs"], "probs") for i in blocks]),
        "past_key_values": np.stack([[taps[f"h{i}/attn/{x}"].swapaxes(0, 1)[None] for x in "kv"] for i in blocks]),
        "lm_head": taps["logits"][None],
    }


def saved(path: Path, arrays: dict) -> Path:
    np.savez(path, **arrays)
    return path


def reading(taps: dict, ids=IDS, dtype: str = "float32") -> Reading:
    """One text, as `compare` takes it."""
    document = Document(len(ids), np.arange(len(ids)), dict(taps), tuple(ids))
    return Reading("memory", (document,), None, (), dict.fromkeys(taps, dtype))


def equal(found: dict, right: dict) -> None:
    assert set(found) == set(right)
    for name, x in right.items():
        np.testing.assert_array_equal(found[name], x, err_msg=name)
