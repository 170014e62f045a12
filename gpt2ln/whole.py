"""A folder that is made at one stroke: it has its name when it is whole, and nothing that is not ours is lost."""

import contextlib
import os
import shutil
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from .disk import disk, lock
from .errors import NotFound, UsageError, first_five


@contextlib.contextmanager
def whole_folder(folder: Path, names: Collection[str], *, force: bool = False) -> Iterator[Path]:
    """`FOLDER.part`, to be filled; it becomes FOLDER when the block ends, and goes where the block fails.

    force: a FOLDER that is there makes room, if it holds files of these names alone.  UsageError where it may not.
    """
    folder = checked_folder(folder, names, force=force)
    part = folder.with_name(folder.name + ".part")
    handle = _locked(part, names)
    try:
        yield part
        _take_the_place(part, folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    finally:
        os.close(handle)


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


def _locked(part: Path, names: Collection[str]) -> int:
    """An empty folder under a lock: what a killed run has left is cleared, and anything else refused."""
    begun = {name + end for name in names for end in ("", ".part", ".new")}
    with disk(part):
        part.mkdir(exist_ok=True)
        handle = os.open(part, os.O_RDONLY)
    lock(handle, part)
    try:
        with disk(part):
            held = sorted(os.listdir(part))
            if other := _not_ours(part, held, begun):
                raise UsageError(f"{part}: holds {first_five(other)}, which would be lost; move it away")
            for name in held:
                (part / name).unlink()
    except BaseException:
        os.close(handle)
        raise
    return handle


def _take_the_place(part: Path, folder: Path) -> None:
    """Rename, through a third name where there is a folder that is not empty: one of the two is whole at any time."""
    old = folder.with_name(folder.name + ".old")
    with disk(folder):
        if not folder.exists() or not os.listdir(folder):
            part.rename(folder)
            return
        if os.path.lexists(old):
            raise UsageError(f"{old}: is in the way, {folder.name} would be moved there for a moment; move it away")
        folder.rename(old)
        try:
            part.rename(folder)
        except BaseException:
            old.rename(folder)
            raise
        shutil.rmtree(old)
