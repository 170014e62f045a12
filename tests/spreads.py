"""Several texts in one file as other programs lay them: padded to one length, or one behind the other."""

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from gpt2ln import aliases
from gpt2ln.layouts import is_attention

JUNK = 7e3  # what a program may leave where no token is


def padded(texts: list[dict], *, left: bool = False) -> dict[str, np.ndarray]:
    """[T, ...] of each -> [B, W, ...]; keys of attention are padded alike"""
    W = max(len(x) for taps in texts for x in taps.values())

    def wide(name, x):
        room = (W - len(x), 0) if left else (0, W - len(x))
        axes = [room] + [(0, 0)] * (x.ndim - 1)
        axes[-1] = room if is_attention(name) else axes[-1]
        return np.pad(x, axes, constant_values=JUNK)

    return {name: np.stack([wide(name, taps[name]) for taps in texts]) for name in texts[0]}


def packed(texts: list[dict], *, keys_of_all: bool = False) -> dict[str, np.ndarray]:
    """[T, ...] of each -> [rows, ...]; keys of attention as many as the longest text has, or as all together"""
    lengths = [len(next(iter(taps.values()))) for taps in texts]
    S = sum(lengths) if keys_of_all else max(lengths)

    def wide(name, x, before):
        if not is_attention(name):
            return x
        before *= keys_of_all
        return np.pad(x, [(0, 0), (0, 0), (before, S - before - x.shape[-1])], constant_values=JUNK)

    starts = np.cumsum([0, *lengths])[:-1]
    return {
        name: np.concatenate([wide(name, taps[name], at) for taps, at in zip(texts, starts, strict=True)])
        for name in texts[0]
    }


def mask_of(lengths, *, left: bool = False) -> np.ndarray:
    """[B, W] of 0 and 1"""
    mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
    return (mask[:, ::-1] if left else mask).astype(np.int64)


def ids_of(texts, *, left: bool = False) -> np.ndarray:
    """[B, W], padded with token 0"""
    W = max(map(len, texts))
    return np.array([[0] * (W - len(ids)) + ids if left else ids + [0] * (W - len(ids)) for ids in texts])


FORMS = ("right", "left", "lengths", "doc_ptr", "cu_seqlens")


def ends_of(lengths):
    return np.cumsum([0, *lengths])


def whole(form: str, texts, taps) -> dict:
    """A file of all that a port had of three texts."""
    left, lengths = form == "left", [len(ids) for ids in texts]
    if form in ("right", "left", "lengths"):
        arrays = padded(taps, left=left) | {"tokens": ids_of(texts, left=left)}
        beside = (
            {"lengths": np.array(lengths)} if form == "lengths" else {"attention_mask": mask_of(lengths, left=left)}
        )
    else:
        arrays = packed(taps, keys_of_all=form == "cu_seqlens") | {"tokens": np.concatenate(texts)}
        beside = {form: ends_of(lengths).astype(np.int32)}
    return arrays | beside


ROWS = [1, 4]  # of each text


def partial(form: str, texts, taps) -> dict:
    """Of such a file these rows alone; tokens are all there."""
    arrays, lengths = whole(form, texts, taps), [len(ids) for ids in texts]
    ends = ends_of(lengths)[:-1]
    for name in taps[0]:
        x = arrays[name]
        if form in ("doc_ptr", "cu_seqlens"):
            arrays[name] = np.concatenate([x[first:][ROWS] for first in ends])
        else:
            moved = [max(lengths) - n if form == "left" else 0 for n in lengths]
            arrays[name] = np.stack([x[n, first:][ROWS] for n, first in enumerate(moved)])
    if form in ("doc_ptr", "cu_seqlens"):
        return arrays | {"rows": np.concatenate([first + np.array(ROWS) for first in ends])}
    return arrays | {"position_ids" if form == "left" else "positions": np.array(ROWS)}


def saved_as(kind: str, folder: Path, arrays: dict[str, np.ndarray]) -> Path:
    """npz, npy or safetensors"""
    path = folder / f"port.{kind}"
    arrays = {name: np.ascontiguousarray(x) for name, x in arrays.items()}
    if kind == "npz":
        np.savez(path, **arrays)
    elif kind == "safetensors":
        save_file(arrays, path)
    else:
        path.mkdir()
        for name, x in arrays.items():
            np.save(path / f"{name.replace('/', '.')}.npy", x)
    return path


def as_lens(arrays: dict[str, np.ndarray], n_layer: int, heads: int) -> dict[str, np.ndarray]:
    """[B, W, ...] under the names of TransformerLens, heads first where it has them so"""
    out = {}
    for name, tap in aliases.same("tl", n_layer).items():
        x = arrays[tap]
        x = x.reshape(*x.shape[:2], heads, -1) if tap.endswith("attn/z") else x
        out[name] = x.swapaxes(1, 2) if is_attention(tap) else x
    for i in range(n_layer):
        out[f"blocks.{i}.ln1.hook_scale"] = 1 / arrays[f"h{i}/ln_1/rstd"]
        out[f"blocks.{i}.ln2.hook_normalized"] = arrays[f"h{i}/ln_2/norm"]
    return out


def as_transformers(arrays: dict[str, np.ndarray], n_layer: int, heads: int) -> dict[str, np.ndarray]:
    """[B, W, ...] as one call of Hugging Face gives them"""
    blocks = range(n_layer)
    return {
        "hidden_states": np.stack([*(arrays[f"h{i}/in"] for i in blocks), arrays["ln_f/out"]]),
        "attentions": np.stack([arrays[f"h{i}/attn/probs"].swapaxes(1, 2) for i in blocks]),
        "past_key_values": np.stack([[arrays[f"h{i}/attn/{x}"].swapaxes(1, 2) for x in "kv"] for i in blocks]),
        "transformer.h.0.mlp.act": arrays["h0/mlp/gelu"],
        "lm_head": arrays["logits"],
    }
