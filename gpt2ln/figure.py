"""One figure of a run: how large the input of every norm is, who holds its variance, and what comes out.

Depth runs from left to right in all four panels, a point a norm.  Needs matplotlib, which the extra `plot` brings.
"""

import io

import numpy as np

from .errors import NotFound, UsageError
from .stats import MASSIVE, LnStats
from .summary import Gains, top_channels

SUFFIXES = ("png", "pdf", "svg")
_INK, _BLUE, _ORANGE, _GREEN, _GREY = "#222222", "#0072B2", "#D55E00", "#009E73", "#999999"  # told apart by all eyes
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
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "gpt2ln", "font.size": 9, "svg.fonttype": "path"}):
        figure = Figure(figsize=(10, 7.4), layout="constrained")
        axes = figure.subplots(2, 2, sharex=True)
        for draw, ax in zip((_variance, _shares, _output, _massive), axes.flat, strict=True):
            draw(ax, stats, gains)
            ax.spines[["top", "right"]].set_visible(False)
        for ax in axes[1]:
            _depth(ax, stats)
        figure.suptitle(f"LayerNorm statistics: {stats.tokens:,} tokens of {stats.documents:,} texts", fontsize=11)
        out = io.BytesIO()
        dateless = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form)
        figure.savefig(out, format=form, dpi=160, metadata=dateless)
    return out.getvalue()


def _depth(ax, stats: LnStats) -> None:
    """A tick at the first norm of some blocks, and at ln_f."""
    blocks = (len(stats.norms) - 1) // 2
    every = max(1, -(-blocks // 12))
    ticks = [*range(0, 2 * blocks, 2 * every), 2 * blocks]
    if len(ticks) > 2 and ticks[-1] - ticks[-2] < every:
        del ticks[-2]
    ax.set_xticks(ticks, [stats.norms[t].split("/")[0] for t in ticks])
    ax.set_xlabel("norm, in the order of the forward pass")
    ax.set_xlim(-0.7, len(stats.norms) - 0.3)


def _variance(ax, stats: LnStats, gains: Gains) -> None:
    depth = np.arange(len(stats.norms))
    low, middle, high = np.array([stats.quantiles(n, "var", [0.05, 0.5, 0.95]) for n in depth]).T
    ax.fill_between(depth, low, high, color=_BLUE, alpha=0.18, linewidth=0, label="5 to 95 % of tokens")
    ax.plot(depth, middle, color=_BLUE, marker="o", markersize=3, label="median")
    first = [stats.quantiles(n, "var", [0.5], slice(0, 1))[0] for n in depth]
    ax.plot(depth, first, color=_ORANGE, marker="s", markersize=3, linestyle="--", label="position 0, median")
    if min(low.min(), min(first)) > 0:
        ax.set_yscale("log")
    ax.set_title("Variance of the norm's input", loc="left")
    ax.legend(frameon=False, fontsize=8)


def _shares(ax, stats: LnStats, gains: Gains) -> None:
    depth, below = np.arange(len(stats.norms)), np.zeros(len(stats.norms))
    for rank, colour in zip(range(min(_SHOWN, stats.width)), (_BLUE, _GREEN, _GREY), strict=False):
        held = [top_channels(stats, n, _SHOWN)[rank] for n in depth]
        height = np.array([100 * stats.shares(n)[c] for n, c in zip(depth, held, strict=True)])
        ax.bar(depth, height, bottom=below, color=colour, width=0.8, label=("largest", "second", "third")[rank])
        if rank == 0:
            _label_runs(ax, held, height)
        below += height
    ax.axhline(100 * MASSIVE, color=_INK, linewidth=0.8, linestyle=":")
    ax.set_ylim(0, max(below.max() * 1.18, 100 * MASSIVE * 1.1))
    ax.set_title("Share of the variance held by single channels, %", loc="left")
    ax.legend(frameon=False, fontsize=8, ncols=3, loc="upper left")


def _label_runs(ax, held: list[int], height: np.ndarray) -> None:
    """The channel's number, once for each stretch of norms in which it stays the largest."""
    start = 0
    for n in range(1, len(held) + 1):
        if n == len(held) or held[n] != held[start]:
            middle = (start + n - 1) / 2
            ax.text(middle, height[start:n].max() / 2, str(held[start]), ha="center", va="center", fontsize=8,
                    color="white", fontweight="bold")  # fmt: skip
            start = n


def _output(ax, stats: LnStats, gains: Gains) -> None:
    depth = np.arange(len(stats.norms))
    rms = [stats.pooled(n, "rms") for n in depth]
    mean, std = np.array([r.mean for r in rms]), np.array([r.std for r in rms])
    ax.fill_between(depth, mean - std, mean + std, color=_BLUE, alpha=0.18, linewidth=0, label="one standard deviation")
    ax.plot(depth, mean, color=_BLUE, marker="o", markersize=3, label="RMS of the output, mean")
    for leaf, colour, style in (("g", _GREEN, "--"), ("b", _GREY, ":")):
        size = [np.sqrt(np.mean(np.square(gains[norm][leaf], dtype=np.float64))) for norm in stats.norms]
        ax.plot(depth, size, color=colour, linestyle=style, label=f"RMS of {leaf} in the checkpoint")
    ax.set_ylim(bottom=0)
    ax.set_title("What comes out", loc="left")
    ax.legend(frameon=False, fontsize=8)


def _massive(ax, stats: LnStats, gains: Gains) -> None:
    """Blue: where it is massive at a hundredth of all tokens or more; orange: at position 0 of half of the texts."""
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
    ax.set_title(f"Massive channels: {100 * MASSIVE:.0f} % of a token's variance or more", loc="left")
    ax.set_ylabel("channel")
    ax.set_ylim(-0.04 * stats.width, 1.3 * stats.width)
    ax.set_yticks([tick for tick in ax.get_yticks() if 0 <= tick <= stats.width])
    sizes = ((anywhere, "o", _BLUE, "size: share of all tokens"), (first, "s", _ORANGE, "size: share of positions 0"))
    for points, marker, colour, label in sizes:
        if points:
            n, channel, often = map(np.array, zip(*points, strict=True))
            filled = {"facecolor": colour, "alpha": 0.75} if marker == "o" else {"facecolor": "none"}
            ax.scatter(n, channel, s=6 + 70 * often, marker=marker, edgecolor=colour, label=label, **filled)
    if not total:
        ax.text(0.5, 0.5, "none", transform=ax.transAxes, ha="center", color=_GREY)
        return
    ax.legend(frameon=False, fontsize=8, loc="upper left", ncols=2)
    _name_channels(ax, sorted(total, key=lambda c: -total[c])[:_NAMED], stats)


def _name_channels(ax, channels: list[int], stats: LnStats) -> None:
    """Numbers at the right edge, moved up where they would lie on one another."""
    lowest = -np.inf
    for channel in sorted(channels):
        at = max(channel, lowest)
        ax.annotate(str(channel), (len(stats.norms) - 0.3, at), xytext=(3, 0), textcoords="offset points", fontsize=8,
                    va="center", annotation_clip=False)  # fmt: skip
        lowest = at + 0.055 * stats.width
