"""The stump of a file: `NAME.part`, and `NAME.part.json`, which says of what it is the beginning.

It is trusted no further than its sum: what a killed run has left goes on, what a power cut has garbled is dropped.
"""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import google_crc32c

from .disk import BLOCK, disk, open_own
from .disk import replace as write_whole

MARK_EVERY = 1 << 25  # bytes from one mark to the next: each waits for the disk


@dataclass(frozen=True)
class Origin:
    """Of what the bytes are the beginning, as the server named it; total in bytes, content_md5 in base64.

    held, crc32c: how many bytes had surely reached the disk, and their sum.
    """

    url: str
    etag: str | None = None
    last_modified: str | None = None
    total: int | None = None
    content_md5: str | None = None
    held: int = 0
    crc32c: int = 0


class Stump:
    """The open file with the sums of what it holds.  DiskError when the disk does not take it.

    on_bytes: told of every change, before it is made; what it raises leaves the file as it was.
    """

    def __init__(self, part: Path, on_bytes: Callable[[int], None] = lambda _: None):
        self.part, self._beside, self._on_bytes = part, part.with_name(part.name + ".json"), on_bytes
        self._fd, self._whole, self.origin = None, False, None
        self._empty_sums()
        if part.exists():
            self._open()
            try:
                self.origin = _origin(self._beside)
                self._take_up()
            except BaseException:
                os.close(self._fd)
                raise

    def _open(self, make: int = 0) -> None:
        with disk(self.part):
            self._fd = open_own(self.part, os.O_RDWR | make)

    @property
    def name(self) -> str:
        return self.part.name.removesuffix(".part")

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    @property
    def md5(self) -> bytes:
        return self._md5.digest()

    def _empty_sums(self) -> None:
        self.size, self._crc, self.tail = 0, 0, b""
        self._sha256, self._md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)

    def _add(self, block: bytes) -> None:
        self._sha256.update(block)
        self._md5.update(block)
        self._crc = google_crc32c.extend(self._crc, block)
        self.size += len(block)
        self.tail = (self.tail + block[-8:])[-8:]

    def _take_up(self) -> None:
        """Read what is there once; drop it where it is not what was marked."""
        held, crc = (self.origin.held, self.origin.crc32c) if self.origin else (0, 0)
        fits = held == 0
        with disk(self.part):
            while block := os.pread(self._fd, min(BLOCK, held - self.size) if self.size < held else BLOCK, self.size):
                self._add(block)
                fits = fits or (self.size == held and self._crc == crc)
        self._on_bytes(self.size)
        if not fits or (self._beside.exists() and self.origin is None):
            self.drop()

    def drop(self) -> None:
        """Begin at 0, with nothing known."""
        self._on_bytes(-self.size)
        with disk(self.part):
            self._beside.unlink(missing_ok=True)
            if self._fd is not None:
                os.ftruncate(self._fd, 0)
        self._empty_sums()
        self.origin = None

    def begin(self, origin: Origin) -> None:
        """At 0, of this origin; the file is made here and not before."""
        self.drop()
        if self._fd is None:
            self._open(os.O_CREAT)
        self.go_on(origin)

    def go_on(self, origin: Origin) -> None:
        """Where it ends, from this origin."""
        self.origin = origin
        self._mark()

    def write(self, block: bytes) -> None:
        self._on_bytes(len(block))
        view = memoryview(block)
        with disk(self.part):
            at = self.size
            while view:
                done = os.pwrite(self._fd, view, at)
                view, at = view[done:], at + done
        self._add(block)
        if self.size - self.origin.held >= MARK_EVERY:
            self._mark()

    def _mark(self) -> None:
        with disk(self.part):
            os.fsync(self._fd)
        self.origin = replace(self.origin, held=self.size, crc32c=self._crc)
        write_whole(self._beside, json.dumps(asdict(self.origin)).encode())

    def finish(self) -> None:
        """All of it is here and right: on the disk, and nothing left to say of it."""
        with disk(self.part):
            os.fsync(self._fd)
            self._beside.unlink(missing_ok=True)
        self._whole = True

    def close(self) -> None:
        """One into which nothing came leaves nothing."""
        if self._fd is None:
            return
        with disk(self.part):
            os.close(self._fd)
            if self.size == 0 and not self._whole:
                self._beside.unlink(missing_ok=True)
                self.part.unlink(missing_ok=True)

    def __enter__(self) -> "Stump":
        return self

    def __exit__(self, *_) -> None:
        self.close()


def _origin(path: Path) -> Origin | None:
    """What stands beside the stump; None where nothing does, or nothing that was written here."""
    try:
        found = Origin(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    texts = (found.url, found.etag or "", found.last_modified or "", found.content_md5 or "")
    numbers = (found.total or 0, found.held, found.crc32c)
    sound = all(isinstance(text, str) for text in texts) and all(isinstance(number, int) for number in numbers)
    return found if sound and min(numbers) >= 0 else None
