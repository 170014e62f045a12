"""Which models lie on this disk, and how whole they are, as far as names, sizes and the index tell: in milliseconds.

Values are not read; whether somebody has, and found them whole, is what the pins say.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .checkpoint import Bundle, read_index
from .disk import sha256
from .errors import Gpt2lnError, NotFound, UsageError, first_five
from .locate import DEMO, Place
from .pins import expected, known, read_pins
from .prepared import Prepared, any_in, command, find, is_engine
from .spec import MODEL_FILES
from .tensors import foreign
from .weights import check, read_hparams


@dataclass(frozen=True)
class Found:
    """What stands on a shelf.  bytes of all its files.

    state: whole | different (not the published or pinned sizes) | unfinished | incomplete | damaged | several |
    not a model.

    verified: yes | changed since | no, by the pins.  engine: the prepared one, where there is any.
    """

    name: str
    path: Path
    state: str
    text: str
    bytes: int
    verified: str
    engine: Prepared | None = None


@dataclass(frozen=True)
class Shelf:
    """A place where models are looked for.  why: why nothing is found there, if so."""

    path: Path
    why: str | None
    models: tuple[Found, ...] = ()


def take(shelves: Sequence[Path], cache_dir: Path | None = None) -> list[Shelf]:
    """What is on each shelf, and the built-in demo, which is always there.  cache_dir: where engines may be, too."""
    return [_shelf(path, cache_dir) for path in shelves] + [Shelf(DEMO.parent, None, (_found(DEMO, cache_dir),))]


def _shelf(path: Path, cache_dir: Path | None) -> Shelf:
    if not os.path.exists(path):  # False, not an error, for a name that is too long
        return Shelf(path, "no such folder")
    if not path.is_dir():
        return Shelf(path, "a file, not a folder")
    try:
        folders = sorted(entry for entry in path.iterdir() if not entry.name.startswith(".") and not entry.is_file())
        folders = [folder for folder in folders if not is_engine(folder)]
    except OSError as cause:
        return Shelf(path, cause.strerror or str(cause))
    return Shelf(path, None, tuple(_found(folder, cache_dir) for folder in folders))


def _found(folder: Path, cache_dir: Path | None) -> Found:
    try:
        state, text = _state(folder)
        size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file()) if folder.is_dir() else 0
        usable = state in ("whole", "different")
        verified, engine = (_verified(folder), _engine(folder, cache_dir)) if usable else ("no", None)
        return Found(folder.name, folder, state, text, size, verified if state == "whole" else "no", engine)
    except (OSError, Gpt2lnError) as cause:
        return Found(folder.name, folder, "damaged", _words(cause, folder), 0, "no")


def _words(cause: Exception, folder: Path) -> str:
    """Without the path, which has a column of its own."""
    if isinstance(cause, OSError):
        return cause.strerror or str(cause)
    return (
        str(cause).removeprefix(f"{folder.absolute()}: ").replace(f"{folder.absolute()}/", "").replace(f"{folder}/", "")
    )


def _state(folder: Path) -> tuple[str, str]:
    """-> state, what there is to say"""
    if not folder.is_dir():
        return "not a model", "neither a file nor a folder" if folder.exists() else "a link to nowhere"
    place, begun = Place(folder.name, folder), any(path.is_file() for path in folder.glob("*.part"))
    try:
        problems, notes = _problems(place, read_index(place.prefix))
    except NotFound as cause:
        problems, notes = [_words(cause, folder)] if any(folder.glob("*.index")) else [], []
        if not problems and not begun:
            return "not a model", _stranger(folder)
    except UsageError:
        return "several", "more than one checkpoint; choose with --checkpoint"
    if begun and (problems or not any(folder.glob("*.index"))):
        return "unfinished", f"a download was begun; go on with: gpt2ln download {folder.name}"
    if problems:
        gone = all(problem.endswith(" missing") or ": no such file" in problem for problem in problems)
        return "incomplete" if gone else "damaged", first_five(problems, "; ")
    differs = list(_differs(folder))
    return ("different", first_five(differs, "; ")) if differs else ("whole", first_five(notes, "; "))


def _stranger(folder: Path) -> str:
    if foreign(folder):
        return "safetensors, which inspect, diff and import read"
    return "no checkpoint in it"


def _problems(place: Place, bundle: Bundle) -> tuple[list[str], list[str]]:
    """What names and sizes show -> problems, warnings"""
    problems: list[str] = []
    wanted = [*MODEL_FILES, *expected(place.folder, read_pins(place.folder))]
    if missing := [name for name in dict.fromkeys(wanted) if not place.file(name).is_file()]:
        problems.append(f"{first_five(missing)} missing")
    if "hparams.json" in missing:
        return problems, []
    found = check(bundle, read_hparams(place.file("hparams.json"))[0])
    return problems + found.problems, [note for note in found.notes if note.startswith("warning: ")]


def _differs(folder: Path) -> Iterator[str]:
    """Sound as far as it shows, but of another size than is published or pinned."""
    pins = read_pins(folder)
    for name in expected(folder, pins):
        size = (folder / name).stat().st_size
        sizes = [f"{who} {f.size}" for who, f in known(folder / name, pins).items() if f.sure and not f.size_fits(size)]
        if sizes:
            yield f"{name} has {size} bytes, {first_five(sizes)}"


def _verified(folder: Path) -> str:
    """Whether all files were pinned, and none has been touched since."""
    pins = read_pins(folder)
    if not pins:
        return "no"
    return "yes" if all(pin.still(folder / name) for name, pin in pins.items()) else "changed since"


def _engine(folder: Path, cache_dir: Path | None) -> Prepared | None:
    place = Place(folder.name, folder)
    prefix = place.prefix
    folders = [*([] if cache_dir is None else [cache_dir]), prefix.parent]
    if not any_in(folders):
        return None
    index, hparams = prefix.with_name(prefix.name + ".index"), read_hparams(place.file("hparams.json"))[0]
    found = find(sha256(index), hparams, folders, run=command(place, cache_dir))
    return None if found.state == "none" else found
