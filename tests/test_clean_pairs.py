"""No false alarm: the same computation by other engines, shapes and compilers is rounding, and gets no cause."""

import numpy as np
import pytest

import gpt2ln
from gpt2ln import model
from gpt2ln.compare import EQUAL, ROUNDING, Measure, compare
from gpt2ln.runtime import tf

from . import proofs
from .conftest import GOLDEN
from .test_causes import reading


@pytest.fixture(scope="module", params=[0, 1])
def case(request, golden_model, golden):
    """ids, the exact graph's taps"""
    ids = golden["ids"][request.param].tolist()
    return ids, golden_model.observe(ids, "@all")


def judged(opened, case, b, *, verdicts=(ROUNDING,)):
    ids, a = case
    report = compare(reading(a, ids), reading(b, ids), Measure(opened.hparams, opened.weights))
    assert report.verdict in verdicts
    assert report.causes == ()
    assert max((row.ratio for row in report.rows), default=0.0) < 8  # half of what is allowed
    return report


def positions_first(taps, row=0):
    """[B, T, ...] and [B, H, T, ...] of the graph -> [T, ...]"""
    return {name: x[row].swapaxes(0, 1) if x.ndim == 4 else x[row] for name, x in taps.items()}


def test_one_operation_after_the_other(golden_model, case):
    taps = proofs.watched(proofs.golden_weights(), golden_model.hparams, [case[0]], graph=False)
    judged(golden_model, case, positions_first(taps), verdicts=(EQUAL,))


@pytest.mark.parametrize("rows", [2, 3])
def test_a_row_of_a_batch(golden_model, case, rows):
    ids = [case[0]] + [[7] * len(case[0])] * (rows - 1)
    taps = proofs.watched(proofs.golden_weights(), golden_model.hparams, ids, graph=True)
    judged(golden_model, case, positions_first(taps), verdicts=(EQUAL, ROUNDING))


@pytest.fixture(scope="module")
def compiled(golden_model):
    """The graph as XLA makes it: ids [1, T] -> taps"""
    weights = proofs.golden_weights()

    @tf.function(jit_compile=True, autograph=False)
    def forward(ids):
        seen = {}
        model.model(ids, model.Scope("model", weights, seen.__setitem__), hparams=golden_model.hparams)
        return seen

    return forward


def test_compiled_by_xla(golden_model, case, compiled):
    taps = {name: x.numpy() for name, x in compiled(tf.constant([case[0]], tf.int32)).items()}
    judged(golden_model, case, positions_first(taps))


def _by_steps(engine, ids, prompt):
    """Logits after the prompt and after each id that follows."""
    logits, cache = engine.prefill(ids[:prompt])
    rows = [logits]
    for i in ids[prompt:]:
        rows += engine.step([i], [cache])
    return np.stack(rows)


@pytest.mark.parametrize("prompt", [1, 9])
@pytest.mark.parametrize("kind", ["exact", "fast"])
def test_step_by_step(golden_model, engines, case, kind, prompt):
    ids, a = case
    opened = gpt2ln.load(GOLDEN / "model", engine=kind, cache_dir=engines) if kind == "fast" else golden_model
    logits = _by_steps(opened.engine, ids, prompt)
    rows = {"logits": a["logits"][prompt - 1 :]}
    exact = compare(reading(rows), reading({"logits": logits}), Measure(opened.hparams, rtol=1e-5))
    assert (exact.verdict, exact.causes) == (ROUNDING, ())
    whole = {"logits": np.concatenate([a["logits"][: prompt - 1], logits])}
    judged(golden_model, (ids, {"logits": a["logits"]}), whole)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_stored_otherwise(golden_model, case, dtype):
    ids, a = case
    b = dict(golden_model.reference(ids)) if dtype == "float64" else a
    b = {name: x.astype(dtype) for name, x in b.items() if not name.endswith("/scores")}
    report = compare(reading(a, ids), reading(b, ids, dtype), Measure(golden_model.hparams, golden_model.weights))
    assert (report.verdict, report.causes) == (ROUNDING, ())


@pytest.mark.slow
def test_other_threads_and_kernels(shell, cli, warm, golden, tmp_path):
    """Dumps of processes of their own: one thread, and TensorFlow's own kernels in place of oneDNN's."""
    ids = " ".join(map(str, golden["ids"][0]))
    made = {"a": {}, "b": {"TF_ENABLE_ONEDNN_OPTS": "0"}}
    for name, env in made.items():
        argv = ("-m", GOLDEN / "model", "dump", "--ids", ids, "-t", "**", "-o", tmp_path / f"{name}.npz")
        ran = shell(*argv, "--threads", 1 if name == "a" else 2, env=env)
        assert ran.returncode == 0, ran.stderr
    assert cli("-m", GOLDEN / "model", "dump", "--ids", ids, "-t", "**", "-o", tmp_path / "here.npz").status == 0
    for name in made:
        ran = cli("-m", GOLDEN / "model", "compare", tmp_path / "here.npz", tmp_path / f"{name}.npz")
        assert ran.status == 0, ran
        assert "differ" not in ran.out
        assert "warning: A and B were not made alike: " in ran.err
