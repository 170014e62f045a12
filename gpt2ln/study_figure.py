"""One figure of a study: how far each wrong LayerNorm leads the output of every norm away, beside float32's noise.

Depth runs from left to right in all four panels, a point a norm.  Needs matplotlib, which the extra `plot` brings.
"""

from collections.abc import Sequence

import numpy as np

from .figure import BLUE, GREEN, GREY, ORANGE, amount, four_panels, legend, mark_depth
from .spec import EPSILON
from .study import MATTERS, Study

PANELS = {
    "Another epsilon": ("epsilon",),
    "Other statistics": ("statistics",),
    "Other places, other spellings": ("place", "spelling"),
}
LOOKS = ((BLUE, "-"), (ORANGE, "--"), (GREEN, "-."), ("#CC79A7", ":"), ("#000000", (0, (5, 1))))


def drawn(study: Study, form: str) -> bytes:
    """The figure as a file; the same study gives the same bytes."""
    panels = [lambda ax, at=at: _apart(ax, study, *at) for at in PANELS.items()] + [lambda ax: _variance(ax, study)]
    title = f"Wrong LayerNorms, largest difference of a norm's output: {amount(study)}"
    return four_panels(panels, lambda ax: mark_depth(ax, study.norms), title, form)


def _apart(ax, study: Study, title: str, groups: Sequence[str]) -> None:
    """What is 0 or not finite leaves a gap; the noise, and what it takes to matter, are grey."""
    depth = np.arange(len(study.norms))
    effects = [effect for effect in study.effects if effect.mistake.group in groups]
    for effect, (colour, style) in zip(effects, LOOKS, strict=False):
        ax.plot(depth, _positive(effect.norms), color=colour, linestyle=style, marker="o", markersize=2.5,
                label=effect.mistake.name)  # fmt: skip
    low, high = _positive(study.noise), _positive(MATTERS * study.noise)
    ax.fill_between(
        depth, low, high, color=GREY, alpha=0.3, linewidth=0, label=f"float32's noise, to {MATTERS} times it"
    )
    ax.set_title(title, loc="left")
    _log(ax)
    legend(ax, lines=2, ncols=3)


def _variance(ax, study: Study) -> None:
    depth, (low, high) = np.arange(len(study.norms)), map(_positive, study.var)
    ax.fill_between(depth, low, high, color=BLUE, alpha=0.18, linewidth=0, label="all tokens")
    ax.plot(depth, low, color=BLUE, marker="o", markersize=3, label="smallest")
    ax.axhline(EPSILON, color=ORANGE, linestyle="--", linewidth=1, label="epsilon, 1e-5")
    ax.set_title("Variance of the norm's input", loc="left")
    _log(ax)
    legend(ax)


def _positive(x: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(x) & (x > 0), x, np.nan)


def _log(ax) -> None:
    if np.isfinite(ax.dataLim.intervaly).all() and ax.dataLim.intervaly[0] > 0:
        ax.set_yscale("log")
