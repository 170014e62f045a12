"""Checkpoints and indexes that no saver writes: blocks of any size, compressed, out of order, garbled.

What is the same in good ones comes from the product's own writer, which `test_official` holds against TensorFlow's.
"""

import struct
from collections.abc import Sequence
from pathlib import Path

import google_crc32c

from gpt2ln.checkpoint import Entry
from gpt2ln.official import entry_bytes as entry
from gpt2ln.official import header_bytes as header
from gpt2ln.official import index_bytes, message, number
from gpt2ln.table import Block
from gpt2ln.table import sealed_block as sealed
from gpt2ln.table import to_varint as varint

__all__ = ["block", "entry", "framed", "header", "index", "masked", "message", "number", "sealed", "table", "varint"]

MAGIC = bytes.fromhex("57fb808b247547db")
Pairs = Sequence[tuple[bytes, bytes]]


def masked(crc: int) -> bytes:
    """By the formula, for the product's own has to agree."""
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def block(pairs: Pairs, interval: int = 16) -> bytes:
    """In whatever order."""
    out = Block(interval)
    for key, value in pairs:
        out.add(key, value)
    return bytes(out)


def successor(key: bytes) -> bytes:
    """The short key of the index after the last data block."""
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
    """`a_block` entries in each."""
    parts = [pairs[i : i + a_block] for i in range(0, len(pairs), a_block)]
    keys = [part[-1][0] for part in parts]
    if keys:
        keys[-1] = successor(keys[-1])
    return framed([block(part, interval) for part in parts], keys, kind)


def index(entries: Sequence[Entry], shards: int = 1, endian: int = 0) -> bytes:
    return index_bytes(entries, shards=shards, big_endian=bool(endian))


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
