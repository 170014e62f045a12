"""The writer of the official layout: byte for byte what TensorFlow's own saver writes.

`official_124M_crcs.json` holds the CRC32C of the 148 variables of the official 124M, from the facts of this project.
"""

import errno
import hashlib
import json
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpt2ln.checkpoint import Entry, read_index
from gpt2ln.errors import DiskError
from gpt2ln.official import Writer, entry_bytes, hparams_text, index_bytes
from gpt2ln.published import FILES, INDEX
from gpt2ln.spec import RELEASED, variables
from gpt2ln.table import crc32c, mask, unmask

from . import tiny
from .conftest import HERE

NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8)
SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)


def written(prefix: Path, w: dict[str, np.ndarray]) -> Path:
    writer = Writer(prefix)
    for name in sorted(w):
        writer.add(name, w[name])
    writer.finish()
    return prefix


def both(prefix: Path) -> tuple[bytes, bytes]:
    return tuple(prefix.with_name(prefix.name + end).read_bytes() for end in (".data-00000-of-00001", ".index"))


def as_tensorflow_writes(w: dict[str, np.ndarray], folder: Path) -> None:
    tiny.save(folder / "theirs", w)
    assert both(written(folder / "ours", w)) == both(folder / "theirs")


# bytes


@settings(max_examples=60)
@given(shapes=st.dictionaries(NAMES, SHAPES, min_size=1, max_size=40), seed=st.integers(0, 9))
@example(shapes={"scalar": (), "empty": (0, 3), "é/漢": (2,), "é": (1,), "e\u0301": (1,), "\U0001f389": (2, 0)}, seed=0)
@example(shapes={f"model/h{i}/ln_1/g": (i,) for i in range(40)}, seed=0)
def test_any_variables(shapes, seed):
    """Scalars, no values at all, names in any script: in the order of their bytes."""
    draw = np.random.default_rng(seed).normal
    with tempfile.TemporaryDirectory() as folder:
        as_tensorflow_writes({k: np.asarray(draw(size=s), "f4") for k, s in shapes.items()}, Path(folder))


def test_several_blocks(tmp_path):
    """An index of more than 256 KiB is cut, and its own index has short keys."""
    w = {f"model/h{i}/" + "x" * (i % 50): np.full(3, i, "f4") for i in range(9000)}
    as_tensorflow_writes(w, tmp_path)
    assert len(both(tmp_path / "ours")[1]) > 400_000


def test_values_that_take_several_pieces_and_odd_layouts(tmp_path):
    """More than one piece of 4 MiB; transposed, big-endian and strided arrays are written as their values."""
    x = np.random.default_rng(0).normal(size=(1500, 1000)).astype("f4")
    odd = {"a": x.T, "b": x.astype(">f4"), "c": x[::2, ::3]}
    tiny.save(tmp_path / "theirs", {k: np.ascontiguousarray(v, "<f4") for k, v in odd.items()})
    assert both(written(tmp_path / "ours", odd)) == both(tmp_path / "theirs")


def four_bytes_with_crc(wanted: int) -> bytes:
    """The sum is linear: flipping a bit of the bytes always flips the same bits of it."""
    zero = crc32c(bytes(4))
    basis: dict[int, tuple[int, int]] = {}
    for bit in range(32):
        effect, bits = crc32c((1 << bit).to_bytes(4, "little")) ^ zero, 1 << bit
        while effect and effect.bit_length() in basis:
            e, b = basis[effect.bit_length()]
            effect, bits = effect ^ e, bits ^ b
        basis[effect.bit_length()] = effect, bits
    rest, found = wanted ^ zero, 0
    while rest:
        e, b = basis[rest.bit_length()]
        rest, found = rest ^ e, found ^ b
    return found.to_bytes(4, "little")


def test_a_sum_that_is_stored_as_zero(tmp_path):
    """What is 0 is not written, and read as 0."""
    raw = four_bytes_with_crc(unmask(0))
    assert mask(crc32c(raw)) == 0
    as_tensorflow_writes({"x": np.frombuffer(raw, "f4")}, tmp_path)
    assert read_index(tmp_path / "ours").entries["x"].crc == crc32c(raw)
    assert entry_bytes(Entry("x", "float32", (1,), 0, 0, 4, unmask(0))).hex() == "08011204120208012804"


def test_the_published_index_of_the_124M():
    """Names, shapes and sums alone: offsets follow, and 5,215 bytes with the published sha256."""
    crcs = json.loads((HERE / "official_124M_crcs.json").read_text())
    shapes, at, entries = variables(RELEASED["124M"]), 0, []
    assert set(crcs) == set(shapes)
    for name in sorted(shapes):
        size = 4 * int(np.prod(shapes[name]))
        entries.append(Entry(name, "float32", shapes[name], 0, at, size, int(crcs[name], 16)))
        at += size
    data, known = index_bytes(reversed(entries)), FILES["124M"][INDEX]
    assert (at, len(data)) == (497759232, known.size)
    assert hashlib.sha256(data).hexdigest() == known.sha256


def test_the_published_hparams():
    for name, hparams in RELEASED.items():
        text, known = hparams_text(hparams).encode(), FILES[name]["hparams.json"]
        assert (len(text), hashlib.sha256(text).hexdigest()) == (known.size, known.sha256)


@pytest.mark.parametrize("name", sorted(RELEASED))
def test_the_index_of_every_size_has_the_size_that_is_known(name):
    """The sums of the larger models are not known, but that takes no room from them."""
    at, entries = 0, []
    for key, shape in sorted(variables(RELEASED[name]).items()):
        entries.append(Entry(key, "float32", shape, 0, at, 4 * int(np.prod(shape)), 1))
        at += entries[-1].size
    assert len(index_bytes(entries)) == FILES[name][INDEX].size
    assert at == FILES[name]["model.ckpt.data-00000-of-00001"].size


def test_shards_and_byte_order_are_in_the_header(tmp_path):
    entry = Entry("x", "float32", (1,), 2, 0, 4, 7)
    (tmp_path / "p.index").write_bytes(index_bytes([entry], shards=3, big_endian=True))
    bundle = read_index(tmp_path / "p")
    assert (bundle.shards, bundle.byte_order, list(bundle.entries.values())) == (3, ">", [entry])


def test_tensorflow_reads_it_value_for_value(tmp_path):
    from gpt2ln.runtime import tf

    w = tiny.weights(3)
    w["model/wte"][0, :4] = np.float32([np.nan, np.inf, -0.0, 1e-45])
    reader = tf.train.load_checkpoint(str(written(tmp_path / "model.ckpt", w)))
    assert reader.get_variable_to_shape_map() == {k: list(v.shape) for k, v in w.items()}
    for name, x in w.items():
        np.testing.assert_array_equal(reader.get_tensor(name).view(np.uint32), x.view(np.uint32), err_msg=name)


def test_names_come_in_order(tmp_path):
    writer = Writer(tmp_path / "p")
    writer.add("b", np.zeros(1, "f4"))
    for name in ("a", "b"):
        with pytest.raises(AssertionError):
            writer.add(name, np.zeros(1, "f4"))
    writer.abandon()
    assert os.listdir(tmp_path) == []


def test_nothing_has_its_name_before_it_is_whole(tmp_path):
    writer = Writer(tmp_path / "p")
    writer.add("a", np.zeros(9, "f4"))
    assert os.listdir(tmp_path) == ["p.data-00000-of-00001.part"]
    writer.finish()
    assert sorted(os.listdir(tmp_path)) == ["p.data-00000-of-00001", "p.index"]


def test_a_full_disk(tmp_path):
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    for size in (1 << 20, 4):  # the small one is held back until the end
        (tmp_path / "p.data-00000-of-00001.part").symlink_to("/dev/full")
        writer = Writer(tmp_path / "p")

        def write(writer=writer, size=size):
            writer.add("a", np.zeros(size, "f4"))
            writer.finish()

        with pytest.raises(DiskError, match=os.strerror(errno.ENOSPC)):
            write()
        writer.abandon()
        assert os.listdir(tmp_path) == []
