"""What files need beyond being written: a digest, a lock, errors with a name, a replacement at one stroke, room."""

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from .errors import Damaged, DiskError

BLOCK = 1 << 22


def sha256(path: Path) -> str:
    import hashlib  # which a listing does without

    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def contents(path: Path) -> bytes:
    """All of a small file.  FileNotFoundError where there is none, Damaged for a pipe, which may never end."""
    if path.exists() and not path.is_file():
        raise Damaged(f"{path}: a {'folder' if path.is_dir() else 'device or pipe'}, expected a file")
    return path.read_bytes()


def lock(handle: int, path: Path) -> None:
    """One writer at a time; the system lets go of the lock however that writer ends."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DiskError(f"{path.absolute()}: locked, another process writes it; wait for it to end") from None


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Under the lock of a file or folder that is there.  DiskError where another process has it, or OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        lock(handle, path)
        yield
    finally:
        os.close(handle)


def part_of(path: Path) -> Path:
    """What a file or folder is called until it is whole."""
    return path.with_name(path.name + ".part")


def drop(path: Path) -> None:
    """Remove a file that was begun, unless another process holds it."""
    with contextlib.suppress(OSError, DiskError), alone(path):
        path.unlink()


def let_go(held: list[int]) -> None:
    """Close what is open and forget it, in one bytecode: Ctrl-C finds each open and known, or neither."""
    held[:] = filter(None, map(os.close, held))


class disk:
    """What the system says of a file, as a DiskError that names it."""

    def __init__(self, path: Path):
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind, cause, trace) -> None:
        if isinstance(cause, OSError) and not isinstance(cause, BrokenPipeError):
            raise DiskError(f"{self._path.absolute()}: {cause.strerror or cause}") from cause


def open_own(path: Path, flags: int) -> int:
    """Open for writing what is ours: a plain file and no link, which could lead anywhere.  OSError as of `os.open`."""
    try:
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as cause:
        if cause.errno != errno.ELOOP:
            raise
        raise DiskError(f"{path.absolute()}: a link, expected a file of our own; remove it") from None
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise DiskError(f"{path.absolute()}: a device or pipe, expected a file of our own; remove it")


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
    import shutil

    while not folder.exists():
        folder = folder.parent
    with disk(folder):
        free = shutil.disk_usage(folder).free
    if need > free:
        raise DiskError(f"{folder.absolute()}: no space: {need} bytes needed, {free} free{advice and '; ' + advice}")
