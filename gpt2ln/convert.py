"""The graph of `model` in parts that LiteRT runs: for each block what stands before its attention and what comes after.

Weights enter as variables: constants would be copied by the converter until memory is full.  Rows are the one open
dimension, so that a part has no operation on shapes and runs as a whole in XNNPACK.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from .hush import stderr_held
from .model import Scope, gelu, norm, softmax
from .runtime import tf
from .spec import HParams
from .unbroken import unbroken

PIECE = 2_500_000  # bytes of weights: the columns of a product that are computed at once


@dataclass(frozen=True)
class Recipe:
    """One file to be: what it computes, from which inputs, with which variables of the checkpoint."""

    file: str
    body: Callable
    inputs: Mapping[str, tuple]
    variables: tuple[str, ...] = ()


def conv1d(x: tf.Tensor, scope: Scope) -> tf.Tensor:
    """[N, nx] -> [N, nf]: that of `model`, some columns at a time.

    Less its reshapes, which with open rows are operations on shapes.  Where there are more rows than the kernel takes
    at once it reads all weights again for the next rows; a few megabytes of them are still in the cache then.  No
    number depends on it.
    """
    w, b = tf.reshape(scope["w"], scope["w"].shape[1:]), scope["b"]
    nx, nf = w.shape
    count = -(-4 * nx * nf // PIECE)
    edges = [nf * n // count for n in range(count + 1)]
    parts = [tf.matmul(x, w[:, start:stop]) + b[start:stop] for start, stop in pairwise(edges)]
    return tf.concat(parts, axis=1) if count > 1 else parts[0]


def qkv(scope: Scope, h: tf.Tensor) -> tf.Tensor:
    """[N, C] -> [N, 3C]: the residual stream to queries, keys and values."""
    return conv1d(norm(h, scope / "ln_1"), scope / "attn" / "c_attn")


def rest(scope: Scope, h: tf.Tensor, a: tf.Tensor) -> tf.Tensor:
    """h, a: [N, C] -> [N, C]: the residual stream and what attention gave, to the residual stream after the block."""
    x = h + conv1d(a, scope / "attn" / "c_proj")
    m = gelu(conv1d(norm(x, scope / "ln_2"), scope / "mlp" / "c_fc"))
    return x + conv1d(m, scope / "mlp" / "c_proj")


def attend(scope: Scope, q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, hidden: tf.Tensor) -> tf.Tensor:
    """q: [H, T, D], scaled; k, v: [H, S, D]; hidden: [1, T, S], 1e10 where a position may not be seen -> [H, T, D]"""
    return tf.matmul(softmax(tf.matmul(q, k, transpose_b=True) - hidden), v)


def logits(scope: Scope, h: tf.Tensor) -> tf.Tensor:
    """[N, C] -> [N, V]"""
    return tf.matmul(norm(h, scope / "ln_f"), scope["wte"], transpose_b=True)


def recipes(hparams: HParams) -> Iterator[Recipe]:
    """Every file of a prepared model."""
    H, D, C = hparams.n_head, hparams.head_dim, hparams.n_embd
    rows = (None, C)
    yield Recipe(
        "attend.tflite", attend, {"q": (H, None, D), "k": (H, None, D), "v": (H, None, D), "hidden": (1, None, None)}
    )
    for layer in range(hparams.n_layer):
        first = ("ln_1/g", "ln_1/b", "attn/c_attn/w", "attn/c_attn/b")
        then = ("attn/c_proj/w", "attn/c_proj/b", "ln_2/g", "ln_2/b")
        then += ("mlp/c_fc/w", "mlp/c_fc/b", "mlp/c_proj/w", "mlp/c_proj/b")
        yield Recipe(f"h{layer}.qkv.tflite", qkv, {"h": rows}, tuple(f"h{layer}/{name}" for name in first))
        yield Recipe(f"h{layer}.tflite", rest, {"h": rows, "a": rows}, tuple(f"h{layer}/{name}" for name in then))
    yield Recipe("logits.tflite", logits, {"h": rows}, ("ln_f/g", "ln_f/b", "wte"))


def convert(recipe: Recipe, weights: Mapping[str, np.ndarray]) -> bytes:
    """A file of LiteRT.  weights: of the recipe's variables, by their whole names."""
    with unbroken(), stderr_held():
        return _converted(recipe, weights)


def _converted(recipe: Recipe, weights: Mapping[str, np.ndarray]) -> bytes:
    module = tf.Module()
    module.held = {name: tf.Variable(array) for name, array in weights.items()}
    scope = Scope("model", module.held)
    if recipe.file[0] == "h":
        scope = scope / recipe.file.split(".")[0]
    specs = [tf.TensorSpec(shape, tf.float32, name) for name, shape in recipe.inputs.items()]
    function = tf.function(lambda *inputs: recipe.body(scope, *inputs), input_signature=specs, autograph=False)
    return tf.lite.TFLiteConverter.from_concrete_functions([function.get_concrete_function()], module).convert()
