"""The wrong LayerNorms: each is the mistake that it is named after, by a formula in float64 written here."""

import keras
import numpy as np
import pytest

from gpt2ln import model as m
from gpt2ln.errors import UsageError
from gpt2ln.mistakes import GROUPS, MISTAKES, choose
from gpt2ln.runtime import tf
from gpt2ln.variants import OTHERS, in_place, post_norm, right

from . import oracle, proofs

C = 64
G, B = (np.random.default_rng(5).normal(m, s, (2, C))[0].astype("f4") for m, s in ((1, 0.5), (0, 0.3)))
SCALES = (1, 0.02, 1e-3, 30)
NAMES = [mistake.name for mistake in MISTAKES]


def rows(scale: float) -> np.ndarray:
    return np.random.default_rng(6).normal(0.2 * scale, scale, (1, 9, C)).astype("f4")


def called(name_or_others, x, g=G, b=B, at="h0/ln_1") -> np.ndarray:
    """As `model.norm` is called, in a scope that carries the other."""
    others = OTHERS[name_or_others] if isinstance(name_or_others, str) else name_or_others
    weights = {f"model/{at}/g": tf.constant(g), f"model/{at}/b": tf.constant(b)}
    seen = {}
    scope = m.Scope(f"model/{at}", weights, seen.__setitem__, others=others)
    y = m.norm(tf.constant(x), scope).numpy()
    np.testing.assert_array_equal(seen[f"{at}/out"], y)  # what is watched is what goes on
    return y


def wrong(x, *, e=1e-5, ddof=0, centre=True, root=lambda s, e: np.sqrt(s + e)):
    """float64, with one thing otherwise."""
    x = x.astype(np.float64)
    u = x.mean(-1, keepdims=True) if centre else 0.0
    s = ((x - u) ** 2).sum(-1, keepdims=True) / (C - ddof)
    return (x - u) / root(s, e) * G + B


FLOAT64 = {
    "eps-1e-6": lambda x: wrong(x, e=1e-6),
    "eps-1e-12": lambda x: wrong(x, e=1e-12),
    "eps-1e-3": lambda x: wrong(x, e=1e-3),
    "eps-outside": lambda x: wrong(x, root=lambda s, e: np.sqrt(s) + e),
    "bessel": lambda x: wrong(x, ddof=1),
    "rms": lambda x: wrong(x, centre=False),
    "one-pass": wrong,
    "no-ln-f": wrong,
    "keras": wrong,
    "keras-1e-3": lambda x: wrong(x, e=1e-3),
    "division": wrong,
    "folded": wrong,
}
IN_HALF = {"float16": np.float16, "bfloat16": tf.bfloat16.as_numpy_dtype}
DIFFERENT = ("eps-1e-6", "eps-1e-12", "eps-1e-3", "eps-outside", "bessel", "rms", "keras-1e-3")


def test_every_mistake_has_a_formula_and_a_test():
    assert list(OTHERS) == NAMES
    assert {*FLOAT64, *IN_HALF, "post-norm"} == {*NAMES}


@pytest.mark.parametrize("name", FLOAT64)
@pytest.mark.parametrize("scale", SCALES)
def test_a_formula_is_its_float64(name, scale):
    """4e-6 of the largest output, as for the right one; what is wrong by more is another formula."""
    x = rows(scale)
    expected = FLOAT64[name](x)
    slack = 4e-6 * np.abs(expected).max() * (1 if name != "one-pass" else 4)
    np.testing.assert_allclose(called(name, x), expected, rtol=0, atol=slack)
    if name in DIFFERENT and scale == 0.02:
        assert np.abs(expected - wrong(x)).max() > 20 * slack


@pytest.mark.parametrize("name", IN_HALF)
def test_half_precision_rounds_every_statistic(name):
    """NumPy's own rounding after each step, sums within a mean in float32; the output itself is float32."""
    half, x = IN_HALF[name], rows(1)
    h = x.astype(half)
    u = h.astype("f4").mean(-1, keepdims=True).astype(half)
    s = np.square(h - u).astype(half).astype("f4").mean(-1, keepdims=True).astype(half)
    r = (1 / np.sqrt((s + half(1e-5)).astype("f4"))).astype(half)
    step = 2.0 ** (-10 if name == "float16" else -7)
    expected = (x - u.astype("f4")) * r.astype("f4") * G + B
    found = called(name, x)
    np.testing.assert_allclose(found, expected, rtol=0, atol=step * np.abs(expected).max())
    same = np.abs(found - expected).max(-1) < 1e-6
    assert same.mean() > 0.5  # most rows to the last digit of float32
    assert 10 * step > np.abs(expected - wrong(x)).max() > step / 20


def test_float16_gives_the_bias_where_squares_overflow():
    """A massive activation, 3000: its square is past float16, the variance is infinite, rstd 0."""
    x = rows(1)
    x[..., 5] = 3000
    np.testing.assert_array_equal(called("float16", x), np.broadcast_to(B, x.shape))
    assert np.isfinite(called("bfloat16", x)).all()


def test_the_right_one_is_the_models_to_the_last_bit():
    for scale in SCALES:
        x = rows(scale)
        np.testing.assert_array_equal(called(in_place(right), x), called({}, x))


@pytest.mark.parametrize(("name", "e"), [("keras", 1e-5), ("keras-1e-3", None)])
def test_keras_is_the_layer_of_keras(name, e):
    """Bit for bit; without an epsilon of ours, with the layer's own."""
    layer = keras.layers.LayerNormalization() if e is None else keras.layers.LayerNormalization(epsilon=e)
    layer.build((1, 9, C))
    layer.set_weights([G, B])
    for scale in SCALES:
        x = rows(scale)
        np.testing.assert_array_equal(called(name, x), layer(x).numpy())


def statistics(x) -> tuple[np.ndarray, ...]:
    """u, s + 1e-5, and its rsqrt, as the graph has them."""
    u = tf.reduce_mean(x, -1, keepdims=True)
    s = tf.reduce_mean(tf.square(x - u), -1, keepdims=True) + 1e-5
    return u.numpy(), s.numpy(), tf.math.rsqrt(s).numpy()


SPELT = {
    "division": lambda x, u, s, r: (x - u) / np.sqrt(s) * G + B,
    "folded": lambda x, u, s, r: (x - u) * (r * G) + B,
    "keras": lambda x, u, s, r: x * (r * G) + (B - u * (r * G)),
}


@pytest.mark.parametrize("name", SPELT)
def test_a_spelling_is_itself_to_the_last_bit(name):
    """And not the official one: of its outputs a tenth to two thirds differ, in the last bits."""
    for scale in SCALES:
        x = rows(scale)
        found, official = called(name, x), called({}, x)
        np.testing.assert_array_equal(found, SPELT[name](x, *statistics(x)))
        assert 0.1 < (found != official).mean() < 0.67
        np.testing.assert_allclose(found, official, rtol=0, atol=2e-6 * np.abs(official).max())


def test_one_pass_loses_what_a_large_mean_covers():
    """Cases 0.4: 5e-5 at mean 10, 0.1 at mean 1000, NaN and more than 1 at 1e5; the right one stays near float64."""
    one, off = np.ones(C, "f4"), {}
    for mean in (10, 1000, 1e5):
        x = rows(1) + np.float32(mean)
        exact = oracle.normalize(x.astype(np.float64), 1, 0)
        off[mean] = np.abs(called("one-pass", x, one, 0 * one) - exact)
        np.testing.assert_allclose(called({}, x, one, 0 * one), exact, rtol=0, atol=2e-7 * max(mean, 10))
    assert 5e-6 < off[10].max() < 2e-4
    assert 0.02 < off[1000].max() < 1
    assert np.isnan(off[1e5]).any()
    assert np.nanmax(off[1e5]) > 1


def test_ln_f_alone_is_missing():
    x = rows(1)
    np.testing.assert_array_equal(called("no-ln-f", x, at="ln_f"), x)
    np.testing.assert_array_equal(called("no-ln-f", x, at="h1/ln_2"), called({}, x, at="h1/ln_2"))


def test_post_norm_normalizes_the_sums():
    """A block, against the functions of the model one by one."""
    weights, hp = proofs.golden_weights(), proofs.HPARAMS
    mask = m.attention_mask(5, 5, 0, dtype=tf.float32)
    how = dict(layer=0, past=None, mask=(mask, 1e10 * (1 - mask)), hparams=hp)
    x = tf.constant(np.random.default_rng(7).normal(0, 1, (1, 5, hp.n_embd)).astype("f4"))
    scope = m.Scope("model/h0", weights)
    mid = m.norm(x + m.attn(x, scope / "attn", **how), scope / "ln_1")
    expected = m.norm(mid + m.mlp(mid, scope / "mlp"), scope / "ln_2")
    replaced = m.Scope("model/h0", weights, others=OTHERS["post-norm"])
    np.testing.assert_array_equal(m.block(x, replaced, **how), expected)
    np.testing.assert_array_equal(post_norm(x, scope, **how), expected)
    assert np.abs(m.block(x, scope, **how) - expected).max() > 0.1


def test_chosen_in_our_order_and_once():
    assert choose(None) is MISTAKES
    assert [found.name for found in choose("rms, eps-1e-6,rms")] == ["eps-1e-6", "rms"]
    assert GROUPS == ("epsilon", "statistics", "place", "spelling")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            "rsm,rms,eps1e-6",
            "--only: 'rsm' (nearest: rms), 'eps1e-6' (nearest: eps-1e-6); there are eps-1e-6, eps-1e-12",
        ),
        ("", "--only: ''; there are eps-1e-6"),
        ("rms,", "--only: ''; there are eps-1e-6"),
        ("zz,zz", "--only: 'zz'; there are eps-1e-6"),
        ("1,2,3,4,5,6,7", "'5', and 2 more; there are"),
    ],
)
def test_what_does_not_exist_is_refused_all_at_once(spec, said):
    with pytest.raises(UsageError) as error:
        choose(spec)
    assert said in str(error.value)
