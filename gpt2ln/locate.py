"""Where a name leads: `-m 124M`, an alias, a folder, a prefix or any one file of a checkpoint -> a `Place`."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import NotFound, UsageError
from .spec import MODEL_FILES, RELEASED, canonical

DEMO = Path(__file__).parent / "demo"
_MEMBER = re.compile(r"(?P<prefix>.+)\.(index|meta|data-\d{5}-of-\d{5})")
_STATE = re.compile(r"""^\s*model_checkpoint_path:\s*(["'])(?P<path>.*)\1\s*$""", re.MULTILINE)
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|[\\\"'])")


@dataclass(frozen=True)
class Place:
    """A model on disk: vocabulary and hyperparameters from `folder`, weights from `prefix`."""

    name: str
    folder: Path
    named: Path | None = None  # the prefix, where the user said which

    @property
    def prefix(self) -> Path:
        """Looked up when it is needed: a vocabulary can be used without weights."""
        return self.named or _only_prefix(self.folder)

    def file(self, name: str) -> Path:
        return self.folder / name


def default_shelves(models_dir: str | Path | None, environ: Mapping[str, str]) -> list[Path]:
    """Where models are looked for: the folder given alone, else `models` here and in the user's data folder."""
    if models_dir is not None:
        return [Path(os.path.expanduser(os.path.expandvars(models_dir)))]
    data = environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return [Path("models"), Path(data) / "gpt2ln" / "models"]


def find(name: str | None, shelves: Sequence[Path], checkpoint: Path | None = None) -> Place:
    """Look `name` up on the shelves, then on disk; without a name the 124M where it is there, else the demo.

    NotFound with the absolute places looked at; `Place.prefix` raises UsageError where a folder holds several.
    """
    folder, prefix = _leads_to(_default(shelves) if name is None else name, shelves)
    if checkpoint is not None:
        prefix = _prefix_of(checkpoint) or _prefix_of(folder / checkpoint)
        if prefix is None:
            raise NotFound(f"{checkpoint.absolute()}: no checkpoint there; expected {checkpoint.name}.index")
    called = folder.name if name is None else canonical(name)
    return Place(called, folder, prefix)


def _default(shelves: Sequence[Path]) -> str:
    """A folder that is still being fetched has no index yet."""
    return "124M" if any(any((shelf / "124M").glob("*.index")) for shelf in shelves) else "demo"


def _leads_to(name: str, shelves: Sequence[Path]) -> tuple[Path, Path | None]:
    """-> folder, prefix where the name itself says which."""
    if not name:
        raise UsageError(f"model name: empty; choose demo, {', '.join(RELEASED)}, a folder or a prefix")
    for called in dict.fromkeys((canonical(name), name)):  # a folder may still have the old name
        for shelf in shelves:
            if os.path.isdir(shelf / called) and called not in (".", ".."):
                return shelf / called, None
    if name == "demo":
        return DEMO, None
    path = Path(name)
    if os.path.isdir(path):
        return path, None
    prefix = _prefix_of(path)
    if prefix is not None:
        return prefix.parent, prefix
    raise NotFound(_not_there(canonical(name), shelves))


def _not_there(name: str, shelves: Sequence[Path]) -> str:
    tried = ", ".join(dict.fromkeys(str((shelf / name).absolute()) for shelf in shelves))
    blocked = [f"{shelf.absolute()} is a file, not a folder; " for shelf in shelves if shelf.is_file()]
    if name in RELEASED:
        return f"model {name}: not at {tried}; {''.join(blocked)}run: gpt2ln download {name}"
    return (
        f"model {name}: no such name, folder or prefix; looked for {tried}; {''.join(blocked)}"
        f"choose demo, {', '.join(RELEASED)}, or give a path"
    )


def _prefix_of(path: Path) -> Path | None:
    """The prefix that `path` stands for: itself, one of its files, or through a `checkpoint` file."""
    if _is_prefix(path):
        return path
    if os.path.isfile(path):
        if match := _MEMBER.fullmatch(path.name):
            return path.with_name(match["prefix"])
        if path.name == "checkpoint":
            return _only_prefix(path.parent)
    if os.path.isdir(path):
        return _only_prefix(path)
    return None


def _is_prefix(path: Path) -> bool:
    """Whether there is an index; False, not an error, for a name that is too long or lies where one may not look."""
    return os.path.isfile(f"{path}.index")


def _only_prefix(folder: Path) -> Path:
    """The checkpoint of a folder: the one its `checkpoint` file names, else the only one there is."""
    if named := _named_prefix(folder):
        return named
    found = [path.with_suffix("") for path in sorted(folder.iterdir()) if path.suffix == ".index"]
    found = [prefix for prefix in found if _is_prefix(prefix)]
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise UsageError(f"{len(found)} checkpoints in {folder.absolute()}: {names}; choose with --checkpoint")
    if not found:
        how = "looked for checkpoint, *.index"
        if any(folder.glob("*.part")):
            how = f"a download was begun; go on with: gpt2ln download {folder.name}"
        raise NotFound(f"{folder.absolute()}: no checkpoint; {how}")
    return found[0]


def _named_prefix(folder: Path) -> Path | None:
    """What the `checkpoint` file names: by base name in the same folder, for it may have moved; else where it says."""
    state = folder / "checkpoint"
    for path in _paths_in(state.read_text(encoding="utf-8", errors="replace")) if state.is_file() else ():
        base = re.split(r"[/\\]", path)[-1]
        if base and _is_prefix(folder / base):
            return folder / base
        if base and _is_prefix(folder / path):
            return folder / path
    return None


def _paths_in(state: str) -> list[str]:
    """The path as it stands, and as it is meant: quotes, backslashes and, by some, bytes above 126 are escaped."""
    if not (match := _STATE.search(state)):
        return []
    meant = _ESCAPE.sub(_unescape, match["path"].encode("utf-8"))
    return [match["path"], meant.decode("utf-8", "replace")]


def _unescape(match: re.Match[bytes]) -> bytes:
    return bytes([int(match[1], 8) & 255]) if match[1].isdigit() else match[1]


def missing_files(place: Place) -> list[str]:
    """Which of the files beside the weights are not there."""
    return [name for name in MODEL_FILES if not place.file(name).is_file()]
