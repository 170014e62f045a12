"""Checkpoints without TensorFlow: its own reader is the judge, its own saver the author, and every damage is named."""

import contextlib
import hashlib
import itertools
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2ln.checkpoint import Entry, bad_sum, load, read_index, size_problems
from gpt2ln.errors import Damaged, NotFound
from gpt2ln.runtime import tf

from . import bundles, tiny
from .refusals import done, refused

SHARED = Path(__file__).parents[2] / "shared"
OFFICIAL = SHARED / "official-124M"
DATA, INDEX = "model.ckpt.data-00000-of-00001", "model.ckpt.index"
FIRST = "model/h0/attn/c_attn/w"  # holds byte 100 of the data file


def needs(*paths: Path) -> None:
    """Skip, saying what is missing."""
    if missing := [str(path.relative_to(SHARED)) for path in paths if not path.exists()]:
        pytest.skip(f"not beside the repository: shared/{', '.join(missing)}")


def tensorflow_reads(prefix: Path, names) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(str(prefix))
    return {name: np.asarray(reader.get_tensor(name)) for name in names}


@pytest.fixture
def model(T, tmp_path) -> Path:
    """T, to be damaged."""
    return Path(shutil.copytree(T, tmp_path / "tiny"))


@pytest.fixture(scope="module")
def spare(T, tmp_path_factory):
    """A folder whose index the test writes anew again and again; the data is T's."""
    return Path(shutil.copytree(T, tmp_path_factory.mktemp("spare") / "tiny")) / "model.ckpt"


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> tuple[Path, dict]:
    """A checkpoint with every dtype that has values in numpy, with empty and scalar ones -> prefix, values."""
    kinds = "float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64".split()  # noqa: SIM905
    draw = np.random.default_rng(0).integers
    w = {kind: draw(0, 100, (2, 3)).astype(kind) for kind in kinds}
    w |= {"bool": np.array([True, False]), "complex64": np.array([1 + 2j, -3j], "c8"), "complex128": np.array([1e300j])}
    w |= {"scalar": np.array(-7, "i8"), "empty": np.zeros((0, 3), "f4"), "flat": np.zeros((3, 0), "f4")}
    w |= {"string": np.array(b"one"), "strings": np.array([[b"", b"a" * 300], [b"\x00\xff", b"d"]], object)}
    w |= {"no_strings": np.array([], object)}
    prefix = tmp_path_factory.mktemp("many") / "all"
    tensors = {k: tf.constant(v, tf.string if v.dtype.kind in "SO" else None) for k, v in w.items()}
    tensors["bfloat16"] = tf.constant([1.5, -2], tf.bfloat16)
    tiny_save(prefix, tensors)
    return prefix, w


def tiny_save(prefix: Path, tensors: dict, slices: dict | None = None) -> None:
    """As `tiny.save`, with slices and with dtypes that numpy lacks."""
    names = sorted(tensors)
    spec = [(slices or {}).get(name, "") for name in names]
    whole = [name.split("@")[0] for name in names]
    tf.raw_ops.SaveV2(
        prefix=str(prefix), tensor_names=whole, shape_and_slices=spec, tensors=[tensors[name] for name in names]
    )


# --- golden: the real index ---------------------------------------------------------------------------------------


def test_the_official_124M_index():
    """148 variables with names, shapes, offsets, sizes and sums as published."""
    needs(OFFICIAL / INDEX, SHARED / "facts.json")
    table = json.loads((SHARED / "facts.json").read_text(encoding="utf-8"))["variables_124M"]["table"]
    bundle = read_index(OFFICIAL / "model.ckpt")
    assert (bundle.shards, bundle.byte_order, bundle.pieces, len(bundle.entries)) == (1, "<", (), 148)
    assert list(bundle.entries.values()) == [
        Entry(e["name"], "float32", tuple(e["shape"]), 0, e["offset"], e["size"], e["crc32c"]) for e in table
    ]


def test_the_official_124M_index_written_anew():
    """5,215 bytes with the published digest: reading lost nothing."""
    needs(OFFICIAL / INDEX, SHARED / "facts.json")
    facts = json.loads((SHARED / "facts.json").read_text(encoding="utf-8"))["models"]["124M"]["files"][INDEX]
    data = bundles.index(list(read_index(OFFICIAL / "model.ckpt").entries.values()))
    assert (len(data), hashlib.sha256(data).hexdigest()) == (facts["size"], facts["sha256"])
    assert data == (OFFICIAL / INDEX).read_bytes()


def test_the_official_124M_layernorms_pass_their_sums(tmp_path):
    """50 real vectors, put where the index wants them, are read back bit for bit; one ulp off and the sum says so."""
    needs(OFFICIAL / INDEX, OFFICIAL / "ln.npz")
    shutil.copy(OFFICIAL / INDEX, tmp_path)
    bundle = read_index(tmp_path / "model.ckpt")
    vectors = dict(np.load(OFFICIAL / "ln.npz"))
    assert len(vectors) == 50
    with (tmp_path / DATA).open("wb") as file:
        for name, x in vectors.items():
            file.seek(bundle.entries[name].offset)
            file.write(x.tobytes())
        file.truncate(497759232)
    assert size_problems(bundle) == ([], [])
    for name, x in vectors.items():
        assert bad_sum(bundle, bundle.entries[name]) is None
        np.testing.assert_array_equal(bundle.array(bundle.entries[name]), x, strict=True)
    x = vectors["model/ln_f/g"]
    x[0] = np.nextafter(x[0], np.float32(9))
    assert google_crc32c.value(x.tobytes()) != bundle.entries["model/ln_f/g"].crc


# --- golden: what TensorFlow's saver writes -----------------------------------------------------------------------


def test_the_made_up_checkpoint(T):
    """28 variables, packed without gaps in byte order; 3,968 values in 15,872 bytes."""
    bundle = read_index(T / "model.ckpt")
    assert (bundle.shards, bundle.byte_order, len(bundle.entries), bundle.pieces) == (1, "<", 28, ())
    ends = list(itertools.accumulate((e.size for e in bundle.entries.values()), initial=0))
    assert [e.offset for e in bundle.entries.values()] == ends[:-1]
    assert ends[-1] == 15872 == (T / DATA).stat().st_size
    assert bundle.shard_path() == T / DATA
    assert bundle.entries["model/h1/attn/c_attn/w"].shape == (1, 8, 24)
    for name, x in tensorflow_reads(T / "model.ckpt", bundle.entries).items():
        entry = bundle.entries[name]
        np.testing.assert_array_equal(bundle.array(entry), x, strict=True)
        assert (entry.crc, bad_sum(bundle, entry)) == (google_crc32c.value(x.tobytes()), None)


def test_every_dtype(many):
    prefix, w = many
    bundle = read_index(prefix)
    shapes = tf.train.load_checkpoint(str(prefix)).get_variable_to_shape_map()
    dtypes = tf.train.load_checkpoint(str(prefix)).get_variable_to_dtype_map()
    assert {name: list(e.shape) for name, e in bundle.entries.items()} == shapes
    assert {name: e.dtype for name, e in bundle.entries.items()} == {k: d.name for k, d in dtypes.items()}
    assert size_problems(bundle) == ([], [])
    assert [p for e in bundle.entries.values() if (p := bad_sum(bundle, e))] == []
    for name, x in w.items():
        if x.dtype.kind not in "SO":
            np.testing.assert_array_equal(bundle.array(bundle.entries[name]), x, strict=True)


def test_every_byte_of_every_dtype_is_under_a_sum(many, tmp_path):
    """Strings too, whose sum is not that of their bytes: flip any byte, and just its variable is named."""
    prefix, _ = many
    data = Path(f"{prefix}.data-00000-of-00001").read_bytes()
    shutil.copy(f"{prefix}.index", tmp_path / "all.index")
    file, covered = tmp_path / "all.data-00000-of-00001", 0
    for name, entry in read_index(prefix).entries.items():
        for at in range(entry.offset, entry.offset + entry.size):
            bad = bytearray(data)
            bad[at] ^= 0x11
            file.write_bytes(bad)
            bundle = read_index(tmp_path / "all")
            problem = bad_sum(bundle, bundle.entries[name])
            assert problem is not None, (name, at)
            assert problem.startswith(f"{name} ("), problem
            covered += 1
    assert covered == len(data)


def test_slices_are_pieces_of_one_variable(tmp_path):
    """A partitioned variable is listed once, as TensorFlow lists it; its pieces count for the size of the file."""
    x = tf.reshape(tf.range(8.0), (4, 2))
    tiny_save(tmp_path / "p", {"v@0": x[:2], "v@1": x[2:], "a": x}, {"v@0": "4 2 0,2:-", "v@1": "4 2 2,2:-"})
    bundle = read_index(tmp_path / "p")
    assert list(bundle.entries) == sorted(tf.train.load_checkpoint(str(tmp_path / "p")).get_variable_to_shape_map())
    assert [(e.shape, e.sliced) for e in bundle.entries.values()] == [((4, 2), False), ((4, 2), True)]
    assert [(e.shape, e.size, bad_sum(bundle, e)) for e in bundle.pieces] == [((2, 2), 16, None)] * 2
    assert bad_sum(bundle, bundle.entries["v"]) is None
    path = bundle.shard_path()
    assert path.stat().st_size == 64
    os.truncate(path, 63)
    problems, _ = size_problems(bundle)
    assert problems == ["p.data-00000-of-00001 has 63 bytes, the index needs 64 (98.4 %)"]


@pytest.fixture(scope="module")
def sharded(tmp_path_factory) -> tuple[Path, dict]:
    """T's weights in three shards, merged by TensorFlow -> prefix, weights."""
    folder, w = tmp_path_factory.mktemp("sharded"), tiny.weights()
    parts = [folder / f"part{i}" for i in range(3)]
    for i, part in enumerate(parts):
        tiny.save(part, {name: w[name] for name in sorted(w)[i::3]})
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=list(map(str, parts)), destination_prefix=str(folder / "whole"), delete_old_dirs=False
    )
    return folder / "whole", w


def test_several_shards(sharded):
    prefix, w = sharded
    bundle = read_index(prefix)
    assert (bundle.shards, {e.shard for e in bundle.entries.values()}) == (3, {0, 1, 2})
    assert size_problems(bundle) == ([], [])
    loaded = dict(load(bundle, {name: x.shape for name, x in w.items()}))
    assert sorted(loaded) == sorted(w)
    for name, x in loaded.items():
        np.testing.assert_array_equal(x, w[name], strict=True)


def test_missing_and_short_shards_are_all_named(sharded, tmp_path):
    folder = Path(shutil.copytree(sharded[0].parent, tmp_path / "s"))
    bundle = read_index(folder / "whole")
    sizes = [(folder / f"whole.data-{i:05d}-of-00003").stat().st_size for i in range(3)]
    os.truncate(folder / "whole.data-00000-of-00003", sizes[0] - 1)
    os.truncate(folder / "whole.data-00002-of-00003", sizes[2] + 5)
    problems, notes = size_problems(bundle)
    assert [p.split(" (")[0] for p in problems] == [
        f"whole.data-00000-of-00003 has {sizes[0] - 1} bytes, the index needs {sizes[0]}"
    ]
    assert notes == [f"whole.data-00002-of-00003 has 5 bytes more than the index needs ({sizes[2]})"]
    for i in (1, 2):
        (folder / f"whole.data-0000{i}-of-00003").unlink()
    with pytest.raises(NotFound) as refusal:
        size_problems(bundle)
    assert str(refusal.value) == (
        f"{folder}/whole.data-00001-of-00003, whole.data-00002-of-00003: no such file;"
        " whole.index is there and needs it"
    )


def test_big_endian(tmp_path):
    """The sum is that of the bytes in the file, the values are swapped; TensorFlow reads the same."""
    w = tiny.weights()
    little, big = bundles.write(tmp_path / "little", w), bundles.write(tmp_path / "big", w, ">")
    assert read_index(little).byte_order == "<"
    bundle = read_index(big)
    assert bundle.byte_order == ">"
    shapes = {name: x.shape for name, x in w.items()}
    loaded, judge = dict(load(bundle, shapes)), tensorflow_reads(big, w)
    assert len(loaded) == 28
    for name, x in loaded.items():
        np.testing.assert_array_equal(x, w[name], strict=True)
        np.testing.assert_array_equal(x, judge[name], strict=True)


def test_our_writer_against_tensorflows(T, tmp_path):
    """What `bundles` writes of T's weights is T, byte for byte."""
    bundles.write(tmp_path / "model.ckpt", tiny.weights())
    for name in (DATA, INDEX):
        assert (tmp_path / name).read_bytes() == (T / name).read_bytes()


# --- the index: damaged or foreign --------------------------------------------------------------------------------


@pytest.mark.parametrize("flip", [0x01, 0xFF])
def test_every_byte_of_the_index(spare, flip):
    """Damaged, or the same bundle: never another exception, never another reading.  (Every bit: see test_table.)"""
    path = Path(f"{spare}.index")
    data, right = path.read_bytes(), read_index(spare)
    silent = []
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :])
        with contextlib.suppress(Damaged):
            assert read_index(spare) == right, f"byte {at}"
            silent.append(at)
    path.write_bytes(data)
    assert silent == list(range(878, 912))  # the zeros that fill the footer


GOOD = Entry("model/x", "float32", (2, 3), 0, 0, 24, 7)


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (replace(GOOD, size=20), "model/x is float32 [2, 3] in 20 bytes, expected 24"),
        (replace(GOOD, dtype="float64"), "model/x is float64 [2, 3] in 24 bytes, expected 48"),
        (replace(GOOD, dtype="bool", size=7), "model/x is bool [2, 3] in 7 bytes, expected 6"),
        (replace(GOOD, dtype="bfloat16", size=24), "model/x is bfloat16 [2, 3] in 24 bytes, expected 12"),
        (replace(GOOD, shape=(2, -3)), "model/x has the shape [2, -3], expected no negative axis"),
        (replace(GOOD, shape=(2**40, 2**40)), f"in 24 bytes, expected {2**82}"),
        (replace(GOOD, shard=1), "model/x is in shard 1, expected one of 1"),
        (replace(GOOD, shard=-1), f"model/x is in shard {2**64 - 1}, expected one of 1"),
    ],
)
def test_entries_that_no_writer_means(spare, entry, text):
    Path(f"{spare}.index").write_bytes(bundles.index([entry]))
    with pytest.raises(Damaged) as refusal:
        read_index(spare)
    assert str(refusal.value).startswith(f"{spare}.index: model/x ")
    assert text in str(refusal.value)


def test_several_problems_of_an_index_at_once(spare):
    """The first five, then a count."""
    Path(f"{spare}.index").write_bytes(bundles.index([replace(GOOD, name=f"x{i}", size=i) for i in range(7)]))
    with pytest.raises(Damaged) as refusal:
        read_index(spare)
    assert [f"x{i} is float32" in str(refusal.value) for i in range(7)] == [True] * 5 + [False] * 2
    assert str(refusal.value).endswith("x4 is float32 [2, 3] in 4 bytes, expected 24, and 2 more")


@pytest.mark.parametrize(
    ("pairs", "text"),
    [
        ([], "no bundle header"),
        ([(b"a", b"")], "no bundle header"),
        ([(b"", bundles.header())], "lists 0 variables"),
        ([(b"", bundles.header()), (b"\0piece", bundles.entry(GOOD))], "lists 0 variables"),
        ([(b"", b""), (b"a", bundles.entry(GOOD))], "a is in shard 0, expected one of 0"),
        ([(b"", b"\xff"), (b"a", bundles.entry(GOOD))], "garbled entry"),
        ([(b"", bundles.message(1, b"x")), (b"a", b"")], "field 1 is b'x', expected a number"),
        ([(b"", bundles.header()), (b"a", bundles.number(2, 5))], "the number 5, expected a message"),
        ([(b"", bundles.header()), (b"a", bundles.message(2, bundles.number(2, 5)))], "expected a message"),
        ([(b"", bundles.header()), (b"a", bundles.message(4, b"x"))], "field 4 is b'x', expected a number"),
        ([(b"", bundles.header()), (b"a", b"\x12\x7fab")], "field 2 leaves its message"),
        ([(b"", bundles.header()), (b"a", b"\x35\x01")], "field 6 leaves its message"),
        ([(b"", bundles.header()), (b"a", b"\x0b")], "garbled entry: 3"),
        ([(b"", bundles.header()), (b"a", b"\x08" + b"\xff" * 12)], "number of more than 64 bits"),
    ],
)
def test_tables_that_are_no_bundle(spare, pairs, text):
    Path(f"{spare}.index").write_bytes(bundles.table(pairs))
    with pytest.raises(Damaged) as refusal:
        read_index(spare)
    assert str(refusal.value).startswith(f"{spare}.index: ")
    assert text in str(refusal.value)


def test_a_dtype_from_the_future_is_listed(spare):
    pairs = [(b"", bundles.header()), (b"a", bundles.number(1, 99) + bundles.number(5, 3))]
    Path(f"{spare}.index").write_bytes(bundles.table(pairs))
    entry = read_index(spare).entries["a"]
    assert (entry.dtype, entry.shape, entry.size) == ("dtype 99", (), 3)


@settings(max_examples=400, deadline=None)
@given(head=st.binary(max_size=12) | st.just(bundles.header()), value=st.binary(max_size=40), cut=st.integers(0, 40))
def test_random_entries_under_good_sums(spare, head, value, cut):
    """A sum proves only that the bytes are those that were written: Damaged, or a bundle with sound entries."""
    good = bundles.entry(GOOD)
    Path(f"{spare}.index").write_bytes(bundles.table([(b"", head), (b"a", good[:cut] + value), (b"b", value)]))
    with contextlib.suppress(Damaged):
        for entry in read_index(spare).entries.values():
            assert entry.shard in range(read_index(spare).shards)
            assert all(axis in range(2**63) for axis in entry.shape)


def test_no_index(tmp_path):
    with pytest.raises(NotFound) as refusal:
        read_index(tmp_path / "gone")
    assert str(refusal.value) == f"{tmp_path}/gone.index: no such file"


# --- the data: V08, V09 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (7936, f"{DATA} has 7936 bytes, the index needs 15872 (50.0 %)"),
        (15871, f"{DATA} has 15871 bytes, the index needs 15872 (99.9 %)"),
        (1, f"{DATA} has 1 bytes, the index needs 15872 (0.0 %)"),
        (0, f"{DATA} has 0 bytes, the index needs 15872 (0.0 %)"),
    ],
)
def test_data_cut_short(model, cli, size, text):
    """V08: every command that opens a checkpoint sees it, before it reads a weight."""
    os.truncate(model / DATA, size)
    assert size_problems(read_index(model / "model.ckpt")) == ([text], [])
    for argv in (["inspect"], ["inspect", "wpe", "--stats"], ["generate", "abc", "--length", 1]):
        refused(cli(*argv, "-m", model), 4, text)


def test_data_missing(model, cli):
    (model / DATA).unlink()
    for argv in (["generate", "abc", "--length", 1], ["inspect", "--stats"], ["inspect", "--values", "wpe"]):
        refused(cli(*argv, "-m", model), 3, DATA, "no such file")


def test_data_appended(model, cli):
    """A warning with the surplus, and the values are the same."""
    right = done(cli("inspect", "-m", model, "--values"))
    with (model / DATA).open("ab") as file:
        file.write(b"surplus")
    note = f"{DATA} has 7 bytes more than the index needs (15872)"
    assert size_problems(read_index(model / "model.ckpt"))[1] == [
        f"{DATA} has 7 bytes more than the index needs (15872)"
    ]
    ran = cli("inspect", "-m", model, "--values")
    assert done(ran) == right
    assert f"warning: {note}\n" in ran.err


@pytest.mark.parametrize(("size", "text"), [(460, "not a checkpoint index"), (0, "0 bytes, an index has at least 48")])
def test_index_cut_short(model, cli, size, text):
    os.truncate(model / INDEX, size)
    for argv in (["inspect"], ["generate", "abc", "--length", 1]):
        refused(cli(*argv, "-m", model), 4, INDEX, text)


def test_index_that_is_a_page(model, cli):
    (model / INDEX).write_text("<?xml version='1.0'?><Error><Code>BlobNotFound</Code></Error>" * 9)
    refused(cli("inspect", "-m", model), 4, INDEX, "not a checkpoint index: it ends with")


def flip(folder: Path) -> None:
    data = bytearray((folder / DATA).read_bytes())
    data[100] ^= 1
    (folder / DATA).write_bytes(data)


def test_one_bit_of_the_data(model, cli):
    """V09: byte 100 belongs to one variable, and that one is named with both sums."""
    bundle = read_index(model / "model.ckpt")
    stored = bundle.entries[FIRST].crc
    flip(model)
    bundle = read_index(model / "model.ckpt")
    bad = {name: p for name, e in bundle.entries.items() if (p := bad_sum(bundle, e))}
    found = google_crc32c.value(bytes(bundle.raw(bundle.entries[FIRST])))
    assert bad == {FIRST: f"{FIRST} (CRC32C is {found:#010x}, the index says {stored:#010x})"}
    for argv in (["inspect", "--stats"], ["inspect", "--values"], ["generate", "abc", "--length", 1]):
        refused(cli(*argv, "-m", model), 4, f"{found:#010x}", f"{stored:#010x}", FIRST, "fetch the file again")
    assert "model/wpe" in done(cli("inspect", "-m", model, "wpe", "--stats"))  # not asked for, not read
    assert FIRST in done(cli("inspect", "-m", model))


@pytest.mark.parametrize("kind", ["zeros", "another model"])
def test_the_data_of_another_model(model, tmp_path, cli, kind):
    """V09: as many bytes, none of them right: all 28 are found, five named."""
    other = bytes(15872) if kind == "zeros" else (tiny.tiny(tmp_path / "other", seed=7) / DATA).read_bytes()
    (model / DATA).write_bytes(other)
    bundle = read_index(model / "model.ckpt")
    assert sum(bad_sum(bundle, e) is not None for e in bundle.entries.values()) == 28
    for argv in (["inspect", "--stats"], ["generate", "abc", "--length", 1]):
        assert refused(cli(*argv, "-m", model), 4, ", and 23 more").count("CRC32C is") == 5


def test_loading_names_all_that_is_damaged_before_the_first_array(model):
    flip(model)
    bundle = read_index(model / "model.ckpt")
    with pytest.raises(Damaged, match=FIRST):
        next(load(bundle, {"model/wte": (260, 8), FIRST: (1, 8, 24)}))
    assert [name for name, _ in load(bundle, {"model/wte": (260, 8)})] == ["model/wte"]


def test_loading_comes_largest_first(T):
    """So that a reader who copies holds the largest twice while nothing else is held."""
    w = tiny.weights()
    loaded = dict(load(read_index(T / "model.ckpt"), {name: x.shape for name, x in w.items()}))
    assert [x.size for x in loaded.values()] == sorted((x.size for x in w.values()), reverse=True)
    for name, x in loaded.items():
        np.testing.assert_array_equal(x, w[name], strict=True)


def test_released_pages_come_back(tmp_path):
    """Giving memory back changes no value: next to what is released lies what is kept."""
    w = {f"v{i}": np.random.default_rng(i).normal(size=5000).astype("f4") for i in range(4)}
    bundle = read_index(bundles.write(tmp_path / "p", w))
    views = {name: bundle.array(e) for name, e in bundle.entries.items()}
    for entry in bundle.entries.values():
        bundle.release(entry)
    for name, x in w.items():
        np.testing.assert_array_equal(views[name], x, strict=True)
        assert not views[name].flags.writeable
