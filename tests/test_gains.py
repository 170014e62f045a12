"""Gains and biases from the weights alone: numpy's own numbers, and the published ones of the real 124M."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gpt2ln.checkpoint import read_index
from gpt2ln.errors import Damaged, UsageError
from gpt2ln.gains import Norm, Vector, counted, deviations, norms_in, read_norms, spread, vector_of
from gpt2ln.hf import to_hf
from gpt2ln.runtime import tf
from gpt2ln.spec import RELEASED, variables
from gpt2ln.tensors import open_foreign

from . import tiny
from .test_checkpoint import OFFICIAL, needs, tiny_save

FACTS = OFFICIAL.parent / "facts.json"


def norm_of(g, b=None, name="ln_f") -> Norm:
    made = [None if x is None else np.asarray(x, "f8") for x in (g, b)]
    return Norm(name, *(None if x is None else Vector(name, x, spread(x), deviations(x)) for x in made))


# --- golden: the real norms ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real() -> list[Norm]:
    needs(OFFICIAL / "ln.npz", FACTS)
    tensors = open_foreign(OFFICIAL / "ln.npz")
    return read_norms(tensors, norms_in(tensors.entries))


def test_the_published_numbers(real):
    """All 25 norms: mean, std, extremes with their channels, gains below 0."""
    known = json.loads(FACTS.read_text())["layernorm"]["weight_stats_124M"]
    assert ["model/" + norm.name for norm in real] == list(known["norms"])
    for norm in real:
        want = known["norms"]["model/" + norm.name]
        for leaf, vector in norm.vectors.items():
            found, told = vector.spread, want[leaf]
            assert (found.argmin, found.argmax) == (told["argmin"], told["argmax"])
            pairs = [(getattr(found, key), told[key]) for key in ("mean", "std", "min", "max")]
            np.testing.assert_allclose(*zip(*pairs, strict=True), rtol=1e-7)  # printed with 8 or 9 digits
            np.testing.assert_allclose(vector.values[:4], want[f"{leaf}_first4"], rtol=1e-7)
            np.testing.assert_allclose(vector.values[[138, 378, 447]], want[f"{leaf}_at_138_378_447"], rtol=1e-7)
            assert (found.zeros, found.nan, found.inf, len(vector.values)) == (0, 0, 0, 768)
        assert len(norm.g.negative) == want["g"]["n_negative"]
    (told,) = known["negative_gains"]
    (found,) = [(norm.g.name, channel, norm.g.values[channel]) for norm in real for channel in norm.g.negative]
    assert found[:2] == (told["name"], told["dim"])
    np.testing.assert_allclose(found[2], told["value"], rtol=1e-7)


def test_who_stands_out_in_the_real_norms(real):
    """Nine of the eleven published channels are among the first eleven; 378 and 496 stand out in few norms."""
    published = json.loads(FACTS.read_text())["massive_activation_dims"]["124M"]
    published = {*published["dims"], *published["also_stand_out_in_norm_weights"]}
    found = counted(real)
    assert [channel for channel, _ in found[:11]] == [326, 447, 138, 266, 373, 480, 87, 64, 393, 288, 481]
    assert published - {channel for channel, _ in found[:11]} == {378, 496}
    assert {channel: dict(found)[channel] for channel in (447, 138, 378, 496)} == {447: 22, 138: 21, 378: 1, 496: 2}


# --- spread -------------------------------------------------------------------------------------------------------


@given(arrays("f4", st.integers(1, 40), elements=st.floats(width=32)))
def test_spread_is_what_numpy_says(x):
    found = spread(x)
    counts = (int((x == 0).sum()), int(np.isnan(x).sum()), int(np.isinf(x).sum()))
    assert (found.zeros, found.nan, found.inf) == counts
    fine = np.isfinite(x)
    if not fine.any():
        assert (found.min, found.argmin, found.max, found.argmax, found.mean, found.std) == (None,) * 6
        return
    y = x.astype("f8")
    assert (found.min, found.argmin) == (y[fine].min(), np.where(fine, y, np.inf).argmin())
    assert (found.max, found.argmax) == (y[fine].max(), np.where(fine, y, -np.inf).argmax())
    scale = float(np.abs(y[fine]).max())
    np.testing.assert_allclose([found.mean, found.std], [y[fine].mean(), y[fine].std()], rtol=1e-9, atol=1e-13 * scale)


def test_spread_of_nothing_and_of_too_much():
    for x in (np.zeros((0, 3), "f4"), np.array([np.nan, np.inf])):
        nothing = spread(x)
        assert (nothing.min, nothing.argmin, nothing.max, nothing.argmax, nothing.mean, nothing.std) == (None,) * 6
    found = spread(np.array([1e300, -1e300]))
    assert (found.min, found.max, found.mean, found.std) == (-1e300, 1e300, 0, None)
    assert spread(np.array([[3, 1], [4, 1]])).argmin == 1  # flat, the first of equals


def test_spread_of_pieces_that_hold_nothing():
    x = np.full(3 << 18, np.nan, "f4")
    x[(2 << 18) + 7] = 5
    found = spread(x)
    at = (2 << 18) + 7
    assert (found.min, found.argmin, found.max, found.argmax) == (5, at, 5, at)
    assert (found.mean, found.std, found.nan) == (5, 0, x.size - 1)


# --- who stands out -----------------------------------------------------------------------------------------------


@given(arrays("f8", 31, elements=st.floats(-100, 100)), st.floats(0.1, 10), st.floats(-5, 5))
def test_deviations_do_not_depend_on_place_and_scale(x, scale, shift):
    x = np.round(x, 3)  # so that a median distance is 0 or not small
    base, moved = deviations(x), deviations(scale * (x + shift))
    if np.median(np.abs(x - np.median(x))):
        np.testing.assert_allclose(moved, base, rtol=1e-6, atol=1e-6)


def test_deviations_by_hand():
    """The median is 3, the median distance 1: a channel at 103 is 100 / 1.4826 away, whatever else is there."""
    x = np.array([1, 2, 3, 4, 103, np.nan, np.inf])
    np.testing.assert_allclose(deviations(x), [2 / 1.4826, 1 / 1.4826, 0, 1 / 1.4826, 100 / 1.4826, 0, 0])
    np.testing.assert_array_equal(deviations(np.array([1.0, 1, 1, 1, 2])), [0, 0, 0, 0, np.inf])
    np.testing.assert_array_equal(deviations(np.ones(3)), np.zeros(3))
    np.testing.assert_array_equal(deviations(np.full(3, np.nan)), np.zeros(3))
    np.testing.assert_array_equal(deviations(np.zeros(0)), np.zeros(0))


def test_normal_values_deviate_by_one():
    """1.4826: the root of the mean square is 1 for normal values."""
    x = np.random.default_rng(0).normal(7, 3, 100_001)
    np.testing.assert_allclose(np.sqrt(np.mean(deviations(x) ** 2)), 1, atol=0.01)


def test_who_stands_out():
    """More than 10 away in gain or in bias, the farthest first; counted over norms, the smaller number first."""
    rows = np.tile([0.9, 1.0, 1.1], 7)
    g, b = rows.copy(), rows.copy()
    g[[2, 5]], b[[5, 9]] = [9, -2], [30, 4]
    norm = norm_of(g, b)
    assert (norm.g.stands_out, norm.b.stands_out, norm.stands_out) == ([2, 5], [5, 9], [5, 2, 9])
    assert norm.g.negative == [5]
    assert norm_of(b, g).stands_out == [5, 2, 9]  # the farther of the two, whichever comes first
    sigma = 0.1 * 1.4826
    near = rows.copy()
    near[:2] = 1 + 9.99 * sigma, 1 + 10.01 * sigma
    assert norm_of(near).stands_out == [1]
    assert counted([norm, norm_of(near), norm_of(None, b)]) == [(5, 2), (9, 2), (1, 1), (2, 1)]
    assert norm_of(None, None).stands_out == []


# --- names --------------------------------------------------------------------------------------------------------


def test_every_norm_of_the_largest_model_in_the_order_of_the_forward_pass():
    names = [name for name in variables(RELEASED["1558M"]) if "/ln_" in name]
    want = [f"h{i}/ln_{k}" for i in range(48) for k in (1, 2)] + ["ln_f"]
    for spell in (str, to_hf, lambda name: "transformer." + to_hf(name), lambda name: name.removeprefix("model/")):
        stored = sorted(spell(name) for name in variables(RELEASED["1558M"]))
        found = norms_in(stored)
        assert list(found) == want
        assert [leaves[leaf] for leaves in found.values() for leaf in "gb"] == [spell(name) for name in names]


OTHERS = ["model/wte", "h0/mlp/c_fc/b", "model/ln_f/g/Adam", "newslm/ln_f/g", "h0/ln_3/g", "ln_1/g", "h0.ln_1.weight"]


@pytest.mark.parametrize("name", [*OTHERS, "", "h.0.attn.bias", f"h{'1' * 5000}/ln_1/g"])
def test_what_is_no_vector_of_a_norm(name):
    assert vector_of(name) is None


def test_a_vector_that_is_there_twice():
    with pytest.raises(
        Damaged, match=r"^h0/ln_1/g is there as h\.0\.ln_1\.weight and as transformer\.h\.0\.ln_1\.weight$"
    ):
        norms_in(["h.0.ln_1.weight", "transformer.h.0.ln_1.weight"])


def test_what_is_read(tmp_path):
    """In float64, sums over channels; half of a norm is a norm too."""
    w = tiny.weights()
    tiny.save(tmp_path / "x", {name: w[name] for name in ("model/h1/ln_2/g", "model/ln_f/b", "model/ln_f/g")})
    bundle = read_index(tmp_path / "x")
    first, last = read_norms(bundle, norms_in(bundle.entries))
    assert (first.name, first.b, list(first.vectors), list(last.vectors)) == ("h1/ln_2", None, ["g"], ["g", "b"])
    np.testing.assert_array_equal(first.g.values, w["model/h1/ln_2/g"].astype("f8"), strict=True)
    assert last.b.spread.mean == pytest.approx(w["model/ln_f/b"].astype("f8").mean(), rel=1e-12)


def test_what_is_no_vector_is_refused(tmp_path):
    odd = {
        "ln_f/g": np.ones((2, 2), "f4"),
        "ln_f/b": np.ones(2, "i4"),
        "h0/ln_1/g": np.ones(0, "f4"),
        "h0/ln_1/b": np.ones(2),
    }
    np.savez(tmp_path / "x.npz", **odd)
    tensors = open_foreign(tmp_path / "x.npz")
    words = r"h0/ln_1/g is float32 \[0\], ln_f/g is float32 \[2, 2\], ln_f/b is int32 \[2\]; expected a vector of fl"
    with pytest.raises(UsageError, match=words):
        read_norms(tensors, norms_in(tensors.entries))


def test_a_gain_in_slices_is_refused(tmp_path):
    x = tf.range(4.0)
    slices = {"model/ln_f/g@0": "4 0,2", "model/ln_f/g@1": "4 2,2"}
    tiny_save(tmp_path / "x", {"model/ln_f/g@0": x[:2], "model/ln_f/g@1": x[2:]}, slices)
    bundle = read_index(tmp_path / "x")
    with pytest.raises(UsageError, match=r"model/ln_f/g is float32 \[4\], in slices; expected a vector"):
        read_norms(bundle, norms_in(bundle.entries))
