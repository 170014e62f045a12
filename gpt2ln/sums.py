"""All sums of a data file in one reading: the CRC32C of every variable in it and, if wanted, the sha256 of the whole.

Plain reads, not a map: where a disk fails or a file gets shorter meanwhile, a map ends the process and a read says so.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

from .checkpoint import Bundle, Entry, bad_sum
from .finding import BadTensor

BLOCK = 1 << 20
AHEAD = 4  # blocks that may wait for the digest


@dataclass(frozen=True)
class Sums:
    """What one reading gave.  checked: variables that lie wholly in the file."""

    checked: int
    bad: tuple[BadTensor, ...]
    sha256: str | None


def data_files(prefix: Path, bundle: Bundle | None = None) -> list[Path]:
    """Those that the index needs; without one, those that are there, or the one there should be."""
    if bundle:
        return [bundle.shard_path(n) for n in sorted({e.shard for e in (*bundle.entries.values(), *bundle.pieces)})]
    there = sorted(path for path in prefix.parent.iterdir() if path.name.startswith(f"{prefix.name}.data-"))
    return there or [prefix.with_name(f"{prefix.name}.data-00000-of-00001")]


def in_shard(bundle: Bundle, path: Path) -> list[Entry]:
    """What lies in this file; of a sliced variable its pieces."""
    entries = (e for e in (*bundle.entries.values(), *bundle.pieces) if not e.sliced)
    return [e for e in entries if bundle.shard_path(e.shard) == path]


def read_sums(path: Path, bundle: Bundle | None, *, digest: bool, on_bytes: Callable[[int], object]) -> Sums:
    """Hold a data file against its index; without one there is only the digest.  OSError where it cannot be read."""
    entries = [e for e in in_shard(bundle, path) if e.dtype != "variant"] if bundle else []
    found, sha256 = _read(path, entries, digest, on_bytes)
    bad = [problem for entry in entries if entry in found and (problem := _bad(bundle, entry, found[entry]))]
    return Sums(len(found), tuple(bad), sha256)


def _bad(bundle: Bundle, entry: Entry, found: int) -> BadTensor | None:
    name = entry.name if entry.name.isprintable() else f"a slice at byte {entry.offset}"
    if entry.dtype == "string":  # the sum is not that of its bytes
        return BadTensor(name, None, entry.crc) if bad_sum(bundle, entry) else None
    return None if found == entry.crc else BadTensor(name, found, entry.crc)


def _read(
    path: Path, entries: Iterable[Entry], digest: bool, on_bytes: Callable[[int], object]
) -> tuple[dict[Entry, int], str | None]:
    """-> CRC32C of each that lies wholly in the file, sha256, which a second thread adds up."""
    sums = {entry: 0 for entry in entries if not entry.size}
    waiting = deque(sorted((e for e in entries if e.size), key=lambda e: e.offset))
    running: dict[Entry, int] = {}
    total, behind, at = hashlib.sha256(), deque(), 0
    with path.open("rb", buffering=0) as file, ThreadPoolExecutor(1) as second:
        while block := file.read(BLOCK):
            if digest:
                behind.append(second.submit(total.update, block))
            if len(behind) > AHEAD:
                behind.popleft().result()
            stop = at + len(block)
            while waiting and waiting[0].offset < stop:
                running[waiting.popleft()] = 0
            for entry, crc in list(running.items()):
                last = entry.offset + entry.size
                running[entry] = google_crc32c.extend(crc, block[max(entry.offset - at, 0) : last - at])
                if last <= stop:
                    sums[entry] = running.pop(entry)
            at = stop
            on_bytes(len(block))
    return sums, total.hexdigest() if digest else None
