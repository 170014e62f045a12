"""What was found of one file, and how it comes about: a file is looked at, read, and its state is the worst of it."""

import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from .errors import Damaged, NotFound

STATES = ("ok", "unchecked", "different", "missing", "unreadable", "damaged")  # the last is the worst


@dataclass(frozen=True)
class BadTensor:
    """A variable whose bytes are not those of the index.  CRC32C each; found None where its strings are garbled."""

    name: str
    found: int | None
    stored: int

    def __str__(self):
        if self.found is None:
            return f"{self.name} (its strings do not fit their CRC32C)"
        return f"{self.name} (CRC32C is {self.found:#010x}, the index says {self.stored:#010x})"


@dataclass(frozen=True)
class Finding:
    """What was found of one file.  state: one of STATES; size and mtime_ns as they were before it was read.

    different: sound, but not the published or pinned bytes.  unchecked: its values were not read.
    """

    file: str
    state: str
    text: str
    size: int | None = None
    sha256: str | None = None
    mtime_ns: int | None = None
    tensors: tuple[BadTensor, ...] = ()


@dataclass
class Look:
    """A file while it is looked at.  gone: missing | unreadable, the reason in problems."""

    path: Path
    name: str
    size: int | None = None
    mtime_ns: int | None = None
    sha256: str | None = None
    gone: str | None = None
    unread: bool = False
    problems: list[str] = field(default_factory=list)
    differs: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    tensors: tuple[BadTensor, ...] = ()

    @property
    def there(self) -> bool:
        return self.gone is None and self.size is not None

    def damaged(self, cause: object) -> None:
        """A problem in the words of whoever found it, less the path, which the finding itself names."""
        self.problems.append(str(cause).removeprefix(f"{self.path}: ").removeprefix(f"{self.path.parent}/"))

    def reading(self, read: Callable[[], object]) -> object:
        """What `read` gives, None where there is no file; what is wrong with it goes into the finding."""
        try:
            return read() if self.there else None
        except (Damaged, NotFound) as cause:
            self.damaged(cause)
        except OSError as cause:
            self.gone, self.problems = "unreadable", [cause.strerror or str(cause)]
        return None

    def finding(self) -> Finding:
        state = self.gone or ("damaged" if self.problems else "different" if self.differs else None)
        state = state or ("unchecked" if self.unread else "ok")
        text = "; ".join([*self.problems, *self.differs] or self.said)
        return Finding(self.name, state, text, self.size, self.sha256, self.mtime_ns, self.tensors)


def worst(findings: Iterable[Finding]) -> str:
    """Damaged before unreadable before missing before different: what is damaged is nothing to go on with."""
    return max((finding.state for finding in findings), key=STATES.index)


def look_at(path: Path, folder: Path) -> Look:
    """Only what can be read like a file is: a pipe would never end."""
    look = Look(path, path.name if path.parent == folder else str(path))
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        look.gone = "missing"
        look.problems = [f"a link to {os.readlink(path)}, which is not there" if path.is_symlink() else "no such file"]
    except OSError as cause:
        look.gone, look.problems = "unreadable", [cause.strerror or str(cause)]
    else:
        if stat.S_ISREG(found.st_mode):
            look.size, look.mtime_ns = found.st_size, found.st_mtime_ns
        else:
            look.problems = [
                "a folder, expected a file" if stat.S_ISDIR(found.st_mode) else "a device or pipe, expected a file"
            ]
    return look
