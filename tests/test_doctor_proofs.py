"""The proofs of `doctor`, each where it must fail: on a machine, an engine or a text that is wrong in one place.

Those of the graph itself meet their mutants in `test_mutants`.
"""

import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import gpt2ln
from gpt2ln import doctor, proof, proving, runtime
from gpt2ln import model as m
from gpt2ln.doctor import Patients
from gpt2ln.engine import Exact
from gpt2ln.library import Model
from gpt2ln.prepared import Prepared
from gpt2ln.proof import Proof
from gpt2ln.runtime import tf

from .test_model import optimized_nodes


def wrong(found: Proof, words: str) -> None:
    assert (found.holds, found.found) == (False, words)


# the machine


def test_tf32(monkeypatch):
    tf.config.experimental.enable_tensor_float_32_execution(True)
    try:
        wrong(proving.products_are_float32(), "TensorFlow says it is on; 0 of 65,536 products are rounded")
    finally:
        runtime.keep_the_order_of_operations()
    assert proving.products_are_float32().holds

    class Rounding:
        def __getattr__(self, name):
            return getattr(tf, name)

        @staticmethod
        def matmul(a, b):
            return tf.cast(tf.matmul(tf.cast(a, tf.bfloat16), tf.cast(b, tf.bfloat16)), tf.float32)

    monkeypatch.setattr(proving, "tf", Rounding())
    wrong(proving.products_are_float32(), "65,536 of 65,536 products are rounded")


def test_a_fused_norm():
    tf.config.optimizer.set_experimental_options({"remapping": True, "disable_meta_optimizer": False})
    one, x = np.ones(768, "f4"), tf.zeros([1, 8, 768])
    try:
        let = {node.op for node in optimized_nodes(tf.function(proving.by_moments(one, one), autograph=False), x)}
        found = proving.no_fused_norm_runs()
    finally:
        runtime.keep_the_order_of_operations()
    assert proving.no_fused_norm_runs().holds
    if "_MklLayerNorm" not in let:
        pytest.skip("this TensorFlow or processor has no fused LayerNorm to fall into")
    assert not found.holds
    assert found.number > 12_000


# the engine


class Wrong(Exact):
    """Exact, but `bend` has its way with the logits of each step: (row, sequences in it) -> row."""

    bend = staticmethod(lambda row, n: row)

    def step(self, ids, caches):
        return [self.bend(row, len(caches)) for row in super().step(ids, caches)]


@pytest.fixture(scope="module")
def bent() -> Model:
    """Golden with an engine that a test may bend."""
    model = Model(proof.GOLDEN)
    exact = model.exact
    exact.__class__ = Wrong
    return model


def test_unbent_it_holds(bent):
    assert proving.cached_is_a_full_pass([bent]).holds
    assert proving.batch_is_single(bent).holds
    assert proving.several_are_one_by_one(bent).holds


def test_cached_steps_that_drift(bent, monkeypatch):
    monkeypatch.setattr(Wrong, "bend", staticmethod(lambda row, n: row + np.float32(2e-4)))
    found = proving.cached_is_a_full_pass([bent])
    assert not found.holds
    assert 1.5e-4 < found.number < 2.5e-4
    monkeypatch.setattr(Wrong, "bend", staticmethod(lambda row, n: row * np.float32(np.nan)))
    assert not proving.cached_is_a_full_pass([bent]).holds


def test_a_batch_that_rounds_otherwise(bent, monkeypatch):
    monkeypatch.setattr(Wrong, "bend", staticmethod(lambda row, n: row if n == 1 else np.nextafter(row, row + 1)))
    wrong(proving.batch_is_single(bent), "6,168 of 6,168 logits differ")
    found = proving.several_are_one_by_one(bent)
    assert not found.holds
    assert 0 < found.number <= 72
    assert found.found.endswith(" of 144 ids and logprobs differ")


def test_other_ids(bent, monkeypatch):
    monkeypatch.setattr(Wrong, "bend", staticmethod(lambda row, n: -row))
    found = proving.golden_ids(bent)
    assert not found.holds
    assert 150 < found.number <= 186  # the first of each is the prompt's
    wrong(proving.demo_ids(bent), "another demo than the ids were stored for")
    answer = proof.demo_answer() | {"index_sha256": bent.index_sha256}
    monkeypatch.setattr(proving, "demo_answer", lambda: answer)
    found = proving.demo_ids(bent)
    assert not found.holds
    assert found.found.endswith(" of 32 ids differ")


def test_an_epsilon_in_a_model_of_ones_own(small, monkeypatch, T):
    assert proving.is_close_to_float64(small).holds
    monkeypatch.setattr(m, "norm", partial(m.norm, epsilon=1e-3))
    found = proving.is_close_to_float64(gpt2ln.load(T))
    assert (found.holds, found.limit) == (False, 1e-4)
    assert 1e-4 < found.number < 1


def test_sums(T, tmp_path):
    assert proving.sums_hold(gpt2ln.load(T)) == Proof(True, "28 tensors, 15,872 bytes")
    folder = shutil.copytree(T, tmp_path / "m")
    weights = folder / "model.ckpt.data-00000-of-00001"
    weights.write_bytes(b"?" + weights.read_bytes()[1:])
    ((_, found),) = doctor.run([("sums", lambda: proving.sums_hold(gpt2ln.load(folder)))], [str(folder)])
    assert not found.holds
    assert "damaged" in found.found


class Near:
    """An engine beside exact, some parts in a thousand away in each step."""

    def __init__(self, exact, parts: float):
        self.hparams, self.prefill, self._exact, self._times = exact.hparams, exact.prefill, exact, 1 + parts / 1000

    def step(self, ids, caches):
        return [row * np.float32(self._times) for row in self._exact.step(ids, caches)]


def test_a_prepared_engine(bent, monkeypatch):
    ready = Prepared(bent.place.folder, "ready")
    assert proving.prepared_is_close(bent) == Proof(None, "none is prepared")
    for state, holds in (("stale", None), ("damaged", False)):
        monkeypatch.setattr(Model, "prepared", property(lambda model, s=state: replace(ready, state=s)))
        assert proving.prepared_is_close(bent) == Proof(holds, f"{state}: make it anew")
    monkeypatch.setattr(Model, "prepared", property(lambda model: ready))
    monkeypatch.setattr(Model, "fast", property(lambda model: Near(model.exact, 0)))
    assert proving.prepared_is_close(bent) == Proof(True, "0 of the largest logit", 0, 1e-4)
    monkeypatch.setattr(Model, "fast", property(lambda model: Near(model.exact, 1)))
    found = proving.prepared_is_close(bent)
    assert not found.holds
    assert 5e-4 < found.number < 1.1e-3


# which are run


def test_on_a_gpu_and_without_one(monkeypatch):
    patients = Patients.of(None)

    def last(device):
        return dict(doctor.with_tensorflow(patients, device))["on the GPU"]()

    monkeypatch.setattr(doctor, "_gpus", list)
    assert last("cpu") == Proof(None, "no GPU")
    monkeypatch.setattr(doctor, "_gpus", lambda: ["one"])
    assert last("cpu") == Proof(None, "--device gpu:0 runs the proofs there")
    assert last("gpu:1") == Proof(True, "the proofs above ran on gpu:1")


def test_stored_ids_are_those_of_the_float64_pass():
    """The demo's, made again as they were made: the next after each of a few beginnings."""
    answer, demo = proof.demo_answer(), Patients.of(None).demo
    assert (answer["index_sha256"], answer["ids"]) == (demo.index_sha256, demo.encode(answer["text"]))
    ids = answer["ids"] + answer["next"]
    logits = demo.reference(ids[:-1])["logits"][len(answer["ids"]) - 1 :]
    np.testing.assert_array_equal(logits.argmax(-1), answer["next"])
    best = np.sort(logits, -1)
    np.testing.assert_allclose((best[:, -1] - best[:, -2]).min(), answer["smallest_gap"], rtol=0, atol=1e-4)


# that all is looked at


@pytest.fixture(scope="module")
def run():
    return proving.golden_run()


def bent_at(run, name, times) -> dict[str, np.ndarray]:
    """One number in the middle is some times what it was."""
    x = run[name].copy()
    x.flat[np.abs(x).argmax()] *= np.float32(times)
    return run | {name: x}


def test_every_golden_value_is_looked_at(run):
    assert proving.golden_values_hold(run).holds
    names = [f"{norm}/{leaf}" for norm in ("h0/ln_1", "h2/ln_2", "ln_f") for leaf in ("mean", "var", "rstd", "norm")]
    for name in (*names, "h1/mid", "h1/in", "h2/out", "logits", "h0/attn/k", "h2/attn/v"):
        found = proving.golden_values_hold(bent_at(run, name, 1 + 1e-5))
        said = "present" if "/attn/" in name else name
        assert (found.holds, found.found) == (False, f"{found.number:.2g} of the largest, {said}")
        assert 6e-6 < found.number < 1.4e-5, name
    found = proving.golden_values_hold(bent_at(run, "h1/ln_1/var", np.nan))
    assert (found.holds, found.found) == (False, "nan of the largest, h1/ln_1/var")


def test_the_error_at_every_norm_and_the_logits(run):
    found = proving.error_is_no_larger_than_the_official_one(run)
    assert (found.holds, found.limit) == (True, 1.5)
    assert 0.5 < found.number <= 1.5
    for name in ("h0/ln_1/out", "ln_f/out", "logits"):
        found = proving.error_is_no_larger_than_the_official_one(bent_at(run, name, 1 + 1e-4))
        assert not found.holds
        assert found.found.endswith(f" times the official, {name}")


def test_one_bit_of_one_tap(run):
    assert proving.graph_is_eager(run).holds
    found = proving.graph_is_eager(bent_at(run, "h1/attn/scores", 1 + 2e-7))
    assert (found.number, found.limit) == (1, 0)
    assert found.found.startswith("1 of 2")
    assert found.found.endswith(" values differ at 83 taps")
