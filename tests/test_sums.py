"""All sums of a data file in one reading, whatever its layout."""

import hashlib
import shutil
import tracemalloc
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2ln import sums
from gpt2ln.checkpoint import Bundle, Entry, bad_sum, read_index
from gpt2ln.published import DATA
from gpt2ln.runtime import tf
from gpt2ln.sums import read_sums

from .findings import digest, looked


@pytest.fixture
def model(T, tmp_path) -> Path:
    """T, to be changed."""
    return Path(shutil.copytree(T, tmp_path / "tiny"))


def sharded(tmp_path) -> Bundle:
    """Two shards, strings and a variable in slices; by TensorFlow."""
    x = tf.reshape(tf.range(8.0), (4, 2))
    for i, w in enumerate(({"a": x, "s": tf.constant(["ab", "c" * 300])}, {"v@0": x[:2], "v@1": x[2:], "z": x[:0]})):
        slices = [{"v@0": "4 2 0,2:-", "v@1": "4 2 2,2:-"}.get(name, "") for name in w]
        names = [name.split("@")[0] for name in w]
        tf.raw_ops.SaveV2(
            prefix=str(tmp_path / f"part{i}"), tensor_names=names, shape_and_slices=slices, tensors=list(w.values())
        )
    parts = [str(tmp_path / f"part{i}") for i in (0, 1)]
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=str(tmp_path / "m"))
    return read_index(tmp_path / "m")


def test_shards_strings_and_slices(tmp_path):
    bundle = sharded(tmp_path)
    assert bundle.shards == 2
    given = [read_sums(bundle.shard_path(n), bundle, digest=True, on_bytes=len_of) for n in (0, 1)]
    assert [(s.checked, s.bad) for s in given] == [(2, ()), (3, ())]
    assert [s.sha256 for s in given] == [digest(bundle.shard_path(n)) for n in (0, 1)]
    for n, names in ((0, {"a", "s"}), (1, {"a slice at byte 0", "a slice at byte 16"})):
        raw = bundle.shard_path(n).read_bytes()
        bundle.shard_path(n).write_bytes(bytes(b ^ 1 for b in raw))
        bad = read_sums(bundle.shard_path(n), read_index(tmp_path / "m"), digest=False, on_bytes=len_of).bad
        assert {b.name for b in bad} == names


@pytest.mark.parametrize("gone", [0, 1])
def test_each_shard_has_its_own_finding(tmp_path, gone):
    """One that is missing keeps no other from being checked."""
    bundle = sharded(tmp_path)
    bundle.shard_path(gone).unlink()
    there = bundle.shard_path(1 - gone)
    findings = looked(tmp_path)
    assert (findings[bundle.shard_path(gone).name].state, findings[there.name].state) == ("missing", "ok")
    size = there.stat().st_size
    there.write_bytes(b"")
    assert looked(tmp_path)[there.name].text == f"{there.name} has 0 bytes, the index needs {size} (0.0 %)"


def len_of(count: int) -> None:
    pass


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40)), max_size=8), st.integers(1, 50), st.integers(0, 70))
def test_sums_of_any_layout(tmp_path_factory, spans, block, length):
    """Gaps, overlaps, empty ones, some past the end: each that lies wholly in the file has its own sum."""
    folder = tmp_path_factory.mktemp("x")
    raw = np.random.default_rng(length).bytes(length)
    entries = {
        f"v{i}": Entry(f"v{i}", "uint8", (size,), 0, at, size, google_crc32c.value(raw[at : at + size]) ^ (i == 1))
        for i, (at, size) in enumerate(spans)
    }
    bundle = Bundle(folder / "m", 1, "<", entries)
    bundle.shard_path().write_bytes(raw)
    whole = [i for i, (at, size) in enumerate(spans) if at + size <= length or not size]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sums, "BLOCK", block)
        found = read_sums(bundle.shard_path(), bundle, digest=True, on_bytes=len_of)
    assert (found.checked, found.sha256) == (len(whole), hashlib.sha256(raw).hexdigest())
    assert [bad.name for bad in found.bad] == ["v1"] * (1 in whole)
    for bad in found.bad:
        assert bad.found == bad.stored ^ 1


def test_the_words_are_those_of_every_other_command(model):
    raw = bytearray((model / DATA).read_bytes())
    raw[100] ^= 1
    (model / DATA).write_bytes(raw)
    (bad,) = looked(model)[DATA].tensors
    bundle = read_index(model / "model.ckpt")
    assert str(bad) == bad_sum(bundle, bundle.entries["model/h0/attn/c_attn/w"])


def test_a_variant_has_no_sum(tmp_path):
    bundle = Bundle(tmp_path / "m", 1, "<", {"v": Entry("v", "variant", (), 0, 0, 3, 1)})
    bundle.shard_path().write_bytes(b"abc")
    found = read_sums(bundle.shard_path(), bundle, digest=False, on_bytes=len_of)
    assert (found.checked, found.bad) == (0, ())


def test_few_blocks_wait_for_the_digest(tmp_path):
    """Reading is ten times as fast as sha256: without a bound the whole file would be held."""
    with (tmp_path / "m").open("wb") as file:
        file.truncate(64 * sums.BLOCK)
    tracemalloc.start()
    try:
        read_sums(tmp_path / "m", None, digest=True, on_bytes=len_of)
        assert tracemalloc.get_traced_memory()[1] < 12 * sums.BLOCK
    finally:
        tracemalloc.stop()
