"""The graph is the official one: golden values, bit-equality, float64."""

import json
from pathlib import Path

import numpy as np
import pytest

from gpt2ln import runtime
from gpt2ln.model import Scope, model, norm
from gpt2ln.runtime import tf
from gpt2ln.spec import HParams

from . import proofs
from . import tiny as made_up

SHARED = Path(__file__).parents[2] / "shared"


@pytest.mark.parametrize("proof", proofs.PROOFS, ids=lambda proof: proof.__name__)
def test_proof(proof):
    proof()


def test_official_steps_with_the_real_gains():
    path = SHARED / "official-124M/ln.npz"
    if not path.exists():
        pytest.skip("the 50 LayerNorm vectors of the real 124M are not beside this checkout")
    ln = np.load(path)
    scopes = sorted({name.rsplit("/", 1)[0] for name in ln.files})
    assert len(scopes) == 25
    proofs.official_steps_on_real_widths([(ln[f"{s}/g"], ln[f"{s}/b"]) for s in scopes])


@pytest.mark.parametrize("scale", [1, 0.01, 0.001])
def test_rows_of_small_variance(scale):
    """Where a wrong epsilon shows: width 768, error against float64 below 1e-6."""
    rng = np.random.default_rng(3)
    x = rng.normal(0, scale, (1, 64, 768)).astype("f4")
    seen = proofs.watched_norm(x, np.ones(768, "f4"), np.zeros(768, "f4"), graph=True)
    exact = proofs.oracle.normalize(x.astype(np.float64), 1, 0)
    np.testing.assert_allclose(seen["out"], exact, rtol=0, atol=1e-6)


def test_each_statistic_belongs_to_its_own_input():
    seen = proofs.watched(proofs.golden_weights(), proofs.HPARAMS, proofs.golden_values()["ids"], graph=True)
    w = {k: v.numpy() for k, v in proofs.golden_weights().items()}
    inputs = (
        {f"h{i}/ln_1": f"h{i}/in" for i in range(3)}
        | {f"h{i}/ln_2": f"h{i}/mid" for i in range(3)}
        | {"ln_f": "h2/out"}
    )
    for at, x in inputs.items():
        np.testing.assert_allclose(
            seen[f"{at}/mean"][..., 0], seen[x].mean(-1), rtol=0, atol=4e-6 * np.abs(seen[x]).max()
        )
        np.testing.assert_allclose(seen[f"{at}/var"][..., 0], seen[x].var(-1), rtol=1e-5)
        np.testing.assert_array_equal(seen[f"{at}/out"], seen[f"{at}/norm"] * w[f"model/{at}/g"] + w[f"model/{at}/b"])
    np.testing.assert_array_equal(seen["h0/out"], seen["h1/in"])
    np.testing.assert_array_equal(seen["embed"], seen["h0/in"])


def test_watching_changes_no_bit_of_the_logits():
    weights, ids = proofs.golden_weights(), tf.constant(proofs.golden_values()["ids"], tf.int32)
    unseen = tf.function(lambda i: model(i, Scope("model", weights), hparams=proofs.HPARAMS), autograph=False)(ids)
    seen = proofs.watched(weights, proofs.HPARAMS, ids, graph=True)["logits"]
    np.testing.assert_array_equal(unseen.numpy(), seen)


def test_last_is_the_last_row_of_all_logits():
    weights, ids = proofs.golden_weights(), tf.constant(proofs.golden_values()["ids"], tf.int32)
    every, last = (
        model(ids, Scope("model", weights), hparams=proofs.HPARAMS, last=way).numpy() for way in (False, True)
    )
    assert last.shape == (2, 1, 257)
    np.testing.assert_allclose(last, every[:, -1:], rtol=0, atol=4e-6 * np.abs(every).max())


def optimized_nodes(function, *args) -> list:
    """The nodes that really run: the partitioned graph after all rewrites."""
    from tensorflow.python.eager import context

    context.enable_run_metadata()
    function(*args)
    metadata = context.export_run_metadata()
    context.disable_run_metadata()
    graphs = [*metadata.partition_graphs, *(g for f in metadata.function_graphs for g in f.partition_graphs)]
    return [node for g in graphs for nodes in (g.node, *(f.node_def for f in g.library.function)) for node in nodes]


def test_no_fused_node_runs():
    """No LayerNorm kernel, no fused batch norm, no product with its bias in one: the operations as they are written."""
    rng = np.random.default_rng(0)
    g, b = rng.normal(1, 0.3, 768).astype("f4"), rng.normal(0, 0.1, 768).astype("f4")
    weights = proofs.golden_weights()

    @tf.function(autograph=False)
    def forward(ids, x):
        constant = Scope("model/n", {"model/n/g": g, "model/n/b": b})  # constants are what the fusion looks for
        return model(ids, Scope("model", weights), hparams=proofs.HPARAMS), norm(x, constant)

    ids, x = tf.constant([[1, 2, 3]]), tf.constant(rng.normal(0, 1, (1, 8, 768)).astype("f4"))
    nodes = optimized_nodes(forward, ids, x)
    kinds = {node.op for node in nodes}
    assert "Rsqrt" in kinds, "the graph that runs was not seen"
    assert sum(node.op == "Rsqrt" for node in nodes) >= 8
    assert not [kind for kind in kinds if "LayerNorm" in kind or "FusedBatchNorm" in kind or "Fused" in kind]


def test_the_fused_norm_exists_and_would_be_seen():
    """The trap itself: where the remapper is let, it makes `_MklLayerNorm` of this form; our settings forbid it."""

    rng = np.random.default_rng(0)
    g, b = rng.normal(1, 0.3, 768).astype("f4"), rng.normal(0, 0.1, 768).astype("f4")

    def kinds():
        def trap(x):
            u, s = tf.nn.moments(x, axes=[2], keepdims=True)
            return tf.nn.batch_normalization(x, u, s, b, g, 1e-5)

        x = tf.constant(rng.normal(0, 0.1, (2, 8, 768)).astype("f4"))
        return {node.op for node in optimized_nodes(tf.function(trap, autograph=False), x)}

    tf.config.optimizer.set_experimental_options({"remapping": True, "disable_meta_optimizer": False})
    try:
        let = kinds()
    finally:
        runtime.keep_the_order_of_operations()
    assert "Rsqrt" in kinds()
    assert "_MklLayerNorm" not in kinds()
    if "_MklLayerNorm" not in let:
        pytest.skip("this TensorFlow or processor has no fused LayerNorm to fall into")


def test_settings_that_keep_it_exact():
    options = tf.config.optimizer.get_experimental_options()
    assert options["arithmetic_optimization"] is False
    assert options["remapping"] is False
    assert options["disable_meta_optimizer"] is True
    assert not tf.config.experimental.tensor_float_32_execution_enabled()
    assert runtime.tf is tf


def test_any_length_is_one_trace():
    weights = {name: tf.constant(x) for name, x in made_up.weights().items()}
    hparams, traces = HParams(260, 16, 8, 2, 2), []

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)], autograph=False)
    def forward(ids):
        traces.append(1)
        return model(ids, Scope("model", weights), hparams=hparams)

    for length in range(1, 17):
        assert forward(tf.zeros([1, length], tf.int32)).shape == (1, length, 260)
    assert len(traces) == 1


def test_golden_hparams_are_those_of_the_file():
    assert json.loads((proofs.GOLDEN / "model/hparams.json").read_text()) == proofs.HPARAMS.as_dict()
