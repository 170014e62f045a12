"""A safetensors file written row by row: its layout is known before the first number is, so nothing is held back.

The safetensors library writes arrays that lie whole in memory.  The format is eight bytes of length, a JSON header and
the arrays; what is written here is read back with the library.  A file has its name only when it is whole.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .disk import BLOCK, disk, drop, let_go, lock, part_of, sha256

_CODES = {"float32": "F32", "float16": "F16", "int32": "I32", "int64": "I64", "uint8": "U8"}

Arrays = Mapping[str, tuple[str, tuple[int, ...]]]  # name -> dtype, shape


def array_bytes(arrays: Arrays) -> int:
    return sum(np.dtype(dtype).itemsize * math.prod(shape) for dtype, shape in arrays.values())


def header(arrays: Arrays, metadata: Mapping[str, str] | None = None) -> bytes:
    """What stands before the data, padded to eight bytes as the format asks."""
    at, fields = 0, {"__metadata__": dict(metadata)} if metadata else {}
    for name, (dtype, shape) in arrays.items():
        end = at + np.dtype(dtype).itemsize * math.prod(shape)
        fields[name] = {"dtype": _CODES[dtype], "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def file_bytes(arrays: Arrays) -> int:
    return len(header(arrays)) + array_bytes(arrays)


@dataclass
class Shard:
    """A file once begun; `write` takes rows in any order.  DiskError when the disk does not take them."""

    path: Path
    arrays: Arrays
    metadata: Mapping[str, str] | None = None
    _offsets: dict[str, int] = field(default_factory=dict, init=False)
    _held: list[int] = field(default_factory=list, init=False)

    def __post_init__(self):
        at = len(header(self.arrays, self.metadata))
        for name, (dtype, shape) in self.arrays.items():
            self._offsets[name] = at
            at += np.dtype(dtype).itemsize * math.prod(shape)
        self._bytes = at

    def begin(self) -> None:
        """Make the file, or nothing.  No part of the constructor: what is begun can be abandoned at any moment."""
        try:
            with disk(self.part):
                self._held.append(os.open(self.part, os.O_RDWR | os.O_CREAT, 0o666))
                lock(self._fd, self.part)
                os.ftruncate(self._fd, 0)  # what a killed run has left
                os.posix_fallocate(self._fd, 0, self._bytes)  # a full disk says so now
                self._put(header(self.arrays, self.metadata), 0)
        except BaseException:
            self.abandon()
            raise

    @property
    def part(self) -> Path:
        return part_of(self.path)

    @property
    def _fd(self) -> int:
        return self._held[0]

    def write(self, name: str, row: int, values: np.ndarray) -> None:
        """Rows from `row` on; values are cast to the array's type."""
        dtype, shape = self.arrays[name]
        with np.errstate(over="ignore"):  # past float16: Inf, which is counted elsewhere
            values = np.ascontiguousarray(values, dtype)
        if not values.size:
            return
        width = math.prod(shape[1:])
        assert values.shape[1:] == shape[1:], (name, shape, values.shape)
        assert 0 <= row <= shape[0] - len(values), (name, shape, row, len(values))
        with disk(self.part):
            self._put(memoryview(values).cast("B"), self._offsets[name] + row * width * values.itemsize)

    def _put(self, data, at: int) -> None:
        view = memoryview(data)
        while view:
            done = os.pwrite(self._fd, view, at)
            view, at = view[done:], at + done

    def finish(self) -> str:
        """Give the file its name -> its sha256.  The lock holds until it has it."""
        with disk(self.part):
            os.fsync(self._fd)
            digest = sha256(self.part)
            self.part.replace(self.path)
        let_go(self._held)
        return digest

    def blocks(self, name: str) -> Iterator[bytes]:
        """The bytes of an array as they are written, some at a time; before `finish`."""
        dtype, shape = self.arrays[name]
        at, left = self._offsets[name], np.dtype(dtype).itemsize * math.prod(shape)
        while left:
            block = os.pread(self._fd, min(left, BLOCK), at)
            yield block
            at, left = at + len(block), left - len(block)

    def abandon(self) -> None:
        """Remove what has no name yet."""
        let_go(self._held)
        drop(self.part)
