"""Variables of a file as `inspect` shows them: which are meant, whether they can be trusted, a record of each."""

import math
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import click

from ..checkpoint import Entry, bad_sum, size_problems
from ..errors import Damaged, NotFound, UsageError, first_five, printable
from ..published import again
from .output import as_json, results

_LONGEST = 255 - len(".part")  # of a name, in bytes, as most file systems have it
_PIECE = 1 << 20


def check_sizes(g, tensors, asked: Sequence[str] = ()) -> None:
    """Hold data files against the index; other kinds hold index and data in one.

    asked: options that need values.  NotFound where there are some and data is not there; a list does without.
    """
    if tensors.kind != "checkpoint":
        return
    try:
        problems, notes = size_problems(tensors)
    except NotFound as cause:
        if asked:
            raise NotFound(f"{cause}, as does {' and '.join(asked)}; the list alone does not") from None
        g.note(f"note: {cause}; listed from the index alone")
        return
    if problems:
        raise Damaged(f"{tensors.where}: {first_five(problems)}; {again(tensors.where.parent)}")
    for note in notes:
        g.note(f"warning: {note}")


def check_sums(tensors, entries: Sequence[Entry]) -> None:
    """Before any of these values is handed out.  A zip has sums of its own, safetensors has none."""
    if tensors.kind == "checkpoint" and (problems := [p for e in entries if (p := bad_sum(tensors, e))]):
        raise Damaged(f"{tensors.where}: damaged: {first_five(problems)}; {again(tensors.where.parent)}")


def chosen(called: Mapping[str, Collection[str]], globs: Sequence[str], what: str = "variable") -> list[str]:
    """The keys that one of the globs is meant for, in their order; all without globs.

    called: key -> the names it goes by.  UsageError, with near ones, for a glob that no name matches.
    """
    if not globs:
        return list(called)
    from ..taps import glob, near_names, one_choice, split_list

    found = set()
    for part in [part for text in globs for part in split_list(text) or [text]]:
        for pattern in one_choice(part):  # the part itself first, then with one choice of its braces at a time
            match = glob(pattern).fullmatch
            meant = [key for key, names in called.items() if any(map(match, names))]
            if not meant:
                near = near_names(pattern, [name.removeprefix("model/") for name in called])
                raise UsageError(f"no {what} matches {pattern!r}{near}; list them: gpt2ln inspect")
            found.update(meant)
    return [key for key in called if key in found]


def both(name: str) -> tuple[str, str]:
    """A variable goes by its name with and without `model/`."""
    return name, name.removeprefix("model/")


def record(entry: Entry, long: bool = False, kind: str = "checkpoint") -> dict:
    """long: also where it lies; None for what a file of this kind does not have."""
    found: dict = {"name": entry.name, "dtype": entry.dtype, "shape": list(entry.shape)}
    if long:
        found |= {"offset": None if kind == "npz" else entry.offset, "shard": entry.shard}
        found["crc32c"] = None if entry.crc is None else f"{entry.crc:08x}"
    return found | {"bytes": entry.size}


def cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def statistics(tensors, entry: Entry) -> dict:
    """Over finite values, in float64; counts of the others.  argmin, argmax: channels, of a gain or bias alone.

    None for what has no order or is too large for that.
    """
    from ..gains import readable, spread, values, vector_of

    keys = ("min", "max", "mean", "std", "zeros", "nan", "inf", "argmin", "argmax")
    if not readable(entry) or entry.dtype.startswith("complex"):
        return dict.fromkeys(keys)
    found = spread(values(tensors, entry))
    tensors.release(entry)
    numbers = {key: getattr(found, key) for key in keys}
    return numbers if vector_of(entry.name) and len(entry.shape) == 1 else numbers | {"argmin": None, "argmax": None}


def refuse_unreadable(entries: Sequence[Entry], option: str) -> None:
    """Before the first value is printed or written."""
    from ..tensors import readable

    if refused := [f"{e.name} ({'stored in slices' if e.sliced else e.dtype})" for e in entries if not readable(e)]:
        raise UsageError(f"{option} cannot take {first_five(refused)}; choose others with a glob")


def print_values(tensors, entry: Entry, form: bool) -> None:
    """Shortest text that gives the same float32 back; the last axis is one line."""
    from ..tensors import values

    x = values(tensors, entry)
    if form:
        click.echo(as_json(record(entry) | {"values": [_json_value(v) for v in x.ravel()]}))
        return
    click.echo(f"# {printable(entry.name)} {entry.dtype} {list(entry.shape)}")
    width = x.shape[-1] if x.ndim else 1
    for row in x.reshape(math.prod(x.shape[:-1]), width) if width else ():
        click.echo(" ".join(str(v) for v in row))


def _json_value(value) -> int | float | list | None:
    """Shortest decimals that give the same value back; complex as [real, imaginary]; null for what JSON lacks."""
    import numpy as np

    if np.iscomplexobj(value):
        return [_json_value(value.real), _json_value(value.imag)]
    if not isinstance(value, np.floating):
        return value.item()
    number = float(str(value))  # Inf for what only a wider one holds
    return number if math.isfinite(number) else None


def npy_paths(entries: Sequence[Entry], folder: Path) -> dict[str, Path]:
    """`model/h0/ln_1/g` -> `FOLDER/h0/ln_1/g.npy`.  UsageError, naming all, where a name is none for a file."""
    paths, problems, taken = {}, [], {}
    for name in [entry.name for entry in entries]:
        parts = (name.removeprefix("model/") + ".npy").split("/")
        if any(part in ("", ".", "..", ".npy") or "\0" in part or _too_long(part) for part in parts):
            problems.append(f"{name!r} is no name for a file")
            continue
        paths[name] = folder.joinpath(*parts)
        if (first := taken.setdefault(paths[name], name)) != name:
            problems.append(f"{first} and {name} lead to one file")
    above = {parent for path in paths.values() for parent in path.parents}
    problems += [f"{name} is a file and a folder" for name, path in paths.items() if path in above]
    if problems:
        raise UsageError(f"--npy: {first_five(problems)}; choose others with a glob")
    return paths


def _too_long(part: str) -> bool:
    return len(os.fsencode(part.encode("utf-8", "replace"))) > _LONGEST


def write_npy(tensors, entries: Sequence[Entry], folder: Path, paths: Mapping[str, Path], force: bool) -> None:
    """One file a variable, a piece at a time: shape as stored, bytes in the order of this machine."""
    from ..disk import check_room, disk

    check_room(folder, sum(entry.size for entry in entries), "choose fewer with a glob")
    for entry in entries:
        path = paths[entry.name]
        path.parent.mkdir(parents=True, exist_ok=True)
        with results(str(path), force, binary=True) as file, disk(path):
            _write(tensors, entry, file)
        tensors.release(entry)


def check_targets(folder: Path, paths: Mapping[str, Path], force: bool) -> None:
    """Refuse, before anything is read, what `results` would refuse after the first file."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder}: is a file, expected a folder for --npy")
    if not folder.absolute().parent.is_dir():
        raise NotFound(f"{folder.absolute().parent}: no such folder, make it first; it is to hold {folder.name}")
    names = [name for path in paths.values() for name in (str(path), f"{path}.part")]
    there = [name for name in names if os.path.lexists(name)]
    if there and not force:
        raise UsageError(f"{first_five(there)}: exists; --force overwrites it")


def _write(tensors, entry: Entry, file) -> None:
    import numpy as np

    from ..tensors import values

    x = values(tensors, entry)
    native = x.dtype.newbyteorder("=")
    descr = np.lib.format.dtype_to_descr(native)
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": x.shape})
    flat = x.reshape(-1)
    for start in range(0, flat.size, _PIECE):
        file.write(flat[start : start + _PIECE].astype(native).view(np.uint8))
