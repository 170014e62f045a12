"""Write the official layout: data and index as OpenAI's saver wrote them, byte for byte, and a folder at one stroke.

`BundleWriter` packs tensors in the order of their names, without gaps, and its index follows from that and from their
sums.  The published digests of the 124M are the proof.
"""

import contextlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import google_crc32c

from .checkpoint import DTYPES, Entry
from .disk import BLOCK, disk, part_of, replace
from .spec import HParams
from .table import mask, to_varint, write_table

if TYPE_CHECKING:
    import numpy as np

PREFIX = "model.ckpt"
STATE = f'model_checkpoint_path: "{PREFIX}"\nall_model_checkpoint_paths: "{PREFIX}"\n'
_NUMBERS = {name: number for number, name in DTYPES.items()}


def hparams_text(hparams: HParams) -> str:
    """`hparams.json` as it is published."""
    return json.dumps(hparams.as_dict(), indent=2) + "\n"


def index_bytes(entries: Iterable[Entry], *, shards: int = 1, big_endian: bool = False) -> bytes:
    """The index of these entries, in the order of their names (TensorFlow: `BundleWriter::Finish`)."""
    keyed = sorted((entry.name.encode(), entry_bytes(entry)) for entry in entries)
    return write_table([(b"", header_bytes(shards, big_endian)), *keyed])


def header_bytes(shards: int = 1, big_endian: bool = False) -> bytes:
    """A `BundleHeaderProto`, of version 1."""
    return number(1, shards) + number(2, int(big_endian)) + message(3, number(1, 1))


def entry_bytes(entry: Entry) -> bytes:
    """A `BundleEntryProto`; what is 0 is not written, but for the shape, which is a message even without axes."""
    shape = b"".join(message(2, number(1, axis)) for axis in entry.shape)
    places = number(3, entry.shard) + number(4, entry.offset) + number(5, entry.size)
    crc = b"\x35" + mask(entry.crc).to_bytes(4, "little") if mask(entry.crc) else b""
    return number(1, _NUMBERS[entry.dtype]) + message(2, shape) + places + crc


def number(field: int, value: int) -> bytes:
    return to_varint(field << 3) + to_varint(value & (1 << 64) - 1) if value else b""


def message(field: int, content: bytes) -> bytes:
    return to_varint(field << 3 | 2) + to_varint(len(content)) + content


class Writer:
    """A checkpoint of float32 variables, written in the order of their names and named when it is whole.

    `PREFIX.data-00000-of-00001` gets its name first, `PREFIX.index` last.  DiskError when the disk does not take it.
    """

    def __init__(self, prefix: Path):
        self.prefix = prefix
        self.data = prefix.with_name(f"{prefix.name}.data-00000-of-00001")
        self._part = part_of(self.data)
        self._entries: list[Entry] = []
        self._at = 0
        with disk(self._part):
            self._file = self._part.open("wb")

    def add(self, name: str, array: "np.ndarray") -> None:
        """float32, any shape; the name comes after all before it."""
        assert not self._entries or self._entries[-1].name.encode() < name.encode(), name
        crc, raw = 0, memoryview(array.astype("<f4", copy=False).reshape(-1)).cast("B")
        for start in range(0, len(raw), BLOCK):
            piece = bytes(raw[start : start + BLOCK])
            crc = google_crc32c.extend(crc, piece)
            with disk(self._part):
                self._file.write(piece)
        self._entries.append(Entry(name, "float32", tuple(array.shape), 0, self._at, len(raw), crc))
        self._at += len(raw)

    def finish(self) -> None:
        with disk(self._part):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._part.replace(self.data)
        replace(self.prefix.with_name(self.prefix.name + ".index"), index_bytes(self._entries))

    def abandon(self) -> None:
        with contextlib.suppress(OSError):  # what is still held back may have no room
            self._file.close()
        self._part.unlink(missing_ok=True)
