"""Tensors of any kind of file: the same names, shapes and values whichever it is."""

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from gpt2ln.checkpoint import Entry, read_index
from gpt2ln.errors import Damaged, NotFound, UsageError
from gpt2ln.runtime import tf
from gpt2ln.tensors import SHARDED, SINGLE, float32, foreign, open_foreign, readable, values

from . import bundles, tiny
from .test_checkpoint import tiny_save

W = {"a": np.arange(6, dtype="f4").reshape(2, 3), "b/c": np.array([1.5, -2], "f4"), "模型": np.zeros((0, 3), "f4")}


def raw(path: Path, header: dict | bytes, content: bytes = b"") -> Path:
    """A safetensors file with this header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content)
    return path


def tensor(dtype: str, shape: list, first: int, last: int) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, last]}


def same(tensors, arrays: dict) -> None:
    assert set(tensors.entries) == set(arrays)
    for name, x in arrays.items():
        entry = tensors.entries[name]
        assert (entry.name, entry.dtype, entry.shape, entry.size) == (name, x.dtype.name, x.shape, x.nbytes)
        found = values(tensors, entry)
        np.testing.assert_array_equal(found, x, strict=True)
        assert not found.flags.writeable
        tensors.release(entry)
        np.testing.assert_array_equal(values(tensors, entry), x)  # read again after its pages went back


# --- good files ---------------------------------------------------------------------------------------------------


def test_safetensors(tmp_path):
    safetensors.numpy.save_file(W, tmp_path / "x.safetensors", {"format": "np"})
    tensors = open_foreign(tmp_path / "x.safetensors")
    same(tensors, W)
    assert tensors.kind == "safetensors"
    data = (tmp_path / "x.safetensors").read_bytes()
    entry = tensors.entries["a"]
    assert data[entry.offset : entry.offset + entry.size] == W["a"].tobytes()
    assert (entry.crc, entry.shard) == (None, 0)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(save, tmp_path):
    kinds = {"f2": "f2", "f8": "f8", "i1": "i1", "u8": "u8", "c8": "c8", "flag": "?"}
    arrays = W | {name: np.array([0, 1], kind) for name, kind in kinds.items()}
    arrays |= {"scalar": np.array(7, "i8"), "columns": np.asfortranarray(W["a"])}
    save(tmp_path / "x.npz", **arrays)
    tensors = open_foreign(tmp_path / "x.npz")
    same(tensors, arrays)
    assert tensors.kind == "npz"


def test_npz_of_another_byte_order(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.array([1.5, -2], ">f4"))
    tensors = open_foreign(tmp_path / "x.npz")
    assert tensors.entries["x"].dtype == "float32"
    np.testing.assert_array_equal(float32(tensors, tensors.entries["x"]), np.array([1.5, -2], "f4"))


def test_what_is_no_number_is_listed(tmp_path):
    """Names of their dtypes as the file has them; `readable` says that no values come of it."""
    odd = {"text": np.array(["a", "bc"]), "objects": np.array([None, {}]), "fields": np.zeros(2, "f4,i8")}
    np.savez(tmp_path / "x.npz", **odd)
    found = open_foreign(tmp_path / "x.npz").entries
    assert {name: (e.dtype, e.shape) for name, e in found.items()} == {
        "text": ("<U2", (2,)), "objects": ("|O", (2,)), "fields": ("|V12", (2,))}  # fmt: skip
    header = {"eight": tensor("F8_E4M3", [2], 0, 2), "wide": tensor("BF16", [1], 2, 4)}
    found |= open_foreign(raw(tmp_path / "x.safetensors", header, b"1234")).entries
    assert found["eight"].dtype == "F8_E4M3"
    assert [name for name, e in found.items() if readable(e)] == ["wide"]


def test_bfloat16_is_widened(tmp_path):
    """Bit for bit what TensorFlow makes of it, from both kinds; float32 takes it, and float16."""
    x = np.array([1.5, -2, 3e38, np.inf, np.nan, -0.0], "f4")
    tiny_save(tmp_path / "x", {"v": tf.cast(x, tf.bfloat16), "half": tf.cast(x[:2], tf.float16)})
    want = tf.cast(tf.cast(x, tf.bfloat16), tf.float32).numpy()
    bundle = read_index(tmp_path / "x")
    content = bytes(bundle.raw(bundle.entries["v"]))
    other = open_foreign(raw(tmp_path / "x.safetensors", {"v": tensor("BF16", [6], 0, 12)}, content))
    for tensors in (bundle, other):
        entry = tensors.entries["v"]
        assert entry.dtype == "bfloat16"
        for read in (values, float32):
            np.testing.assert_array_equal(read(tensors, entry).view("u4"), want.view("u4"), strict=True)
    half = values(bundle, bundle.entries["half"])
    assert half.dtype == np.float16
    np.testing.assert_array_equal(float32(bundle, bundle.entries["half"]), x[:2], strict=True)


@pytest.mark.parametrize("dtype", ["f8", "i4", "?", "c8"])
def test_float32_of_what_is_wider_or_no_such_number_is_refused(dtype, tmp_path):
    np.savez(tmp_path / "x.npz", v=np.zeros(2, dtype))
    tensors = open_foreign(tmp_path / "x.npz")
    with pytest.raises(UsageError, match=rf"x\.npz: v is {np.dtype(dtype).name}, expected float32$"):
        float32(tensors, tensors.entries["v"])


def test_an_axis_that_no_array_has(tmp_path):
    tensors = open_foreign(raw(tmp_path / "x.safetensors", {"v": tensor("F32", [1 << 63, 0], 0, 0)}))
    with pytest.raises(Damaged, match=r"v has the shape \[9223372036854775808, 0\]"):
        values(tensors, tensors.entries["v"])


def test_slices_have_no_values(tmp_path):
    assert not readable(Entry("v", "bfloat16", (2,), 0, 0, 4, 0, sliced=True))
    assert not readable(Entry("v", "float32", (2,), 0, 0, 8, 0, sliced=True))


def test_a_shape_that_no_array_has(tmp_path):
    """Nothing in it, so its size fits; numpy has no such array."""
    shape = [1 << 62, 0, 1 << 62]
    files = [open_foreign(raw(tmp_path / "x.safetensors", {"v": tensor("F32", shape, 0, 0)}))]
    prefix = tmp_path / "x"
    Path(f"{prefix}.index").write_bytes(bundles.index([Entry("v", "float32", tuple(shape), 0, 0, 0, 0)]))
    Path(f"{prefix}.data-00000-of-00001").write_bytes(b"")
    files.append(read_index(prefix))
    for tensors in files:
        with pytest.raises(Damaged, match=r"v has the shape \[4611686018427387904, 0, 4611686018427387904\]"):
            values(tensors, tensors.entries["v"])


# --- several files ------------------------------------------------------------------------------------------------


def shards(folder: Path, places: dict, files: dict) -> Path:
    folder.mkdir(exist_ok=True)
    for name, arrays in files.items():
        safetensors.numpy.save_file(arrays, folder / name)
    (folder / SHARDED).write_text(json.dumps({"weight_map": places}))
    return folder / SHARDED


def test_shards(tmp_path):
    files = {"2.safetensors": {"a": W["a"]}, "1.safetensors": {"b/c": W["b/c"], "模型": W["模型"]}}
    index = shards(tmp_path / "m", {"a": "2.safetensors", "b/c": "1.safetensors"}, files)
    for path in (index, foreign(index), foreign(tmp_path / "m")):
        tensors = open_foreign(path)
        same(tensors, W)
        assert tensors.entries["a"].shard == 1


@pytest.mark.parametrize(
    ("places", "kind", "words"),
    [
        (
            {"a": "1.safetensors", "b": "9.safetensors"},
            NotFound,
            "m: 9.safetensors missing; model.safetensors.index.json",
        ),
        ({"a": "1.safetensors", "z": "1.safetensors"}, Damaged, "lists z, which its files do not hold"),
        ({"a": "../x/1.safetensors"}, Damaged, "weight_map names ../x/1.safetensors, expected files beside it"),
        ({}, Damaged, "weight_map names no file"),
        ({"a": "1.safetensors", "a2": "2.safetensors"}, Damaged, "a is in two of its files"),
        ({"a": 7}, Damaged, "expected an object with weight_map"),
        ({"a": [1]}, Damaged, "expected an object with weight_map"),
        ([["a", "1.safetensors"]], Damaged, "expected an object with weight_map"),
        ({"a": "x\0y"}, NotFound, "missing"),
    ],
)
def test_shards_that_do_not_fit_their_index(places, kind, words, tmp_path):
    files = {"1.safetensors": {"a": W["a"]}, "2.safetensors": {"a": W["a"], "a2": W["a"]}}
    index = shards(tmp_path / "m", places, files)
    with pytest.raises(kind) as error:
        open_foreign(index).entries  # noqa: B018
    assert words in str(error.value)


@pytest.mark.parametrize("text", [b"", b"[]", b"null", b"7", b'{"weight_map": null}', b"{", b"\xff", b"[" * 100000])
def test_an_index_that_is_none(text, tmp_path):
    (tmp_path / SHARDED).write_bytes(text)
    with pytest.raises(Damaged, match=r"index\.json: expected an object with weight_map"):
        open_foreign(tmp_path / SHARDED)


def test_which_file_a_folder_means(tmp_path):
    """A checkpoint before all, several shards before one; another folder none."""
    assert foreign(tmp_path) is None
    safetensors.numpy.save_file(W, tmp_path / SINGLE)
    np.savez(tmp_path / "x.npz", **W)
    assert foreign(tmp_path) == tmp_path / SINGLE
    (tmp_path / SHARDED).write_text("{}")
    assert foreign(tmp_path) == tmp_path / SHARDED
    assert foreign(tmp_path / "x.npz") == tmp_path / "x.npz"
    (tmp_path / "model.ckpt.index").write_bytes(b"")
    assert foreign(tmp_path) is None
    assert foreign(tmp_path / SINGLE) == tmp_path / SINGLE
    (tmp_path / "folder.npz").mkdir()
    for path in (tmp_path / "folder.npz", tmp_path / "no.npz", Path("x" * 5000), tmp_path / "model.ckpt.index"):
        assert foreign(path) is None


@pytest.mark.parametrize("name", ["x.npz", "x.safetensors"])
def test_a_file_that_is_gone(name, tmp_path):
    with pytest.raises(NotFound, match=f"{tmp_path}/{name}: no such file"):
        open_foreign(tmp_path / name).entries  # noqa: B018


def test_the_same_view_of_a_checkpoint(tmp_path):
    """`Bundle` is one of them."""
    w = tiny.weights()
    same(read_index(bundles.write(tmp_path / "x", w)), w)
