"""Statistics of a run as people and programs read them: table, JSON, CSV."""

import math
import shutil
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise

from ..runs import Run
from ..summary import at_positions, by_channel, by_layer, by_position
from .output import as_csv, as_json, as_table

APART = 2.0  # position 0 is spoken of where its variance is that many times the others', or as many times less


def rows(run: Run, by: str, k: int) -> list[dict]:
    if by == "position":
        return by_position(run.stats)
    return (by_layer if by == "layer" else by_channel)(run.stats, run.gains, k)


def _json(run: Run, by: str, k: int) -> str:
    return "".join(as_json(row) + "\n" for row in rows(run, by, k))


def _csv(run: Run, by: str, k: int) -> str:
    found = [_flat(row) for row in rows(run, by, k)]
    return as_csv(found) if found else as_csv([_flat(row) for row in rows(run, by, 1)]).splitlines(keepends=True)[0]


def _flat(row: dict) -> dict:
    """`{"var": {"mean": 1}}` -> `var_mean`; channels and spans of positions as a person writes them."""
    out = {}
    for key, value in row.items():
        if isinstance(value, dict):
            out |= {f"{key}_{name}": x for name, x in value.items()}
        elif key == "channels":
            out[key] = " ".join(f"{c['channel']}:{c['share']:.6g}" for c in value)
        elif key == "positions":
            out[key] = _spans(value)
        else:
            out[key] = value
    return out


def _spans(spans: Sequence[Sequence[int]]) -> str:
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def _table(run: Run, by: str, k: int) -> str:
    return TABLES[by](run, k)


def _layers(run: Run, k: int) -> str:
    """A line a norm; on a terminal too narrow for it, columns are left out, the least telling first."""
    top = f"top channels of {run.stats.width}"
    columns = {
        "norm": lambda r: r["norm"],
        "tokens": lambda r: str(r["count"]),
        "mean": lambda r: _number(r["mean"]["mean"]),
        "var": lambda r: _number(r["var"]["mean"]),
        "median": lambda r: _number(r["var"]["median"]),
        "max": lambda r: _number(r["var"]["max"]),
        "at 0": lambda r: _number(r["position_0"]["var"]),
        "rstd": lambda r: _number(r["rstd"]["median"]),
        "rms": lambda r: _number(r["rms"]["mean"]),
        "growth": lambda r: f"{r['growth']:.3g}x" if r["growth"] is not None else "-",
        "<100eps": lambda r: str(r["small"]),
        top: lambda r: " ".join(map(_channel, r["channels"])),
    }
    found = by_layer(run.stats, run.gains, k)
    return _fitting(columns, found, ["<100eps", "rms", "growth", "mean", "max", "tokens", "median"], left=("norm", top))


def _fitting(columns: dict[str, Callable], found: list[dict], spare: list[str], left: Sequence[str]) -> str:
    """spare: what may be left out, in that order.  left: what is flush left."""
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else math.inf
    columns = dict(columns)
    while True:
        cells = [[cell(row) for cell in columns.values()] for row in found]
        text = as_table(list(columns), cells, left=[i for i, name in enumerate(columns) if name in left])
        if not spare or max(map(len, text.splitlines())) <= room:
            return text
        del columns[spare.pop(0)]


def _channel(c: dict) -> str:
    """Channel, its share, a star where it is massive at half of the tokens or more."""
    return f"{c['channel']}:{100 * c['share']:.1f}%" + ("*" if c["often"] >= 0.5 else "")


def _number(x: float | None) -> str:
    return "-" if x is None else f"{x:.4g}"


def _positions(run: Run, k: int) -> str:
    """Positions in groups that double: 0, 1, 2-3, 4-7, ...; JSON and CSV have each."""
    columns = {
        "norm": lambda r: r["norm"],
        "position": lambda r: _spans([r["span"]]),
        "tokens": lambda r: str(r["count"]),
        "mean": lambda r: _number(r["mean"]["mean"]),
        "var": lambda r: _number(r["var"]["mean"]),
        "median": lambda r: _number(r["var"]["median"]),
        "min": lambda r: _number(r["var"]["min"]),
        "max": lambda r: _number(r["var"]["max"]),
        "rstd": lambda r: _number(r["rstd"]["median"]),
        "rms": lambda r: _number(r["rms"]["mean"]),
    }
    found = [
        {"norm": norm, "span": (first, last - 1)} | at_positions(run.stats, n, slice(first, last))
        for n, norm in enumerate(run.stats.norms)
        for first, last in _doubling(run.stats.positions)
    ]
    return _fitting(columns, found, ["rms", "mean", "min", "max", "tokens", "median"], left=("norm",))


def _doubling(positions: int) -> list[tuple[int, int]]:
    edges = [0, *(1 << i for i in range(positions.bit_length()) if 1 << i < positions), positions]
    return list(pairwise(edges))


def _channels(run: Run, k: int) -> str:
    where = "massive at positions"
    columns = {
        "norm": lambda r: r["norm"],
        "channel": lambda r: str(r["channel"]),
        "share": lambda r: f"{100 * r['share']:.2f}%",
        "massive at": lambda r: f"{100 * r['often']:.1f}%",
        "peak": lambda r: f"{r['peak']:.3g}",
        "x there": lambda r: _number(r["peak_x"]),
        "position": lambda r: str(r["peak_position"]),
        "g": lambda r: _number(r["g"]),
        "b": lambda r: _number(r["b"]),
        where: lambda r: _few(_spans(r["positions"])) or "-",
    }
    found = by_channel(run.stats, run.gains, k)
    spare = ["b", "position", "x there", "peak", "g", where]
    return _fitting(columns, found, spare, left=("norm", where))


def _few(text: str) -> str:
    return text if len(text) <= 24 else text[:24].rsplit(" ", 1)[0] + " ..."


def remarks(run: Run) -> list[str]:
    """What a reader must not miss."""
    apart = [(r["position_0"]["ratio"], r["norm"]) for r in by_layer(run.stats, run.gains, 0)]
    apart = [(max(ratio, 1 / ratio), ratio, norm) for ratio, norm in apart if ratio]
    if not apart:
        return []
    factor, ratio, norm = max(apart)
    if factor < APART:
        return []
    return [
        f"note: position 0 stands apart: its variance is {ratio:.3g} times the median of the other positions at {norm};"
        " column 'at 0', --by position"
    ]


FORMATS = {"table": _table, "json": _json, "csv": _csv}
TABLES = {"layer": _layers, "position": _positions, "channel": _channels}
