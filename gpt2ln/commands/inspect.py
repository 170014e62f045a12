"""`inspect`: what is in a checkpoint."""

import re

import click
import numpy as np

from ..checkpoint import Bundle, Entry, bad_sum, read_index, size_problems
from ..errors import Damaged, NotFound, UsageError, first_five
from ..taps import glob, near_names
from .options import command
from .output import as_json, as_table

SORTS = {
    "name": lambda e: [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", e.name)],
    "size": lambda e: -e.size,
    "offset": lambda e: (e.shard, e.offset),
}


@command("inspect", "gpt2ln -m demo inspect 'h0/ln_*/*' --stats")
@click.argument("globs", nargs=-1)
@click.option("--json", "form", is_flag=True, help="One object a line.")
@click.option("-l", "--long", is_flag=True, help="Offset, shard and CRC32C as well.")
@click.option("--stats", is_flag=True, help="Minimum, maximum, mean, standard deviation, zeros, NaN and Inf.")
@click.option("--values", is_flag=True, help="Every value, none left out.")
@click.option("--sort", type=click.Choice(list(SORTS)), default="name", show_default=True)
def command(g, globs, form, long, stats, values, sort):
    """Variables of a checkpoint: name, dtype, shape as stored, bytes.  No weights are read unless asked for.

    GLOBS pick some; * does not cross /, and `model/` before a name may be left out.
    """
    bundle = read_index(g.place().prefix)
    complete = _check_sizes(g, bundle)
    entries = sorted(_chosen(bundle, globs), key=SORTS[sort])
    if (stats or values) and not complete:
        raise NotFound(f"{bundle.shard_path()}: no such file; --stats and --values need it, the list does not")
    if stats or values:
        _check_sums(bundle, entries)
    if values:
        for entry in entries:
            _print_values(bundle, entry, form)
        return
    records = [_record(entry, long) | (_stats(bundle, entry) if stats else {}) for entry in entries]
    if form:
        for record in records:
            click.echo(as_json(record))
        return
    rows = [[_cell(v) for v in record.values()] for record in records]
    click.echo(as_table(list(records[0]), rows, left=(0, 1, 2)), nl=False)
    count = sum(int(np.prod(e.shape)) for e in entries)
    g.note(f"{len(entries)} variables, {count:,} values, {sum(e.size for e in entries):,} bytes")


def _check_sizes(g, bundle: Bundle) -> bool:
    """Hold data files against the index -> whether they are there."""
    try:
        problems, notes = size_problems(bundle)
    except NotFound as cause:
        g.note(f"note: {cause}; listed from the index alone")
        return False
    if problems:
        raise Damaged(f"{bundle.prefix}: {first_five(problems)}; fetch the file again")
    for note in notes:
        g.note(f"warning: {note}")
    return True


def _chosen(bundle: Bundle, globs: tuple[str, ...]) -> list[Entry]:
    if not globs:
        return list(bundle.entries.values())
    names = [name.removeprefix("model/") for name in bundle.entries]
    chosen = set()
    for part in globs:
        pattern = glob(part.removeprefix("model/"))
        found = [name for name in bundle.entries if pattern.fullmatch(name.removeprefix("model/"))]
        if not found:
            raise UsageError(f"no variable matches {part!r}{near_names(part, names)}; list them: gpt2ln inspect")
        chosen.update(found)
    return [entry for name, entry in bundle.entries.items() if name in chosen]


def _record(entry: Entry, long: bool) -> dict:
    record = {"name": entry.name, "dtype": entry.dtype, "shape": list(entry.shape)}
    if long:
        record |= {"offset": entry.offset, "shard": entry.shard, "crc32c": f"{entry.crc:08x}"}
    return record | {"bytes": entry.size}


def _check_sums(bundle: Bundle, entries: list[Entry]) -> None:
    if problems := [p for entry in entries if (p := bad_sum(bundle, entry))]:
        raise Damaged(f"{bundle.prefix}: damaged: {first_five(problems)}; fetch the file again")


def _numbers(bundle: Bundle, entry: Entry) -> np.ndarray | None:
    """The values, where the dtype is one that numpy has."""
    return None if entry.dtype in ("string", "resource", "variant") else _array(bundle, entry)


def _array(bundle: Bundle, entry: Entry) -> np.ndarray | None:
    try:
        return bundle.array(entry)
    except TypeError:
        return None


def _stats(bundle: Bundle, entry: Entry) -> dict:
    """Over finite values, in float64; counts of the others."""
    keys = ("min", "max", "mean", "std", "zeros", "nan", "inf")
    x = _numbers(bundle, entry)
    if x is None:
        return dict.fromkeys(keys)
    finite = x[np.isfinite(x)].astype(np.float64)
    shape = [finite.min(), finite.max(), finite.mean(), finite.std()] if finite.size else [None] * 4
    numbers = [None if v is None else float(v) for v in shape]
    counts = [int((x == 0).sum()), int(np.isnan(x).sum()), int(np.isinf(x).sum())]
    bundle.release(entry)
    return dict(zip(keys, numbers + counts, strict=True))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _print_values(bundle: Bundle, entry: Entry, form: bool) -> None:
    """Shortest text that gives the same float32 back; the last axis is one line."""
    x = _numbers(bundle, entry)
    if x is None:
        raise UsageError(f"{entry.name}: {entry.dtype} has no values to print")
    if form:
        values = [None if not np.isfinite(v) else float(str(v)) for v in x.ravel()]
        click.echo(as_json(_record(entry, False) | {"values": values}))
        return
    click.echo(f"# {entry.name} {entry.dtype} {list(entry.shape)}")
    for row in np.atleast_1d(x).reshape(-1, x.shape[-1] if x.ndim else 1):
        click.echo(" ".join(str(v) for v in row))
