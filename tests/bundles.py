"""Write checkpoints byte by byte, good ones and bad ones that no saver writes.

It is proven where it is used: from the entries of an index that TensorFlow wrote it makes the same bytes again.
"""

import struct
from collections.abc import Sequence
from pathlib import Path

import google_crc32c

from gpt2ln.checkpoint import DTYPES, Entry

MAGIC = bytes.fromhex("57fb808b247547db")
NUMBERS = {name: number for number, name in DTYPES.items()}
Pairs = Sequence[tuple[bytes, bytes]]


def masked(crc: int) -> bytes:
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def shared(a: bytes, b: bytes) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def block(pairs: Pairs, interval: int = 16) -> bytes:
    out, restarts, last = b"", [0], b""
    for i, (key, value) in enumerate(pairs):
        if i and i % interval == 0:
            restarts.append(len(out))
        keep = shared(last, key) if i % interval else 0
        out += varint(keep) + varint(len(key) - keep) + varint(len(value)) + key[keep:] + value
        last = key
    return out + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def sealed(content: bytes, kind: int = 0) -> bytes:
    """A block with its compression type and its sum."""
    typed = content + bytes([kind])
    return typed + masked(google_crc32c.value(typed))


def successor(key: bytes) -> bytes:
    """The short key LevelDB puts into the index block after the last data block."""
    at = next((i for i, byte in enumerate(key) if byte != 255), len(key))
    return key[:at] + bytes([key[at] + 1]) if at < len(key) else key


def framed(blocks: Sequence[bytes], keys: Sequence[bytes], kind: int = 0) -> bytes:
    """Data blocks, an empty metaindex, the index block, the footer."""
    out, handles = b"", []
    for content in blocks:
        handles.append(varint(len(out)) + varint(len(content)))
        out += sealed(content, kind)
    footer = b""
    for content in (block([]), block(list(zip(keys, handles, strict=True)), 1)):
        footer += varint(len(out)) + varint(len(content))
        out += sealed(content)
    return out + footer.ljust(40, b"\0") + MAGIC


def table(pairs: Pairs, a_block: int = 10**9, interval: int = 16, kind: int = 0) -> bytes:
    parts = [pairs[i : i + a_block] for i in range(0, len(pairs), a_block)]
    keys = [part[-1][0] for part in parts]
    if keys:
        keys[-1] = successor(keys[-1])
    return framed([block(part, interval) for part in parts], keys, kind)


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value & (1 << 64) - 1) if value else b""


def message(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def header(shards: int = 1, endian: int = 0) -> bytes:
    return number(1, shards) + number(2, endian) + message(3, number(1, 1))


def entry(e: Entry) -> bytes:
    shape = b"".join(message(2, number(1, axis)) for axis in e.shape)
    places = number(3, e.shard) + number(4, e.offset) + number(5, e.size)
    return number(1, NUMBERS[e.dtype]) + message(2, shape) + places + b"\x35" + masked(e.crc)


def index(entries: Sequence[Entry], shards: int = 1, endian: int = 0) -> bytes:
    return table([(b"", header(shards, endian))] + [(e.name.encode(), entry(e)) for e in entries])


def write(prefix: Path, arrays: dict, order: str = "<") -> Path:
    """One shard with these float32 arrays in this byte order."""
    at, pieces, entries = 0, [], []
    for name in sorted(arrays):
        raw = arrays[name].astype(order + "f4").tobytes()
        entries.append(Entry(name, "float32", arrays[name].shape, 0, at, len(raw), google_crc32c.value(raw)))
        pieces.append(raw)
        at += len(raw)
    prefix.parent.mkdir(parents=True, exist_ok=True)
    Path(f"{prefix}.data-00000-of-00001").write_bytes(b"".join(pieces))
    Path(f"{prefix}.index").write_bytes(index(entries, endian=order == ">"))
    return prefix
