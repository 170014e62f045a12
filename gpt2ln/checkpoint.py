"""Read a TensorFlow V2 checkpoint (a *bundle*) without TensorFlow.

`PREFIX.index` is a table of entries: name, dtype, shape, shard, offset, size, CRC32C.  `PREFIX.data-00000-of-00001`
holds the values, packed.  The index is read whole, the data is mapped, and no value is handed out before its sum fits.
"""

import mmap
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from .errors import Damaged, NotFound, first_five
from .published import again
from .table import crc32c, read_table, unmask, varint

if TYPE_CHECKING:  # a list of variables does without: it takes as long to import as all the rest
    import numpy as np

_KIND = "float32 float64 int32 uint8 int16 int8 string complex64 int64 bool qint8 quint8 qint32 bfloat16"
DTYPES = dict(enumerate(_KIND.split(), start=1)) | {17: "uint16", 18: "complex128", 19: "float16", 20: "resource"}
DTYPES |= {21: "variant", 22: "uint32", 23: "uint64"}
LARGEST = 1 << 23  # bytes of an index; that of 1558M has 20,724
MOST_AXES = 254
AT_ONCE = 1 << 24  # bytes of data in memory
PIECE = "\0"  # first character of the key of a slice; TensorFlow lists these neither


@dataclass(frozen=True)
class Entry:
    """One variable as the index describes it.  offset and size in bytes; crc plain, not masked, None where unknown.

    Of a sliced variable only name, dtype and shape count: its values are in the pieces.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc: int | None
    sliced: bool = False


@dataclass(frozen=True)
class Bundle:
    """A checkpoint: its prefix and what its index says.  pieces: the slices of partitioned variables."""

    prefix: Path
    shards: int
    byte_order: str  # "<" or ">"
    entries: Mapping[str, Entry]
    pieces: tuple[Entry, ...] = ()
    kind: ClassVar[str] = "checkpoint"

    @property
    def where(self) -> Path:
        return self.prefix

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

    def in_turn(self, entry: Entry) -> Iterator[memoryview]:
        """The same, some at a time: the pages of each are given back before the next."""
        raw = self.raw(entry)
        for start in range(0, len(raw), AT_ONCE):
            yield raw[start : start + AT_ONCE]
            self.release(entry)

    def array(self, entry: Entry) -> "np.ndarray":
        """The values of one variable, mapped and read-only; bytes in the order of the file, sum not yet checked."""
        import numpy as np

        dtype = np.dtype(entry.dtype).newbyteorder(self.byte_order)
        return np.frombuffer(self.raw(entry), dtype).reshape(entry.shape)

    def release(self, entry: Entry) -> None:
        if entry.size:
            given_back(self._map(entry.shard), entry)


def given_back(mapped: mmap.mmap, entry: Entry) -> None:
    """Give the mapped pages of one variable back to the system: they count as memory of this process."""
    page = mmap.PAGESIZE
    if entry.size >= page and hasattr(mmap, "MADV_DONTNEED"):
        start = -(-entry.offset // page) * page
        stop = (entry.offset + entry.size) // page * page
        if stop > start:
            mapped.madvise(mmap.MADV_DONTNEED, start, stop - start)


def in_numpy(entry: Entry) -> bool:
    """Whether numpy has this dtype, and the values lie in one piece."""
    return not entry.sliced and re.fullmatch(r"(u?int|float|complex)\d+|bool", entry.dtype) is not None


def read_index(prefix: Path) -> Bundle:
    """Read `PREFIX.index`.  NotFound when it is not there, Damaged when it cannot be trusted or lists nothing."""
    path = prefix.with_name(prefix.name + ".index")
    pairs = read_table(_index_bytes(path), str(path))
    if not pairs or pairs[0][0] != b"":
        raise Damaged(f"{path}: no bundle header; a table of another kind?")
    try:
        header = dict(_wire(pairs[0][1]))
        shards, byte_order = _number(header, 1), ">" if _number(header, 2) else "<"
        entries = [_entry(key, value) for key, value in pairs[1:]]
    except (IndexError, KeyError, ValueError) as cause:
        raise Damaged(f"{path}: garbled entry: {cause}") from cause
    if problems := [problem for entry in entries for problem in _nonsense(entry, shards)]:
        raise Damaged(f"{path}: {first_five(problems)}")
    whole = {entry.name: entry for entry in entries if not entry.name.startswith(PIECE)}
    if len(whole) != sum(not entry.name.startswith(PIECE) for entry in entries):
        raise Damaged(f"{path}: garbled entry: two variables of one name")
    if not whole:
        raise Damaged(f"{path}: lists 0 variables")
    return Bundle(prefix, shards, byte_order, whole, tuple(e for e in entries if e.name.startswith(PIECE)))


def _index_bytes(path: Path) -> bytes:
    """The whole file, which is a small one: whatever else is called so is not read."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except FileNotFoundError:
        raise NotFound(f"{path}: no such file") from None
    if len(data) > LARGEST:
        raise Damaged(f"{path}: {path.stat().st_size} bytes, an index has at most {LARGEST}; is it the data file?")
    return data


def _entry(key: bytes, value: bytes) -> Entry:
    """Decode a `BundleEntryProto` (TensorFlow: `core/protobuf/tensor_bundle.proto`)."""
    fields = dict(_wire(value))
    shape = tuple(_signed(_number(dict(_wire(dim)), 1)) for field, dim in _wire(fields.get(2, b"")) if field == 2)
    if len(shape) > MOST_AXES:
        raise ValueError(f"a shape of {len(shape)} axes, TensorFlow has at most {MOST_AXES}")
    number = _number(fields, 1)
    places = [_number(fields, field) for field in (3, 4, 5)]
    name = key.decode("utf-8", "backslashreplace")
    return Entry(name, DTYPES.get(number, f"dtype {number}"), shape, *places, unmask(_number(fields, 6)), 7 in fields)


def _nonsense(entry: Entry, shards: int) -> Iterator[str]:
    """What no writer means, though the sum of the index fits."""
    if entry.shard >= shards:
        yield f"{entry.name} is in shard {entry.shard}, expected one of {shards}"
    if min(entry.shape, default=0) < 0:
        yield f"{entry.name} has the shape {list(entry.shape)}, expected no negative axis"
    elif not entry.sliced and (width := _itemsize(entry.dtype)) and entry.size != width * prod(entry.shape):
        need = width * prod(entry.shape)
        yield f"{entry.name} is {entry.dtype} {list(entry.shape)} in {entry.size} bytes, expected {need}"


def _itemsize(dtype: str) -> int | None:
    """Bytes of one value, None where values differ in length."""
    bits = re.fullmatch(r"[a-z]+(\d+)", dtype)
    return int(bits[1]) // 8 if bits else {"bool": 1}.get(dtype)


def _wire(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protocol buffer message, in order.  IndexError, KeyError or ValueError when it is garbled."""
    if not isinstance(data, bytes):
        raise ValueError(f"the number {data}, expected a message")
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        if tag & 7 == 0:
            value, at = varint(data, at)
        else:
            width, at = varint(data, at) if tag & 7 == 2 else ({5: 4, 1: 8}[tag & 7], at)
            value, at = data[at : at + width], at + width
            if at > len(data):
                raise ValueError(f"field {tag >> 3} leaves its message")
            if tag & 7 != 2:
                value = int.from_bytes(value, "little")
        yield tag >> 3, value


def _number(fields: Mapping[int, int | bytes], field: int) -> int:
    """A field that holds a number; 0 is never written."""
    value = fields.get(field, 0)
    if not isinstance(value, int):
        raise ValueError(f"field {field} is {value!r}, expected a number")
    return value


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def size_problems(bundle: Bundle) -> tuple[list[str], list[str]]:
    """Compare the data files with what the index needs -> problems, notes.  NotFound, naming all that are not there."""
    needs: dict[int, int] = {}
    for entry in (*bundle.entries.values(), *bundle.pieces):
        needs[entry.shard] = max(needs.get(entry.shard, 0), entry.offset + entry.size)
    if missing := [path.name for path in map(bundle.shard_path, sorted(needs)) if not path.exists()]:
        where = f"{bundle.prefix.parent}/{first_five(missing)}"
        raise NotFound(f"{where}: no such file; {bundle.prefix.name}.index is there and needs it")
    problems, notes = [], []
    for shard, need in sorted(needs.items()):
        path = bundle.shard_path(shard)
        found = path.stat().st_size
        if found < need:
            share = 1000 * found // need / 10  # rounded down: what is cut short is never 100 %
            problems.append(f"{path.name} has {found} bytes, the index needs {need} ({share} %)")
        elif found > need:
            notes.append(f"{path.name} has {found - need} bytes more than the index needs ({need})")
    return problems, notes


def bad_sum(bundle: Bundle, entry: Entry) -> str | None:
    """Check one variable against its CRC32C -> what is wrong, or None.  The pages it read are given back."""
    if entry.sliced or entry.dtype == "variant":
        return None
    found = 0
    try:
        if entry.dtype == "string":
            found = _string_sum(bytes(bundle.raw(entry)), entry, bundle.byte_order)
        else:
            for piece in bundle.in_turn(entry):
                found = crc32c(piece, crc=found)
    except (IndexError, ValueError, struct.error):
        return f"{entry.name} (its strings have garbled lengths)"
    bundle.release(entry)
    if found == entry.crc:
        return None
    return f"{entry.name} (CRC32C is {found:#010x}, the index says {entry.crc:#010x})"


def _string_sum(data: bytes, entry: Entry, byte_order: str) -> int:
    """The sum of strings: lengths, stored as varints, enter it as numbers of 4 bytes, or 8 (`WriteStringTensor`)."""
    lengths, at = [], 0
    for _ in range(prod(entry.shape)):
        length, at = varint(data, at)
        lengths.append(struct.pack(byte_order + ("I" if length < 1 << 32 else "Q"), length))
    return crc32c(b"".join(lengths) + data[at:])


def load(bundle: Bundle, names: Mapping[str, tuple[int, ...]]) -> "Iterator[tuple[str, np.ndarray]]":
    """The named variables, largest first, each with its sum checked: one copy in memory at a time.

    Damaged, naming all that do not fit, before the first is handed out.
    """
    problems, _ = size_problems(bundle)
    if not problems:
        problems = [p for name in names if (p := bad_sum(bundle, bundle.entries[name]))]
    if problems:
        raise Damaged(f"{bundle.prefix}: damaged: {first_five(problems)}; {again(bundle.prefix.parent)}")
    import numpy as np

    for name in sorted(names, key=lambda n: -prod(names[n])):
        entry = bundle.entries[name]
        yield name, np.asarray(bundle.array(entry), dtype=np.float32)
        bundle.release(entry)
