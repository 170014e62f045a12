"""`diff`: two checkpoints, or other files of weights, against each other."""

import math

import click

from ..diff import VALUES, Distance, Row, by_layer, diff, side
from ..errors import Different, first_five
from .options import command
from .output import as_json, as_table
from .variables import check_sizes

_HEAD = ["differ", "max |d|", "at", "ulp", "relative", "cosine"]


@command("diff", "gpt2ln diff demo demo --json")
@click.argument("a")
@click.argument("b")
@click.option("--values", is_flag=True, help="Measure how far values are apart, by variable and by layer.")
@click.option("--json", "form", is_flag=True, help="One object a line, for what is equal too.")
def command(g, a, b, values, form):
    """What differs between A and B: exit status 0 where nothing does, 1 where something does.

    Each is a name, a folder, a checkpoint prefix, or a file of safetensors or npz; Hugging Face's names are
    understood.  Two checkpoints are told apart by the sums in their indexes, in milliseconds; no data is read.

    With --values: differ counts values that are not equal bit for bit, ulp is steps from one float32 to the next,
    relative is max |d| over the root mean square of A, cosine is that of the angle between both.
    """
    sides = [side(letter, g.tensors(name)) for letter, name in (("A", a), ("B", b))]
    for one in sides:
        check_sizes(g, one.tensors, ["--values"] if values else [])
        if one.notes:
            g.note(f"note: {one.tensors.where}: {' and '.join(one.notes)} left out")
    rows = diff(*sides, values=values)
    differing = [row for row in rows if row.how]
    click.echo(_lines(rows) if form else _tables(differing), nl=False)
    if differing:
        names = first_five([f"{row.name}: {row.how}" for row in differing])
        more = "; --values tells how far" if not values and any(row.how == VALUES for row in differing) else ""
        raise Different(f"{len(differing)} of {len(rows)} variables differ: {names}{more}")
    g.note(f"{len(rows)} variables, all equal")


def _lines(rows: list[Row]) -> str:
    records = [{"name": row.name, "equal": row.how is None, "how": row.how} | _record(row.distance) for row in rows]
    records += [{"layer": layer, "variables": n} | _record(d) for layer, (n, d) in by_layer(rows).items()]
    return "".join(as_json(record) + "\n" for record in records)


def _record(distance: Distance | None) -> dict:
    if distance is None:
        return {}
    d = distance
    return {
        "differ": d.differ,
        "unmatched_nonfinite": d.unmatched,
        "max_abs": d.largest if math.isfinite(d.largest) else None,
        "at": d.where,
        "ulp": d.ulp,
        "relative": d.relative,
        "cosine": d.cosine,
    }


def _tables(differing: list[Row]) -> str:
    """By variable, and where values were compared by layer."""
    if not differing:
        return ""
    layers = by_layer(differing)
    head = ["variable", "how", *(_HEAD if layers else [])]
    rows = [[row.name, row.how, *(_cells(row.distance) if layers else [])] for row in differing]
    text = as_table(head, rows, left=(0, 1))
    if layers:
        rows = [[layer, str(n), *_cells(distance)] for layer, (n, distance) in layers.items()]
        rows = [row[:4] + row[5:] for row in rows]
        text += "\n" + as_table(["layer", "variables", *(h for h in _HEAD if h != "at")], rows)
    return text


def _cells(d: Distance | None) -> list[str]:
    if d is None:
        return ["-"] * len(_HEAD)
    differ = f"{d.differ} ({d.unmatched} not finite)" if d.unmatched else str(d.differ)
    at = "-" if d.where is None else ",".join(map(str, d.where))
    ulp = "-" if d.ulp is None else str(d.ulp)
    return [differ, f"{d.largest:.6g}", at, ulp, *("-" if x is None else f"{x:.9g}" for x in (d.relative, d.cosine))]
