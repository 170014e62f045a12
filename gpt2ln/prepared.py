"""A prepared engine on disk: where it lies, and whether it is the one for this checkpoint and this code.

Its folder is named by two digests, of the checkpoint with its hyperparameters and of the code, so that what was made
for another checkpoint or by another version is not found, and nothing has to be believed.  Here only the record and the
sizes are read; `check` reads the files.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from . import processor
from .disk import disk
from .errors import Damaged, Gpt2lnError, NotFound, first_five
from .locate import Place
from .spec import HParams
from .table import crc32c

RECORD = "engine.json"
FORMAT = "gpt2ln engine 1"
# What the files and the numbers of the engine come from, and how its distance is measured.
SOURCES = ("model.py", "convert.py", "litert.py", "fast.py", "prompt.py", "distance.py")
MEASURED = ("max_abs_dlogit", "largest_logit", "kl", "greedy_agree", "greedy_of")
DIGITS = 12
BLOCK = 1 << 20  # what fits the cache of a core: twice as fast as four times as much
_NAME = rf"fast-(?P<checkpoint>[0-9a-f]{{{DIGITS}}})-(?P<code>[0-9a-f]{{{DIGITS}}})(?P<end>\.part|\.old)?"


@dataclass(frozen=True)
class Prepared:
    """What was found.  state: ready | none | stale | damaged; why: in words with the next command, unless it is ready.

    folder: where it lies, or would; run: the command that makes it.
    """

    folder: Path
    state: str
    why: str = ""
    record: Mapping | None = None
    run: str = ""

    @property
    def distance(self) -> str:
        """How far it is from the exact engine, as measured, in words."""
        d = self.record["distance"]
        cpu = self.record["cpu"]
        elsewhere = "" if cpu == processor.name() else f", measured on another processor ({cpu})"
        return (
            f"max |d logit| {d['max_abs_dlogit']:.2g}, KL {d['kl']:.2g} nats,"
            f" greedy {d['greedy_agree']} of {d['greedy_of']} from exact{elsewhere}"
        )

    @property
    def bytes(self) -> int:
        return sum(file["size"] for file in self.record["files"].values())


@dataclass(frozen=True)
class _Wanted:
    index_sha256: str
    hparams: HParams
    run: str

    @property
    def name(self) -> str:
        return folder_name(self.index_sha256, self.hparams)


@cache
def code() -> str:
    """Digest of the code that makes and runs a prepared engine, and of the version of LiteRT."""
    import hashlib  # which a listing without engines does without

    digest = hashlib.sha256(str(litert_version()).encode())
    for name in SOURCES:
        digest.update(Path(__file__).with_name(name).read_bytes())
    return digest.hexdigest()


def litert_version() -> str | None:
    """None where it is not installed.  Read off a name: `importlib.metadata` takes longer than all of this."""
    spec = find_spec("ai_edge_litert")
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(folder).parent.glob("ai_edge_litert-*.dist-info"), reverse=True):
            return path.name.removeprefix("ai_edge_litert-").removesuffix(".dist-info")
    return "of no known version" if spec else None


def command(place: Place, cache_dir: Path | None) -> str:
    """What to type to prepare that model there."""
    import shlex

    words = ["gpt2ln", "prepare", place.name]
    if place.named is not None and str(place.named) != place.name:
        words += ["--checkpoint", str(place.named)]
    if cache_dir is not None:
        words += ["--cache-dir", str(cache_dir)]
    return shlex.join(words)


def file_names(hparams: HParams) -> set[str]:
    """The graphs of an engine."""
    blocks = {f"h{layer}{part}.tflite" for layer in range(hparams.n_layer) for part in ("", ".qkv")}
    return blocks | {"attend.tflite", "logits.tflite"}


def folder_name(index_sha256: str, hparams: HParams) -> str:
    """Heads are in no shape: an index alone does not tell one model from another."""
    return f"fast-{_of_checkpoint(index_sha256, hparams)}-{code()[:DIGITS]}"


def _of_checkpoint(index_sha256: str, hparams: HParams) -> str:
    import hashlib

    return hashlib.sha256(f"{index_sha256} {hparams}".encode()).hexdigest()[:DIGITS]


def any_in(folders: Sequence[Path]) -> bool:
    """Whether there is an engine of whatever model: what a listing asks before anything that takes time."""
    return any(path for folder in folders for path in folder.glob("fast-*"))


def is_engine(folder: Path) -> bool:
    """By its looks, whosever it is."""
    return re.fullmatch(_NAME, folder.name) is not None


def find(index_sha256: str, hparams: HParams, folders: Sequence[Path], *, run: str) -> Prepared:
    """The engine of that checkpoint in the first of `folders` that has one that is ready, or why there is none.

    run: the command that makes it.
    """
    wanted = _Wanted(index_sha256, hparams, run)
    found = [one for folder in folders if (one := _found(wanted, folder))]
    order = ("ready", "damaged", "stale")
    if found:
        return min(found, key=lambda one: order.index(one.state))
    places = ", ".join(f"{folder.absolute()}{_no_folder(folder)}" for folder in folders)
    why = f"no prepared engine of this checkpoint in {places}; run: {run}"
    return Prepared(folders[0] / wanted.name, "none", why, run=run)


def _no_folder(path: Path) -> str:
    if os.path.isdir(path):
        return ""
    return " (a file, expected a folder)" if os.path.exists(path) else " (no such folder)"


def _found(wanted: _Wanted, parent: Path) -> Prepared | None:
    if not os.path.isdir(parent):  # False, not an error, for a name that is too long
        return None
    folder = parent / wanted.name
    try:
        older = others(wanted.index_sha256, wanted.hparams, parent)
        if litert_version() is None and (older or folder.exists()):
            return Prepared(folder, "stale", _no_litert(folder if folder.exists() else older[0]), run=wanted.run)
        if os.path.lexists(folder):
            return Prepared(folder, "ready", record=_checked(folder, wanted), run=wanted.run)
        if older:
            return Prepared(older[0], "stale", _made_by(older[0], wanted), run=wanted.run)
    except OSError as cause:
        why = f"{cause.filename or folder}: {cause.strerror or cause}; run: {wanted.run}"
        return Prepared(folder, "damaged", why, run=wanted.run)
    except Gpt2lnError as cause:
        return Prepared(folder, "damaged", str(cause), run=wanted.run)
    return None


def _no_litert(folder: Path) -> str:
    from .litert import SUPPORTED  # with numpy

    how = f"run: pip install '{SUPPORTED.replace(' ', '')}'"
    return f"{folder}: LiteRT, which runs it, is not installed; {how}"


def others(index_sha256: str, hparams: HParams, parent: Path, *, begun: bool = False) -> list[Path]:
    """Engines of the same checkpoint that other code has made; begun: what it has not ended, too."""
    there = [(match, path) for path in sorted(parent.glob("fast-*")) if (match := re.fullmatch(_NAME, path.name))]
    mine = _of_checkpoint(index_sha256, hparams) if there else ""
    there = [(match, path) for match, path in there if match["checkpoint"] == mine and path.is_dir()]
    return [path for match, path in there if match["code"] != code()[:DIGITS] and (begun or not match["end"])]


def _made_by(folder: Path, wanted: _Wanted) -> str:
    """Why an engine that other code has made is none for this."""
    from . import __version__

    here = f"gpt2ln {__version__} with LiteRT {litert_version()}"
    try:
        versions = _read(folder, wanted)["versions"]
        there = f"gpt2ln {versions['gpt2ln']} with LiteRT {versions['ai-edge-litert']}"
    except (OSError, Gpt2lnError, KeyError, TypeError):
        there = "another version"
    there = f"other code of {there}" if there == here else there
    return f"{folder}: made by {there}, expected {here}; run: {wanted.run}"


def _read(folder: Path, wanted: _Wanted) -> dict:
    from .provenance import read_sealed

    path = folder / RECORD
    if not path.is_file():
        raise Damaged(f"{path}: {'no file' if os.path.lexists(path) else 'missing'}; run: {wanted.run}")
    return read_sealed(path, next_step=f"run: {wanted.run}")


def _checked(folder: Path, wanted: _Wanted) -> dict:
    """The record, with every file there and of its size.  Damaged otherwise."""
    if not folder.is_dir():
        raise Damaged(f"{folder}: no folder, expected that of an engine; remove it and run: {wanted.run}")
    record = _read(folder, wanted)
    if not _is_of(record, wanted):
        raise Damaged(f"{folder / RECORD}: not the record of this engine; run: {wanted.run}")
    sizes = {name: (file["size"], _size(folder / name)) for name, file in record["files"].items()}
    wrong = [
        f"{name} {'missing' if found is None else f'has {found} bytes, expected {size}'}"
        for name, (size, found) in sizes.items()
        if size != found
    ]
    if wrong:
        raise Damaged(f"{folder}: {first_five(wrong)}; run: {wanted.run}")
    return record


def _is_of(record: Mapping, wanted: _Wanted) -> bool:
    """Whether a record says all it has to, of this checkpoint and of this code."""
    try:
        said = record["format"], record["index_sha256"], record["hparams"], record["code"]
        numbers = [record["distance"][name] for name in MEASURED]
        numbers += [file[key] for file in record["files"].values() for key in ("size", "crc32c")]
        return (
            said == (FORMAT, wanted.index_sha256, wanted.hparams.as_dict(), code())
            and "seal" in record
            and set(record["files"]) == file_names(wanted.hparams)
            and isinstance(record["cpu"], str)
            and all(isinstance(number, int | float) for number in numbers)
        )
    except (KeyError, TypeError, AttributeError):
        return False


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def check(prepared: Prepared) -> None:
    """Refuse what is not ready, and read every file of what is.  Damaged, naming all that is not what was written."""
    if prepared.state != "ready":
        raise (Damaged if prepared.state == "damaged" else NotFound)(prepared.why)
    from concurrent.futures import ThreadPoolExecutor  # which a listing does without

    files = sorted(prepared.record["files"].items())
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        sums = pool.map(lambda file: file_crc(prepared.folder / file[0]), files)
        wrong = [name for (name, file), found in zip(files, sums, strict=True) if found != file["crc32c"]]
    if wrong:
        raise Damaged(
            f"{prepared.folder}: {first_five(wrong)} changed since the engine was prepared; run: {prepared.run}"
        )


def file_crc(path: Path) -> int:
    total = 0
    with disk(path), path.open("rb", buffering=0) as file:
        while block := file.read(BLOCK):
            total = crc32c(block, crc=total)
    return total
