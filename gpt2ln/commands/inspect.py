"""`inspect`: what is in a checkpoint."""

import math
import re

import click
import numpy as np

from ..checkpoint import Bundle, Entry, bad_sum, read_index, size_problems
from ..errors import Damaged, NotFound, UsageError, first_five
from ..taps import glob, near_names, one_choice, split_list
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
        _refuse_unprintable(entries)
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
    count = sum(math.prod(e.shape) for e in entries)
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
    for part in [part for text in globs for part in split_list(text) or [text]]:
        for pattern in one_choice(part):  # the part itself first, then with one choice of its braces at a time
            match = glob(pattern).fullmatch
            found = [name for name in bundle.entries if match(name) or match(name.removeprefix("model/"))]
            if not found:
                near = near_names(pattern, names)
                raise UsageError(f"no variable matches {pattern!r}{near}; list them: gpt2ln inspect")
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


def _in_numpy(entry: Entry) -> bool:
    """Whether numpy has this dtype, and the values lie in one piece."""
    return not entry.sliced and re.fullmatch(r"(u?int|float|complex)\d+|bool", entry.dtype) is not None


def _stats(bundle: Bundle, entry: Entry) -> dict:
    """Over finite values, in float64; counts of the others.  None for what has no order or is too large for that."""
    keys = ("min", "max", "mean", "std", "zeros", "nan", "inf")
    if not _in_numpy(entry) or entry.dtype.startswith("complex"):
        return dict.fromkeys(keys)
    x = bundle.array(entry)
    finite = x[np.isfinite(x)].astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        shape = [finite.min(), finite.max(), finite.mean(), finite.std()] if finite.size else [math.nan] * 4
    numbers = [float(v) if math.isfinite(v) else None for v in shape]
    counts = [int((x == 0).sum()), int(np.isnan(x).sum()), int(np.isinf(x).sum())]
    bundle.release(entry)
    return dict(zip(keys, numbers + counts, strict=True))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _refuse_unprintable(entries: list[Entry]) -> None:
    """Before the first value is printed."""
    if refused := [f"{e.name} ({'stored in slices' if e.sliced else e.dtype})" for e in entries if not _in_numpy(e)]:
        raise UsageError(f"--values cannot print {first_five(refused)}; choose others with a glob")


def _json_value(value: np.generic) -> int | float | list | None:
    """Shortest decimals that give the same value back; complex as [real, imaginary]; null for what JSON lacks."""
    if np.iscomplexobj(value):
        return [_json_value(value.real), _json_value(value.imag)]
    if not np.isfinite(value):
        return None
    return float(str(value)) if isinstance(value, np.floating) else value.item()


def _print_values(bundle: Bundle, entry: Entry, form: bool) -> None:
    """Shortest text that gives the same float32 back; the last axis is one line."""
    x = bundle.array(entry)
    if form:
        values = [_json_value(v) for v in x.ravel()]
        click.echo(as_json(_record(entry, False) | {"values": values}))
        return
    click.echo(f"# {entry.name} {entry.dtype} {list(entry.shape)}")
    width = x.shape[-1] if x.ndim else 1
    for row in x.reshape(math.prod(x.shape[:-1]), width) if width else ():
        click.echo(" ".join(str(v) for v in row))
