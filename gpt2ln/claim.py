"""A folder for one process alone.  The lock is the system's, not the file: whoever ends, however, lets go of it."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from .disk import disk, drop, let_go, open_own
from .errors import DiskError

LOCK = ".gpt2ln.lock"


@contextlib.contextmanager
def claim(folder: Path) -> Iterator[None]:
    """DiskError, with the number of the process that has it.  A folder made here that got nothing is removed again."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    held: list[int] = []
    try:
        while not _locked(folder, held):
            let_go(held)
        yield
        _leave(folder, held, made)
    except BaseException:
        _leave(folder, held, made)
        raise


def _leave(folder: Path, held: list[int], made: list[Path]) -> None:
    let_go(held)
    drop(folder / LOCK)
    for path in made:
        with contextlib.suppress(OSError):
            path.rmdir()


def _locked(folder: Path, held: list[int]) -> bool:
    """False where the file, or the folder, was removed meanwhile by the process that had made it."""
    with disk(folder):
        folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
    with disk(path):
        try:
            held.append(open_own(path, os.O_RDWR | os.O_CREAT))
            fcntl.flock(held[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(held[0]), os.stat(path)):
                return False
        except FileNotFoundError:
            return False
        except BlockingIOError:
            holder = os.pread(held[0], 20, 0).decode("ascii", "replace")
            by = f"by process {holder}" if holder.isdecimal() else "by another process"
            raise DiskError(f"{folder.absolute()}: locked {by}; wait for it to end") from None
        os.ftruncate(held[0], 0)
        os.write(held[0], str(os.getpid()).encode())
        return True
