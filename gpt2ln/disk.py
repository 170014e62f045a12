"""What files need beyond being written: a digest, a lock, errors with a name, a replacement at one stroke, room."""

import fcntl
import hashlib
import os
import shutil
from pathlib import Path

from .errors import DiskError

BLOCK = 1 << 22


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def lock(handle: int, path: Path) -> None:
    """One writer at a time; the system lets go of the lock however that writer ends.  Closes `handle` if refused."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise DiskError(f"{path.absolute()}: locked, another process writes it; wait for it to end") from None


class disk:
    """What the system says of a file, as a DiskError that names it."""

    def __init__(self, path: Path):
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind, cause, trace) -> None:
        if isinstance(cause, OSError) and not isinstance(cause, BrokenPipeError):
            raise DiskError(f"{self._path.absolute()}: {cause.strerror or cause}") from cause


def replace(path: Path, content: bytes) -> None:
    """Write a small file at one stroke: whoever reads it finds the old one or the new one."""
    with disk(path):
        new = path.with_name(path.name + ".new")
        try:
            with new.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)


def check_room(folder: Path, need: int, advice: str = "") -> None:
    """DiskError where `folder`, or the nearest above it that exists, has not `need` bytes free."""
    while not folder.exists():
        folder = folder.parent
    with disk(folder):
        free = shutil.disk_usage(folder).free
    if need > free:
        raise DiskError(f"{folder.absolute()}: no space: {need} bytes needed, {free} free{advice and '; ' + advice}")
