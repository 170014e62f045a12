"""Statistics of a run as rows: a norm, a norm at a position, or a channel of a norm; joined with the gains."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np

from .spec import EPSILON
from .stats import SKETCHED, STATISTICS, LnStats

Gains = Mapping[str, Mapping[str, np.ndarray]]  # norm -> {"g": [C], "b": [C]}


def by_layer(stats: LnStats, gains: Gains, k: int) -> list[dict]:
    """A row a norm, in the order of the forward pass; `channels`: the k with most of the variance, together `held`."""
    rows, first = [], None
    for n, norm in enumerate(stats.norms):
        size = x_rms(stats, n)
        first = size if first is None else first
        channels = [_channel(stats, gains, n, c) for c in top_channels(stats, n, k)]
        rows.append(
            {"norm": norm}
            | at_positions(stats, n, slice(None))
            | {"position_0": position_0(stats, n)}
            | {"x_rms": size, "growth": size / first if first else None}
            | {name: _of_vector(vector) for name, vector in gains[norm].items()}
            | {"held": sum(c["share"] for c in channels), "channels": channels}
        )
    return rows


def by_position(stats: LnStats) -> list[dict]:
    return [
        {"norm": norm, "position": p} | at_positions(stats, n, slice(p, p + 1))
        for n, norm in enumerate(stats.norms)
        for p in range(stats.positions)
    ]


def by_channel(stats: LnStats, gains: Gains, k: int) -> list[dict]:
    """Of each norm the k channels that hold most variance and the k that reach highest, by falling share."""
    rows = []
    for n, norm in enumerate(stats.norms):
        highest = np.argsort(-stats.peak[n], kind="stable")[:k].tolist()
        chosen = {*top_channels(stats, n, k), *highest}
        shares = stats.shares(n)
        rows += [{"norm": norm} | _channel(stats, gains, n, c) for c in sorted(chosen, key=lambda c: (-shares[c], c))]
    return rows


def at_positions(stats: LnStats, n: int, positions: slice) -> dict:
    """Every statistic at some positions; `small`: tokens whose variance is below 100 epsilon."""
    found = {name: asdict(stats.pooled(n, name, positions)) for name in STATISTICS}
    count = {x.pop("count") for x in found.values()}.pop()
    for name in SKETCHED:
        (found[name]["median"],) = stats.quantiles(n, name, [0.5], positions)
    rstd = found["rstd"]
    rstd["median"] = float(np.clip((found["var"]["median"] + EPSILON) ** -0.5, rstd["min"], rstd["max"]))
    return {"count": count, **found, "small": int(stats.small[n, positions].sum())}


def position_0(stats: LnStats, n: int) -> dict:
    """Median variance at position 0 beside that of all others, None where there are none."""
    (here,) = stats.quantiles(n, "var", [0.5], slice(0, 1))
    if stats.positions == 1:
        return {"var": here, "others": None, "ratio": None}
    (others,) = stats.quantiles(n, "var", [0.5], slice(1, None))
    return {"var": here, "others": others, "ratio": here / others if others else None}


def x_rms(stats: LnStats, n: int) -> float:
    """Root mean square of the norm's input over channels and tokens: E[x^2] = E[u^2] + E[s]."""
    u = stats.pooled(n, "mean")
    return float(np.sqrt(u.mean**2 + u.std**2 + stats.pooled(n, "var").mean))


def top_channels(stats: LnStats, n: int, k: int) -> list[int]:
    return np.argsort(-stats.shares(n), kind="stable")[:k].tolist()


def _channel(stats: LnStats, gains: Gains, n: int, channel: int) -> dict:
    """Its part of the variance, at how many tokens and positions it is massive, its highest point, its gain."""
    at, counts = stats.massive_at(n, channel)
    massive = int(counts.sum())
    row = {"channel": channel, "share": float(stats.shares(n)[channel])}
    row |= {"massive": massive, "often": massive / stats.tokens}
    row |= {"positions": _spans(at), "peak": float(stats.peak[n, channel])}
    row |= {"peak_position": int(stats.peak_at[n, channel]), "peak_x": float(stats.peak_x[n, channel])}
    return row | {name: float(vector[channel]) for name, vector in gains[stats.norms[n]].items()}


def _spans(positions: Sequence[int]) -> list[list[int]]:
    """0, 1, 2, 7 -> [0, 2], [7, 7]"""
    spans: list[list[int]] = []
    for p in map(int, positions):
        if spans and p == spans[-1][1] + 1:
            spans[-1][1] = p
        else:
            spans.append([p, p])
    return spans


def _of_vector(x: np.ndarray) -> dict:
    x = np.asarray(x, np.float64)
    return {"mean": float(x.mean()), "std": float(x.std()), "min": float(x.min()), "max": float(x.max())}
