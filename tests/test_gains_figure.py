"""The figure of gains and biases: for every size of model and odd weights, the same bytes, nothing on another."""

import sys

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from gpt2ln.figure import SUFFIXES
from gpt2ln.gains import norms_in, read_norms
from gpt2ln.gains_figure import drawn
from gpt2ln.tensors import open_foreign

from .test_checkpoint import OFFICIAL, needs
from .test_figure import BEGINS, overlapping, texts_of
from .test_gains import norm_of


def deep(n_layer: int, width: int, edit=None) -> list:
    names = [f"h{i}/ln_{k}" for i in range(n_layer) for k in (1, 2)] + ["ln_f"]
    rng, made = np.random.default_rng(0), []
    for name in names:
        g, b = rng.normal(0.3, 0.05, width), rng.normal(0, 0.05, width)
        if edit:
            edit(name, g, b)
        made.append(norm_of(g, b, name))
    return made


def far(name, g, b):
    g[[1, -1]], b[len(b) // 2] = 3, -2


def negative(name, g, b):
    g[0] = -0.001


def odd(name, g, b):
    g[3], b[4] = np.nan, -np.inf
    if name == "h0/ln_2":
        g[:] = np.nan


def equal(name, g, b):
    g[:], b[:] = 1, 0
    g[5] = 1.5


def neighbours(name, g, b):
    g[-7:] = 9


CASES = {
    "no channel stands out": deep(2, 64),
    "some do": deep(12, 768, far),
    "97 norms of width 1600": deep(48, 1600, far),
    "negative gains": deep(6, 128, negative),
    "not finite": deep(3, 64, odd),
    "as a model begins": deep(3, 64, equal),
    "seven neighbours": deep(2, 300, neighbours),
    "gains of 0": deep(2, 8, lambda name, g, b: g.fill(0)),
    "huge": deep(2, 8, lambda name, g, b: g.__imul__(1e30)),
    "one norm": deep(0, 16, far),
    "one channel": deep(1, 1),
    "gains alone": [norm_of(np.arange(5.0), None, "h3/ln_1"), norm_of(np.arange(5.0), None, "h4/ln_1")],
    "biases alone": [norm_of(None, np.arange(5.0), "h3/ln_1")],
    "nothing finite": [norm_of(np.full(3, np.nan), np.full(3, np.inf), "ln_f")],
    "of two widths": [norm_of(np.tile([1.0, 2, 3, 99], 5), None, "h0/ln_1"), norm_of(np.ones(3), None, "ln_f")],
}


@pytest.fixture
def axes(monkeypatch):
    """Draw, and look at the four panels as they were when they were saved: at that size, and laid out."""

    def draw(norms) -> list:
        kept = []

        def look(figure, *_, dpi, **__):
            figure.set_dpi(dpi)
            figure.draw_without_rendering()
            kept.append(figure)

        monkeypatch.setattr(Figure, "savefig", look)
        drawn(norms, "png")
        return kept[0].axes

    return draw


@pytest.mark.parametrize("case", CASES)
def test_nothing_lies_on_another_or_outside(case, axes):
    """Warnings are errors: no empty legend, no empty range, no layout that does not fit."""
    panels = axes(CASES[case])
    whole = panels[0].figure.bbox
    for ax in panels:
        ticks = [t for t in ax.get_xticklabels() if t.get_text() and t.get_visible()]
        shown = [*texts_of(ax), ax._left_title]
        for texts in (shown, ticks):
            assert overlapping(texts) == []
        legend = ax.get_legend()
        boxes = [t.get_window_extent() for t in shown if t.get_text()] + [ax.get_tightbbox()]
        for box in boxes + ([legend.get_window_extent()] if legend else []):
            assert box.x0 >= whole.x0
            assert box.x1 <= whole.x1
        if legend:
            assert legend.get_window_extent().x1 <= ax.bbox.x1  # else it makes the panels narrow
            assert not [t for t in texts_of(ax) if legend.get_window_extent().overlaps(t.get_window_extent())]


def test_what_is_drawn(axes):
    """Medians, bands, extremes, marks, names: of weights one can count."""
    norms = deep(12, 768, far)
    gains, biases, apart, farthest = axes(norms)
    (middle,) = [line for line in gains.lines if line.get_label() == "median"]
    np.testing.assert_allclose(middle.get_ydata(), [np.median(np.abs(n.g.values)) for n in norms])
    extremes = np.concatenate([line.get_ydata() for line in gains.lines if line.get_marker() == "_"])
    np.testing.assert_allclose(np.sort(extremes)[-25:], 3)
    (middle,) = [line for line in biases.lines if line.get_label() == "median"]
    assert (biases.get_yscale(), biases.yaxis.get_transform().linthresh) == ("symlog", 1)
    np.testing.assert_allclose(middle.get_ydata(), [np.median(n.b.values) for n in norms])
    assert [t.get_text() for t in texts_of(apart)] == ["1", "384", "767"]
    marks = np.concatenate([np.asarray(c.get_offsets()) for c in apart.collections if len(c.get_offsets()) > 1])
    assert {tuple(mark) for mark in marks.tolist()} == {(n, c) for n in range(25) for c in (1, 384, 767)}
    lines = {line.get_label(): line.get_ydata() for line in farthest.lines}
    np.testing.assert_allclose(lines["384"], [n.b.deviations[384] for n in norms])
    assert [t.get_text() for t in farthest.get_xticklabels()][:2] == ["h0", "h2"]
    assert [t.get_text() for t in farthest.get_xticklabels()][-1] == "ln_f"


def test_negative_gains_are_marked(axes):
    gains, *_ = axes(deep(6, 128, negative))
    assert "below 0" in [t.get_text() for t in gains.get_legend().get_texts()]
    (crosses,) = [c for c in gains.collections if c.get_label() == "below 0"]
    np.testing.assert_allclose(crosses.get_offsets(), [(n, 0.001) for n in range(13)])
    assert gains.get_yscale() == "log"
    gains, *_ = axes(deep(6, 128))
    assert gains.get_yscale() == "linear"
    assert "below 0" not in [t.get_text() for t in gains.get_legend().get_texts()]


@pytest.mark.parametrize(
    ("norms", "ticks"),
    [
        (deep(2, 8), ["h0/ln_1", "h0/ln_2", "h1/ln_1", "h1/ln_2", "ln_f"]),
        (deep(3, 8), ["h0", "h1", "h2", "ln_f"]),
        (deep(3, 8)[:-1], ["h0", "h1", "h2"]),
        (deep(36, 8), ["h0", "h4", "h8", "h12", "h16", "h20", "h24", "h28", "h32", "ln_f"]),
    ],
)
def test_ticks(norms, ticks, axes):
    *_, last = axes(norms)
    assert [t.get_text() for t in last.get_xticklabels()] == ticks


@pytest.mark.parametrize("form", SUFFIXES)
def test_the_same_weights_give_the_same_bytes(form):
    first, again = (drawn(CASES["some do"], form) for _ in range(2))
    assert first == again
    assert first.startswith(BEGINS[form])
    assert first != drawn(CASES["no channel stands out"], form)


def test_what_a_matplotlibrc_says_changes_nothing():
    norms, before = CASES["one norm"], "matplotlib.pyplot" in sys.modules
    plain = drawn(norms, "svg")
    with matplotlib.rc_context({"axes.facecolor": "black", "lines.linewidth": 9}):
        assert drawn(norms, "svg") == plain
    assert ("matplotlib.pyplot" in sys.modules) is before  # and so no window


def test_the_real_norms(axes):
    needs(OFFICIAL / "ln.npz")
    tensors = open_foreign(OFFICIAL / "ln.npz")
    gains, _, apart, _ = axes(read_norms(tensors, norms_in(tensors.entries)))
    assert [t.get_text() for t in texts_of(apart)] == ["138", "266", "326", "373", "447", "480"]
    assert gains.get_yscale() == "log"
