#!/usr/bin/env python
"""Write a made-up checkpoint in the official layout: real shapes, seeded random weights, a vocabulary of that size.

    python scripts/make_checkpoint.py 124M models/made-up-124M
    python scripts/make_checkpoint.py 300,64,32,4,3 models/small      n_vocab,n_ctx,n_embd,n_head,n_layer

For tests and benchmarks: it says nothing that makes sense.  Saved by TensorFlow's own saver; 1558M takes 6.3 GB of
disk and of memory.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from gpt2ln.bpe import BYTE_OF, BYTE_ORDER
from gpt2ln.runtime import tf
from gpt2ln.spec import ALIASES, EOT_TEXT, RELEASED, HParams, variables

PREFIX = "model.ckpt"


def made_up(hparams: HParams, seed: int) -> dict[str, np.ndarray]:
    """Weights of the size that training starts from, gains near 1, biases near 0; float32."""
    rng, weights = np.random.default_rng(seed), {}
    for name, shape in variables(hparams).items():
        mean = 1.0 if name.endswith("/g") else 0.0
        weights[name] = rng.standard_normal(shape, np.float32) * np.float32(0.02) + np.float32(mean)
    return weights


def vocabulary(n_vocab: int) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The 256 bytes, then pairs of bytes as merges, then `<|endoftext|>`: -> encoder, merges"""
    letters = sorted(BYTE_OF, key=lambda c: BYTE_ORDER.index(BYTE_OF[c]))
    pairs = [(a, b) for b in letters for a in letters][: n_vocab - 257]
    words = [*letters, *(a + b for a, b in pairs), EOT_TEXT]
    if len(words) != n_vocab:
        raise SystemExit(f"n_vocab {n_vocab}: expected 257..{257 + 256 * 256}")
    return {word: i for i, word in enumerate(words)}, pairs


def save(weights: dict[str, np.ndarray], hparams: HParams, folder: Path) -> None:
    """Weights, hyperparameters and `checkpoint` as the official files have them, by TensorFlow's V2 saver."""
    names = sorted(weights)
    tensors = [tf.constant(weights.pop(name)) for name in names]  # pop: one copy at a time
    folder.mkdir(parents=True, exist_ok=True)
    blank = [""] * len(names)
    tf.raw_ops.SaveV2(prefix=str(folder / PREFIX), tensor_names=names, shape_and_slices=blank, tensors=tensors)
    state = f'model_checkpoint_path: "{PREFIX}"\nall_model_checkpoint_paths: "{PREFIX}"\n'
    (folder / "checkpoint").write_text(state)
    (folder / "hparams.json").write_text(json.dumps(hparams.as_dict(), indent=2) + "\n")


def save_vocabulary(encoder: dict[str, int], merges: list[tuple[str, str]], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "encoder.json").write_text(json.dumps(encoder), encoding="utf-8")
    lines = "".join(f"{a} {b}\n" for a, b in merges)
    (folder / "vocab.bpe").write_text(f"#version: 0.2\n{lines}", encoding="utf-8", newline="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", help="124M, 355M, 774M, 1558M, or five numbers")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    name = ALIASES.get(args.shape, args.shape)
    hparams = RELEASED.get(name) or HParams(*map(int, name.split(",")))
    save_vocabulary(*vocabulary(hparams.n_vocab), args.out)
    save(made_up(hparams, args.seed), hparams, args.out)
    print(f"{args.out}: {sum(p.stat().st_size for p in args.out.iterdir()):,} bytes, {hparams}")


if __name__ == "__main__":
    main()
