"""The figure: made for every size of model and run, the same bytes for the same run, labels that do not collide."""

import sys

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from gpt2ln.errors import NotFound, UsageError
from gpt2ln.figure import SUFFIXES, amount, check, drawn

from . import norms

MADE = norms.stats_of(norms.inputs(0))
BEGINS = {"png": b"\x89PNG\r\n\x1a\n", "pdf": b"%PDF-", "svg": b"<?xml"}


def even(width: int):
    """No channel stands out: each has a 1/C of the variance."""
    x = np.tile([1.0, -1.0], (5, width // 2)).astype(np.float32)
    return norms.stats_of([dict.fromkeys(norms.NORMS, x)])


def neighbours():
    """Seven channels side by side, the last ones, each massive at another token."""
    x = np.eye(300, dtype=np.float32)[-7:]
    return norms.stats_of([dict.fromkeys(norms.NORMS, x)])


def changing():
    """25 norms, each with another channel that holds most: no room for their numbers."""
    x = np.zeros((25, 2, 400), np.float32)
    x[range(25), :, range(100, 350, 10)] = 1
    names = [f"h{i}/ln_{k}" for i in range(12) for k in (1, 2)] + ["ln_f"]
    return norms.stats_of([dict(zip(names, x, strict=True))])


CASES = {
    "some texts": MADE,
    "one layer": norms.deep(1, 64),
    "97 norms of width 1600": norms.deep(48, 1600, [4]),
    "one token": norms.stats_of(norms.inputs(0, [1])),
    "position 0 of many": norms.stats_of(norms.inputs(0, [1] * 5)),
    "no massive channel": even(40),
    "two channels": norms.stats_of(norms.inputs(0, width=2)),
    "seven neighbours": neighbours(),
    "another channel at every norm": changing(),
    "no variance": norms.stats_of([dict.fromkeys(norms.NORMS, np.zeros((3, 8), np.float32))]),
}


@pytest.fixture
def axes(monkeypatch):
    """Draw, and look at the four panels as they were when they were saved: at that size, and laid out.

    The canvas of a figure without a window has a `draw` that does nothing.
    """

    def draw(stats) -> list:
        kept = []

        def look(figure, *_, dpi, **__):
            figure.set_dpi(dpi)
            figure.draw_without_rendering()
            kept.append(figure)

        monkeypatch.setattr(Figure, "savefig", look)
        drawn(stats, norms.gains_of(stats), "png")
        return kept[0].axes

    return draw


@pytest.mark.parametrize("form", SUFFIXES)
def test_the_same_run_gives_the_same_bytes(form):
    first, again = (drawn(MADE, norms.gains_of(MADE), form) for _ in range(2))
    assert first == again
    assert first.startswith(BEGINS[form])
    assert first != drawn(even(6), norms.gains_of(MADE), form)


def test_what_a_matplotlibrc_says_changes_nothing():
    plain = drawn(MADE, norms.gains_of(MADE), "svg")
    with matplotlib.rc_context({"axes.facecolor": "black", "lines.linewidth": 9, "svg.fonttype": "none"}):
        assert drawn(MADE, norms.gains_of(MADE), "svg") == plain
        assert matplotlib.rcParams["lines.linewidth"] == 9


def test_a_png_is_large_enough_to_print():
    width, height = np.frombuffer(drawn(MADE, norms.gains_of(MADE), "png")[16:24], ">u4")
    assert (width, height) == (1600, 1184)


def test_no_pyplot_and_so_no_window():
    before = "matplotlib.pyplot" in sys.modules
    drawn(MADE, norms.gains_of(MADE), "svg")
    assert ("matplotlib.pyplot" in sys.modules) is before


def texts_of(ax) -> list:
    return [text for text in ax.texts if text.get_text()]


def overlapping(texts) -> list[str]:
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
    return [(a, b) for i, (a, x) in enumerate(boxes) for b, y in boxes[:i] if x.overlaps(y)]


@pytest.mark.parametrize("case", CASES)
def test_nothing_lies_on_another_or_outside(case, axes):
    """Names of channels, ticks, titles and legends, by the boxes they are drawn in.

    Warnings are errors: no empty legend, no empty range, no layout that does not fit.
    """
    panels = axes(CASES[case])
    whole = panels[0].figure.bbox
    for ax in panels:
        ticks = [t for t in ax.get_xticklabels() if t.get_text() and t.get_visible()]
        shown = [*texts_of(ax), ax._left_title]
        for texts in (shown, ticks):
            assert overlapping(texts) == []
        for box in [t.get_window_extent() for t in shown if t.get_text()] + [ax.get_tightbbox()]:
            assert box.x0 >= whole.x0
            assert box.x1 <= whole.x1
        legend = ax.get_legend()
        if legend is not None:
            assert not [
                t.get_text() for t in texts_of(ax) if legend.get_window_extent().overlaps(t.get_window_extent())
            ]


def test_lines_are_the_statistics(axes):
    variance, _, output, _ = axes(MADE)
    median, first = (line.get_ydata() for line in variance.lines)
    depth = range(len(norms.NORMS))
    np.testing.assert_array_equal(median, [MADE.quantiles(n, "var", [0.5])[0] for n in depth])
    np.testing.assert_array_equal(first, [MADE.quantiles(n, "var", [0.5], slice(0, 1))[0] for n in depth])
    assert variance.get_yscale() == "log"
    rms, g, b = (line.get_ydata() for line in output.lines)
    np.testing.assert_array_equal(rms, [MADE.pooled(n, "rms").mean for n in depth])
    gains = norms.gains_of(MADE)
    for found, leaf in ((g, "g"), (b, "b")):
        right = [np.sqrt((gains[norm][leaf].astype(np.float64) ** 2).mean()) for norm in norms.NORMS]
        np.testing.assert_allclose(found, right, rtol=1e-12)


def test_bars_are_the_shares_of_the_three_largest(axes):
    shares = axes(MADE)[1]
    for rank, bars in enumerate(shares.containers):
        right = [100 * np.sort(MADE.shares(n))[::-1][rank] for n in range(len(norms.NORMS))]
        np.testing.assert_allclose([bar.get_height() for bar in bars], right, rtol=1e-12)
    assert len(shares.containers) == 3


def test_marks_are_the_massive_channels(axes):
    """Blue at a hundredth of all tokens or more, orange at half of the positions 0 or more."""
    stats = CASES["97 norms of width 1600"]
    panel = axes(stats)[3]
    blue, orange = ({*c.get_offsets()[:, 1].tolist()} for c in panel.collections if len(c.get_offsets()))
    assert (blue, orange) == ({138, 447, 448}, {447, 448})
    assert {t.get_text() for t in panel.texts} == {"138", "447", "448"}


def test_without_massive_channels_it_says_none(axes):
    panel = axes(CASES["no massive channel"])[3]
    assert [t.get_text() for t in panel.texts] == ["none"]
    assert panel.get_legend() is None


def test_a_variance_of_nothing_has_no_logarithm(axes):
    assert axes(CASES["no variance"])[0].get_yscale() == "linear"


@pytest.mark.parametrize("layers", [1, 2, 12, 13, 24, 25, 48])
def test_ticks_are_the_blocks_and_the_last_norm(layers, axes):
    for ax in axes(norms.deep(layers, 4, [2]))[2:]:
        names = [t.get_text() for t in ax.get_xticklabels()]
        assert names[0] == "h0"
        assert names[-1] == "ln_f"
        assert len(names) <= 14
        apart = np.diff(ax.get_xticks())
        assert 2 * apart.min() >= apart.max()
        assert [int(name[1:]) * 2 for name in names[:-1]] == ax.get_xticks()[:-1].tolist()


@pytest.mark.parametrize(("lengths", "words"), [([1], "1 token of 1 text"), ([999, 2], "1,001 tokens of 2 texts")])
def test_amounts(lengths, words):
    assert amount(norms.stats_of(norms.inputs(0, lengths))) == words


@pytest.mark.parametrize("suffix", ["", "jpg", "PNG", "json"])
def test_other_suffixes_are_refused(suffix):
    with pytest.raises(UsageError, match=r"expected a name that ends in \.png, \.pdf or \.svg"):
        check(suffix)


def test_without_matplotlib_it_says_what_to_run(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(NotFound, match=r"matplotlib: .*; a figure needs it; run: pip install 'gpt2ln\[plot\]'"):
        check("png")
