"""However a safetensors or npz file is made, or spoilt: Damaged, in little memory, and no other exception."""

import io
import os
import struct
import tracemalloc
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from gpt2ln.errors import Damaged, NotFound
from gpt2ln.tensors import open_foreign, readable, values

from .test_tensors import W, raw, same, tensor


def npy(x: np.ndarray, header: bytes | None = None, version=(1, 0)) -> bytes:
    """An array as npy, or its values behind another header."""
    out = io.BytesIO()
    if header is None:
        np.lib.format.write_array(out, x, version, allow_pickle=True)
        return out.getvalue()
    return b"\x93NUMPY" + bytes(version) + struct.pack("<H", len(header)) + header + x.tobytes()


def zipped(path: Path, members: list[tuple[str, bytes]], how=zipfile.ZIP_STORED) -> Path:
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", how) as archive:
        warnings.simplefilter("ignore")  # of names that are there twice
        for name, content in members:
            archive.writestr(name, content)
    return path


X = np.arange(3, dtype="f4")


def head(shape: str, descr: str = "'<f4'") -> bytes:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}\n".encode()


HEADERS = {
    "more values than bytes": (head("(4,)"), "x is float32 [4] in 12 bytes"),
    "a huge shape": (head("(1000000000000,)"), "x is float32 [1000000000000] in 12 bytes"),
    "a shape beyond 64 bits": (head("(2**70, 0)"), "no whole npz file"),
    "the same, written out": (head(f"({1 << 70}, 0)"), "x has the shape [1180591620717411303424, 0]"),
    "two negative axes": (head("(-1, -3)"), "x has the shape [-1, -3]"),
    "no shape": (b"{'descr': '<f4', 'fortran_order': False}\n", "no whole npz file"),
    "no dtype": (head("(3,)", "'nonsense'"), "no whole npz file"),
    "no header": (b"\0\0\0\n", "no whole npz file"),
    "brackets": (b"(" * 5000 + b"\n", "no whole npz file"),
    "an open string": (b"{'descr: '''\n", "no whole npz file"),
    "odd indents": (b"   {\n  x\n 'L\n", "no whole npz file"),
    "a header too long": (b" " * 20000 + head("(3,)"), "no whole npz file"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_an_array_whose_header_does_not_fit(case, tmp_path):
    header, words = HEADERS[case]
    path = zipped(tmp_path / "x.npz", [("x.npy", npy(X, header))])
    with pytest.raises(Damaged) as error:
        open_foreign(path).entries  # noqa: B018
    assert words in str(error.value)
    assert str(path) in str(error.value)


def test_a_header_of_python_2(tmp_path):
    """`3L`: read, without the warning."""
    path = zipped(tmp_path / "x.npz", [("x.npy", npy(X, head("(3L,)")))])
    same(open_foreign(path), {"x": X})


MEMBERS = {
    "nothing": ([], zipfile.ZIP_STORED, "lists 0 arrays"),
    "no npy": ([("readme.txt", b"x")], zipfile.ZIP_STORED, "lists 0 arrays"),
    "empty npy": ([("x.npy", b"")], zipfile.ZIP_STORED, "no whole npz file"),
    "twice": ([("x.npy", npy(X)), ("x.npy", npy(X))], zipfile.ZIP_STORED, "x is in it twice"),
    "packed as bzip2": ([("x.npy", npy(X))], zipfile.ZIP_BZIP2, "packed as type 12"),
    "packed as lzma": ([("x.npy", npy(X))], zipfile.ZIP_LZMA, "packed as type 14"),
    "a version to come": (
        [("x.npy", npy(X, head("(3,)"), (4, 0)))],
        zipfile.ZIP_STORED,
        "x is npy 4.0, expected 1.0 to 3.0",
    ),
}


@pytest.mark.parametrize("case", MEMBERS)
def test_members_that_are_none(case, tmp_path):
    members, how, words = MEMBERS[case]
    with pytest.raises(Damaged, match=words):
        open_foreign(zipped(tmp_path / "x.npz", members, how)).entries  # noqa: B018


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_versions_of_npy(version, tmp_path):
    path = zipped(tmp_path / "x.npz", [("x.npy", npy(X, None, version)), ("notes.txt", b"")], zipfile.ZIP_DEFLATED)
    same(open_foreign(path), {"x": X})


def patched(data: bytes, at: int, fmt: str, value: int) -> bytes:
    return data[:at] + struct.pack(fmt, value) + data[at + struct.calcsize(fmt) :]


def test_an_encrypted_member(tmp_path):
    data = zipped(tmp_path / "x.npz", [("x.npy", npy(X))]).read_bytes()
    (tmp_path / "x.npz").write_bytes(patched(patched(data, 6, "<H", 1), data.index(b"PK\1\2") + 8, "<H", 1))
    with pytest.raises(Damaged, match="encrypted"):
        open_foreign(tmp_path / "x.npz").entries  # noqa: B018


@pytest.mark.parametrize(("how", "kind"), [(zipfile.ZIP_DEFLATED, 8), (zipfile.ZIP_STORED, 0)])
def test_a_bomb_is_not_unpacked(how, kind, tmp_path):
    """4 GB of zeros, or so its directory and its header say: more than can come out of these bytes."""
    claimed = 0xFFFFFF00
    header = head(f"({(claimed - 128) // 4},)").ljust(118)  # ten bytes stand before it
    data = zipped(tmp_path / "x.npz", [("x.npy", npy(np.zeros(1 << 20, "f4"), header))], how).read_bytes()
    at = data.index(b"PK\1\2")
    (tmp_path / "x.npz").write_bytes(patched(patched(data, at + 24, "<I", claimed), 22, "<I", claimed))
    tracemalloc.start()
    words = rf"x is {claimed} bytes packed as type {kind} into \d+, expected stored or deflated"
    with pytest.raises(Damaged, match=words):
        open_foreign(tmp_path / "x.npz").entries  # noqa: B018
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_a_list_unpacks_no_array(tmp_path):
    """40 MB that take 40 kB: only headers are read."""
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros(10_000_000, "f4"))
    tracemalloc.start()
    assert open_foreign(tmp_path / "x.npz").entries["x"].size == 40_000_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


@pytest.mark.parametrize("how", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_values_that_do_not_fit_their_sum(how, tmp_path):
    """The zip's own is checked when the array is read, not for the list."""
    many = np.arange(10_000, dtype="f4")
    data = zipped(tmp_path / "x.npz", [("x.npy", npy(many)), ("y.npy", npy(X))], how).read_bytes()
    (tmp_path / "x.npz").write_bytes(patched(data, data.index(b"PK\1\2") + 16, "<I", 7))
    tensors = open_foreign(tmp_path / "x.npz")
    with pytest.raises(Damaged, match=r"x\.npz: x cannot be read \(Bad CRC-32"):
        values(tensors, tensors.entries["x"])
    np.testing.assert_array_equal(values(tensors, tensors.entries["y"]), X)


def test_no_pickle_is_ever_loaded(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.array([{}]))
    tensors = open_foreign(tmp_path / "x.npz")
    with pytest.raises(Damaged, match="allow_pickle=False"):
        tensors.array(tensors.entries["x"])


def test_too_little_memory_is_no_damage(tmp_path, monkeypatch):
    np.savez(tmp_path / "x.npz", x=X)
    tensors = open_foreign(tmp_path / "x.npz")
    entry = tensors.entries["x"]

    def full(*_, **__):
        raise MemoryError

    monkeypatch.setattr(np.lib.format, "read_array", full)
    with pytest.raises(MemoryError):
        values(tensors, entry)


SAFETENSORS = {
    "empty": b"",
    "a length alone": (3).to_bytes(8, "little"),
    "a header too long": (1 << 62).to_bytes(8, "little") + b"{}",
    "no JSON": b"\2\0\0\0\0\0\0\0[]",
    "HTML": b"<!DOCTYPE html><html></html>",
}


@pytest.mark.parametrize("case", SAFETENSORS)
def test_no_safetensors(case, tmp_path):
    (tmp_path / "x.safetensors").write_bytes(SAFETENSORS[case])
    with pytest.raises(Damaged, match=r"x\.safetensors: no whole safetensors file \("):
        open_foreign(tmp_path / "x.safetensors").entries  # noqa: B018


@pytest.mark.parametrize(
    ("header", "content"),
    [
        ({"a": tensor("F32", [2], 0, 8), "b": tensor("F32", [2], 4, 12)}, 12),
        ({"a": tensor("F32", [2], 0, 4)}, 4),
        ({"a": tensor("F32", [2], 0, 8)}, 9),
        ({"a": tensor("F32", [2], 4, 12)}, 12),
        ({"a": tensor("F32", [1 << 40], 0, 1 << 42)}, 8),
        ({"a": tensor("F32", [-2], 0, 8)}, 8),
        ({"a": tensor("F99", [2], 0, 8)}, 8),
        ({"a": {"dtype": "F32"}}, 0),
    ],
)
def test_a_header_that_does_not_fit(header, content, tmp_path):
    with pytest.raises(Damaged, match="no whole safetensors file"):
        open_foreign(raw(tmp_path / "x.safetensors", header, bytes(content))).entries  # noqa: B018


def test_no_tensors(tmp_path):
    with pytest.raises(Damaged, match="lists 0 tensors"):
        open_foreign(raw(tmp_path / "x.safetensors", {"__metadata__": {"a": "b"}})).entries  # noqa: B018


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", ["x.npz", "x.safetensors"])
def test_a_file_one_may_not_read(name, tmp_path):
    (tmp_path / name).write_bytes(b"x")
    (tmp_path / name).chmod(0)
    with pytest.raises(PermissionError):
        open_foreign(tmp_path / name).entries  # noqa: B018


# --- fuzz ---------------------------------------------------------------------------------------------------------


def outcome(path: Path, data: bytes) -> str:
    """Everything listed, everything read; only our own errors, each of one short line."""
    path.write_bytes(data)
    try:
        tensors = open_foreign(path)
        for entry in tensors.entries.values():
            if readable(entry):
                values(tensors, entry)
        return "read"
    except (Damaged, NotFound) as cause:
        said = str(cause)
    assert len(said) < 2000
    assert str(path) in said
    return "damaged"


def small(folder: Path, kind: str) -> bytes:
    arrays = {"a": W["a"], "b/c": W["b/c"], "h": np.array([1], "f2")}
    if kind == "safetensors":
        return safetensors.numpy.save(arrays)
    (np.savez if kind == "npz" else np.savez_compressed)(folder / "small.npz", **arrays)
    return (folder / "small.npz").read_bytes()


@pytest.mark.parametrize("kind", ["safetensors", "npz", "packed npz"])
def test_cut_or_changed_at_any_byte(kind, tmp_path):
    """Cut short it is always damaged.  Changed, it may be another sound file (safetensors has no sum): no crash."""
    data = small(tmp_path, kind)
    path = tmp_path / f"x.{kind.split()[-1]}"
    assert outcome(path, data) == "read"
    assert {outcome(path, data[:at]) for at in range(len(data))} == {"damaged"}
    seen = set()
    for at in range(len(data)):
        for change in (1, 0x80, 0xFF, data[at]):  # the last makes it 0
            seen.add(outcome(path, data[:at] + bytes([data[at] ^ change]) + data[at + 1 :]))
    assert seen == {"read", "damaged"}
