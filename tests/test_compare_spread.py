"""`compare` of files with several texts or some positions, under the names of others, in each kind of file."""

import json

import numpy as np
import pytest

from . import numpy_port as port
from .conftest import GOLDEN
from .refusals import refused
from .spreads import as_lens, as_transformers, partial, saved_as, whole

LENGTHS = (6, 5)
BESIDE = ("tokens", "attention_mask", "lengths", "doc_ptr", "cu_seqlens", "rows", "positions", "position_ids")
CASES = [
    ("npz", as_lens, whole, "left"),
    ("safetensors", as_transformers, whole, "right"),
    ("npy", as_lens, whole, "doc_ptr"),
    ("npy", as_transformers, partial, "left"),
    ("safetensors", as_lens, partial, "cu_seqlens"),
    ("npz", as_transformers, partial, "lengths"),
]


@pytest.fixture(scope="module")
def texts(golden):
    return [golden["ids"][n].tolist()[:length] for n, length in enumerate(LENGTHS)]


def others(scheme, arrays: dict, model) -> dict:
    """Under the names of others, with a batch in front."""
    taps = {name: x for name, x in arrays.items() if name not in BESIDE}
    if "doc_ptr" in arrays or "cu_seqlens" in arrays:
        taps = {name: x[None] for name, x in taps.items()}
    return scheme(taps, model.n_layer, model.n_head) | {name: arrays[name] for name in BESIDE if name in arrays}


@pytest.mark.parametrize(("kind", "scheme", "part", "form"), CASES)
def test_names_and_files_of_others(cli, golden_model, texts, here, kind, scheme, part, form):
    model = golden_model.hparams
    for how, status in (({}, 0), ({"norm": port.epsilon(1e-3)}, 1)):
        taps = [port.run(golden_model.weights, ids, model.n_head, **how) for ids in texts]
        (here / str(status)).mkdir()
        path = saved_as(kind, here / str(status), others(scheme, part(form, texts, taps), model))
        ran = cli("-m", GOLDEN / "model", "compare", path, "--backend", "float64", "--json")
        assert ran.status == status, ran
        found = json.loads(ran.out)
        assert (found["verdict"], found["b"]["texts"], found["b"]["tokens"]) == (["rounding", "bug"][status], 2, 11)
        assert len(found["taps"]) > 10
        assert ("h0/ln_2/norm" in {tap["tap"] for tap in found["taps"]}) == (scheme is as_lens and not status)
        if status and part is whole:
            assert found["causes"][0]["name"] == "epsilon 0.001"


def test_a_damaged_file_is_to_be_written_again(cli, here, texts, golden_model):
    """Nobody can fetch it: it was made here."""
    taps = [port.run(golden_model.weights, ids, 4) for ids in texts]
    path = saved_as("safetensors", here, {"h0/out": taps[0]["h0/out"]})
    path.write_bytes(path.read_bytes()[:-5])
    said = refused(cli("compare", path, path), 4, "port.safetensors: no whole safetensors file (")
    assert said.endswith("; write it again")


def test_tokens_of_some_rows_are_not_enough_to_compute(cli, here, texts):
    arrays = {"h0/out": np.ones((1, 48), "f4"), "tokens": np.array([5]), "positions": np.array([3])}
    np.savez("p.npz", **arrays)
    command = ("-m", GOLDEN / "model", "compare", "p.npz", "--backend", "float64")
    refused(cli(*command), 5, "token ids are those of some rows alone; save the whole text as tokens [T], or pass --ag")
    np.savez("p.npz", **arrays | {"tokens": np.arange(65), "positions": np.array([64])})
    refused(cli(*command), 5, "65 tokens, expected 1..64 of")
