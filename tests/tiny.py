"""Made-up checkpoints in the official layout, written by TensorFlow's own saver: our reader is not its own judge.

`tiny(folder)` is T: 28 variables, 3,968 values.  `edit` changes, adds or drops variables before they are saved.
"""

import json
import math
import os
from pathlib import Path

import numpy as np

from gpt2ln.runtime import tf

SHOWN = [*range(33, 127), *range(161, 173), *range(174, 256)]  # bytes written as themselves
ORDER = SHOWN + [b for b in range(256) if b not in SHOWN]  # id -> byte; same ids as the official ones
ID = {b: i for i, b in enumerate(ORDER)} | {-1: 259}  # byte -> id; -1 stands for <|endoftext|>
MERGES = ("Ġ", "t"), ("h", "e"), ("Ġt", "he")  # ids 256, 257, 258


def weights(seed=0, n_layer=2, n_embd=8, n_head=2, n_ctx=16) -> dict[str, np.ndarray]:
    V, E, draw = 260, n_embd, np.random.default_rng(seed).normal
    w = {"wte": draw(0, 0.3, (V, E)), "wpe": draw(0, 0.3, (n_ctx, E))}
    w |= {"ln_f/g": draw(1, 0.1, E), "ln_f/b": draw(0, 0.1, E)}
    for i in range(n_layer):
        for k in "ln_1", "ln_2":
            w[f"h{i}/{k}/g"], w[f"h{i}/{k}/b"] = draw(1, 0.1, E), draw(0, 0.1, E)
        for k, nx, nf in (
            ("attn/c_attn", E, 3 * E),
            ("attn/c_proj", E, E),
            ("mlp/c_fc", E, 4 * E),
            ("mlp/c_proj", 4 * E, E),
        ):
            w[f"h{i}/{k}/w"], w[f"h{i}/{k}/b"] = draw(0, 0.5, (1, nx, nf)), draw(0, 0.1, nf)
    return {"model/" + k: v.astype("f4") for k, v in w.items()}


def save(prefix, w) -> None:
    names = sorted(w)
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tf.constant(w[k]) for k in names],
    )


def tiny(folder, edit=None, seed=0, n_layer=2, n_embd=8, n_head=2, n_ctx=16, prefix="model.ckpt") -> Path:
    folder = Path(folder)
    os.makedirs(folder, exist_ok=True)
    words = [chr(b) if b in SHOWN else chr(256 + i - len(SHOWN)) for i, b in enumerate(ORDER)]
    words += ["".join(m) for m in MERGES] + ["<|endoftext|>"]
    w = weights(seed, n_layer, n_embd, n_head, n_ctx)
    if edit:
        edit(w)
    save(folder / prefix, w)
    hparams = dict(n_vocab=len(words), n_ctx=n_ctx, n_embd=n_embd, n_head=n_head, n_layer=n_layer)
    for name, text in {
        "encoder.json": json.dumps({t: i for i, t in enumerate(words)}),
        "vocab.bpe": "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in MERGES),
        "checkpoint": f'model_checkpoint_path: "{prefix}"\nall_model_checkpoint_paths: "{prefix}"\n',
        "hparams.json": json.dumps(hparams),
    }.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    return folder


def fixed(probs):
    """edit: whatever the context, the next byte has these probabilities."""

    def edit(w):
        w["model/ln_f/g"][:], w["model/ln_f/b"][:] = 0, np.eye(w["model/ln_f/b"].size)[0]
        w["model/wte"][:, 0] = -50
        for byte, p in probs.items():
            w["model/wte"][ID[ord(byte)], 0] = math.log(p)

    return edit


def says(ids):
    """edit, for n_embd=16: at temperature 0 a one-token prompt is followed by these ids."""

    def edit(w):
        for k in w:
            w[k] *= "c_proj" not in k
        w["model/ln_f/g"][:], w["model/ln_f/b"][:] = 1, 0
        w["model/wte"][:], w["model/wpe"][:] = 0, 100 * np.eye(16)
        for position, i in enumerate(ids):
            w["model/wte"][i, position] = 1

    return edit


def zeros(w):
    """edit: every weight 0, so every token has probability 1/260."""
    for v in w.values():
        v.fill(0)
