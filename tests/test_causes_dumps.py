"""What two dumps tell without the weights of the model: of wte, of the order of norms, and of a square matrix."""

import numpy as np
import pytest

from gpt2ln.case import weights_shown
from gpt2ln.compare import BUG

from . import numpy_port as ports
from .port_mistakes import half
from .test_causes import case, report_of  # noqa: F401


def cause_of(case, **switches):  # noqa: F811
    ids, _, hparams, weights = case
    weights = switches.pop("weights", weights)
    return report_of(case, ports.run(weights, ids, hparams.n_head, **switches), weights=False).causes[0]


@pytest.mark.parametrize(("by", "says"), [
    (48**0.5, "sqrt(C) = 6.9282"), (48**-0.5, "1 / sqrt(C) = 0.144338"), (0.5, "0.5"), (-1.0, "-1"), (1.001, "1.001"),
])  # fmt: skip
def test_the_constant_that_wte_is_multiplied_by(case, by, says):  # noqa: F811
    cause = cause_of(case, wte_scale=by)
    assert (cause.name, cause.tap, cause.says) == ("wte scaled", "wte/out", f"wte is multiplied by {says}")


def test_the_constant_where_wte_itself_is_right(case):  # noqa: F811
    """It is multiplied later, so the sum is the first that differs."""
    _, a, *_ = case
    b = {**a, "embed": a["wte/out"] * 3 + a["wpe/out"]}
    cause = report_of(case, b, weights=False).causes[0]
    assert (cause.name, cause.tap, cause.says) == ("wte scaled", "embed", "wte is multiplied by 3")


@pytest.mark.parametrize(("name", "less"), [
    ("float16 weights", half), ("bfloat16 weights", ports.fewer_bits(7)),
    ("bfloat16 weights", lambda x: (np.ascontiguousarray(x).view(np.uint32) & 0xFFFF0000).view(np.float32)),
])  # fmt: skip
def test_weights_in_fewer_bits(case, name, less):  # noqa: F811
    cause = cause_of(case, weights={k: less(v) for k, v in case[3].items()})
    assert (cause.name, cause.tap, cause.harmless) == (name, "wte/out", False)


def test_two_look_ups_show_no_arithmetic(case):  # noqa: F811
    _, a, *_ = case
    held = {name: a[name] for name in ("wte/out", "wpe/out")}
    b = {name: half(x) for name, x in held.items()}
    for weights in (True, False):
        assert report_of((*case[:1], held, *case[2:]), b, weights=weights).causes[0].name == "float16 weights"


@pytest.mark.parametrize("tap", ["wte/out", "wpe/out"])
def test_weights_that_are_centred(case, tap):  # noqa: F811
    _, a, *_ = case
    cause = report_of(case, {**a, tap: a[tap] - a[tap].mean(-1, keepdims=True)}, weights=False).causes[0]
    assert (cause.name, cause.tap, cause.harmless) == ("centred weights", tap, True)


def test_post_norm(case):  # noqa: F811
    ids, _, hparams, weights = case
    b = ports.run(weights, ids, hparams.n_head, post=True)
    cause = report_of(case, b, weights=False).causes[0]
    assert (cause.name, cause.tap) == ("post-norm", "h0/ln_1/mean")
    assert cause.explains > 0.9999
    unseen = {name: x for name, x in b.items() if name != "h0/attn/out"}
    assert report_of(case, unseen, weights=False).causes == ()


@pytest.fixture(scope="module")
def many(golden_model):
    """As `case`, with rows enough to solve for a square matrix."""
    ids = [7 * i * i % 257 for i in range(60)]
    return ids, golden_model.observe(ids, "@all"), golden_model.hparams, golden_model.weights


@pytest.mark.parametrize(("rows", "name"), [(60, "missing transposition"), (49, "missing transposition"), (48, None)])
def test_a_square_matrix_that_was_not_transposed(many, rows, name):
    ids, a, hparams, weights = many
    b = ports.run(weights, ids, hparams.n_head, turned="attn/c_proj")
    a, b = (
        {n: x[:rows, ..., :rows] if n.endswith(("scores", "probs")) else x[:rows] for n, x in taps.items()}
        for taps in (a, b)
    )
    report = report_of((ids[:rows], a, hparams, {}), b)
    assert (report.verdict, report.first.tap) == (BUG, "h0/attn/out")
    assert [cause.name for cause in report.causes][:1] == ([name] if name else [])
    assert ("model/h0/attn/c_proj/w" in weights_shown(a, "h0/attn/out", hparams, ids)) == bool(name)


def test_two_rows_again_and_again_tell_no_matrix(many):
    ids, a, hparams, _ = many
    a = {name: np.tile(a[name][:2], (30, 1)) for name in ("h0/attn/z", "h0/attn/out")}
    assert weights_shown(a, "h0/attn/out", hparams, ids) == {}


def test_one_position_tells_nothing_of_the_next_row_of_wpe(case):  # noqa: F811
    ids, a, hparams, _ = case
    a = {name: a[name][:1] for name in ("wte/out", "wpe/out")}
    assert report_of((ids[:1], a, hparams, {}), {**a, "wpe/out": a["wpe/out"] + 1}).causes == ()
