"""The table format: every byte of an index is under a sum, and nothing but Damaged comes out of garbage."""

import contextlib
import struct

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2ln.errors import Damaged
from gpt2ln.table import COMPRESSION, crc32c, mask, read_table, unmask, varint

from . import bundles
from .conftest import GOLDEN

WHERE = "here.index"
BYTES = st.binary(max_size=40)


def test_sums_of_the_iscsi_standard():
    vectors = {bytes(32): 0x8A9136AA, b"\xff" * 32: 0x62A8AB43, bytes(range(32)): 0x46DD794E, b"123456789": 0xE3069283}
    assert {data: crc32c(data) for data in vectors} == vectors
    assert crc32c(b"") == 0


def test_masked_form_of_a_published_sum():
    """`model/ln_f/g` of the official 124M: the index stores 0x8f3811d0, TensorFlow prints 0x937c765a."""
    assert mask(0x937C765A) == 0x8F3811D0
    assert unmask(0x8F3811D0) == 0x937C765A


@pytest.mark.parametrize("name", ["tiny", "golden"])
def test_tensorflows_own_index(T, name):
    """Header first, then names in byte order; and the same bytes again from what was read."""
    data = ((T if name == "tiny" else GOLDEN / "model") / "model.ckpt.index").read_bytes()
    pairs = read_table(data, WHERE)
    assert pairs[0] == (b"", bytes.fromhex("08011a020801"))
    assert [key for key, _ in pairs] == sorted({key for key, _ in pairs})
    assert bundles.table(pairs) == data


def test_names_of_the_made_up_checkpoint(T):
    keys = [key.decode() for key, _ in read_table((T / "model.ckpt.index").read_bytes(), WHERE)]
    block = ["attn/c_attn/b", "attn/c_attn/w", "attn/c_proj/b", "attn/c_proj/w", "ln_1/b", "ln_1/g", "ln_2/b", "ln_2/g"]
    block += ["mlp/c_fc/b", "mlp/c_fc/w", "mlp/c_proj/b", "mlp/c_proj/w"]
    names = [f"h{i}/{leaf}" for i in (0, 1) for leaf in block] + ["ln_f/b", "ln_f/g", "wpe", "wte"]
    assert keys == ["", *("model/" + name for name in names)]


@given(st.integers(0, 2**64 - 1), BYTES, BYTES)
def test_a_number_is_read_where_it_stands(number, before, after):
    coded = bundles.varint(number)
    assert varint(before + coded + after, len(before)) == (number, len(before) + len(coded))


def test_a_number_that_does_not_end():
    with pytest.raises(IndexError):
        varint(b"\x80\x80", 0)
    with pytest.raises(ValueError, match="more than 64 bits"):
        varint(b"\x80" * 20, 0)


@given(st.integers(0, 2**32 - 1))
def test_mask_and_back(crc):
    assert unmask(mask(crc)) == crc
    assert struct.pack("<I", mask(crc)) == bundles.masked(crc)


@given(st.binary(max_size=300), st.integers(1, 50))
def test_a_sum_does_not_depend_on_the_pieces(data, piece):
    assert crc32c(memoryview(data), piece) == google_crc32c.value(data)


@given(st.dictionaries(BYTES, BYTES, max_size=60), st.integers(1, 20), st.integers(1, 20))
def test_what_is_written_is_read(found, a_block, interval):
    """Any number of blocks, any number of restart points."""
    pairs = sorted(found.items())
    assert read_table(bundles.table(pairs, a_block, interval), WHERE) == pairs


def test_every_bit_of_an_index(T):
    """Flipped, each is Damaged, or nobody's loss: the zeros that fill the footer, and the bit that makes the last
    number before them go on into a zero.
    """
    data = (T / "model.ckpt.index").read_bytes()
    right = read_table(data, WHERE)
    silent = []
    for bit in range(8 * len(data)):
        bad = bytearray(data)
        bad[bit // 8] ^= 1 << bit % 8
        with contextlib.suppress(Damaged):
            assert read_table(bytes(bad), WHERE) == right, f"bit {bit} changes what is read"
            silent.append(bit)
    end = len(data) - 8
    assert len(data) == 920
    assert data[end - 34 : end] == bytes(34)
    assert silent == [8 * (end - 34) - 1, *range(8 * (end - 34), 8 * end)]


@pytest.mark.parametrize("tail", [0, 1, 7])
def test_every_length(T, tail):
    """Cut short anywhere, or with something after its end: Damaged."""
    data = (T / "model.ckpt.index").read_bytes()
    lengths = range(len(data)) if tail == 0 else [len(data)]
    for length in lengths:
        with pytest.raises(Damaged, match=WHERE):
            read_table(data[:length] + bytes(tail), WHERE)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "here.index: 0 bytes, an index has at least 48"),
        (b"<?xml version='1.0'?>", "21 bytes, an index has at least 48"),
        (b"<html>" * 20, "it ends with 6c3e3c68746d6c3e, expected 57fb808b247547db"),
        (bytes(48), "not a checkpoint index: it ends with 0000000000000000, expected 57fb808b247547db"),
        (b"\xff" * 40 + bundles.MAGIC, "garbled table: number of more than 64 bits"),
    ],
)
def test_what_is_no_table(data, text):
    with pytest.raises(Damaged) as refusal:
        read_table(data, WHERE)
    assert text in str(refusal.value)


@pytest.mark.parametrize("kind", [*range(1, 8), 99, 255])
def test_a_compressed_block_is_refused_by_name(kind):
    pairs = [(b"", b"header"), (b"name", b"entry")]
    assert read_table(bundles.table(pairs, kind=0), WHERE) == pairs
    with pytest.raises(Damaged) as refusal:
        read_table(bundles.table(pairs, kind=kind), WHERE)
    name = COMPRESSION.get(kind, "unknown")
    assert f"here.index: block at byte 0 is compressed (type {kind}, {name}), expected none" in str(refusal.value)


def test_the_names_of_compressions():
    """As TensorFlow numbers them (`xla/tsl/lib/io/table_options.h` has the first two)."""
    assert (COMPRESSION[0], COMPRESSION[1]) == ("none", "snappy")


def test_a_sum_that_does_not_fit_names_both():
    data = bytearray(bundles.table([(b"a", b"1")]))
    stored = unmask(struct.unpack_from("<I", data, 14)[0])
    data[3] ^= 1
    found = google_crc32c.value(bytes(data[:14]))
    with pytest.raises(Damaged) as refusal:
        read_table(bytes(data), WHERE)
    assert str(refusal.value) == (f"here.index: block at byte 0: CRC32C is {found:#010x}, the file says {stored:#010x}")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "garbled table"),
        (b"\0\0", "garbled table"),
        (struct.pack("<I", 9), "9 restart points in a block of 4 bytes"),
        (struct.pack("<I", 2**32 - 1), "4294967295 restart points"),
        (b"\x05\x01\x01ab" + struct.pack("<II", 0, 1), "leaves its block"),
        (b"\x00\x7f\x01ab" + struct.pack("<II", 0, 1), "leaves its block"),
        (b"\x00\x01\x7fab" + struct.pack("<II", 0, 1), "leaves its block"),
        (bundles.block([(b"b", b""), (b"a", b"")]), "key b'a' comes after b'b'"),
        (bundles.block([(b"a", b""), (b"a", b"")]), "key b'a' comes after b'a'"),
        (bundles.block([(b"a", b""), (b"", b"")]), "key b'' comes after b'a'"),
    ],
)
def test_nonsense_under_a_good_sum(content, text):
    with pytest.raises(Damaged) as refusal:
        read_table(bundles.framed([content], [b"z"]), WHERE)
    assert text in str(refusal.value)


@pytest.mark.parametrize(
    ("handle", "text"), [((0, 10**6), "cut short"), ((10**12, 3), "cut short"), ((0, 0), "CRC32C")]
)
def test_a_handle_that_leads_nowhere(handle, text):
    coded = b"".join(map(bundles.varint, handle))
    index = bundles.sealed(bundles.block([(b"z", coded)]))
    place = bundles.varint(0) + bundles.varint(len(index) - 5)
    footer = (place + place).ljust(40, b"\0") + bundles.MAGIC
    with pytest.raises(Damaged, match=text):
        read_table(index + footer, WHERE)


@pytest.mark.parametrize("handle", [b"", b"\x80", b"\x05"])
def test_a_handle_that_ends_early(handle):
    index = bundles.sealed(bundles.block([(b"z", handle)]))
    place = bundles.varint(0) + bundles.varint(len(index) - 5)
    with pytest.raises(Damaged, match=r"here.index: garbled table: "):
        read_table(index + (place + place).ljust(40, b"\0") + bundles.MAGIC, WHERE)


@given(st.binary(max_size=400), st.booleans())
def test_random_bytes(data, with_magic):
    with pytest.raises(Damaged, match=WHERE):
        read_table(data + bundles.MAGIC * with_magic, WHERE)


@settings(max_examples=300)
@given(st.lists(st.binary(max_size=60), max_size=3), st.integers(0, 3))
def test_random_blocks_under_good_sums(blocks, restarts):
    """What no sum can catch: an ordered list of pairs comes out, or Damaged."""
    blocks = [content + struct.pack(f"<{restarts + 1}I", *range(restarts), restarts) for content in blocks]
    with contextlib.suppress(Damaged):
        pairs = read_table(bundles.framed(blocks, [bytes([65 + i]) for i in range(len(blocks))]), WHERE)
        keys = [key for key, _ in pairs]
        assert keys == sorted(set(keys))
