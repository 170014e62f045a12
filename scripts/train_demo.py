#!/usr/bin/env python
"""Train the built-in model: a small GPT-2 on any text file, through the graph of `gpt2ln.model` itself.

    python scripts/train_demo.py TEXT_FILE OUT_FOLDER

Learns a byte-level BPE vocabulary from the text, trains with AdamW, keeps the weights (a moving average) that do best
on the held-out last tenth, and saves them with TensorFlow's own saver in the official layout.  Needs the extra `train`
for the vocabulary.  On two cores the default run takes 40 to 60 minutes.
"""

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
from make_checkpoint import save

from gpt2ln.model import Scope, model
from gpt2ln.runtime import tf
from gpt2ln.spec import EOT_TEXT, HParams, variables

HPARAMS = HParams(n_vocab=1024, n_ctx=256, n_embd=128, n_head=4, n_layer=6)
HELD_OUT = 0.1


def learn_vocabulary(text: str, n_vocab: int, folder: Path) -> np.ndarray:
    """Write `encoder.json` and `vocab.bpe` for `text`; -> its token ids."""
    from tokenizers import ByteLevelBPETokenizer

    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator([text], vocab_size=n_vocab - 1, show_progress=False)
    names, merges = sorted(bpe.get_vocab().items(), key=lambda item: item[1]), bpe.save_model(str(folder))[1]
    encoder = dict(names) | {EOT_TEXT: n_vocab - 1}
    (folder / "encoder.json").write_text(json.dumps(encoder), encoding="utf-8")
    Path(merges).rename(folder / "vocab.bpe")
    (folder / "vocab.json").unlink()
    return np.array(bpe.encode(text).ids, np.int32)


def initial(hparams: HParams, seed: int) -> dict[str, np.ndarray]:
    """The initializers of the official source; `c_proj` smaller with depth, as the paper says."""
    draw, weights = np.random.default_rng(seed).normal, {}
    for name, shape in variables(hparams).items():
        if name.endswith("/g"):
            weights[name] = np.ones(shape, "f4")
        elif name.endswith("/b"):
            weights[name] = np.zeros(shape, "f4")
        else:
            std = 0.01 if name.endswith("wpe") else 0.02
            std /= math.sqrt(2 * hparams.n_layer) if "c_proj" in name else 1
            weights[name] = draw(0, std, shape).astype("f4")
    return weights


def matrices(names) -> list[str]:
    """The weights that decay and are dropped: products, not gains, biases or embeddings."""
    return [name for name in names if name.endswith("/w")]


def loss_of(weights: dict, ids: tf.Tensor, hparams: HParams) -> tf.Tensor:
    """Mean negative log-likelihood in nats a token.  ids: [B, T + 1]"""
    logits = model(ids[:, :-1], Scope("model", weights), hparams=hparams)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=ids[:, 1:], logits=logits))


def windows(ids: np.ndarray, n_ctx: int) -> np.ndarray:
    """-> [N, n_ctx + 1], consecutive, each token predicted once."""
    count = (len(ids) - 1) // n_ctx
    return np.stack([ids[i * n_ctx : (i + 1) * n_ctx + 1] for i in range(count)])


def train(train_ids, held_ids, *, hparams, steps, batch, peak, decay, drop, seed, out) -> float:
    """Adam with decoupled decay, linear warm-up, cosine to a twentieth; -> best held-out loss, saved in `out`."""
    variable = {k: tf.Variable(v, name=k) for k, v in initial(hparams, seed).items()}
    average = {k: tf.Variable(v) for k, v in variable.items()}
    schedule = tf.keras.optimizers.schedules.CosineDecay(
        0.0, steps - 200, alpha=0.05, warmup_target=peak, warmup_steps=200
    )
    adam = tf.keras.optimizers.AdamW(schedule, beta_2=0.98, weight_decay=decay, clipnorm=None, global_clipnorm=1.0)
    adam.exclude_from_weight_decay(var_list=[v for k, v in variable.items() if k not in matrices(variable)])
    adam.build(list(variable.values()))

    @tf.function(autograph=False, jit_compile=True)  # training needs speed, not the last bit
    def slope(ids, seed):
        with tf.GradientTape() as tape:
            dropped = {
                k: tf.nn.experimental.stateless_dropout(variable[k], drop, seed=[seed, i])
                for i, k in enumerate(matrices(variable))
            }
            loss = loss_of(variable | dropped, ids, hparams)
        return loss, [tf.convert_to_tensor(g) for g in tape.gradient(loss, list(variable.values()))]

    @tf.function(autograph=False)
    def step(ids, seed):
        loss, gradients = slope(ids, seed)
        adam.apply_gradients(zip(gradients, variable.values(), strict=True))
        for k, v in variable.items():
            average[k].assign_add(0.01 * (v - average[k]))
        return loss

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)], autograph=False)
    def held_loss(ids):
        return loss_of(average, ids, hparams)

    held, rng, best, seen, start = windows(held_ids, hparams.n_ctx), np.random.default_rng(seed), 9e9, 0.0, time.time()
    for i in range(1, steps + 1):
        at = rng.integers(0, len(train_ids) - hparams.n_ctx - 1, batch)
        ids = np.stack([train_ids[a : a + hparams.n_ctx + 1] for a in at])
        seen += float(step(tf.constant(ids), tf.constant(i)))
        if i % 200 == 0:
            loss = np.mean([float(held_loss(part)) for part in np.array_split(held, 8)])
            print(
                f"step {i} train {seen / 200:.4f} held-out {loss:.4f} nats a token, {time.time() - start:.0f} s",
                flush=True,
            )
            seen = 0.0
            if loss < best:
                best = loss
                save({k: v.numpy() for k, v in average.items()}, hparams, out)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=3600)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--peak", type=float, default=3e-3, help="highest learning rate")
    parser.add_argument("--decay", type=float, default=0.1)
    parser.add_argument("--drop", type=float, default=0.1, help="share of matrix entries dropped each step")
    parser.add_argument("--seed", type=int, default=2019)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    text = args.text.read_text(encoding="utf-8")
    ids = learn_vocabulary(text, HPARAMS.n_vocab, args.out)
    cut = int(len(ids) * (1 - HELD_OUT))
    print(f"{len(text)} characters, {len(ids)} tokens, {len(ids) - cut} held out")
    settings = dict(
        steps=args.steps, batch=args.batch, peak=args.peak, decay=args.decay, drop=args.drop, seed=args.seed
    )
    best = train(ids[:cut], ids[cut:], hparams=HPARAMS, out=args.out, **settings)
    print(f"best held-out loss {best:.4f} nats a token, {best * len(ids) / len(text):.4f} nats a character")


if __name__ == "__main__":
    main()
