"""The figure of a study: for every size of model and result, the same bytes for the same study, nothing on another."""

from functools import cache

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from gpt2ln.mistakes import MISTAKES, choose
from gpt2ln.study import Effect, Study
from gpt2ln.study_figure import PANELS, drawn

from .test_figure import overlapping, texts_of


def made(layers: int = 2, only: str | None = None, scale: float = 1.0) -> Study:
    """Each mistake ten times as large as the one before it."""
    norms = (*(f"h{i}/ln_{k}" for i in range(layers) for k in (1, 2)), "ln_f")
    N = len(norms)
    effects = [Effect(mistake, scale * 1e-8 * 10.0**k * np.arange(1, N + 1)) for k, mistake in enumerate(choose(only))]
    var = np.array([[0.02] * N, [30.0] * N])
    return Study(norms, effects, np.full(N, 1e-6), var, squares=1.0, documents=2, tokens=10, scored=8)


def broken() -> Study:
    """Not finite, or exactly nothing."""
    found = made(48)
    for k, effect in enumerate(found.effects):
        effect.norms[:] = (0, np.nan, np.inf)[k % 3]
    found.effects[4].norms[1] = 1.0
    return found


def empty() -> Study:
    found = made(1, "rms", scale=0)
    found.noise[:], found.var[:] = 0, 0
    return found


CASES = {
    "all": made(),
    "one layer, one mistake": made(1, "rms"),
    "48 layers, not all finite": broken(),
    "nothing above 0": empty(),
}


@cache
def panels_of(case: str) -> list:
    """Laid out as it is before it is saved."""
    kept = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda self, *_, **__: (self.draw_without_rendering(), kept.append(self)))
        drawn(CASES[case], "png")
    return kept[0].axes


def test_every_mistake_has_a_panel():
    groups = [group for groups in PANELS.values() for group in groups]
    assert sorted(groups) == sorted({mistake.group for mistake in MISTAKES})


def test_the_same_study_gives_the_same_bytes():
    with matplotlib.rc_context({"lines.linewidth": 9}):
        first = drawn(made(1, "rms"), "svg")
    assert first == drawn(made(1, "rms"), "svg") != drawn(made(1, "rms", scale=2), "svg")
    assert first.startswith(b"<?xml")


@pytest.mark.parametrize("case", CASES)
def test_nothing_lies_on_another_or_outside(case):
    """By the boxes that texts, ticks and legends are drawn in; and no line within a legend."""
    panels = panels_of(case)
    whole = panels[0].figure.bbox
    for ax in panels:
        ticks = [tick for tick in ax.get_xticklabels() if tick.get_text() and tick.get_visible()]
        for texts in ([*texts_of(ax), ax._left_title], ticks):
            assert overlapping(texts) == []
        box, legend = ax.get_tightbbox(), ax.get_legend().get_window_extent()
        assert whole.x0 <= box.x0 < box.x1 <= whole.x1
        assert ax.get_window_extent().x0 <= legend.x0 < legend.x1 <= ax.get_window_extent().x1
        for line in ax.lines:
            points = ax.transData.transform(line.get_xydata())
            assert not [xy for xy in points if legend.contains(*xy)], line.get_label()


def test_lines_are_the_differences():
    study = CASES["all"]
    shown = {line.get_label(): line.get_ydata() for ax in panels_of("all")[:3] for line in ax.lines}
    assert sorted(shown) == sorted(mistake.name for mistake in MISTAKES)
    for effect in study.effects:
        np.testing.assert_array_equal(shown[effect.mistake.name], effect.norms)
    (panel, *_) = panels_of("all")
    assert panel.get_yscale() == "log"
    low, high = panel.collections[0].get_paths()[0].get_extents().intervaly
    np.testing.assert_allclose([low, high], [1e-6, 1e-5])
    assert len({(line.get_color(), line.get_linestyle()) for line in panel.lines}) == 5


def test_what_has_no_logarithm_leaves_a_gap():
    panels = panels_of("48 layers, not all finite")[:3]
    shown = {line.get_label(): line.get_ydata() for ax in panels for line in ax.lines}
    assert [ax.get_yscale() for ax in panels] == ["log"] * 3
    assert np.isnan(shown[MISTAKES[0].name]).all()  # exactly nothing
    found = shown[MISTAKES[4].name]
    assert np.flatnonzero(np.isfinite(found)).tolist() == [1]
    assert panels_of("nothing above 0")[0].get_yscale() == "linear"


def test_the_variance_of_the_input_is_beside_epsilon():
    variance = panels_of("all")[3]
    smallest, epsilon = variance.lines
    np.testing.assert_array_equal(smallest.get_ydata(), [0.02] * 5)
    assert set(epsilon.get_ydata()) == {1e-5}
