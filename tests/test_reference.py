"""The float64 pass, tap by tap: equal to the oracle of the tests, from any taps that are given, with any formula."""

import numpy as np
import pytest

from gpt2ln.reference import Missing, Reference, input_of, kind
from gpt2ln.rewritings import rounded

from . import oracle


@pytest.fixture(scope="module")
def ids(golden):
    return golden["ids"][0].tolist()


@pytest.fixture(scope="module")
def taps(golden_model, ids):
    return golden_model.reference(ids)


def test_it_is_the_oracle_of_the_tests(golden_model, taps, ids):
    hparams = golden_model.hparams
    right = oracle.forward(golden_model.weights, np.array([ids]), hparams.n_head, hparams.n_layer)
    for name in right:
        tap = input_of(name.removesuffix("/in"), hparams) if name.endswith("/in") else name
        np.testing.assert_allclose(taps[tap], right[name][0], rtol=0, atol=1e-12 * np.abs(right[name]).max())


def test_shapes_are_those_of_a_dump(golden_model, taps, ids):
    T, hparams = len(ids), golden_model.hparams
    assert taps["h1/attn/q"].shape == (T, hparams.n_head, hparams.head_dim)
    assert taps["h1/attn/probs"].shape == (T, hparams.n_head, T)
    assert taps["ln_f/mean"].shape == (T, 1)
    assert {x.dtype for x in taps.values()} == {np.dtype(np.float64)}
    assert len(taps) == len(list(taps)) == 3 + 3 * 23 + 6


def test_what_follows_is_computed_from_what_is_given(golden_model, taps, ids):
    given = {"h2/in": taps["h2/in"] * 2}
    other = golden_model.reference(ids, given=given)
    np.testing.assert_array_equal(other["h2/in"], taps["h2/in"] * 2)
    np.testing.assert_array_equal(other.computed("h2/in"), taps["h2/in"])
    np.testing.assert_array_equal(other["h2/ln_1/mean"], taps["h2/ln_1/mean"] * 2)
    np.testing.assert_array_equal(other["h1/out"], taps["h1/out"])


def test_nothing_but_what_is_given_is_needed(golden_model, taps):
    other = Reference(golden_model.hparams, taps.ids, {}, given={"h0/mlp/fc": taps["h0/mlp/fc"]})
    np.testing.assert_array_equal(other["h0/mlp/gelu"], taps["h0/mlp/gelu"])
    with pytest.raises(Missing, match="h0/mlp/c_proj/w"):
        other["h0/mlp/out"]


def test_a_formula_may_be_exchanged(golden_model, taps, ids):
    zero = {"attn/out": lambda t, at: 0 * t[f"{at}/z"]}
    other = golden_model.reference(ids, formulas=zero)
    np.testing.assert_array_equal(other["h0/mid"], taps["h0/in"])


def test_a_walk_gives_the_same_and_keeps_one_block(golden_model, taps, ids):
    walked = golden_model.reference(ids)
    names = []
    for name, x in walked.walk(["logits", "h0/attn/v", "h2/mid", "embed"]):
        np.testing.assert_array_equal(x, taps[name], err_msg=name)
        names.append(name)
        blocks = {key.partition("/")[0] for key in walked._known if key.count("/") > 1}
        assert len(blocks) <= 1
    assert names == ["embed", "h0/attn/v", "h2/mid", "logits"]


@pytest.mark.parametrize(("tap", "key"), [
    ("h3/ln_1/mean", "ln/mean"), ("ln_f/out", "ln/out"), ("h11/attn/q", "attn/q"), ("h0/mlp/out", "mlp/out"),
    ("h0/out", "out"), ("embed", "embed"), ("wte/out", "wte/out"), ("logits", "logits"),
])  # fmt: skip
def test_kinds(tap, key):
    assert kind(tap) == key


def test_rounding_to_fewer_bits():
    x = np.array([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 1 + 2**-8 + 2**-30, 0.0, 3e5])
    np.testing.assert_array_equal(rounded(x, 7), [1, 1 + 2**-6, -1, 1 + 2**-7, 0, 2.99008e5])
    np.testing.assert_array_equal(rounded(x, 7, cut=True), [1, 1 + 2**-7, -1, 1, 0, 2.99008e5])
