"""The table format of a checkpoint index: bytes <-> sorted `(key, value)` pairs.

A table is data blocks, a metaindex block, an index block and a 48-byte footer (TensorFlow: `core/lib/io/table.h`, made
after LevelDB).  Each block is followed by its compression type and a masked CRC32C over block and type.  Read, nothing
is trusted before its sum has been checked; written, the bytes are those of TensorFlow's own writer.
"""

import struct
from collections.abc import Iterable, Iterator

import google_crc32c

from .errors import Damaged

MAGIC = 0xDB4775248B80FB57
FOOTER = 48
BLOCK_SIZE = 262144  # a data block ends with the entry that reaches it
MOST_PAIRS, MOST_LETTERS = 1 << 17, 1 << 24  # a GPT-2 of 1558M has 581 pairs, and 13,000 letters in their keys
INTERVAL = 16  # entries from one whole key to the next
TRAILER = 5  # compression type, masked CRC32C
COMPRESSION = {0: "none", 1: "snappy", 2: "zlib", 3: "bzip2", 4: "lz4", 5: "lz4hc", 6: "xpress", 7: "zstd"}
_MASK_DELTA = 0xA282EAD8


def mask(crc: int) -> int:
    """The form in which a CRC32C is stored, so that a sum over sums stays a good sum."""
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def unmask(masked: int) -> int:
    rotated = (masked - _MASK_DELTA) & 0xFFFFFFFF
    return ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF


def crc32c(data: bytes | memoryview, piece: int = 1 << 20, crc: int = 0) -> int:
    """CRC32C, a piece at a time: the library takes only `bytes`, and a small copy stays in the processor's cache.

    crc: of what came before.
    """
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
        pairs = list(_in_order(data, _block(data, offset, size, where), where))
    except (IndexError, ValueError, struct.error) as cause:
        raise Damaged(f"{where}: garbled table: {cause}") from cause
    return pairs


def _in_order(data: bytes, index: bytes, where: str) -> Iterator[tuple[bytes, bytes]]:
    """The pairs of all data blocks; ValueError at the first that no writer makes, before more is unfolded.

    A block can be pointed to again and again, and a long key shared by every entry: a small file can hold gigabytes.
    """
    before, count, letters = None, 0, 0
    for _, handle in _entries(index):
        for key, value in _entries(_block(data, *_handle(handle, 0)[:2], where)):
            if before is not None and key <= before:
                raise ValueError(f"key {_short(key)} comes after {_short(before)}")
            count, letters = count + 1, letters + len(key) + len(value)
            if count > MOST_PAIRS or letters > MOST_LETTERS:
                raise ValueError(f"more than {MOST_PAIRS} entries, or {MOST_LETTERS} bytes of them")
            yield key, value
            before = key


def _short(key: bytes) -> str:
    return repr(key if len(key) <= 60 else key[:57] + b"...")


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


def to_varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


class Block:
    """Entries, whose keys share a beginning with the one before, but for every `interval`-th; then restart points."""

    def __init__(self, interval: int = INTERVAL):
        self._interval, self._out, self._restarts, self._count, self.last = interval, bytearray(), [0], 0, b""

    def add(self, key: bytes, value: bytes) -> None:
        shared = _shared(self.last, key) if self._count % self._interval else 0
        if self._count and self._count % self._interval == 0:
            self._restarts.append(len(self._out))
        self._out += to_varint(shared) + to_varint(len(key) - shared) + to_varint(len(value)) + key[shared:] + value
        self._count, self.last = self._count + 1, key

    def __len__(self) -> int:
        return len(self._out) + 4 * (len(self._restarts) + 1)

    def __bytes__(self) -> bytes:
        return bytes(self._out) + struct.pack(f"<{len(self._restarts) + 1}I", *self._restarts, len(self._restarts))


def write_table(
    pairs: Iterable[tuple[bytes, bytes]], *, block_size: int = BLOCK_SIZE, interval: int = INTERVAL
) -> bytes:
    """A table of these pairs, in order (TensorFlow: `core/lib/io/table_builder.cc`)."""
    out, index, held, waiting = bytearray(), Block(interval=1), Block(interval), None
    for key, value in pairs:
        if waiting:  # for the key after it, so that its own in the index can be short
            index.add(_separator(held.last, key), waiting)
            held, waiting = Block(interval), None
        held.add(key, value)
        if len(held) >= block_size:
            waiting = _append(out, held)
    if len(held) > len(Block()) and not waiting:
        waiting = _append(out, held)
    if waiting:
        index.add(_successor(held.last), waiting)
    footer = _append(out, Block()) + _append(out, index)
    return bytes(out) + footer.ljust(FOOTER - 8, b"\0") + struct.pack("<Q", MAGIC)


def sealed_block(content: bytes, kind: int = 0) -> bytes:
    """A block with its compression type and its sum behind it."""
    typed = content + bytes([kind])
    return typed + struct.pack("<I", mask(crc32c(typed)))


def _append(out: bytearray, content: Block) -> bytes:
    """Put a block at the end -> its handle"""
    handle = to_varint(len(out)) + to_varint(len(content))
    out += sealed_block(bytes(content))
    return handle


def _shared(a: bytes, b: bytes) -> int:
    """How many bytes both begin with."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _separator(last: bytes, following: bytes) -> bytes:
    """A short key from `last` on and before `following`."""
    at = _shared(last, following)
    if at < min(len(last), len(following)) and last[at] < 255 and last[at] + 1 < following[at]:
        return last[:at] + bytes([last[at] + 1])
    return last


def _successor(last: bytes) -> bytes:
    """A short key that is not before `last`."""
    at = next((i for i, byte in enumerate(last) if byte != 255), None)
    return last if at is None else last[:at] + bytes([last[at] + 1])
