"""A folder for one process alone.  The lock is the system's, not the file: whoever ends, however, lets go of it."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from .disk import disk, open_own
from .errors import DiskError

LOCK = ".gpt2ln.lock"


@contextlib.contextmanager
def claim(folder: Path) -> Iterator[None]:
    """DiskError, with the number of the process that has it.  A folder made here that got nothing is removed again."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    handle = None
    while handle is None:
        handle = _locked(folder)
    try:
        yield
    finally:
        (folder / LOCK).unlink(missing_ok=True)
        os.close(handle)
        with contextlib.suppress(OSError):
            for path in made:
                path.rmdir()


def _locked(folder: Path) -> int | None:
    """None where the file, or the folder, was removed meanwhile by the process that had made it."""
    with disk(folder):
        folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
    with disk(path):
        try:
            handle = open_own(path, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                os.ftruncate(handle, 0)
                os.write(handle, str(os.getpid()).encode())
                return handle
        except BlockingIOError:
            holder = os.pread(handle, 20, 0).decode("ascii", "replace")
            os.close(handle)
            by = f"by process {holder}" if holder.isdecimal() else "by another process"
            raise DiskError(f"{folder.absolute()}: locked {by}; wait for it to end") from None
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
        return None
