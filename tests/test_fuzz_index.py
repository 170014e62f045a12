"""Whatever lies where an index should: a Bundle or Damaged, soon, in little memory.  No length in it is trusted."""

import struct
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2ln import checkpoint, table
from gpt2ln.checkpoint import Entry, bad_sum, read_index, size_problems
from gpt2ln.errors import Damaged, NotFound
from gpt2ln.official import index_bytes
from gpt2ln.spec import HParams
from gpt2ln.table import Block, mask, read_table, sealed_block, to_varint, write_table
from gpt2ln.weights import check

from .conftest import GOLDEN
from .refusals import refused

INDEX = (GOLDEN / "model" / "model.ckpt.index").read_bytes()
HPARAMS = HParams(257, 64, 48, 4, 3)
PAIRS = read_table(INDEX, "golden")
HEADER = PAIRS[0]
MB = 1 << 20


def outcome(folder: Path, data: bytes) -> str:
    """Read it as every command does: index, shapes, sizes, sums -> how far that came.  Only our own errors."""
    prefix = folder / "model.ckpt"
    Path(f"{prefix}.index").write_bytes(data)
    try:
        bundle = read_index(prefix)
        check(bundle, HPARAMS)
        problems, _ = size_problems(bundle)
        found = problems or [p for e in bundle.entries.values() if (p := bad_sum(bundle, e))]
        return "bad" if found else "read"
    except (Damaged, NotFound) as cause:
        said = str(cause)
    assert str(prefix) in said
    assert "\n" not in said
    assert len(said) < 2000
    return "damaged"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model.ckpt.data-00000-of-00001").symlink_to(GOLDEN / "model" / "model.ckpt.data-00000-of-00001")
    return tmp_path


def test_the_golden_index_itself_is_read(folder):
    assert outcome(folder, INDEX) == "read"


def test_cut_at_every_offset(folder):
    assert {outcome(folder, INDEX[:at]) for at in range(len(INDEX))} == {"damaged"}


def test_every_byte_flipped(folder):
    """In the blocks every flip is seen by a sum; of the footer some bytes are padding that no reader looks at."""
    blocks = len(INDEX) - table.FOOTER
    for at in range(len(INDEX)):
        for bit in (1, 16, 128):
            flipped = bytearray(INDEX)
            flipped[at] ^= bit
            found = outcome(folder, bytes(flipped))
            assert found == "damaged" or at >= blocks, at


def test_every_byte_flipped_and_the_sums_mended(folder):
    """Past the sums each byte of each entry meets the reader."""
    seen = set()
    for number, (key, value) in enumerate(PAIRS):
        for at in range(len(value)):
            for bit in (1, 2, 4, 8, 16, 32, 64, 128):
                mended = bytearray(value)
                mended[at] ^= bit
                pairs = [*PAIRS[:number], (key, bytes(mended)), *PAIRS[number + 1 :]]
                seen.add(outcome(folder, write_table(pairs)))
    assert seen == {"damaged", "bad", "read"}  # "read": a field that nothing depends on


@pytest.mark.parametrize("bit", [1, 4, 32, 128])
def test_every_byte_of_the_data_block_flipped_and_its_sum_mended(folder, bit):
    """Lengths of keys and values, restart points: the block itself is garbled."""
    _, size, _ = table._handle(INDEX, table._handle(INDEX, len(INDEX) - table.FOOTER)[2])
    first = INDEX.index(sealed_block(Block().__bytes__()))  # the metaindex block follows the data block
    block = INDEX[: first - table.TRAILER]
    assert size
    for at in range(len(block)):
        garbled = bytearray(block)
        garbled[at] ^= bit
        outcome(folder, sealed_block(bytes(garbled)) + INDEX[first:])


def test_entries_cut_short(folder):
    """A value that ends anywhere within itself."""
    for number, (key, value) in enumerate(PAIRS):
        for at in range(len(value)):
            outcome(folder, write_table([*PAIRS[:number], (key, value[:at]), *PAIRS[number + 1 :]]))


@given(st.lists(st.binary(max_size=200), max_size=4), st.binary(max_size=60))
@settings(max_examples=300)
def test_random_blocks_with_good_sums(tmp_path_factory, blocks, handles):
    folder = tmp_path_factory.mktemp("f")
    out = b"".join(map(sealed_block, blocks))
    footer = handles[:40].ljust(40, b"\0") + struct.pack("<Q", table.MAGIC)
    outcome(folder, out + footer)


@given(st.lists(st.tuples(st.binary(max_size=30), st.binary(max_size=60)), max_size=12, unique_by=lambda p: p[0]))
@settings(max_examples=300)
def test_random_entries_behind_a_good_header(tmp_path_factory, pairs):
    outcome(tmp_path_factory.mktemp("f"), write_table([HEADER, *sorted(p for p in pairs if p[0])]))


numbers = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1])


@given(
    st.integers(0, 200),
    st.lists(numbers, max_size=8),
    st.tuples(numbers, numbers, numbers),
    st.integers(0, 2**32 - 1),
    st.sampled_from(["model/wte", "model/h0/ln_1/g", "a", "model/h99999999999/ln_1/g"]),
)
@settings(max_examples=500)
def test_entries_of_any_numbers(tmp_path_factory, dtype, shape, places, crc, name):
    """Well-formed messages that say anything."""

    def number(field, value):
        return to_varint(field << 3) + to_varint(value)

    axes = b""
    for axis in shape:
        dim = number(1, axis)
        axes += b"\x12" + to_varint(len(dim)) + dim
    value = number(1, dtype) + b"\x12" + to_varint(len(axes)) + axes
    value += number(3, places[0]) + number(4, places[1]) + number(5, places[2]) + b"\x35" + struct.pack("<I", crc)
    folder = tmp_path_factory.mktemp("f")
    (folder / "model.ckpt.data-00000-of-00001").write_bytes(bytes(4096))
    others = [pair for pair in PAIRS[1:] if pair[0] != name.encode()]
    outcome(folder, write_table([HEADER, *sorted([(name.encode(), value), *others])]))


# small files that unfold


def many_axes() -> bytes:
    dim = b"\x12\x0a\x08" + to_varint(2**62)
    shape = dim * 100_000
    return write_table([HEADER, (b"model/wte", b"\x08\x01\x12" + to_varint(len(shape)) + shape)])


def one_block_again_and_again() -> bytes:
    block, index = Block(), Block(interval=1)
    for n in range(20_000):
        block.add(b"%08d" % n, b"")
    out = sealed_block(bytes(block))
    handle = to_varint(0) + to_varint(len(bytes(block)))
    for n in range(50_000):
        index.add(b"%08d" % n, handle)
    return framed(out, bytes(index))


def framed(out: bytes, index: bytes) -> bytes:
    empty = sealed_block(bytes(Block()))
    footer = to_varint(len(out)) + to_varint(len(empty) - table.TRAILER)
    footer += to_varint(len(out) + len(empty)) + to_varint(len(index))
    return out + empty + sealed_block(index) + footer.ljust(40, b"\0") + struct.pack("<Q", table.MAGIC)


def a_long_key_shared_by_all() -> bytes:
    content = to_varint(0) + to_varint(500_000) + to_varint(0) + b"k" * 500_000
    content += b"".join(to_varint(500_000 + n) + b"\x01\x00k" for n in range(100_000))
    return one_block(content)


def one_block(content: bytes) -> bytes:
    content += struct.pack("<II", 0, 1)
    index = Block(interval=1)
    index.add(b"z", to_varint(0) + to_varint(len(content)))
    return framed(sealed_block(content), bytes(index))


def two_million_entries() -> bytes:
    """Four bytes each: a byte of key after a shared beginning."""
    content, key = b"", 0
    parts = []
    for key in range(1_500_000):
        parts.append(b"\x00\x04\x00" + struct.pack(">I", key))
        if len(parts) * 7 > 7 * MB:
            break
    content = b"".join(parts)
    return one_block(content)


def a_block_of_2_to_the_60() -> bytes:
    index = Block(interval=1)
    index.add(b"z", to_varint(0) + to_varint(2**60))
    return framed(b"", bytes(index))


def a_value_of_2_to_the_60() -> bytes:
    return one_block(to_varint(0) + to_varint(3) + to_varint(2**60) + b"abc")


def a_length_without_end() -> bytes:
    return one_block(b"\x80" * (7 * MB))


def a_number_without_end() -> bytes:
    return write_table([HEADER, (b"model/wte", b"\x08" + b"\x80" * (7 * MB))])


def a_million_layers() -> bytes:
    entries = [Entry(f"model/h{n}/ln_1/g", "float32", (0,), 0, 0, 0, 1) for n in (0, 999_999_999)]
    return index_bytes([*entries, Entry("model/wte", "float32", (0, 0), 0, 0, 0, 1)])


BOMBS = [
    many_axes,
    one_block_again_and_again,
    a_long_key_shared_by_all,
    two_million_entries,
    a_block_of_2_to_the_60,
    a_value_of_2_to_the_60,
    a_length_without_end,
    a_number_without_end,
    a_million_layers,
]


@pytest.mark.parametrize("bomb", BOMBS, ids=lambda f: f.__name__)
def test_small_files_that_unfold(bomb, folder):
    data = bomb()
    assert len(data) < 8 * MB
    began = time.monotonic()
    tracemalloc.start()
    try:
        assert outcome(folder, data) == "damaged" or bomb is a_million_layers
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200 * MB
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("bomb", BOMBS, ids=lambda f: f.__name__)
def test_the_command_says_so_too(bomb, folder, cli):
    Path(folder / "model.ckpt.index").write_bytes(bomb())
    if bomb is a_million_layers:
        assert cli("inspect", "-m", folder / "model.ckpt").status == 0
    else:
        refused(cli("inspect", "-m", folder / "model.ckpt"), 4, "model.ckpt.index")


def test_a_data_file_in_its_place_is_not_read(folder):
    with (folder / "model.ckpt.index").open("wb") as file:
        file.truncate(5 << 30)  # a hole
    tracemalloc.start()
    with pytest.raises(Damaged, match=r"5368709120 bytes, an index has at most 8388608; is it the data file\?"):
        read_index(folder / "model.ckpt")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 * MB


def test_two_variables_of_one_name(folder):
    """Bytes that are no UTF-8 are spelt with backslashes, and another may be called so."""
    value = PAIRS[1][1]
    data = write_table([HEADER, *sorted([(b"a\xff", value), (b"a\\xff", value)])])
    (folder / "model.ckpt.index").write_bytes(data)
    with pytest.raises(Damaged, match="two variables of one name"):
        read_index(folder / "model.ckpt")


def test_as_many_variables_as_are_allowed(folder):
    """The limits lie far above what a GPT-2 has, and the first above them is refused."""
    value, most = b"", table.MOST_PAIRS
    pairs = [HEADER, *((b"%07d" % n, value) for n in range(most - 1))]
    assert len(read_table(write_table(pairs), "x")) == most
    with pytest.raises(Damaged, match=f"more than {most} entries"):
        read_table(write_table([*pairs, (b"x", value)]), "x")
    assert checkpoint.LARGEST > 100 * 20_724


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.binary(max_size=40)), unique_by=lambda p: p[0]))
def test_what_is_written_is_read_back(pairs):
    pairs = sorted(pairs)
    assert read_table(write_table(pairs), "x") == pairs
    assert read_table(write_table(pairs, block_size=64, interval=3), "x") == pairs


def test_the_sum_of_a_block_covers_its_type():
    sealed = sealed_block(b"abc", 1)
    assert sealed[:4] == b"abc\x01"
    assert struct.unpack("<I", sealed[4:])[0] == mask(table.crc32c(b"abc\x01"))
