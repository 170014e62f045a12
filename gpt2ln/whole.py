"""A folder or file that is made at one stroke: it has its name when it is whole, and nothing not ours is lost.

Ctrl-C may come between any two steps: what was begun is known by its name and its lock, not by how far a run had come.
"""

import contextlib
import os
import shutil
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from .disk import alone, disk, drop, let_go, lock, part_of
from .errors import DiskError, NotFound, UsageError, first_five


@contextlib.contextmanager
def whole_folder(folder: Path, names: Collection[str], *, force: bool = False) -> Iterator[Path]:
    """`FOLDER.part`, to be filled; it becomes FOLDER when the block ends, and goes where the block fails.

    force: a FOLDER that is there makes room, if it holds files of these names alone.  UsageError where it may not.
    """
    folder = checked_folder(folder, names, force=force)
    part = part_of(folder)
    begun = {name + end for name in names for end in ("", ".part", ".new")}
    held: list[int] = []
    try:
        _hold(part, begun, held)
        yield part
        _take_the_place(part, folder)
    except BaseException:
        let_go(held)
        _drop(part, begun)
        raise
    finally:
        let_go(held)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """`PATH.part`, empty, to be written; it becomes PATH when the block ends, and goes where the block fails."""
    part = part_of(path)
    held: list[int] = []
    try:
        with disk(part):
            held.append(os.open(part, os.O_RDWR | os.O_CREAT, 0o666))
            lock(held[0], part)
            with os.fdopen(held[0], "r+b", closefd=False) as file:
                file.truncate()  # what a killed run has left
                yield file
            os.fsync(held[0])
            part.replace(path)
    except BaseException:
        let_go(held)
        drop(part)
        raise
    finally:
        let_go(held)


def checked_folder(folder: Path, names: Collection[str], *, force: bool = False) -> Path:
    """The folder, links followed; refused, before anything is written, where it cannot be one that is made."""
    real = Path(os.path.realpath(folder))
    if not real.name or real == Path.cwd():
        raise UsageError(f"{folder}: is where you are, expected the name of a new folder")
    if not real.parent.is_dir():
        raise NotFound(f"{real.parent}: no such folder, make it first; it is to hold {real.name}")
    if real.exists() and not real.is_dir():
        raise UsageError(f"{folder}: is a file, expected the name of a new folder")
    with disk(real):
        held = sorted(os.listdir(real)) if real.exists() else []
    if held and not force:
        raise UsageError(f"{folder}: exists and holds {first_five(held)}; --force replaces it")
    if other := _not_ours(real, held, names):
        raise UsageError(f"{folder}: holds {first_five(other)}, which would be lost; choose another folder")
    return real


def _not_ours(folder: Path, held: Iterable[str], names: Collection[str]) -> list[str]:
    return [name for name in held if name not in names or not (folder / name).is_file()]


def _hold(part: Path, begun: Collection[str], held: list[int]) -> None:
    """An empty folder under a lock: what a killed run has left is cleared, and anything else refused."""
    with disk(part):
        part.mkdir(exist_ok=True)
        held.append(os.open(part, os.O_RDONLY))
        lock(held[0], part)
        names = sorted(os.listdir(part))
        if other := _not_ours(part, names, begun):
            raise UsageError(f"{part}: holds {first_five(other)}, which would be lost; move it away")
        for name in names:
            (part / name).unlink()


def _drop(part: Path, begun: Collection[str]) -> None:
    """Remove it, unless another process holds it or somebody keeps something else there."""
    with contextlib.suppress(OSError, DiskError), alone(part):
        if not _not_ours(part, os.listdir(part), begun):
            shutil.rmtree(part, ignore_errors=True)


def _take_the_place(part: Path, folder: Path) -> None:
    """Rename, through a third name where there is a folder that is not empty: one of the two is whole at any time."""
    old = folder.with_name(folder.name + ".old")
    with disk(folder):
        if not folder.exists() or not os.listdir(folder):
            part.rename(folder)
            return
        if os.path.lexists(old):
            raise UsageError(f"{old}: is in the way, {folder.name} would be moved there for a moment; move it away")
        try:
            folder.rename(old)
            part.rename(folder)
            shutil.rmtree(old)
        except BaseException:
            if not os.path.lexists(folder):
                old.rename(folder)
            shutil.rmtree(old, ignore_errors=True)
            raise
