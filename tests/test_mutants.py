"""Guards that have been seen to fail: each mutant is one classic mistake in the graph, and a proof must catch it."""

import numpy as np
import pytest

from gpt2ln import model as m
from gpt2ln import runtime
from gpt2ln.runtime import tf

from . import proofs


def _norm(formula):
    """A norm that offers the same five values, computed otherwise."""

    def norm(x, scope, *, epsilon=1e-5):
        u, s, r = formula(x, epsilon)
        n = (x - u) * r
        y = n * scope["g"] + scope["b"]
        scope.see(mean=u, var=s, rstd=r, norm=n, out=y)
        return y

    return norm


def _moments(x):
    u = tf.reduce_mean(x, -1, keepdims=True)
    return u, tf.reduce_mean(tf.square(x - u), -1, keepdims=True)


def epsilon(value):
    return {"norm": _norm(lambda x, _: (*_moments(x), tf.math.rsqrt(_moments(x)[1] + value)))}


def bessel(x, e):
    u, s = _moments(x)
    n = x.shape[-1]
    s = s * (n / max(n - 1, 1))
    return u, s, tf.math.rsqrt(s + e)


def outside(x, e):
    u, s = _moments(x)
    return u, s, 1 / (tf.sqrt(s) + e)


def rms(x, e):
    s = tf.reduce_mean(tf.square(x), -1, keepdims=True)
    return tf.zeros_like(s), s, tf.math.rsqrt(s + e)


def one_pass(x, e):
    u = tf.reduce_mean(x, -1, keepdims=True)
    s = tf.reduce_mean(tf.square(x), -1, keepdims=True) - tf.square(u)
    return u, s, tf.math.rsqrt(s + e)


def divided(x, scope, *, epsilon=1e-5):
    u, s = _moments(x)
    y = (x - u) / tf.sqrt(s + epsilon) * scope["g"] + scope["b"]
    scope.see(mean=u, var=s, rstd=tf.math.rsqrt(s + epsilon), norm=(x - u) / tf.sqrt(s + epsilon), out=y)
    return y


def folded(x, scope, *, epsilon=1e-5):
    u, s = _moments(x)
    r = tf.math.rsqrt(s + epsilon)
    y = (x - u) * (r * scope["g"]) + scope["b"]
    scope.see(mean=u, var=s, rstd=r, norm=(x - u) * r, out=y)
    return y


def post_norm(x, scope, **kwargs):
    a = m.attn(x, scope / "attn", **kwargs)
    scope.see(**{"in": x})
    scope.see(mid=x + a)
    x = m.norm(x + a, scope / "ln_1")
    x = m.norm(x + m.mlp(x, scope / "mlp"), scope / "ln_2")
    scope.see(out=x)
    return x


def no_ln_f(original):
    def norm(x, scope, **kwargs):
        y = original(x, scope, **kwargs)
        return x if scope.name == "model/ln_f" else y

    return norm


def erf_gelu(x):
    return 0.5 * x * (1 + tf.math.erf(x / np.sqrt(2)))


def square_gelu(x):
    return 0.5 * x * (1 + tf.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * (x * tf.square(x)))))


def masked(constant):
    """The official source with another constant, by standing in for `tf.cast` of it."""

    class Cast:
        def __getattr__(self, name):
            return getattr(tf, name)

        @staticmethod
        def cast(x, dtype):
            return tf.cast(constant if isinstance(x, float) and x == 1e10 else x, dtype)

    return {"tf": Cast()}


MUTANTS = {
    "epsilon 1e-6": epsilon(1e-6),
    "epsilon 1e-12": epsilon(1e-12),
    "epsilon 1e-3": epsilon(1e-3),
    "epsilon outside the root": {"norm": _norm(outside)},
    "Bessel": {"norm": _norm(bessel)},
    "RMSNorm": {"norm": _norm(rms)},
    "one-pass variance": {"norm": _norm(one_pass)},
    "division by the root": {"norm": divided},
    "gain folded into rstd": {"norm": folded},
    "post-norm": {"block": post_norm},
    "no ln_f": {"norm": no_ln_f(m.norm)},
    "erf GELU": {"gelu": erf_gelu},
    "cube by squares": {"gelu": square_gelu},
    "mask -1e4": masked(1e4),
}


def caught_by(proofs_to_try) -> list[str]:
    """Which proofs fail."""
    names = []
    for proof in proofs_to_try:
        try:
            proof()
        except AssertionError:
            names.append(proof.__name__)
    return names


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_proof_fails_on(mutant, monkeypatch):
    for name, value in MUTANTS[mutant].items():
        monkeypatch.setattr(m, name, value)
    caught = caught_by(proofs.PROOFS)
    print(f"{mutant}: {', '.join(caught)}")
    assert caught, f"no proof notices {mutant}"


def test_the_rewriting_pass_is_caught():
    """Grappler's arithmetic pass let loose: `((x-u)*r)*g + b` becomes `(x-u)*(r*g) + b`; bit-equality must notice."""
    loose = {"arithmetic_optimization": True, "remapping": True, "disable_meta_optimizer": False}
    tf.config.optimizer.set_experimental_options(loose)
    try:
        caught = caught_by([proofs.graph_is_eager, proofs.official_steps_on_real_widths])
    finally:
        runtime.keep_the_order_of_operations()
    assert caught == ["graph_is_eager", "official_steps_on_real_widths"]
    assert not caught_by([proofs.graph_is_eager, proofs.official_steps_on_real_widths])
