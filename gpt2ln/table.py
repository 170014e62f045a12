"""Read the table format of a checkpoint index: bytes in, sorted `(key, value)` pairs out.

A table is data blocks, a metaindex block, an index block and a 48-byte footer (TensorFlow: `core/lib/io/table.h`, made
after LevelDB).  Each block is followed by its compression type and a masked CRC32C over block and type.  Nothing is
trusted before its sum has been checked.
"""

import struct
from collections.abc import Iterator
from itertools import pairwise

import google_crc32c

from .errors import Damaged

MAGIC = 0xDB4775248B80FB57
FOOTER = 48
TRAILER = 5  # compression type, masked CRC32C
COMPRESSION = {0: "none", 1: "snappy", 2: "zlib", 3: "bzip2", 4: "lz4", 5: "lz4hc", 6: "xpress", 7: "zstd"}
_MASK_DELTA = 0xA282EAD8


def mask(crc: int) -> int:
    """The form in which a CRC32C is stored, so that a sum over sums stays a good sum."""
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def unmask(masked: int) -> int:
    rotated = (masked - _MASK_DELTA) & 0xFFFFFFFF
    return ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF


def crc32c(data: bytes | memoryview, piece: int = 1 << 20) -> int:
    """CRC32C, a piece at a time: the library takes only `bytes`, and a small copy stays in the processor's cache."""
    crc = 0
    for start in range(0, len(data), piece):
        crc = google_crc32c.extend(crc, bytes(data[start : start + piece]))
    return crc


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode a base-128 number -> value, position after it.  IndexError when `data` ends within it."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("number of more than 64 bits")


def read_table(data: bytes, where: str) -> list[tuple[bytes, bytes]]:
    """All pairs of a table, in order.  Damaged, with `where` in front, when any byte of it cannot be trusted."""
    if len(data) < FOOTER:
        raise Damaged(f"{where}: {len(data)} bytes, an index has at least {FOOTER}")
    if struct.unpack("<Q", data[-8:])[0] != MAGIC:
        raise Damaged(f"{where}: not a checkpoint index: it ends with {data[-8:].hex()}, expected 57fb808b247547db")
    try:
        at = len(data) - FOOTER
        *metaindex, after = _handle(data, at)
        _block(data, *metaindex, where)  # empty in every checkpoint, and yet damage is damage
        offset, size, _ = _handle(data, after)
        pairs = []
        for _, handle in _entries(_block(data, offset, size, where)):
            pairs += _entries(_block(data, *_handle(handle, 0)[:2], where))
        for (before, _), (key, _) in pairwise(pairs):
            if key <= before:
                raise ValueError(f"key {key!r} comes after {before!r}")
    except (IndexError, ValueError, struct.error) as cause:
        raise Damaged(f"{where}: garbled table: {cause}") from cause
    return pairs


def _handle(data: bytes, at: int) -> tuple[int, int, int]:
    """-> offset, size, position after the two numbers"""
    offset, at = varint(data, at)
    size, at = varint(data, at)
    return offset, size, at


def _block(data: bytes, offset: int, size: int, where: str) -> bytes:
    """Cut a block out and check its sum and that it is not compressed."""
    end = offset + size
    if end + TRAILER > len(data) - FOOTER:
        raise Damaged(f"{where}: a block reaches to byte {end + TRAILER}, the file has {len(data)}: cut short")
    stored = unmask(struct.unpack_from("<I", data, end + 1)[0])
    found = crc32c(data[offset : end + 1])
    if stored != found:
        raise Damaged(f"{where}: block at byte {offset}: CRC32C is {found:#010x}, the file says {stored:#010x}")
    if kind := data[end]:
        name = COMPRESSION.get(kind, "unknown")
        raise Damaged(
            f"{where}: block at byte {offset} is compressed (type {kind}, {name}), expected none;"
            " TensorFlow writes checkpoints uncompressed, save it again with its own saver"
        )
    return data[offset:end]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The pairs of one block: each key shares a prefix with the one before it."""
    restarts = struct.unpack_from("<I", block, len(block) - 4)[0]
    end = len(block) - 4 * (restarts + 1)
    if end < 0:
        raise ValueError(f"{restarts} restart points in a block of {len(block)} bytes")
    at, key = 0, b""
    while at < end:
        shared, at = varint(block, at)
        fresh, at = varint(block, at)
        length, at = varint(block, at)
        if shared > len(key) or at + fresh + length > end:
            raise ValueError(f"entry at byte {at} leaves its block")
        key = key[:shared] + block[at : at + fresh]
        yield key, block[at + fresh : at + fresh + length]
        at += fresh + length
