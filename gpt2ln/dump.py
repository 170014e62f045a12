"""A dump as one file: npz, or JSON lines.  `Sink` is what all kinds of dump are to whoever fills them.

Rows are written as they are computed and none is held back: a long dump needs no more memory than a short one.
Whatever has its final name is whole.
"""

import hashlib
import json
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol, TextIO

import numpy as np

from .plan import Plan
from .provenance import FORMAT, Counts, sealed
from .shards import Shard
from .whole import whole_file


class Sink(Protocol):
    """Where a dump goes."""

    plan: Plan

    def pending(self) -> Sequence[Sequence[int]]:
        """Documents still to be written, in groups: those of one may come side by side and in any order."""

    def begin(self, group: Sequence[int]) -> None: ...

    def write(self, document: int, row: int, taps: Mapping[str, np.ndarray], finite: bool) -> None:
        """Rows of a document from its row `row` on; whether the forward pass was finite there.  From any thread."""

    def end(self, group: Sequence[int]) -> None:
        """All rows of the group are written."""

    def finish(self) -> None:
        """Give what was written its name."""

    def abandon(self) -> None:
        """After an error or Ctrl-C: leave nothing that looks whole."""

    def bad(self) -> Sequence[int]:
        """Documents whose forward pass was not finite."""

    def nonfinite(self) -> Mapping[str, int]:
        """Values written that are not finite, by tap."""


class Npz:
    """One npz: tap names as keys, `tokens`, `doc_ptr`, ..., and `meta`, a JSON text.

    Rows go into a file beside it first, so that a long dump needs no more memory than a short one.
    """

    def __init__(self, path: Path, plan: Plan, provenance: Mapping):
        self.path, self.plan, self._provenance, self._counts = path, plan, provenance, Counts()
        self._rows = Shard(path.with_name(path.name + ".rows"), plan.arrays())
        self._starts = np.cumsum([0, *map(len, plan.rows)])

    def pending(self) -> Sequence[Sequence[int]]:
        return [range(len(self.plan.documents))]

    def begin(self, group: Sequence[int]) -> None:
        self._rows.begin()

    def write(self, document: int, row: int, taps: Mapping[str, np.ndarray], finite: bool) -> None:
        self._counts.add(document, taps, finite, self.plan.dtype)
        for name, x in taps.items():
            self._rows.write(name, int(self._starts[document]) + row, x)

    def end(self, group: Sequence[int]) -> None:
        pass

    def finish(self) -> None:
        for name, x in self.plan.tokens(0, len(self.plan.documents)).items():
            self._rows.write(name, 0, x)
        with whole_file(self.path) as file:
            self._convert(file)
        self._rows.abandon()

    def _convert(self, file: BinaryIO) -> None:
        digests = {}
        with zipfile.ZipFile(file, "w") as archive:
            for name, (dtype, shape) in self._rows.arrays.items():
                digests[name] = _member(archive, name, np.dtype(dtype), shape, self._rows.blocks(name))
            meta = {"format": FORMAT, **self._provenance, **self.plan.record()}
            meta |= {**self._counts.record(), "arrays_sha256": digests}
            text = np.array(json.dumps(sealed(meta), allow_nan=False))
            _member(archive, "meta", text.dtype, (), [text.tobytes()])

    def bad(self) -> list[int]:
        return self._counts.documents

    def nonfinite(self) -> dict[str, int]:
        return self._counts.taps

    def abandon(self) -> None:
        self._rows.abandon()


def _member(
    archive: zipfile.ZipFile, name: str, dtype: np.dtype, shape: tuple[int, ...], blocks: Iterable[bytes]
) -> str:
    """One array -> its sha256.  Dated as the format's first day: the same dump is the same bytes."""
    digest = hashlib.sha256()
    with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
        fields = {"descr": dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, fields)
        for block in blocks:
            digest.update(block)
            file.write(block)
    return digest.hexdigest()


class Lines:
    """JSON lines: `{"meta": ...}`, an object a row, `{"summary": ...}`.  A value that is not finite is null."""

    def __init__(self, out: TextIO, plan: Plan, provenance: Mapping):
        self.out, self.plan, self._counts = out, plan, Counts()
        self._line({"meta": {"format": FORMAT, **provenance, **plan.record()}})

    def _line(self, record: Mapping) -> None:
        self.out.write(json.dumps(record, allow_nan=False) + "\n")

    def pending(self) -> Sequence[Sequence[int]]:
        return [[n] for n in range(len(self.plan.documents))]  # one after the other: lines have an order

    def begin(self, group: Sequence[int]) -> None:
        pass

    def write(self, document: int, row: int, taps: Mapping[str, np.ndarray], finite: bool) -> None:
        self._counts.add(document, taps, finite, self.plan.dtype)
        with np.errstate(over="ignore"):
            cast = {name: x.astype(self.plan.dtype, copy=False) for name, x in taps.items()}
        read = self.plan.documents[document]
        first = {"doc": document} if read.id is None else {"doc": document, "doc_id": read.id}
        for n, position in enumerate(self.plan.rows[document][row : row + len(next(iter(taps.values())))]):
            token = read.ids[position]
            spelt = self.plan.spell(token).decode("utf-8", "backslashreplace")
            values = {name: _numbers(x[n]) for name, x in cast.items()}
            self._line({**first, "i": int(position), "id": token, "text": spelt, "taps": values})

    def end(self, group: Sequence[int]) -> None:
        self.out.flush()

    def finish(self) -> None:
        counts = {"documents": len(self.plan.documents), "rows": self.plan.n_rows}
        self._line({"summary": {**counts, **self._counts.record()}})

    def bad(self) -> Sequence[int]:
        return self._counts.documents

    def nonfinite(self) -> Mapping[str, int]:
        return self._counts.taps

    def abandon(self) -> None:
        pass


def _numbers(x: np.ndarray) -> list | float | None:
    """Every digit of it, as JSON takes it; a single number without brackets."""
    return _nulled(x[0] if x.shape == (1,) else x)


def _nulled(x: np.ndarray) -> list | float | None:
    if np.isfinite(x).all():
        return x.tolist()
    return [_nulled(part) for part in x] if x.ndim else None
