"""One figure of a run: how large the input of every norm is, who holds its variance, and what comes out.

Depth runs from left to right in all four panels, a point a norm.  Needs matplotlib, which the extra `plot` brings.
"""

import io
from collections.abc import Callable, Sequence

import numpy as np

from .errors import NotFound, UsageError
from .stats import MASSIVE, LnStats
from .summary import Gains, top_channels

SUFFIXES = ("png", "pdf", "svg")
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#999999"  # told apart by all eyes
_APART = 50  # bars that have gaps between them
_LETTERS, _POINTS = 62, 320  # width of a panel: in letters of a label, in points
_SHOWN = 3  # channels stacked in the second panel
_NAMED = 6  # channels named in the fourth
RARE = 0.01  # of all tokens: what is massive less often is drawn only where it is so at position 0


def check(suffix: str) -> None:
    """Refuse what cannot be drawn before anything is computed."""
    if suffix not in SUFFIXES:
        raise UsageError(f"--plot: {suffix or 'no suffix'!r}, expected a name that ends in .png, .pdf or .svg")
    try:
        import matplotlib  # noqa: F401
    except ImportError as cause:
        raise NotFound(f"matplotlib: {cause}; a figure needs it; run: pip install 'gpt2ln[plot]'") from None


def drawn(stats: LnStats, gains: Gains, form: str) -> bytes:
    """The figure as a file; the same run gives the same bytes."""
    panels = [lambda ax, draw=draw: draw(ax, stats, gains) for draw in (_variance, _shares, _output, _massive)]
    return four_panels(panels, lambda ax: mark_depth(ax, stats.norms), f"LayerNorm statistics: {amount(stats)}", form)


def four_panels(panels: Sequence[Callable], below: Callable, title: str, form: str) -> bytes:
    """Two rows over one axis of depth, which `below` marks, as a file that depends on nothing else."""
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context(["default", {"svg.hashsalt": "gpt2ln", "font.size": 9}]):  # whatever a matplotlibrc says
        figure = Figure(figsize=(10, 7.4), layout="constrained")
        axes = figure.subplots(2, 2, sharex=True)
        for draw, ax in zip(panels, axes.flat, strict=True):
            draw(ax)
            ax.spines[["top", "right"]].set_visible(False)
        for ax in axes[1]:
            below(ax)
        figure.suptitle(title, fontsize=11)
        out = io.BytesIO()
        dateless = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form)
        figure.savefig(out, format=form, dpi=160, metadata=dateless)
    return out.getvalue()


def amount(stats: LnStats) -> str:
    """Of what was read, as a person says it."""
    counted = ((stats.tokens, "token"), (stats.documents, "text"))
    return " of ".join(f"{n:,} {what}{'s' * (n != 1)}" for n, what in counted)


def mark_depth(ax, norms: Sequence[str]) -> None:
    """A tick at the first norm of some blocks, and at ln_f."""
    blocks = (len(norms) - 1) // 2
    every = max(1, -(-blocks // 12))
    ticks = [*range(0, 2 * blocks, 2 * every), 2 * blocks]
    if len(ticks) > 2 and ticks[-1] - ticks[-2] < every:
        del ticks[-2]
    ax.set_xticks(ticks, [norms[t].split("/")[0] for t in ticks])
    ax.set_xlabel("norm, in the order of the forward pass")
    ax.set_xlim(-0.7, len(norms) - 0.3)


def legend(ax, *, lines: int = 1, ncols: int = 4) -> None:
    """At the top, in room made for it: never on the data."""
    into, back = ax.transScale.transform, ax.transScale.inverted().transform
    (_, bottom), (_, top) = into([(1, y) for y in ax.get_ylim()])
    ax.set_ylim(ax.get_ylim()[0], back((1, top + 0.14 * lines * (top - bottom)))[1])
    ax.legend(frameon=False, fontsize=8, loc="upper left", ncols=ncols, columnspacing=1.4, handlelength=1.6)


def _variance(ax, stats: LnStats, gains: Gains) -> None:
    from matplotlib.ticker import LogFormatterSciNotation

    depth = np.arange(len(stats.norms))
    low, middle, high = np.array([stats.quantiles(n, "var", [0.05, 0.5, 0.95]) for n in depth]).T
    ax.fill_between(depth, low, high, color=BLUE, alpha=0.18, linewidth=0, label="5 to 95 % of tokens")
    ax.plot(depth, middle, color=BLUE, marker="o", markersize=3, label="median")
    first = [stats.quantiles(n, "var", [0.5], slice(0, 1))[0] for n in depth]
    ax.plot(depth, first, color=ORANGE, marker="s", markersize=3, linestyle="--", label="position 0, median")
    if min(low.min(), min(first)) > 0:
        ax.set_yscale("log")
        ax.yaxis.set_minor_formatter(LogFormatterSciNotation(minor_thresholds=(1.5, 0.5)))  # within a decade or so
    ax.set_title("Variance of the norm's input", loc="left")
    legend(ax)


def _shares(ax, stats: LnStats, gains: Gains) -> None:
    depth, below = np.arange(len(stats.norms)), np.zeros(len(stats.norms))
    for rank, colour in zip(range(min(_SHOWN, stats.width)), (BLUE, GREEN, GREY), strict=False):
        held = [top_channels(stats, n, _SHOWN)[rank] for n in depth]
        height = np.array([100 * stats.shares(n)[c] for n, c in zip(depth, held, strict=True)])
        width, label = 0.8 if len(depth) <= _APART else 1.0, ("largest, numbered", "second", "third")[rank]
        ax.bar(depth, height, bottom=below, color=colour, width=width, label=label)
        below += height
    _label_runs(ax, [top_channels(stats, n, 1)[0] for n in depth], below)
    ax.set_ylim(0, 1.1 * below.max() or 1)
    ax.set_title("Share of the variance held by single channels, %", loc="left")
    legend(ax)


def _label_runs(ax, held: list[int], height: np.ndarray) -> None:
    """The largest channel's number, once for each stretch of norms in which it stays that, where there is room."""
    start = 0
    for n in range(1, len(held) + 1):
        if n == len(held) or held[n] != held[start]:
            name, room = str(held[start]), _LETTERS * (n - start) / len(held)
            if len(name) < room:
                at = (start + n - 1) / 2, height[start:n].max()
                ax.annotate(name, at, xytext=(0, 2), textcoords="offset points", fontsize=8, ha="center", color=BLUE)
            start = n


def _output(ax, stats: LnStats, gains: Gains) -> None:
    depth = np.arange(len(stats.norms))
    rms = [stats.pooled(n, "rms") for n in depth]
    mean, std = np.array([r.mean for r in rms]), np.array([r.std for r in rms])
    ax.fill_between(depth, mean - std, mean + std, color=BLUE, alpha=0.18, linewidth=0, label="± one deviation")
    ax.plot(depth, mean, color=BLUE, marker="o", markersize=3, label="output, mean")
    for leaf, colour, style in (("g", GREEN, "--"), ("b", GREY, ":")):
        size = [np.sqrt(np.mean(np.square(gains[norm][leaf], dtype=np.float64))) for norm in stats.norms]
        ax.plot(depth, size, color=colour, linestyle=style, label=leaf)
    ax.set_ylim(bottom=0)
    ax.set_title("RMS of the norm's output, of its gain g and its bias b", loc="left")
    legend(ax)


def _massive(ax, stats: LnStats, gains: Gains) -> None:
    """Blue: where it is massive at a hundredth of all tokens or more; orange: at position 0 of half of the texts."""
    from matplotlib.ticker import MaxNLocator

    anywhere, first, total = [], [], {}
    for n in range(len(stats.norms)):
        channels, counts = stats.massive_of(n)
        for channel in np.unique(channels).tolist():
            often = counts[channels == channel].sum() / stats.tokens
            at, there = stats.massive_at(n, channel)
            begins = there[0] / stats.documents if at[0] == 0 else 0
            anywhere += [(n, channel, often)] if often >= RARE else []
            first += [(n, channel, begins)] if begins >= 0.5 else []
            if often >= RARE or begins >= 0.5:
                total[channel] = total.get(channel, 0) + often + begins
    ax.set_title(f"Massive: {100 * MASSIVE:.0f} % of a token's variance or more", loc="left")
    ax.set_ylabel("channel")
    ax.set_ylim(-0.04 * stats.width, 1.1 * stats.width)
    ax.yaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10], integer=True))
    ax.set_yticks([tick for tick in ax.get_yticks() if 0 <= tick < stats.width])
    widest = min(8.7, max(4.0, _POINTS / len(stats.norms))) ** 2  # area of a mark that stays clear of the next
    _marks(ax, anywhere, widest, {0.1: "10 % of tokens", 1: "all tokens"}, marker="o", facecolor=BLUE, edgecolor=BLUE)
    _marks(ax, first, widest, {1: "all positions 0"}, marker="s", facecolor="none", edgecolor=ORANGE)
    if not total:
        ax.text(0.5, 0.5, "none", transform=ax.transAxes, ha="center", color=GREY)
        return
    legend(ax)
    name_channels(ax, sorted(total, key=lambda c: -total[c])[:_NAMED], stats)


def _marks(ax, points: list[tuple[int, int, float]], widest: float, named: dict[float, str], **look) -> None:
    """Norm, channel, how often; the area of a mark says how often, and the legend shows some."""
    if not points:
        return
    n, channel, often = map(np.array, zip(*points, strict=True))
    ax.scatter(n, channel, s=widest * (0.08 + 0.92 * often), linewidth=0.9, **look)
    for share, name in named.items():
        ax.scatter([], [], s=widest * (0.08 + 0.92 * share), linewidth=0.9, label=name, **look)


def name_channels(ax, channels: list[int], stats: LnStats) -> None:
    """Numbers at the right edge, moved up where they would lie on one another."""
    lowest = -np.inf
    for channel in sorted(channels):
        at = max(channel, lowest)
        ax.annotate(str(channel), (len(stats.norms) - 0.3, at), xytext=(3, 0), textcoords="offset points", fontsize=8,
                    va="center", annotation_clip=False)  # fmt: skip
        lowest = at + 0.065 * stats.width
