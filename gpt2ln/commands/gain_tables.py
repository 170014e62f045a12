"""`inspect --ln`: gain and bias of every LayerNorm as people and programs read them."""

from collections.abc import Sequence
from pathlib import Path

import click

from ..errors import UsageError, first_five
from ..gains import STANDS_OUT, Norm, Vector, counted, norms_in, read_norms
from .output import as_json, as_table, checked, results
from .variables import both, check_sizes, check_sums, chosen

_SHOWN = 6  # channels of one norm in the table
_SUMMED = 12  # channels in the line below it


def show(g, globs: Sequence[str], form: bool, plot: str | None, force: bool) -> None:
    if plot is not None:
        _check_plot(plot, force)
    tensors = g.tensors()
    check_sizes(g, tensors, ["--ln"])
    norms = norms_in(tensors.entries)
    if not norms:
        raise UsageError(f"{tensors.where}: no LayerNorm by its name; expected h0/ln_1/g and its like, or Hugging "
                         "Face's h.0.ln_1.weight; list what is there: gpt2ln inspect")  # fmt: skip
    called = {norm: {f"model/{norm}", norm, *_spelt(norm, leaves)} for norm, leaves in norms.items()}
    norms = {norm: norms[norm] for norm in chosen(called, globs, "norm")}
    check_sums(tensors, [tensors.entries[name] for leaves in norms.values() for name in leaves.values()])
    found = read_norms(tensors, norms)
    if plot is not None:
        from ..gains_figure import drawn

        with results(plot, force, binary=True) as file:
            file.write(drawn(found, Path(plot).suffix.removeprefix(".")))
    if form:
        click.echo("".join(as_json(_record(norm)) + "\n" for norm in found), nl=False)
        return
    click.echo(_table(found), nl=False)
    for remark in remarks(found):
        g.note(remark)


def _check_plot(plot: str, force: bool) -> None:
    from ..figure import check

    if plot in ("", "-"):
        raise UsageError("--plot takes the name of a file; the table goes to stdout")
    checked(Path(plot), force)
    check(Path(plot).suffix.removeprefix("."))


def _spelt(norm: str, leaves) -> set[str]:
    """The variables of a norm as the file and as the official code call them."""
    return {name for leaf, stored in leaves.items() for name in (*both(stored), *both(f"model/{norm}/{leaf}"))}


def _record(norm: Norm) -> dict:
    """Everything; a gain or bias that is not there is null."""
    parts = {leaf: _vector(norm.vectors[leaf]) if leaf in norm.vectors else None for leaf in ("g", "b")}
    return {"norm": norm.name, **parts, "stands_out": norm.stands_out}


def _vector(vector: Vector) -> dict:
    """deviations: null where they are not finite, more than half of the values being the same."""
    found = vector.spread
    numbers = {key: getattr(found, key) for key in ("mean", "std", "min", "argmin", "max", "argmax")}
    far = [float(vector.deviations[channel]) for channel in vector.stands_out]
    apart = [
        {
            "channel": channel,
            "value": float(vector.values[channel]),
            "deviations": away if away < float("inf") else None,
        }
        for channel, away in zip(vector.stands_out, far, strict=True)
    ]
    counts = {"zeros": found.zeros, "nan": found.nan, "inf": found.inf}
    front = {"name": vector.name, "width": len(vector.values), **numbers}
    return front | {"negative": vector.negative, **counts, "stands_out": apart}


def _table(norms: Sequence[Norm]) -> str:
    numbers = ("mean", "std", "min", "max")
    head = ["norm", *(f"{leaf} {key}" for leaf in "gb" for key in numbers), "g < 0", "stand out"]
    rows = [
        [norm.name, *_cells(norm.g), *_cells(norm.b), "-" if norm.g is None else str(len(norm.g.negative)), _few(norm)]
        for norm in norms
    ]
    return as_table(head, rows, left=(0, len(head) - 1))


def _cells(vector: Vector | None) -> list[str]:
    """The extremes with their channels."""
    if vector is None or vector.spread.min is None:
        return ["-"] * 4
    s = vector.spread
    mean, std, low, high = ("-" if v is None else f"{v:.4g}" for v in (s.mean, s.std, s.min, s.max))
    return [mean, std, f"{low} @{s.argmin}", f"{high} @{s.argmax}"]


def _few(norm: Norm) -> str:
    more = len(norm.stands_out) - _SHOWN
    return " ".join([*map(str, norm.stands_out[:_SHOWN]), *([f"+{more}"] if more > 0 else [])]) or "-"


def remarks(norms: Sequence[Norm]) -> list[str]:
    """What a person would look for in the table."""
    found = []
    apart = counted(norms)
    listed = ", ".join(f"{channel} ({count})" for channel, count in apart[:_SUMMED])
    more = f", and {len(apart) - _SUMMED} more" if len(apart) > _SUMMED else ""
    found.append(
        f"stand out (more than {STANDS_OUT:g} deviations) in so many of {len(norms)} norms: {listed or 'none'}{more}"
    )
    gains = [norm for norm in norms if norm.g is not None]
    negative = [f"{n.name} {n.g.values[c]:.6g} @{c}" for n in gains for c in n.g.negative]
    found.append(f"negative gains: {first_five(negative) or 'none'}" if gains else "no gains in this file")
    odd = [f"{v.name} ({v.spread.nan} NaN, {v.spread.inf} Inf)" for n in norms for v in n.vectors.values()
           if v.spread.nan or v.spread.inf]  # fmt: skip
    return found + ([f"warning: not finite: {first_five(odd)}"] if odd else [])
