"""Read a TensorFlow V2 checkpoint (a *bundle*) without TensorFlow.

`PREFIX.index` is a table of entries: name, dtype, shape, shard, offset, size, CRC32C.  `PREFIX.data-00000-of-00001`
holds the values, packed.  The index is read whole, the data is mapped, and no value is handed out before its sum fits.
"""

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path

import numpy as np

from .errors import Damaged, NotFound, first_five
from .table import crc32c, read_table, unmask, varint

_KIND = "float32 float64 int32 uint8 int16 int8 string complex64 int64 bool qint8 quint8 qint32 bfloat16"
DTYPES = dict(enumerate(_KIND.split(), start=1)) | {17: "uint16", 18: "complex128", 19: "float16", 20: "resource"}
DTYPES |= {21: "variant", 22: "uint32", 23: "uint64"}


@dataclass(frozen=True)
class Entry:
    """One variable as the index describes it.  offset and size in bytes; crc plain, not masked."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc: int
    sliced: bool = False


@dataclass(frozen=True)
class Bundle:
    """A checkpoint: its prefix and what its index says."""

    prefix: Path
    shards: int
    byte_order: str  # "<" or ">"
    entries: Mapping[str, Entry]

    def shard_path(self, shard: int = 0) -> Path:
        return self.prefix.with_name(f"{self.prefix.name}.data-{shard:05d}-of-{self.shards:05d}")

    @cached_property
    def _maps(self) -> dict[int, mmap.mmap]:
        return {}

    def _map(self, shard: int) -> mmap.mmap:
        if shard not in self._maps:
            with self.shard_path(shard).open("rb") as file:
                self._maps[shard] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self._maps[shard]

    def raw(self, entry: Entry) -> memoryview:
        """The bytes of one variable, mapped."""
        if entry.size == 0:
            return memoryview(b"")
        return memoryview(self._map(entry.shard))[entry.offset : entry.offset + entry.size]

    def array(self, entry: Entry) -> np.ndarray:
        """The values of one variable, mapped and read-only; bytes in the order of the file, sum not yet checked."""
        dtype = np.dtype(entry.dtype).newbyteorder(self.byte_order)
        return np.frombuffer(self.raw(entry), dtype).reshape(entry.shape)

    def release(self, entry: Entry) -> None:
        """Give the mapped pages of one variable back to the system: they count as memory of this process."""
        page = mmap.PAGESIZE
        if entry.size >= page and hasattr(mmap, "MADV_DONTNEED"):
            start = -(-entry.offset // page) * page
            stop = (entry.offset + entry.size) // page * page
            if stop > start:
                self._map(entry.shard).madvise(mmap.MADV_DONTNEED, start, stop - start)


def read_index(prefix: Path) -> Bundle:
    """Read `PREFIX.index`.  NotFound when it is not there, Damaged when it cannot be trusted or lists nothing."""
    path = prefix.with_name(prefix.name + ".index")
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise NotFound(f"{path}: no such file") from None
    pairs = read_table(data, str(path))
    if not pairs or pairs[0][0] != b"":
        raise Damaged(f"{path}: no bundle header; a table of another kind?")
    header = _fields(pairs[0][1], path)
    byte_order = ">" if header.get(2, 0) else "<"
    entries = [_entry(key, value, path) for key, value in pairs[1:]]
    if not entries:
        raise Damaged(f"{path}: lists 0 variables")
    return Bundle(prefix, header.get(1, 1), byte_order, {entry.name: entry for entry in entries})


def _entry(key: bytes, value: bytes, path: Path) -> Entry:
    """Decode a `BundleEntryProto` (TensorFlow: `core/protobuf/tensor_bundle.proto`)."""
    fields = _fields(value, path)
    shape = tuple(_fields(dim, path).get(1, 0) for dim in _repeated(fields.get(2, b""), 2, path))
    kind = DTYPES.get(fields.get(1, 0), f"dtype {fields.get(1, 0)}")
    name = key.decode("utf-8", "backslashreplace")
    places = fields.get(3, 0), fields.get(4, 0), fields.get(5, 0)
    return Entry(name, kind, shape, *places, unmask(fields.get(6, 0)), 7 in fields)


def _wire(data: bytes, path: Path) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protocol buffer message, in order."""
    at = 0
    try:
        while at < len(data):
            tag, at = varint(data, at)
            if tag & 7 == 0:
                value, at = varint(data, at)
            elif tag & 7 == 2:
                length, at = varint(data, at)
                value, at = data[at : at + length], at + length
            else:
                width = {5: 4, 1: 8}[tag & 7]
                value, at = int.from_bytes(data[at : at + width], "little"), at + width
            yield tag >> 3, value
    except (IndexError, KeyError, ValueError) as cause:
        raise Damaged(f"{path}: garbled entry: {cause!r}") from cause


def _fields(data: bytes, path: Path) -> dict:
    return dict(_wire(data, path))


def _repeated(data: bytes, field: int, path: Path) -> list:
    return [value for number, value in _wire(data, path) if number == field]


def size_problems(bundle: Bundle) -> tuple[list[str], list[str]]:
    """Compare the data files with what the index needs -> problems, notes.  NotFound when a file is not there."""
    problems, notes = [], []
    for shard in range(bundle.shards):
        path = bundle.shard_path(shard)
        need = max((e.offset + e.size for e in bundle.entries.values() if e.shard == shard), default=0)
        try:
            found = path.stat().st_size
        except FileNotFoundError:
            raise NotFound(f"{path}: no such file; {bundle.prefix.name}.index is there and needs it") from None
        if found < need:
            problems.append(f"{path.name} has {found} bytes, the index needs {need} ({100 * found / need:.1f} %)")
        elif found > need:
            notes.append(f"{path.name} has {found - need} bytes more than the index needs")
    return problems, notes


def bad_sum(bundle: Bundle, entry: Entry) -> str | None:
    """Check one variable against its CRC32C -> what is wrong, or None."""
    found = crc32c(bundle.raw(entry))
    if found == entry.crc:
        return None
    return f"{entry.name} (CRC32C is {found:#010x}, the index says {entry.crc:#010x})"


def load(bundle: Bundle, names: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, np.ndarray]]:
    """The named variables, largest first, each with its sum checked: one copy in memory at a time.

    Damaged, naming all that do not fit, before the first is handed out.
    """
    problems, _ = size_problems(bundle)
    if not problems:
        problems = [p for name in names if (p := bad_sum(bundle, bundle.entries[name]))]
        for name in names:
            bundle.release(bundle.entries[name])
    if problems:
        raise Damaged(f"{bundle.prefix}: damaged: {first_five(problems)}; fetch the file again")
    for name in sorted(names, key=lambda n: -prod(names[n])):
        entry = bundle.entries[name]
        yield name, np.asarray(bundle.array(entry), dtype=np.float32)
        bundle.release(entry)
