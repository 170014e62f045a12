"""What is known of a folder's files: what is published under its name, and what `gpt2ln.json` has pinned.

A folder of the larger models has no published digest to be held against; it has the one it had on the first day.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from .disk import replace
from .errors import Damaged
from .published import FILES, NEEDED, File
from .spec import canonical

RECORD = "gpt2ln.json"
FORMAT = "gpt2ln folder 1"


@dataclass(frozen=True)
class Pin:
    """A file as it was found.  size in bytes; mtime_ns tells, without reading it, that it is still that file."""

    size: int
    sha256: str
    mtime_ns: int

    def still(self, path: Path) -> bool:
        """Whether the file has not been touched since."""
        try:
            now = path.stat()
        except OSError:
            return False
        return (now.st_size, now.st_mtime_ns) == (self.size, self.mtime_ns)


def read_pins(folder: Path) -> dict[str, Pin]:
    """Name -> pin; nothing where there is no record.  Damaged where it is not what was written."""
    return _read(folder)[0]


def read_source(folder: Path) -> str | None:
    """Where the files were fetched from, if they were."""
    return _read(folder)[1]


def _read(folder: Path) -> tuple[dict[str, Pin], str | None]:
    path = folder / RECORD
    if not path.is_file():
        return {}, None
    from .provenance import read_sealed  # with numpy, which a folder without a record does without

    anew = "remove it, and the files are pinned anew by: gpt2ln verify --pin"
    record = read_sealed(path, next_step=anew)
    try:
        if record["format"] == FORMAT and "seal" in record:
            pins = {name: Pin(**pin) for name, pin in record["files"].items()}
            if all(name and name.isprintable() and Path(name).name == name for name in pins):
                return pins, record["source"]
    except (KeyError, TypeError, AttributeError):
        pass
    raise Damaged(f"{path}: not a record of {FORMAT!r}; {anew}")


def official(folder: Path) -> str | None:
    """The released model whose name, or older name, the folder bears."""
    name = canonical(os.path.basename(os.path.abspath(folder)))
    return name if name in FILES else None


def known(path: Path, pins: Mapping[str, Pin]) -> dict[str, File]:
    """Who says what a file is: published, pinned, both or nobody."""
    said = {}
    if (model := official(path.parent)) and path.name in FILES[model]:
        said["published"] = FILES[model][path.name]
    if pin := pins.get(path.name):
        said["pinned"] = File(pin.size, pin.sha256)
    return said


def expected(folder: Path, pins: Mapping[str, Pin]) -> list[str]:
    """Names of files that the folder is to hold because they are published or pinned."""
    return list(dict.fromkeys([*(NEEDED if official(folder) else ()), *pins]))


def write_pins(folder: Path, pins: Mapping[str, Pin], *, model: str, source: str | None) -> None:
    """source: where the files came from; None when they lay there."""
    from .provenance import sealed

    files = {name: asdict(pin) for name, pin in sorted(pins.items())}
    record = sealed({"format": FORMAT, "model": model, "source": source, "files": files})
    replace(folder / RECORD, (json.dumps(record, indent=1) + "\n").encode())
