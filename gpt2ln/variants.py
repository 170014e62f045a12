"""The wrong LayerNorms, each one formula beside the right one, and what puts them into the graph of `model`.

A formula has the letters of `model.norm`: x is normalized over its last axis; u is its mean, s its variance, r = 1/sd.
"""

from collections.abc import Callable, Mapping

from . import model as official
from .model import Scope
from .runtime import tf
from .spec import EPSILON

Norm = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]  # x [..., C], g [C], b [C] -> [..., C]
Statistics = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]  # x -> u, r: [..., C] -> [..., 1] each


def mean(x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(x, axis=-1, keepdims=True)


def var(x: tf.Tensor) -> tf.Tensor:
    return mean(tf.square(x - mean(x)))


def right(x, g, b):
    """`model.norm` itself, in a line."""
    return (x - mean(x)) * tf.math.rsqrt(var(x) + EPSILON) * g + b


def with_statistics(statistics: Statistics) -> Norm:
    def norm(x, g, b):
        u, r = statistics(x)
        return (x - u) * r * g + b

    return norm


def epsilon(e: float) -> Norm:
    return with_statistics(lambda x: (mean(x), tf.math.rsqrt(var(x) + e)))


def outside(x):
    return mean(x), 1 / (tf.sqrt(var(x)) + EPSILON)


def bessel(x):
    u, C = mean(x), x.shape[-1]
    s = tf.reduce_sum(tf.square(x - u), axis=-1, keepdims=True) / max(C - 1, 1)
    return u, tf.math.rsqrt(s + EPSILON)


def rms(x):
    return 0.0, tf.math.rsqrt(mean(tf.square(x)) + EPSILON)


def one_pass(x):
    u = mean(x)
    return u, tf.math.rsqrt(mean(tf.square(x)) - tf.square(u) + EPSILON)


def in_half(dtype: tf.DType) -> Norm:
    """Each result rounded to `dtype`; a sum within a mean is TensorFlow's, in float32."""

    def statistics(x):
        x = tf.cast(x, dtype)
        return [tf.cast(value, tf.float32) for value in (mean(x), tf.math.rsqrt(var(x) + EPSILON))]

    return with_statistics(statistics)


def fused(e: float) -> Norm:
    """`keras.layers.LayerNormalization` of Keras 3."""

    def norm(x, g, b):
        inv = tf.math.rsqrt(var(x) + e) * g
        return x * inv + (b - mean(x) * inv)

    return norm


def division(x, g, b):
    return (x - mean(x)) / tf.sqrt(var(x) + EPSILON) * g + b


def folded(x, g, b):
    return (x - mean(x)) * (tf.math.rsqrt(var(x) + EPSILON) * g) + b


def in_place(formula: Norm) -> Mapping[str, Callable]:
    """As `Scope` takes it, in the place of `model.norm`; offers its output, and the variance that engines look at."""

    def norm(x: tf.Tensor, scope: Scope) -> tf.Tensor:
        y = formula(x, scope["g"], scope["b"])
        scope.see(var=var(x), out=y)
        return y

    return {"norm": norm}


def without_ln_f(x: tf.Tensor, scope: Scope) -> tf.Tensor:
    is_last = scope.name == "model/ln_f"
    y = x if is_last else right(x, scope["g"], scope["b"])
    scope.see(var=var(x), out=y)
    return y


def post_norm(x: tf.Tensor, scope: Scope, **how) -> tf.Tensor:
    """`model.block`, with each norm after the sum."""
    x = official.norm(x + official.attn(x, scope / "attn", **how), scope / "ln_1")
    return official.norm(x + official.mlp(x, scope / "mlp"), scope / "ln_2")


OTHERS: dict[str, Mapping[str, Callable]] = {
    "eps-1e-6": in_place(epsilon(1e-6)),
    "eps-1e-12": in_place(epsilon(1e-12)),
    "eps-1e-3": in_place(epsilon(1e-3)),
    "eps-outside": in_place(with_statistics(outside)),
    "bessel": in_place(with_statistics(bessel)),
    "rms": in_place(with_statistics(rms)),
    "one-pass": in_place(with_statistics(one_pass)),
    "float16": in_place(in_half(tf.float16)),
    "bfloat16": in_place(in_half(tf.bfloat16)),
    "post-norm": {"block": post_norm},
    "no-ln-f": {"norm": without_ln_f},
    "keras": in_place(fused(EPSILON)),
    "keras-1e-3": in_place(fused(1e-3)),
    "division": in_place(division),
    "folded": in_place(folded),
}
