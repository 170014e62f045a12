"""The GPT-2 graph: partner, line for line, of `src/model.py` in openai/gpt-2.

Functions, their order and the one-letter names are those of the official source.  Two things differ: `Scope` stands
where `tf.variable_scope` stood, and `past` is an object that keeps keys and values in place instead of a tensor that
is concatenated anew each step.  What is `replaceable` may be exchanged for a wrong one, to see what that would do.

Axes: B batch · T new positions · S positions attended to · H heads · D width of a head · C width (n_embd) · V ids.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from typing import Protocol

import numpy as np

from .runtime import tf
from .spec import EPSILON, HParams

Mask = tuple[tf.Tensor, tf.Tensor]  # 1 where a position may be seen, 1e10 where it may not; both [1, 1, T, S]


@dataclass(frozen=True)
class Scope:
    """A place in the name tree of the checkpoint, with the weights below it and whoever watches.

    `scope / "ln_1"` goes down a level, `scope["g"]` is a weight, `scope.see(mean=u)` offers a value.  Offering happens
    while the graph is traced: with nobody watching nothing is added to it.
    """

    name: str
    weights: Mapping[str, tf.Tensor]
    tap: Callable[[str, tf.Tensor], None] | None = None
    given: Mapping[str, tf.Tensor] | None = None  # by tap: values that stand in place of those computed (replay)
    others: Mapping[str, Callable] | None = None  # by name: functions that stand in place of ours (norm-study)

    def __truediv__(self, leaf: str) -> "Scope":
        return replace(self, name=f"{self.name}/{leaf}")

    def __getitem__(self, leaf: str) -> tf.Tensor:
        return self.weights[f"{self.name}/{leaf}"]

    def see(self, **values: tf.Tensor) -> None:
        if self.tap is not None:
            for leaf, value in values.items():
                self.tap(self._named(leaf), value)

    def or_given(self, **value: tf.Tensor) -> tf.Tensor:
        """The value computed, or the one that was given for it."""
        ((leaf, computed),) = value.items()
        return computed if self.given is None else self.given.get(self._named(leaf), computed)

    def _named(self, leaf: str) -> str:
        return f"{self.name}/{leaf}".removeprefix("model/")


def replaceable(function: Callable) -> Callable:
    """Where the scope carries another function of that name, that one is called."""

    @wraps(function)
    def called(x: tf.Tensor, scope: Scope, **how) -> tf.Tensor:
        return (scope.others or {}).get(function.__name__, function)(x, scope, **how)

    return called


class Past(Protocol):
    """Keys and values of the positions before this call."""

    length: tf.Tensor  # [] positions held

    def span(self, T) -> tf.Tensor:
        """S, the positions that `extend` hands out after T new ones."""

    def extend(self, layer: int, k: tf.Tensor, v: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Append; k, v: [B, H, T, D] -> [B, H, S, D], where S may reach past the last position: the mask hides it."""


def shape_list(x: tf.Tensor) -> list:
    """Deal with dynamic shape in tensorflow cleanly: known lengths as numbers, the others as tensors."""
    static = x.shape.as_list()
    dynamic = tf.shape(x)
    return [dynamic[i] if s is None else s for i, s in enumerate(static)]


def softmax(x: tf.Tensor, axis: int = -1) -> tf.Tensor:
    x = x - tf.reduce_max(x, axis=axis, keepdims=True)
    ex = tf.exp(x)
    return ex / tf.reduce_sum(ex, axis=axis, keepdims=True)


def gelu(x: tf.Tensor) -> tf.Tensor:
    """The tanh form; the erf form differs from it by up to 4.7e-4."""
    return 0.5 * x * (1 + tf.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * tf.pow(x, 3))))


@replaceable
def norm(x: tf.Tensor, scope: Scope, *, epsilon: float = EPSILON) -> tf.Tensor:
    """Normalize the last axis to mean 0, variance 1, then scale by `g` and shift by `b`.

    x: [..., C] -> [..., C]

    The order of operations is the point: a fused kernel, a division by `sqrt(s + epsilon)` or `(x - u) * (r * g)`
    compute the same function with other roundings.  `runtime` keeps TensorFlow from rewriting it.
    """
    u = scope.or_given(mean=tf.reduce_mean(x, axis=-1, keepdims=True))
    s = tf.reduce_mean(tf.square(x - u), axis=-1, keepdims=True)  # divided by C, not C - 1
    r = scope.or_given(rstd=tf.math.rsqrt(s + epsilon))
    n = (x - u) * r
    y = n * scope["g"] + scope["b"]
    scope.see(mean=u, var=s, rstd=r, norm=n, out=y)
    return y


def split_states(x: tf.Tensor, n: int) -> tf.Tensor:
    """Reshape the last dimension of x into [n, x.shape[-1]/n]."""
    *start, m = shape_list(x)
    return tf.reshape(x, [*start, n, m // n])


def merge_states(x: tf.Tensor) -> tf.Tensor:
    """Smash the last two dimensions of x into a single dimension."""
    *start, a, b = shape_list(x)
    return tf.reshape(x, [*start, a * b])


def conv1d(x: tf.Tensor, scope: Scope) -> tf.Tensor:
    """x: [B, T, nx] -> [B, T, nf], with `w` stored as [1, nx, nf]."""
    *start, nx = shape_list(x)
    nf = scope["w"].shape[-1]
    c = tf.matmul(tf.reshape(x, [-1, nx]), tf.reshape(scope["w"], [-1, nf])) + scope["b"]
    return tf.reshape(c, [*start, nf])


def attention_mask(nd, ns, past_length, *, dtype) -> tf.Tensor:
    """1's in the lower triangle, shifted right by the positions that came before: -> [1, 1, nd, ns]

    The official source counts the shift from the lower right corner, `ns - nd`; that is `past_length` there.
    """
    i = tf.range(nd)[:, None]
    j = tf.range(ns)
    m = i >= j - past_length
    return tf.reshape(tf.cast(m, dtype), [1, 1, nd, ns])


def attn(x: tf.Tensor, scope: Scope, *, layer: int, past: Past | None, mask: Mask, hparams: HParams) -> tf.Tensor:
    """x: [B, T, C] -> [B, T, C]"""

    def split_heads(x):
        return tf.transpose(split_states(x, hparams.n_head), [0, 2, 1, 3])  # [B, T, C] -> [B, H, T, D]

    def merge_heads(x):
        return merge_states(tf.transpose(x, [0, 2, 1, 3]))  # [B, H, T, D] -> [B, T, C]

    def mask_attn_weights(w):
        b, hidden = mask
        return w * b - hidden

    def multihead_attn(q, k, v):
        w = tf.matmul(q, k, transpose_b=True)  # [B, H, T, S]
        w = w * tf.math.rsqrt(tf.cast(v.shape[-1], w.dtype))
        w = mask_attn_weights(w)
        scope.see(scores=w)
        w = softmax(w)
        scope.see(probs=w)
        return tf.matmul(w, v)  # [B, H, T, D]

    c = conv1d(x, scope / "c_attn")
    q, k, v = map(split_heads, tf.split(c, 3, axis=2))
    scope.see(q=q, k=k, v=v)
    if past is not None:
        k, v = past.extend(layer, k, v)
    a = multihead_attn(q, k, v)
    a = merge_heads(a)
    scope.see(z=a)
    a = conv1d(a, scope / "c_proj")
    scope.see(out=a)
    return a


def mlp(x: tf.Tensor, scope: Scope) -> tf.Tensor:
    """x: [B, T, C] -> [B, T, C]"""
    h = conv1d(x, scope / "c_fc")  # [B, T, 4C]
    scope.see(fc=h)
    h = gelu(h)
    scope.see(gelu=h)
    h2 = conv1d(h, scope / "c_proj")
    scope.see(out=h2)
    return h2


@replaceable
def block(x: tf.Tensor, scope: Scope, *, layer: int, past: Past | None, mask: Mask, hparams: HParams) -> tf.Tensor:
    """x: [B, T, C] -> [B, T, C]: each half normalizes its input and adds its output to the residual stream."""
    scope.see(**{"in": x})
    a = attn(norm(x, scope / "ln_1"), scope / "attn", layer=layer, past=past, mask=mask, hparams=hparams)
    x = x + a
    scope.see(mid=x)
    m = mlp(norm(x, scope / "ln_2"), scope / "mlp")
    x = x + m
    scope.see(out=x)
    return x


def positions_for(tokens: tf.Tensor, past_length) -> tf.Tensor:
    """tokens: [B, T] -> [B, T]"""
    batch_size, nsteps = shape_list(tokens)
    return tf.broadcast_to(past_length + tf.range(nsteps), [batch_size, nsteps])


def model(X: tf.Tensor, scope: Scope, *, hparams: HParams, past: Past | None = None, last: bool = False) -> tf.Tensor:
    """Token ids to logits.

    X: [B, T] -> [B, T, V], or [B, 1, V] with `last`: the product with `wte` is a quarter of the work of a long prompt,
    and generation needs one row of it.
    """
    _, sequence = shape_list(X)
    past_length = 0 if past is None else past.length
    wte, wpe = tf.gather(scope["wte"], X), tf.gather(scope["wpe"], positions_for(X, past_length))
    (scope / "wte").see(out=wte)
    (scope / "wpe").see(out=wpe)
    h = wte + wpe
    scope.see(embed=h)
    b = attention_mask(sequence, sequence if past is None else past.span(sequence), past_length, dtype=h.dtype)
    mask = b, tf.cast(1e10, h.dtype) * (1 - b)  # the same in every block
    for layer in range(hparams.n_layer):
        h = block(h, scope / f"h{layer}", layer=layer, past=past, mask=mask, hparams=hparams)
    h = norm(h, scope / "ln_f")
    if last:
        h = h[:, -1:, :]
    batch, sequence, _ = shape_list(h)
    h_flat = tf.reshape(h, [-1, hparams.n_embd])
    logits = tf.matmul(h_flat, scope["wte"], transpose_b=True)
    logits = tf.reshape(logits, [batch, sequence, hparams.n_vocab])
    scope.see(logits=logits)
    return logits
