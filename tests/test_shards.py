"""A file written row by row is the one that the safetensors library would have written, whole, or has no name."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load, load_file

from gpt2ln import shards as module
from gpt2ln.disk import disk, sha256
from gpt2ln.errors import DiskError
from gpt2ln.shards import Shard, array_bytes, file_bytes, header

from .conftest import ROOT
from .disks import mounted
from .dumps import names
from .interrupts import everywhere

ARRAYS = {
    "h0/ln_1/mean": ("float32", (5, 1)),
    "h0/attn/k": ("float16", (5, 2, 3)),
    "tokens": ("int32", (7,)),
    "doc_ptr": ("int64", (3,)),
    "token_bytes": ("uint8", (11,)),
    "é": ("float32", (0, 4)),
}


def values(arrays=ARRAYS, seed: int = 0) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed).normal
    return {name: (draw(0, 50, shape)).astype(dtype) for name, (dtype, shape) in arrays.items()}


def begun(path, arrays=ARRAYS) -> Shard:
    shard = Shard(path, arrays)
    shard.begin()
    return shard


def equal(found, right) -> None:
    assert set(found) == set(right)
    for name, x in right.items():
        assert (found[name].dtype, found[name].shape) == (x.dtype, x.shape), name
        np.testing.assert_array_equal(found[name], x, err_msg=name)


def test_the_library_reads_back_what_was_written(tmp_path):
    right = values()
    shard = begun(tmp_path / "x", ARRAYS)
    for name, x in right.items():
        shard.write(name, 0, x)
    digest = shard.finish()
    equal(load_file(tmp_path / "x"), right)
    assert digest == sha256(tmp_path / "x")
    assert (tmp_path / "x").stat().st_size == file_bytes(ARRAYS)
    with safe_open(tmp_path / "x", "numpy") as file:
        assert set(file.keys()) == set(ARRAYS)
        np.testing.assert_array_equal(file.get_slice("h0/attn/k")[1:3], right["h0/attn/k"][1:3])


def test_the_header_is_padded_and_says_where_all_lies():
    text = header(ARRAYS)
    assert len(text) % 8 == 0
    assert int.from_bytes(text[:8], "little") == len(text) - 8
    fields = json.loads(text[8:])
    ends = [end for name in ARRAYS for end in fields[name]["data_offsets"]]
    assert ends == sorted(ends)
    assert (ends[0], ends[-1]) == (0, array_bytes(ARRAYS)) == (0, 20 + 60 + 28 + 24 + 11)


SHAPES = st.tuples(st.integers(0, 4), st.integers(1, 3)) | st.tuples(st.integers(0, 5))
TYPES = st.sampled_from(["float32", "float16", "int32", "int64", "uint8"])


@given(arrays=st.dictionaries(st.text(min_size=1, max_size=6), st.tuples(TYPES, SHAPES), min_size=1, max_size=5))
def test_every_layout_is_one_that_the_library_takes(arrays):
    data = b"".join(x.tobytes() for x in values(arrays).values())
    equal(load(header(arrays) + data), values(arrays))


def test_rows_come_in_any_order_from_several_threads(tmp_path):
    arrays = {dtype: (dtype, (400, 3)) for dtype in ("float32", "float16", "int64", "uint8")}
    right = values(arrays)
    shard = begun(tmp_path / "x", arrays)
    pieces = [(name, row) for row in reversed(range(0, 400, 7)) for name in arrays]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda at: shard.write(*at, right[at[0]][at[1] : at[1] + 7]), pieces))
    shard.finish()
    equal(load_file(tmp_path / "x"), right)


def test_values_are_cast_and_laid_out(tmp_path):
    right = np.arange(30, dtype="f4").reshape(3, 2, 5).swapaxes(0, 2)
    shard = begun(tmp_path / "x", {"k": ("float16", (5, 2, 3))})
    shard.write("k", 0, right)
    shard.finish()
    np.testing.assert_array_equal(load_file(tmp_path / "x")["k"], right.astype("f2"))


def test_past_float16_is_inf_and_no_warning(tmp_path):
    shard = begun(tmp_path / "x", {"k": ("float16", (3,))})
    shard.write("k", 0, np.array([65504, 1e5, -1e10], "f4"))
    shard.finish()
    np.testing.assert_array_equal(load_file(tmp_path / "x")["k"], np.array([65504, np.inf, -np.inf], "f2"))


def test_the_same_rows_are_the_same_bytes_whatever_was_there(tmp_path):
    (tmp_path / "b.part").write_bytes(b"left by a killed run" * 1000)
    digests = []
    for name in "ab":
        shard = begun(tmp_path / name, ARRAYS)
        shard.write("tokens", 0, values()["tokens"])
        digests.append(shard.finish())
    assert digests[0] == digests[1]
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(("row", "width"), [(-1, 3), (4, 3), (0, 2)])
def test_rows_that_do_not_fit_are_our_own_mistake(tmp_path, row, width):
    shard = begun(tmp_path / "x", {"k": ("float32", (5, 3)), "l": ("float32", (5, 3))})
    with pytest.raises(AssertionError):
        shard.write("l", row, np.zeros((2, width), "f4"))
    shard.abandon()


# names


def test_the_name_is_given_at_the_end(tmp_path):
    (tmp_path / "x").write_bytes(b"old")
    shard = begun(tmp_path / "x", ARRAYS)
    shard.write("tokens", 0, values()["tokens"])
    assert names(tmp_path) == ["x", "x.part"]
    assert (tmp_path / "x").read_bytes() == b"old"
    assert b"".join(shard.blocks("tokens")) == values()["tokens"].tobytes()
    shard.finish()
    assert names(tmp_path) == ["x"]
    np.testing.assert_array_equal(load_file(tmp_path / "x")["tokens"], values()["tokens"])


def test_an_array_comes_out_block_by_block(tmp_path, monkeypatch):
    monkeypatch.setattr("gpt2ln.shards.BLOCK", 7)
    shard = begun(tmp_path / "x", ARRAYS)
    for name, x in values().items():
        shard.write(name, 0, x)
        blocks = list(shard.blocks(name))
        assert max(map(len, blocks), default=0) <= 7
        assert b"".join(blocks) == x.tobytes()
    shard.abandon()


def test_abandoned_it_leaves_nothing_and_may_be_abandoned_again(tmp_path):
    shard = begun(tmp_path / "x", ARRAYS)
    for _ in range(2):
        shard.abandon()
        assert names(tmp_path) == []


def test_finished_it_is_not_abandoned(tmp_path):
    shard = begun(tmp_path / "x", ARRAYS)
    shard.finish()
    other = os.open(tmp_path / "x", os.O_RDONLY)  # takes the number that the shard had
    shard.abandon()
    os.fstat(other)
    os.close(other)
    assert names(tmp_path) == ["x"]


def test_a_name_that_cannot_be_given_is_said_once_and_leaves_nothing(tmp_path):
    (tmp_path / "x").mkdir()
    shard = begun(tmp_path / "x", ARRAYS)
    with pytest.raises(DiskError, match=r"x\.part: Is a directory"):
        shard.finish()
    shard.abandon()
    assert names(tmp_path) == ["x"]


# one writer at a time

WRITE = """import sys, pathlib
from gpt2ln.shards import Shard
Shard(pathlib.Path(sys.argv[1]), {'k': ('uint8', (%s,))}).begin()
"""


def elsewhere(path, size: int = 3, before: str = "") -> subprocess.CompletedProcess:
    """Open a shard in another process."""
    code = f"{before}\n{WRITE % size}"
    return subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, cwd=ROOT)


def test_a_file_that_another_process_writes_is_locked(tmp_path):
    shard = begun(tmp_path / "x", ARRAYS)
    shard.write("tokens", 0, values()["tokens"])
    last = elsewhere(tmp_path / "x").stderr.splitlines()[-1]
    assert last == f"gpt2ln.errors.DiskError: {tmp_path}/x.part: locked, another process writes it; wait for it to end"
    shard.finish()
    np.testing.assert_array_equal(load_file(tmp_path / "x")["tokens"], values()["tokens"])
    assert elsewhere(tmp_path / "x").returncode == 0


def test_a_refused_writer_leaves_the_other_alone(tmp_path):
    first = begun(tmp_path / "x", ARRAYS)
    with pytest.raises(DiskError, match="locked, another process writes it"):
        begun(tmp_path / "x", ARRAYS)
    first.write("tokens", 0, values()["tokens"])
    first.finish()
    np.testing.assert_array_equal(load_file(tmp_path / "x")["tokens"], values()["tokens"])


# disks


def test_a_full_disk_says_so_before_the_first_row(tmp_path):
    with mounted(tmp_path / "disk", "size=64k") as small:
        with pytest.raises(DiskError, match=f"{small}/x.part: No space left on device"):
            begun(small / "x", {"k": ("uint8", (200_000,))})
        assert names(small) == []


def test_a_limit_on_the_size_of_files_is_a_disk_error_too(tmp_path):
    ran = elsewhere(tmp_path / "x", 200_000, "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))")
    assert ran.stderr.splitlines()[-1] == f"gpt2ln.errors.DiskError: {tmp_path}/x.part: File too large"
    assert names(tmp_path) == []


def test_a_disk_that_may_only_be_read(tmp_path):
    with mounted(tmp_path / "disk", "ro") as read_only, pytest.raises(DiskError, match="Read-only file system"):
        begun(read_only / "x", ARRAYS)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_only_be_read(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(DiskError, match="Permission denied"):
        begun(tmp_path / "x", ARRAYS)
    tmp_path.chmod(0o700)


def test_a_missing_folder(tmp_path):
    with pytest.raises(DiskError, match=f"{tmp_path}/no/x.part: No such file or directory"):
        begun(tmp_path / "no" / "x", ARRAYS)


def test_a_closed_pipe_is_no_disk_and_other_errors_are_their_own(tmp_path):
    for error in (BrokenPipeError(), KeyError("k")):
        with pytest.raises(type(error)), disk(tmp_path):
            raise error


# Ctrl-C


@pytest.mark.parametrize("old", [[], ["x"]])
def test_ctrl_c_wherever_it_comes_leaves_nothing_begun(tmp_path, old):
    """The old file or the new one; a shard that never came to be known is gone as well."""

    arrays, ends = {"k": ("uint8", (3,))}, []

    def write() -> None:
        shard = Shard(tmp_path / "x", arrays)
        try:
            shard.begin()
            shard.write("k", 0, np.array([1, 2, 3], "u1"))
            shard.finish()
        except BaseException:
            shard.abandon()
            raise

    for name in old:
        (tmp_path / name).touch()
    for _ in everywhere(write, module):
        there = names(tmp_path)
        assert there in (old, ["x"])
        assert not there or (tmp_path / "x").stat().st_size in (0, file_bytes(arrays))
        ends.append(there)
        (tmp_path / "x").unlink(missing_ok=True)
        for name in old:
            (tmp_path / name).touch()
    assert ["x"] in ends
    assert (tmp_path / "x").stat().st_size == file_bytes(arrays)
