"""A mistake that was made in some rows alone is named with these rows, and none is named by chance."""

import numpy as np
import pytest

from gpt2ln import rowwise
from gpt2ln.case import Case
from gpt2ln.causes import _fitting
from gpt2ln.compare import BUG, Measure, compare
from gpt2ln.readings import Document, Reading

from . import numpy_port as ports
from .port_mistakes import AFTER_PROMPT, PROMPT
from .test_causes import KEPT, case, report_of  # noqa: F401

EVERY, STATES = KEPT.values()
UNSEEN = ("mask off by one", "scale missing", "cache one step late")  # where the hidden states alone are there


@pytest.mark.parametrize("port", AFTER_PROMPT, ids=str)
def test_a_mistake_after_the_prompt_is_named(case, port):  # noqa: F811
    ids, _, hparams, weights = case
    b = port.run(weights, ids, hparams.n_head)
    cause = report_of(case, b, STATES if port.name in UNSEEN else EVERY).causes[0]
    assert cause.name == port.name
    assert cause.says.startswith(f"in rows {PROMPT}..{len(ids) - 1} alone: ")
    assert 0.9 < cause.explains <= 1


ROWS = {
    "row 0": [0],
    "row 7": [7],
    "row 22": [22],
    "rows 1..22": range(1, 23),
    "rows 0..4": range(5),
    "rows 0..2, 9..10, 22": [0, 1, 2, 9, 10, 22],
}


@pytest.mark.parametrize("said", ROWS)
def test_whatever_rows(case, said):  # noqa: F811
    ids, _, hparams, weights = case
    later = np.isin(np.arange(len(ids)), list(ROWS[said]))
    b = ports.run(weights, ids, hparams.n_head, gelu=ports.erf_gelu, later=later)
    cause = report_of(case, b).causes[0]
    assert (cause.name, cause.says) == ("erf GELU", f"in {said} alone: GELU is the erf form, expected the tanh form")


DUMPS = [port for port in AFTER_PROMPT if port.name.startswith(("wpe", "epsilon", "cache"))]


@pytest.mark.parametrize("port", DUMPS, ids=str)
def test_without_the_weights(case, port):  # noqa: F811
    ids, _, hparams, weights = case
    causes = report_of(case, port.run(weights, ids, hparams.n_head), weights=False).causes
    assert [cause.name for cause in causes] == [port.name]
    assert causes[0].says.startswith(f"in rows {PROMPT}..{len(ids) - 1} alone: ")


def test_one_text_of_two(case):  # noqa: F811
    """As where one of a batch was padded on the left, and its positions were not."""
    ids, a, hparams, weights = case
    b = ports.run(weights, ids, hparams.n_head, wpe_at=3)
    sides = [_reading(ids, taps) for taps in ((a, a), (a, b))]
    report = compare(*sides, Measure(hparams, weights))
    assert (report.verdict, report.first.document) == (BUG, 1)
    assert (report.causes[0].name, report.causes[0].says) == ("wpe shifted", "position t gets row t + 3 of wpe")


def _reading(ids, texts) -> Reading:
    documents = tuple(Document(len(ids), np.arange(len(ids)), taps, tuple(ids)) for taps in texts)
    return Reading("made up", documents, None, (), dict.fromkeys(texts[0], "float32"))


def found(case, name, value, *, weights=True) -> set[str]:  # noqa: F811
    """Names of the causes in some rows alone, where B holds this at one tap."""
    ids, a, hparams, w = case
    b = Case(a, {**a, name: value.astype(np.float32)}, name, hparams, ids, w if weights else {}, 0.0)
    with np.errstate(all="ignore"):
        return {fit.cause.name for one in rowwise.cases(b) for fit in _fitting(one)}


PARTS = ([0], [7], [22], range(9, 23))
CHANCE = {
    "a factor": lambda x: 0.9 * x,
    "a constant": lambda x: x + 0.01,
    "other numbers": lambda x: x * (1 + 0.001 * np.random.default_rng(0).normal(size=x.shape)),
    "a NaN": lambda x: np.where(np.arange(x[0].size).reshape(x[0].shape) == 0, np.nan, x),
}


@pytest.mark.parametrize("change", CHANCE)
def test_no_name_by_chance(case, change):  # noqa: F811
    _, a, *_ = case
    for name in ("wpe/out", "h1/ln_1/rstd", "h1/ln_1/norm", "h1/attn/scores", "h1/attn/probs", "h1/mlp/gelu", "logits"):
        for rows in PARTS:
            value = a[name].copy()
            value[list(rows)] = CHANCE[change](a[name])[list(rows)]
            assert found(case, name, value) == set(), (name, rows)
            if name == "wpe/out":  # where the row after the last is not known
                assert found(case, name, value, weights=False) == set(), rows


def test_a_first_row_of_zeros_is_no_cache(case):  # noqa: F811
    _, a, *_ = case
    assert found(case, "h1/attn/z", a["h1/attn/z"] * (np.arange(23) > 0)[:, None]) == set()


def test_scores_must_fit_where_they_are_seen(case):  # noqa: F811
    """That a row hides too little is no excuse for all its numbers."""
    _, a, *_ = case
    value = a["h1/attn/scores"].copy()
    value[7] = 0
    assert found(case, "h1/attn/scores", value) == set()
    value = a["h1/attn/scores"].copy()
    value[7] = np.where(np.arange(23) > 6, -1e10, value[7])
    assert found(case, "h1/attn/scores", value) == {"mask off by one"}
    assert report_of(case, {**a, "h1/attn/scores": np.zeros_like(value)}).causes == ()
    assert report_of(case, {**a, "h1/attn/scores": np.where(value > -1e5, 1.01 * value, 0)}).causes == ()


@pytest.mark.parametrize(("epsilon", "off", "named"), [
    (1e-3, 0, True), (1e-3, 0.005, False), (1e-6, 0, False),
])  # fmt: skip
def test_one_number_is_enough_where_it_is_no_chance(case, epsilon, off, named):  # noqa: F811
    """A row of rstd is one number: it must be large, and fit to the rounding."""
    _, a, *_ = case
    var, value = a["h0/ln_1/var"][7].astype(np.float64), a["h0/ln_1/rstd"].copy()
    value[7] += (1 - off) * ((var + epsilon) ** -0.5 - (var + 1e-5) ** -0.5)
    assert found(case, "h0/ln_1/rstd", value) == ({f"epsilon {epsilon:g}"} if named else set())


def test_each_row_is_its_own_measure(case):  # noqa: F811
    ids, a, hparams, weights = case
    b = {**a, "h1/mid": a["h1/mid"] * np.where(np.arange(len(ids)) == 0, 3000, 1)[:, None]}
    rounding = Case(a, b, "h1/mid", hparams, ids, weights, 0.0).rounding_by_row
    np.testing.assert_allclose(rounding, 2.0**-22 * np.sqrt(np.square(b["h1/mid"]).mean(-1)), rtol=1e-6)


def test_runs_of_rows():
    rows = np.zeros(40, bool)
    rows[[0, 3, 4, 9, 11, 13, 14, 15, 20, 30]] = True
    assert rowwise.named(rows) == "rows 0, 3..4, 9, 11, 13..15 and 2 more runs"
    assert rowwise.named(np.arange(3) == 1) == "row 1"
