"""One figure of the weights of all norms: gains, biases, which channels stand out, and how far.

Depth runs from left to right in all four panels, a point a norm.  Needs matplotlib, which the extra `plot` brings.
"""

from collections.abc import Sequence

import numpy as np

from .figure import BLUE, GREEN, GREY, ORANGE, four_panels, legend, name_channels
from .gains import STANDS_OUT, Norm, Vector, counted

_NAMED = 6  # channels named at the right edge
_TICKS = 12
_POINTS = 330  # width of a panel


def drawn(norms: Sequence[Norm], form: str) -> bytes:
    """The figure as a file; the same weights give the same bytes."""
    panels = [lambda ax, draw=draw: draw(ax, norms) for draw in (_gains, _biases, _apart, _farthest)]
    title = f"LayerNorm gains and biases: {len(norms)} norm{'s' * (len(norms) != 1)}"
    return four_panels(panels, lambda ax: _depth(ax, norms), title, form)


def _depth(ax, norms: Sequence[Norm]) -> None:
    """Every norm by its name where they are few, else the first of some blocks, and the last."""
    if len(norms) <= 5:
        ticks = {n: norm.name for n, norm in enumerate(norms)}
    else:
        ticks = {}
        for n, norm in enumerate(norms):
            ticks.setdefault(norm.name.split("/")[0], n)
        every = -(-len(ticks) // _TICKS)
        firsts = list(ticks.items())
        ticks = {n: block for block, n in (*firsts[:-1:every][: len(firsts) // every], firsts[-1])}
    ax.set_xticks(list(ticks), list(ticks.values()))
    ax.set_xlabel("norm, in the order of the forward pass")
    ax.set_xlim(-0.7, len(norms) - 0.3)


def _of(norms: Sequence[Norm], leaf: str) -> list[tuple[int, Vector]]:
    """(depth, vector) where there is one with a finite value."""
    found = [(n, norm.vectors.get(leaf)) for n, norm in enumerate(norms)]
    return [(n, vector) for n, vector in found if vector is not None and vector.spread.min is not None]


def _gains(ax, norms: Sequence[Norm]) -> None:
    """On a scale of ratios, for a gain multiplies; of a negative one the size is drawn, and marked."""
    found = _of(norms, "g")
    ax.set_title("Size of gain g, over channels", loc="left")
    if not _spread(ax, found, absolute=True):
        return
    below = [(n, -v.values[c]) for n, v in found for c in v.negative]
    if below:
        ax.scatter(*zip(*below, strict=True), marker="x", s=22, linewidth=0.9, color=ORANGE, label="below 0", zorder=3)
    low, high = ax.dataLim.intervaly
    if low > 0 and high / low > 20:
        ax.set_yscale("log")
    legend(ax)


def _biases(ax, norms: Sequence[Norm]) -> None:
    """Linear up to 1, in ratios beyond: those of ln_f are larger than all others."""
    found = _of(norms, "b")
    ax.set_title("Bias b, over channels", loc="left")
    if _spread(ax, found, absolute=False):
        ax.set_yscale("symlog", linthresh=1)
        legend(ax)


def _spread(ax, found: list[tuple[int, Vector]], *, absolute: bool) -> bool:
    """Median, the middle nine tenths, the extremes -> whether there is anything."""
    if not found:
        ax.text(0.5, 0.5, "none", transform=ax.transAxes, ha="center", color=GREY)
        return False
    depth = [n for n, _ in found]
    fine = [v.values[np.isfinite(v.values)] for _, v in found]
    shares = [np.quantile(np.abs(x) if absolute else x, [0, 0.05, 0.5, 0.95, 1]) for x in fine]
    least, low, middle, high, most = np.array(shares).T
    ax.fill_between(depth, low, high, color=BLUE, alpha=0.18, linewidth=0, label="5-95 %")
    ax.plot(depth, middle, color=BLUE, marker="o", markersize=3, label="median")
    for size, label in ((most, "extremes"), (least, None)):
        ax.plot(depth, size, color=GREEN, linestyle="none", marker="_", markersize=_wide(len(depth)), label=label)
    return True


def _wide(norms: int) -> float:
    """Of a mark that stays clear of the next."""
    return min(8.0, max(3.0, _POINTS / norms))


def _apart(ax, norms: Sequence[Norm]) -> None:
    """Which channels, norm by norm; the area of a mark says how far, at most ten times the limit."""
    from matplotlib.ticker import MaxNLocator

    width = max((len(v.values) for norm in norms for v in norm.vectors.values()), default=1)
    ax.set_title(f"Stand out: more than {STANDS_OUT:g} deviations", loc="left")
    ax.set_ylabel("channel")
    ax.set_ylim(-0.04 * width, 1.1 * width)
    ax.yaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10], integer=True))
    ax.set_yticks([tick for tick in ax.get_yticks() if 0 <= tick < width])
    marked = False
    for leaf, colour, marker, face in (("g", BLUE, "o", BLUE), ("b", ORANGE, "s", "none")):
        points = [(n, c, _far(v, c)) for n, v in _of(norms, leaf) for c in v.stands_out]
        if points:
            n, channel, far = map(np.array, zip(*points, strict=True))
            area = _wide(len(norms)) ** 2 * far
            look = {"marker": marker, "facecolor": face, "edgecolor": colour, "linewidth": 0.8}
            ax.scatter(n, channel, s=area, **look)
            ax.scatter([], [], s=30, label=f"in {leaf}", **look)
            marked = True
    if not marked:
        ax.text(0.5, 0.5, "none", transform=ax.transAxes, ha="center", color=GREY)
        return
    legend(ax)
    name_channels(ax, [c for c, _ in counted(norms)[:_NAMED]], _Frame(norms, width))


def _far(vector: Vector, channel: int) -> float:
    return min(1.0, vector.deviations[channel] / (10 * STANDS_OUT))


class _Frame:
    """What `name_channels` asks of a panel."""

    def __init__(self, norms: Sequence[Norm], width: int):
        self.norms, self.width = norms, width


def _farthest(ax, norms: Sequence[Norm]) -> None:
    """The channels that stand out in most norms: how far, norm by norm."""
    ax.set_title("Deviations from the median, g or b, the larger", loc="left")
    named = [channel for channel, _ in counted(norms)[:4]]
    for channel, colour, style in zip(named, (BLUE, ORANGE, GREEN, GREY), ("-", "--", "-.", ":"), strict=False):
        far = [max((float(v.deviations[channel]) for v in norm.vectors.values() if channel < len(v.values)), default=0)
               for norm in norms]  # fmt: skip
        ax.plot(range(len(norms)), far, color=colour, linestyle=style, marker="o", markersize=3, label=str(channel))
    if not named:
        ax.text(0.5, 0.5, "none stands out", transform=ax.transAxes, ha="center", color=GREY)
        ax.set_yticks([])
        return
    ax.axhline(STANDS_OUT, color=GREY, linewidth=0.8)
    ax.set_ylim(bottom=0)
    legend(ax)
