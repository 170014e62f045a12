"""`inspect`: what is in a checkpoint, safetensors or npz file."""

import math
import re
from pathlib import Path

import click

from ..errors import UsageError
from .options import command
from .output import as_json, as_table
from .variables import (
    both,
    cell,
    check_sizes,
    check_sums,
    check_targets,
    chosen,
    npy_paths,
    print_values,
    record,
    refuse_unreadable,
    statistics,
    write_npy,
)

HEADS = {"argmin": "min at", "argmax": "max at"}


def _natural(name: str) -> list:
    """h2 before h10: a number by its length, then by its digits, however many they are."""
    parts = re.split(r"(\d+)", name)
    return [(len(part.lstrip("0")), part.lstrip("0")) if i % 2 else part for i, part in enumerate(parts)]


SORTS = {
    "name": lambda e: _natural(e.name),
    "size": lambda e: -e.size,
    "offset": lambda e: (e.shard, e.offset),
}


@command("inspect", "gpt2ln -m demo inspect 'h0/ln_*/*' --stats")
@click.argument("globs", nargs=-1)
@click.option("--json", "form", is_flag=True, help="One object a line.")
@click.option("-l", "--long", is_flag=True, help="Offset, shard and CRC32C as well.")
@click.option("--stats", is_flag=True, help="Minimum, maximum, mean, standard deviation, zeros, NaN and Inf; of a gain "
              "or bias the channels of its extremes.")  # fmt: skip
@click.option("--values", is_flag=True, help="Every value, none left out.")
@click.option("--npy", metavar="DIR", help="Also write each as DIR/h0/ln_1/g.npy.")
@click.option("--ln", is_flag=True, help="Gain and bias of every LayerNorm, and which channels stand out in them.")
@click.option("--plot", metavar="FILE", help="With --ln, also draw it: png, pdf or svg.")
@click.option("--sort", type=click.Choice(list(SORTS)), help="[default: name]")
@click.option("--force", is_flag=True, help="Overwrite files.")
def command(g, globs, form, long, stats, values, npy, ln, plot, sort, force):
    """Variables of a checkpoint: name, dtype, shape as stored, bytes.  No weights are read unless asked for.

    GLOBS pick some; * does not cross /, and `model/` before a name may be left out.  -m also takes a safetensors or npz
    file, or a folder with model.safetensors or the index of several.

    With --ln, GLOBS pick norms; a channel stands out in a norm where its gain or its bias lies more than 10 robust
    standard deviations (1.4826 times the median distance from the median) from the median of that vector.
    """
    _refuse(form, long, stats, values, npy, ln, plot, sort)
    if ln:
        from .gain_tables import show

        show(g, globs, form, plot, force)
        return
    tensors = g.tensors()
    asked = [option for option, given in (("--stats", stats), ("--values", values), ("--npy", npy)) if given]
    check_sizes(g, tensors, asked)
    named = chosen({name: both(name) for name in tensors.entries}, globs)
    entries = sorted((tensors.entries[name] for name in named), key=SORTS[sort or "name"])
    for option in asked[stats:]:
        refuse_unreadable(entries, option)
    if npy:
        paths = npy_paths(entries, Path(npy))
        check_targets(Path(npy), paths, force)
    if asked:
        check_sums(tensors, entries)
    if npy:
        write_npy(tensors, entries, Path(npy), paths, force)
        g.note(f"{len(entries)} file{'s' * (len(entries) != 1)} in {npy}")
    if values:
        for entry in entries:
            print_values(tensors, entry, form)
        return
    _list(g, tensors, entries, form, long, stats)


def _refuse(form, long, stats, values, npy, ln, plot, sort) -> None:
    """What makes no sense together."""
    if values and (stats or long):
        raise UsageError(f"--values prints values alone; leave out {'--stats' if stats else '-l'}")
    given = (("-l", long), ("--stats", stats), ("--values", values), ("--npy", npy is not None), ("--sort", sort))
    if ln and (besides := [option for option, is_given in given if is_given]):
        raise UsageError(f"--ln is a table of its own; leave out {' and '.join(besides)}")
    if plot is not None and not ln:
        raise UsageError("--plot draws gains and biases; it needs --ln")
    if npy == "":
        raise UsageError("--npy: empty, expected a folder")


def _list(g, tensors, entries, form: bool, long: bool, stats: bool) -> None:
    records = [record(e, long, tensors.kind) | (statistics(tensors, e) if stats else {}) for e in entries]
    if form:
        click.echo("".join(as_json(found) + "\n" for found in records), nl=False)
        return
    rows = [list(map(cell, found.values())) for found in records]
    click.echo(as_table([HEADS.get(key, key) for key in records[0]], rows, left=(0, 1, 2)), nl=False)
    count = sum(math.prod(e.shape) for e in entries)
    some = f"{len(entries)} variable{'s' * (len(entries) != 1)}"
    g.note(f"{some}, {count:,} values, {sum(e.size for e in entries):,} bytes")
