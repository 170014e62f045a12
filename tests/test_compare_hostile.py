"""Files that nobody should have written: one line and an exit status, never a bug of ours."""

import json

import numpy as np
import pytest

from gpt2ln.provenance import FORMAT, array_sha256, sealed

from .ports import saved
from .refusals import done, refused


@pytest.mark.parametrize(
    ("name", "x", "words"),
    [
        ("past_key_values", np.zeros(2), "p.npz: past_key_values is [2], which does not come apart into h0/attn/k"),
        ("past_key_values[0]", np.zeros((1, 2, 8, 4)), "which does not come apart into h0/attn/k, h0/attn/v"),
        ("transformer.h.0.attn.c_attn", np.zeros((8, 25)), "is [8, 25], which does not come apart into h0/attn/q"),
        ("transformer.h.0.attn.c_attn", np.float32(2), "is [], which does not come apart"),
        ("hidden_states", np.zeros(()), "p.npz: hidden_states: [], expected 3 in front: this model has 2 blocks"),
        ("hidden_states", np.zeros(3), "h0/in is [], expected [T, 8]"),
        ("h0/out", np.float32(3), "h0/out is [], expected [T, 8]"),
        ("h0/out", np.zeros((1, 1, 1, 8, 8)), "h0/out is [1, 1, 1, 8, 8], expected [T, 8]"),
        ("h99/out", np.zeros((8, 8)), "holds h99/out; no name of a tap"),
        ("h0/attn/scores", np.zeros((8, 2, 7)), "h0/attn/scores is [8, 2, 7], expected [T, 2, T]"),
    ],
)
def test_shapes(cli, T, here, name, x, words):
    refused(cli("compare", saved(here / "p.npz", {name: x}), "p.npz", "-m", T), 5, words)


def test_numbers_past_all_bounds(cli, T, here, small):
    taps = small.observe("To be", "**")
    saved(here / "a.npz", taps | {"tokens": np.array(small.encode("To be"))})
    for x in (1e308, np.inf, np.nan, -1e-320):
        saved(here / "b.npz", {name: np.full(y.shape, x) for name, y in taps.items()})
        ran = cli("compare", "a.npz", "b.npz", "-m", T)
        assert (ran.status, ran.err.splitlines()[-1][:31]) == (1, "error: first difference: wte/ou"), ran
        ran = cli("compare", "b.npz", "a.npz", "--json")
        assert (ran.status, json.loads(ran.out)["first"]) == (1, "wte/out"), x
        done(cli("compare", "b.npz", "b.npz", "-m", T, "--against", "none"))


MODEL = {"n_vocab": 260, "n_ctx": 16, "n_embd": 8, "n_head": 2, "n_layer": 2}


@pytest.mark.parametrize(
    "model",
    [3, None, {"hparams": 4}, {"hparams": {"n_vocab": "x"}}, {"hparams": MODEL | {"n_layer": 10**9}}]
    + [{"hparams": MODEL | edit} for edit in ({"n_head": 0}, {"n_ctx": None}, {"n_embd": 1.5}, {"n_head": 3})],
)
def test_a_sealed_record_that_says_nonsense(cli, here, model):
    """Then it says nothing of its model."""
    arrays = {"tokens": np.arange(3), "doc_ptr": np.array([0, 3]), "h0/out": np.ones((3, 8), "f4")}
    arrays |= {"hello": np.ones((3, 2), "f4"), "h987654321/out": np.ones((3, 8), "f4")}
    digests = {name: array_sha256(x) for name, x in arrays.items()}
    record = sealed({"format": FORMAT, "model": model, "arrays_sha256": digests})
    saved(here / "p.npz", arrays | {"meta": np.array(json.dumps(record))})
    assert "1 tap in both: 1 equal\n" in done(cli("compare", "p.npz", "p.npz"))


@pytest.mark.parametrize(
    ("name", "x", "words"),
    [
        ("h0/out", np.ones((3, 9), "f4"), "h0/out is float32 [3, 9], expected floats, [rows, 8]"),
        ("h0/out", np.ones((3, 8), "i4"), "h0/out is int32 [3, 8], expected floats, [rows, 8]"),
        (
            "h0/attn/probs",
            np.ones((3, 2, 2), "f4"),
            "h0/attn/probs is float32 [3, 2, 2], expected floats, [rows, 2, T]",
        ),
        ("h9/attn/probs", np.ones((3, 2), "f4"), "h9/attn/probs is float32 [3, 2]"),
    ],
)
def test_sealed_arrays_that_are_not_the_models(cli, here, name, x, words):
    arrays = {"tokens": np.arange(3), "doc_ptr": np.array([0, 3]), name: x}
    digests = {name: array_sha256(x) for name, x in arrays.items()}
    record = sealed({"format": FORMAT, "model": {"hparams": MODEL}, "arrays_sha256": digests})
    saved(here / "p.npz", arrays | {"meta": np.array(json.dumps(record))})
    refused(cli("compare", "p.npz", "p.npz"), 4, "its parts do not fit together", words)


def test_names_that_would_move_a_cursor(cli, here, small, T):
    x = small.observe("To be", "h0/out")["h0/out"]
    saved(here / "p.npz", {"blocks.0.hook_resid_post": x, "weird\x1b[31m": np.zeros(2)})
    ran = cli("compare", "p.npz", "p.npz", "-m", T)
    assert "\x1b" not in done(ran) + ran.err
    assert "left out: weird\\x1b[31m" in ran.err


def test_a_normalized_is_decided_by_what_is_computed_anew(cli, T, here, small):
    x = small.observe("To be", "h0/ln_1/norm")["h0/ln_1/norm"]
    saved(here / "p.npz", {"blocks.0.ln1.hook_normalized": x, "tokens": np.array(small.encode("To be"))})
    ran = cli("compare", "p.npz", "--backend", "float64", "-m", T)
    assert "1 tap in both" in done(ran)
