"""`inspect` on other files than a checkpoint, on checkpoints of other makers."""

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from gpt2ln.hf import to_hf
from gpt2ln.runtime import tf

from . import tiny
from .refusals import done, refused
from .test_inspect import objects


@pytest.fixture
def hf(tmp_path) -> Path:
    """T's weights as Hugging Face has them, but for two."""
    w = {to_hf(name): x for name, x in tiny.weights().items() if "c_fc" not in name}
    safetensors.numpy.save_file(w, tmp_path / "model.safetensors", {"format": "pt"})
    return tmp_path


# --- safetensors and npz ------------------------------------------------------------------------------------------


def test_the_list_of_safetensors(hf, cli):
    """By its folder or its name; names as they are, in natural order; no sums, and that is not hidden."""
    ran = cli("inspect", "-m", hf)
    assert done(ran) == done(cli("inspect", "-m", hf / "model.safetensors"))
    assert len(done(ran).splitlines()) == 25
    assert ran.err == "24 variables, 3,392 values, 13,568 bytes\n"
    last = done(cli("inspect", "-m", hf, "-l")).splitlines()[-1]
    (record,) = objects(cli("inspect", "-m", hf, "-l", "--json", "wte.weight"))
    data = (hf / "model.safetensors").read_bytes()
    at = record["offset"]
    assert data[at : at + record["bytes"]] == tiny.weights()["model/wte"].tobytes()
    assert (record["crc32c"], record["shard"]) == (None, 0)
    assert last.split() == ["wte.weight", "float32", "[260,", "8]", str(at), "0", "-", "8320"]


def test_npz_has_no_offsets(tmp_path, cli):
    np.savez(tmp_path / "x.npz", a=np.zeros(3, "f4"))
    (record,) = objects(cli("inspect", "-m", tmp_path / "x.npz", "-l", "--json"))
    assert record == {"name": "a", "dtype": "float32", "shape": [3], "offset": None, "shard": 0, "crc32c": None,
                      "bytes": 12}  # fmt: skip
    assert done(cli("inspect", "-m", tmp_path / "x.npz", "-l")).splitlines()[1].split()[-4:] == ["-", "0", "-", "12"]


def test_values_and_statistics_are_those_of_the_checkpoint(T, hf, cli):
    for ours, theirs in (("h1/ln_2/g", "h.1.ln_2.weight"), ("wpe", "wpe.weight")):
        for flag in ("--values", "--stats"):
            (a,) = objects(cli("inspect", "-m", T, flag, "--json", ours))
            (b,) = objects(cli("inspect", "-m", hf, flag, "--json", theirs))
            assert {k: v for k, v in b.items() if k != "name"} == {k: v for k, v in a.items() if k != "name"}


@pytest.mark.parametrize(
    ("glob", "count"),
    [("h.0.*", 10), ("h.{0..1}.ln_1.weight", 2), ("*", 24), ("w?e.weight", 2), ("model/wte", 0), ("wtf", 0)],
)
def test_globs_on_other_names(glob, count, hf, cli):
    ran = cli("inspect", "-m", hf, "--json", glob)
    if count:
        assert len(objects(ran)) == count
    else:
        refused(ran, 2, f"no variable matches {glob!r}")
    refused(cli("inspect", "-m", hf, "h.0.ln_1.wieght"), 2, "did you mean h.0.ln_1.weight")


def test_a_file_that_is_cut_short(hf, cli):
    path = hf / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    for where in (hf, path):
        refused(cli("inspect", "-m", where), 4, f"{path}: no whole safetensors file (")


def test_shards_and_one_that_is_missing(tmp_path, cli):
    w = {"a": np.ones(2, "f4"), "b": np.zeros(3, "f2")}
    for name, x in w.items():
        safetensors.numpy.save_file({name: x}, tmp_path / f"{name}.safetensors")
    places = {name: f"{name}.safetensors" for name in w}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    for where in (tmp_path, index):
        found = objects(cli("inspect", "-m", where, "-l", "--json"))
        assert [(r["name"], r["dtype"], r["shard"]) for r in found] == [("a", "float32", 0), ("b", "float16", 1)]
    (tmp_path / "b.safetensors").unlink()
    refused(cli("inspect", "-m", tmp_path), 3, f"{tmp_path}: b.safetensors missing")


# --- checkpoints of other makers ----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # of TensorFlow itself
def test_an_object_checkpoint(tmp_path, cli):
    """Every variable by the name it has there, and the graph of objects, which is a string."""
    saved = tf.train.Checkpoint(step=tf.Variable(3, dtype=tf.int64), w=tf.Variable([[1.0, 2]]))
    prefix = saved.save(str(tmp_path / "ckpt"))
    found = {r["name"]: (r["dtype"], r["shape"]) for r in objects(cli("inspect", "-m", prefix, "--json"))}
    listed = dict(tf.train.list_variables(prefix))
    assert {name: shape for name, (_, shape) in found.items()} == listed
    assert found["step/.ATTRIBUTES/VARIABLE_VALUE"] == ("int64", [])
    assert found["_CHECKPOINTABLE_OBJECT_GRAPH"] == ("string", [])
    assert done(cli("inspect", "-m", prefix, "--values", "w/**")).endswith("\n1.0 2.0\n")
    assert cli("inspect", "-m", prefix, "--npy", tmp_path / "o", "w/**").status == 0
    np.testing.assert_array_equal(np.load(tmp_path / "o/w/.ATTRIBUTES/VARIABLE_VALUE.npy"), [[1, 2]])


def test_several_shards(tmp_path, cli):
    """Merged by TensorFlow without copying: two data files, one index."""
    w = tiny.weights()
    parts = [{n: x for i, (n, x) in enumerate(w.items()) if i % 2 == k} for k in (0, 1)]
    for k, part in enumerate(parts):
        tiny.save(tmp_path / f"part{k}", part)
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=[str(tmp_path / "part0"), str(tmp_path / "part1")],
        destination_prefix=str(tmp_path / "whole"), delete_old_dirs=False)  # fmt: skip
    found = objects(cli("inspect", "-m", tmp_path / "whole", "-l", "--json"))
    assert len(found) == 28
    assert {r["shard"] for r in found} == {0, 1}
    assert cli("inspect", "-m", tmp_path / "whole", "--npy", tmp_path / "o").status == 0
    for name, x in w.items():
        np.testing.assert_array_equal(np.load(tmp_path / "o" / f"{name.removeprefix('model/')}.npy"), x, strict=True)
    by_offset = objects(cli("inspect", "-m", tmp_path / "whole", "-l", "--json", "--sort", "offset"))
    places = [(r["shard"], r["offset"]) for r in by_offset]
    assert places == sorted(places)
    (tmp_path / "whole.data-00001-of-00002").unlink()
    ran = cli("inspect", "-m", tmp_path / "whole")
    assert ran.status == 0
    assert "whole.data-00001-of-00002: no such file" in ran.err
    refused(cli("inspect", "-m", tmp_path / "whole", "--stats"), 3, "whole.data-00001-of-00002: no such file")
