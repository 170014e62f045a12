"""Named arrays in whatever file they lie: a TensorFlow checkpoint, safetensors, npz.  One view, nothing read too early.

Each kind lists `entries` from what stands at the front or the end of its file, maps or reads one array at a time, and
raises Damaged for a file that is not what it says.
"""

import json
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from .checkpoint import Entry, given_back, in_numpy
from .errors import Damaged, NotFound, UsageError, first_five

if TYPE_CHECKING:
    import zipfile

    import numpy as np

_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool", "C64": "complex64"}
_DTYPES |= {f"{kind}{bits}": f"{name}int{bits}" for kind, name in (("I", ""), ("U", "u")) for bits in (8, 16, 32, 64)}
SHARDED, SINGLE = "model.safetensors.index.json", "model.safetensors"
FOREIGN = (".safetensors", ".npz", ".safetensors.index.json")
_STORED = {0: 1, 8: 1032}  # how a member of a zip is packed, stored or deflated -> the most it can shrink by


class Tensors(Protocol):
    """`checkpoint.Bundle` is one too."""

    kind: str
    entries: Mapping[str, Entry]

    @property
    def where(self) -> Path:
        """The file, or the prefix of several."""

    def array(self, entry: Entry) -> "np.ndarray":
        """Its values, read-only."""

    def release(self, entry: Entry) -> None:
        """Give back the memory that reading it took."""


def foreign(path: Path) -> Path | None:
    """The safetensors or npz file that `path` is, or that lies in the folder `path`; None where there is none."""
    if path.name.endswith(FOREIGN) and os.path.isfile(path):
        return path
    if os.path.isdir(path) and not any(path.glob("*.index")):
        return next((path / name for name in (SHARDED, SINGLE) if os.path.isfile(path / name)), None)
    return None


def open_foreign(path: Path) -> "SafeTensors | Npz":
    """Damaged for a file that is none of its kind, NotFound where a shard is missing."""
    if path.name.endswith(FOREIGN[2]):
        return SafeTensors(path, *_shards(path))
    return Npz(path) if path.suffix == ".npz" else SafeTensors(path, [path])


def _shards(path: Path) -> tuple[list[Path], set[str]]:
    """The files that `model.safetensors.index.json` names, each a plain name beside it, and the tensors in them."""
    try:
        places = json.loads(path.read_bytes())["weight_map"]
        names = sorted(set(places.values()))
        plain = all(Path(name).name == name for name in names)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as cause:
        raise Damaged(f"{path}: expected an object with weight_map ({type(cause).__name__}: {cause})") from None
    if not names or not plain:
        raise Damaged(f"{path}: weight_map names {first_five(names) or 'no file'}, expected files beside it")
    if missing := [name for name in names if not os.path.isfile(path.parent / name)]:
        raise NotFound(f"{path.parent.absolute()}: {first_five(missing)} missing; {path.name} needs them")
    return [path.parent / name for name in names], set(places)


@dataclass
class SafeTensors:
    """One safetensors file, or the shards of one model."""

    where: Path
    paths: Sequence[Path]
    promised: frozenset[str] | set[str] = frozenset()  # by the index of several
    again: str = "fetch it again"  # what to do about a damaged one
    kind: str = field(default="safetensors", init=False)

    @cached_property
    def entries(self) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        for shard, path in enumerate(self.paths):
            for entry in _listed(path, shard, self.again):
                if entry.name in found:
                    raise Damaged(f"{self.where}: {entry.name} is in two of its files")
                found[entry.name] = entry
        if absent := sorted(self.promised - set(found)):
            raise Damaged(f"{self.where}: lists {first_five(absent)}, which its files do not hold")
        if not found:
            raise Damaged(f"{self.where}: lists 0 tensors")
        return found

    @cached_property
    def _maps(self) -> dict[int, mmap.mmap]:
        return {}

    def _map(self, shard: int) -> mmap.mmap:
        if shard not in self._maps:
            with self.paths[shard].open("rb") as file:
                self._maps[shard] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self._maps[shard]

    def array(self, entry: Entry) -> "np.ndarray":
        import numpy as np

        dtype = np.dtype(entry.dtype).newbyteorder("<")
        mapped, at = (self._map(entry.shard), entry.offset) if entry.size else (b"", 0)
        return np.frombuffer(mapped, dtype, prod(entry.shape), at).reshape(entry.shape)

    def release(self, entry: Entry) -> None:
        given_back(self._map(entry.shard), entry) if entry.size else None


def _listed(path: Path, shard: int, again: str) -> list[Entry]:
    """The header, which the library has found sound; offsets in the file, which it does not tell."""
    from safetensors import SafetensorError, safe_open

    with _there(path).open("rb") as file:
        try:
            with safe_open(path, "numpy"):
                pass
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        except (SafetensorError, ValueError, OSError) as cause:
            raise Damaged(f"{path}: no whole safetensors file ({cause}); {again}") from None
    header.pop("__metadata__", None)
    entries = []
    for name, tensor in header.items():
        first, last = tensor["data_offsets"]
        dtype = _DTYPES.get(tensor["dtype"], tensor["dtype"])
        entries.append(Entry(name, dtype, tuple(tensor["shape"]), shard, 8 + length + first, last - first, None))
    return entries


def _there(path: Path) -> Path:
    if not os.path.isfile(path):
        raise NotFound(f"{path.absolute()}: no such file")
    return path


@dataclass
class Npz:
    """A zip of arrays; a compressed one has no offset to map, so an array is read when it is asked for."""

    where: Path
    kind: str = field(default="npz", init=False)

    @cached_property
    def entries(self) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        with self._archive() as archive:
            for member in archive.infolist():
                if member.filename.endswith(".npy"):
                    entry = _described(archive, member)
                    if entry.name in found:
                        raise ValueError(f"{entry.name} is in it twice")
                    found[entry.name] = entry
        if not found:
            raise Damaged(f"{self.where}: lists 0 arrays")
        return found

    @contextmanager
    def _archive(self, name: str = "") -> "Iterator[zipfile.ZipFile]":
        """The open file; whatever zip, header or packing then say is wrong is damage of it, or of the array `name`."""
        import warnings
        import zipfile

        with _there(self.where).open("rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of headers that Python 2 wrote
            try:
                with zipfile.ZipFile(file) as archive:
                    yield archive
            except MemoryError:
                raise
            except Exception as cause:  # a garbled header can raise what it likes
                what = f"{name} cannot be read" if name else "no whole npz file"
                raise Damaged(f"{self.where}: {what} ({cause}); make it again") from None

    def array(self, entry: Entry) -> "np.ndarray":
        import numpy as np

        with self._archive(entry.name) as archive, archive.open(entry.name + ".npy") as file:
            x = np.lib.format.read_array(file, allow_pickle=False)  # to its end, where zip checks the sum
        x.flags.writeable = False
        return x

    def release(self, entry: Entry) -> None:
        pass


def _described(archive: "zipfile.ZipFile", member: "zipfile.ZipInfo") -> Entry:
    """What the header of an array says, held against how long it is.  ValueError and others where they do not agree."""
    import numpy as np

    name = member.filename.removesuffix(".npy")
    most = member.compress_size * _STORED.get(member.compress_type, 0)
    if member.file_size > most:  # nothing that long can come out of it
        raise ValueError(f"{name} is {member.file_size} bytes packed as type {member.compress_type} into "
                         f"{member.compress_size}, expected stored or deflated")  # fmt: skip
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        read[3, 0] = read[2, 0]  # but for letters in names of fields
        if version not in read:
            raise ValueError(f"{name} is npy {version[0]}.{version[1]}, expected 1.0 to 3.0")
        shape, _, dtype = read[version](file)
        size = member.file_size - file.tell()
    if min(shape, default=0) < 0 or max(shape, default=0) >= 1 << 63:
        raise ValueError(f"{name} has the shape {list(shape)}")
    if not dtype.hasobject and size != dtype.itemsize * prod(shape):
        raise ValueError(f"{name} is {dtype.name} {list(shape)} in {size} bytes")
    plain = dtype.name if dtype.kind in "fiubc" else dtype.str
    return Entry(name, plain, tuple(map(int, shape)), 0, member.header_offset, size, None)


def readable(entry: Entry) -> bool:
    """Whether `values` can give its values."""
    return in_numpy(entry) or (entry.dtype == "bfloat16" and not entry.sliced)


def values(tensors: Tensors, entry: Entry) -> "np.ndarray":
    """The values as they are, bfloat16 as float32, which is exact.  Damaged for a shape that no array has."""
    import numpy as np

    try:
        if entry.dtype != "bfloat16":
            return tensors.array(entry)
        bits = tensors.array(replace(entry, dtype="uint16"))
    except (ValueError, OverflowError) as cause:
        raise Damaged(f"{tensors.where}: {entry.name} has the shape {list(entry.shape)} ({cause})") from None
    wide = bits.astype(np.uint32)  # the upper half of a float32
    wide <<= 16
    return wide.view(np.float32)


def float32(tensors: Tensors, entry: Entry) -> "np.ndarray":
    """The values as float32: exact for what is as narrow.  UsageError where they are no such numbers."""
    import numpy as np

    if not readable(entry) or entry.dtype not in ("float16", "bfloat16", "float32"):
        raise UsageError(f"{tensors.where}: {entry.name} is {entry.dtype}, expected float32")
    return np.asarray(values(tensors, entry), np.float32)
