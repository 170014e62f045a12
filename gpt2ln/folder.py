"""A dump as a folder: `manifest.json`, `shard-00000.safetensors`, ...

A folder that was interrupted, even by kill -9, goes on where its last whole shard ends, and is then byte for byte what
it would have been.  Until then its manifest is called `manifest.json.part` and has no seal.
"""

import contextlib
import json
import os
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path

import numpy as np

from .disk import alone, disk, let_go, lock, replace, sha256
from .errors import Damaged, DiskError, NotFound, UsageError, in_short
from .plan import Plan
from .provenance import FORMAT, Counts, read_sealed, sealed, total
from .shards import Shard

MANIFEST, BEGUN = "manifest.json", "manifest.json.part"
ANEW = "--force begins anew"
_ENTRY = {"file", "documents", "rows", "bytes", "sha256", "nonfinite", "nonfinite_documents"}


class Folder:
    """`manifest.json`, `shard-00000.safetensors`, ...: one shard open at a time, its rows written as they come."""

    def __init__(self, folder: Path, plan: Plan, provenance: Mapping, *, limit: int, resume: bool, force: bool):
        self.folder, self.plan, self._edges = folder, plan, plan.shards(limit)
        self._whole: dict[int, dict] = {}  # number of a shard -> what the manifest says of it
        self._open: Shard | None = None
        self._begun = {"format": FORMAT, **provenance, **plan.record(), "shard_bytes": limit}
        self._held: list[int] = []
        try:
            with disk(folder):
                folder.mkdir(exist_ok=True)
                self._held.append(os.open(folder, os.O_RDONLY))
                lock(self._held[0], folder)
                self._take_over(resume, force)
        except BaseException:
            let_go(self._held)
            with contextlib.suppress(OSError, DiskError), alone(folder):  # it holds something, or is another's
                folder.rmdir()
            raise

    def _take_over(self, resume: bool, force: bool) -> None:
        if force:
            _clear(self.folder)
        if resume:
            self._resume()
        if not self.complete:
            self._save()
            (self.folder / MANIFEST).unlink(missing_ok=True)

    def _resume(self) -> None:
        """Take over what is whole.  Damaged where a file is not what its manifest says."""
        name = next((name for name in (MANIFEST, BEGUN) if (self.folder / name).exists()), None)
        if name is None:
            return
        found = read_sealed(self.folder / name, next_step=ANEW)
        _same_run(self.folder, found, self._begun)
        self._begun["command"] = found.get("command")
        for n, entry in self._stated(found, self.folder / name).items():
            path = self._shard(n)
            if not path.exists():
                continue
            if (is_now := sha256(path)) != entry["sha256"]:
                raise Damaged(
                    f"{path}: sha256 {is_now[:16]}..., {name} says {entry['sha256'][:16]}...: changed after it was"
                    " written; remove it, and --resume writes it again"
                )
            self._whole[n] = entry

    def _stated(self, found: dict, where: Path) -> dict[int, dict]:
        """What a manifest, perhaps without a seal, says of each shard.  Damaged where no dump says so."""
        try:
            stated = {self._edges.index(tuple(entry["documents"])): entry for entry in found["shards"]}
            if all(entry.keys() >= _ENTRY for entry in stated.values()):
                return stated
        except (KeyError, TypeError, ValueError):
            pass
        raise Damaged(f"{where}: lists shards as no dump does; {ANEW}")

    def _shard(self, n: int) -> Path:
        return self.folder / f"shard-{n:05d}.safetensors"

    @property
    def complete(self) -> bool:
        return len(self._whole) == len(self._edges)

    @property
    def whole(self) -> int:
        return len(self._whole)

    @property
    def state(self) -> str:
        return f"{len(self._whole)} of {len(self._edges)} shards are whole"

    def bad(self) -> list[int]:
        return [n for _, entry in sorted(self._whole.items()) for n in entry["nonfinite_documents"]]

    def nonfinite(self) -> dict[str, int]:
        return total(entry["nonfinite"] for entry in self._whole.values())

    def pending(self) -> list[range]:
        return [range(*edges) for n, edges in enumerate(self._edges) if n not in self._whole]

    def begin(self, group: range) -> None:
        n = self._edges.index((group.start, group.stop))
        self._open = Shard(self._shard(n), self.plan.arrays(group.start, group.stop))
        self._open.begin()
        self._first_rows = dict(
            zip(group, accumulate(map(len, self.plan.rows[group.start :]), initial=0), strict=False)
        )
        self._counts = Counts()

    def write(self, document: int, row: int, taps: Mapping[str, np.ndarray], finite: bool) -> None:
        self._counts.add(document, taps, finite, self.plan.dtype)
        for name, x in taps.items():
            self._open.write(name, self._first_rows[document] + row, x)

    def end(self, group: range) -> None:
        for name, x in self.plan.tokens(group.start, group.stop).items():
            self._open.write(name, 0, x)
        digest = self._open.finish()
        edges = (group.start, group.stop)
        entry = {
            "file": self._open.path.name,
            "documents": list(edges),
            "rows": sum(len(self.plan.rows[d]) for d in group),
        }
        entry |= {"bytes": self._open.path.stat().st_size, "sha256": digest, **self._counts.record()}
        self._whole[self._edges.index(edges)], self._open = entry, None
        self._save()

    @property
    def manifest(self) -> dict:
        return {**self._begun, "shards": [entry for _, entry in sorted(self._whole.items())]}

    def _save(self) -> None:
        """Replace the manifest at one stroke; with its seal where nothing is missing."""
        manifest = sealed(self.manifest) if self.complete else self.manifest
        text = json.dumps(manifest, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        replace(self.folder / BEGUN, text.encode("utf-8", "backslashreplace"))

    def finish(self) -> None:
        assert self.complete, self.state
        with disk(self.folder / MANIFEST):
            if (self.folder / BEGUN).exists():
                (self.folder / BEGUN).replace(self.folder / MANIFEST)
        let_go(self._held)

    def abandon(self) -> None:
        """Whole shards stay for --resume; a folder without any goes.  Ctrl-C may have come between any two steps."""
        if self._open is not None:
            self._open.abandon()
        whole = {entry["file"] for entry in self._whole.values()}
        for path in _shards(self.folder):  # ours: the folder is locked
            if path.name not in whole:  # begun, or named and not yet counted
                path.unlink()
        if self._whole:
            with contextlib.suppress(DiskError):  # a full disk has the manifest of the shard before
                if not (self.folder / MANIFEST).exists():
                    self._save()
        else:
            _clear(self.folder)
            with contextlib.suppress(OSError):  # files that are not ours
                self.folder.rmdir()
        let_go(self._held)


def check_folder(folder: Path, *, resume: bool, force: bool) -> None:
    """UsageError where a folder is not ours to write into; before anything is computed."""
    if not folder.absolute().parent.is_dir():
        raise NotFound(f"{folder.absolute().parent}: no such folder, make it first; it is to hold {folder.name}")
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UsageError(f"{folder}: exists and is no folder; choose another name, or --format npz|jsonl")
    names = {path.name for path in folder.iterdir()} - {BEGUN + ".new"}  # all that a run killed at once leaves
    if not names or (resume and names & {MANIFEST, BEGUN}):
        return
    if not names & {MANIFEST, BEGUN}:
        raise UsageError(f"{folder}: exists, holds {min(names)} and is no dump; choose another name")
    if not force:
        state = "holds a whole dump" if MANIFEST in names else "holds an interrupted dump; --resume goes on with it"
        raise UsageError(f"{folder}: exists, {state}; {ANEW}")


def held_bytes(folder: Path) -> int:
    """What shards already there take; a run that goes on or begins anew needs no room for them."""
    return sum(path.stat().st_size for path in _shards(folder)) if folder.is_dir() else 0


def _shards(folder: Path) -> list[Path]:
    """Those with a name, and those that are begun."""
    return [path for end in ("", ".part") for path in folder.glob(f"shard-?????.safetensors{end}")]


def _clear(folder: Path) -> None:
    """Remove what a dump writes, and nothing else."""
    for path in (*folder.glob(MANIFEST), *folder.glob(BEGUN + "*"), *_shards(folder)):
        path.unlink()


def _same_run(folder: Path, found: dict, begun: dict) -> None:
    """UsageError naming what differs between the run that was interrupted and this one."""
    if found.get("format") != FORMAT:
        raise UsageError(f"{folder}: format {found.get('format')!r}, expected {FORMAT!r}; {ANEW}")
    differing = [key for key in begun if key != "command" and found.get(key) != json.loads(json.dumps(begun[key]))]
    if differing:
        key = differing[0]
        was, now = (in_short(x.get(key)) for x in (found, begun))
        raise UsageError(
            f"{folder}: was begun with other settings: {', '.join(differing)} ({key} was {was}, is {now}); repeat them"
            f" with --resume, or {ANEW}"
        )
