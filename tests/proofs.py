"""The proofs of faithfulness, each a function that raises AssertionError: `test_model` runs them on the graph as it is,
`test_mutants` on graphs that are wrong in one place each.

Those that `doctor` runs are the package's own, `proving`; beside them stand some that are slower or finer.  They call
`gpt2ln.model` through the module, so that a mutant put there is what they meet.
"""

from pathlib import Path

import numpy as np

from gpt2ln import proof, proving
from gpt2ln.proof import golden_values
from gpt2ln.proving import golden_weights, watched, watched_norm
from gpt2ln.runtime import tf
from gpt2ln.spec import HParams
from gpt2ln.taps import norm_scopes

from . import oracle
from . import tiny as made_up

GOLDEN = proof.FOLDER
HPARAMS = proof.golden_hparams()
NORMS = norm_scopes(HPARAMS)


def holds(found: proof.Proof) -> None:
    assert found.holds, f"{found.found}, expected at most {found.limit}"


def norm_is_the_official_one() -> None:
    """Golden `norm` alone: widths 1 to 1600, scales 1e-6 to 1e4, constant rows, large offsets.

    A float32 mean may be off by 4 units in the last place of max|x|; the variance, rstd and output that follow are
    held against float64 on the mean that was computed.
    """
    e = np.load(Path(__file__).parent / "golden/norms.npz")
    for i in sorted({key.split("/")[1] for key in e.files}):
        x, g, b, y = (e[f"norm/{i}/{k}"] for k in "xgby")
        seen = watched_norm(x, g, b, graph=True)
        largest = np.abs(x).max(-1, keepdims=True)
        slack = 4 * np.spacing(largest.astype(np.float32)).astype(np.float64)
        _within(seen["mean"], x.astype(np.float64).mean(-1, keepdims=True), slack + 1e-30)
        centred = x.astype(np.float64) - seen["mean"]
        var = (centred**2).mean(-1, keepdims=True)
        np.testing.assert_allclose(seen["var"], var, rtol=1e-5, atol=1e-30)
        np.testing.assert_allclose(seen["rstd"], 1 / np.sqrt(var + 1e-5), rtol=4e-6)
        out = centred / np.sqrt(var + 1e-5) * g + b
        scale = np.abs(out).max(-1, keepdims=True) + np.abs(centred / np.sqrt(var + 1e-5) * g).max(-1, keepdims=True)
        _within(seen["out"], out, 4e-6 * scale + 1e-12)
        carried = 2 * slack * seen["rstd"] * np.abs(g).max() + 4e-6 * scale + 1e-12
        _within(seen["out"], y, carried)


def _within(ours, right, limit) -> None:
    """|ours - right| <= limit, an array of limits."""
    distance, limit = np.broadcast_arrays(np.abs(ours.astype(np.float64) - right), limit)
    np.testing.assert_array_compare(np.less_equal, distance, limit)


def taps_are_the_official_ones() -> None:
    """Every norm's five values and the logits of the golden checkpoint, 4e-6 of the largest value of the tensor."""
    holds(proving.golden_values_hold(proving.golden_run()))


def graph_is_eager() -> None:
    """Not one bit differs at any tap between the graph and the same operations run one by one."""
    holds(proving.graph_is_eager(proving.golden_run()))


def official_steps_on_real_widths(gains=None) -> None:
    """`norm` in the graph is, bit for bit, the ten operations that the official `.meta` names, run one by one."""
    holds(proving.norm_is_the_official_steps(gains))


def error_is_no_larger_than_the_official_one() -> None:
    """Against float64, at every norm and the logits: our error at most 1.5 times that of the official graph."""
    holds(proving.error_is_no_larger_than_the_official_one(proving.golden_run()))


def oracle_agrees() -> None:
    """Two float64 passes, that of the tests and that of the package, are the one that came with the golden values."""
    e = golden_values()
    seen = oracle.forward(golden_weights(), e["ids"], HPARAMS.n_head, HPARAMS.n_layer)
    for name in proof.normed(HPARAMS):
        np.testing.assert_allclose(seen[name], e[f"f64/{name}"], rtol=0, atol=1e-12 * np.abs(seen[name]).max())
    holds(proof.float64_is_the_golden_one())


def gelu_is_the_tanh_form() -> None:
    """20,001 points of [-6, 6], bit for bit TensorFlow's own tanh form; 4.7e-4 from the erf form."""
    holds(proving.gelu_is_the_tanh_form())


def future_is_hidden() -> None:
    """With c_attn/w x 1000 a mask of -1e4 lets later tokens through; -1e10 must not, in any bit."""
    holds(proving.future_is_hidden())
    w = {n: tf.constant(x * (1000 if n.endswith("c_attn/w") else 1)) for n, x in made_up.weights().items()}
    seen = watched(w, HParams(260, 16, 8, 2, 2), np.arange(12)[None] * 7, graph=True)
    for i in range(2):
        np.testing.assert_allclose(seen[f"h{i}/attn/probs"].sum(-1), 1, atol=1e-6)


def mean_of_a_thousand_loses_nothing() -> None:
    """Rows with a large mean and a constant row: two passes, so the variance is never negative and never lost."""
    rng = np.random.default_rng(2)
    one = np.ones(768, "f4")
    for mean, limit in ((10, 1e-5), (1000, 1e-3), (1e5, 1e-1)):
        x = (rng.normal(0, 1, (1, 16, 768)) + mean).astype("f4")
        seen = watched_norm(x, one, 0 * one, graph=True)
        exact = oracle.normalize(x.astype(np.float64), 1, 0)
        assert (seen["var"] >= 0).all()
        np.testing.assert_allclose(seen["out"], exact, rtol=0, atol=limit)
    constant = np.full((1, 1, 768), 3.3, "f4")
    seen, eager = (watched_norm(constant, one, np.full(768, 0.25, "f4"), graph=way) for way in (True, False))
    np.testing.assert_array_equal(seen["out"], eager["out"])
    small = watched_norm(np.array([[[1, 0, 0, 0]]], "f4"), one[:4], 0 * one[:4], graph=True)["out"]
    np.testing.assert_allclose(small[0, 0], [1.73200, -0.57733, -0.57733, -0.57733], atol=1e-5)


PROOFS = (
    norm_is_the_official_one,
    taps_are_the_official_ones,
    graph_is_eager,
    official_steps_on_real_widths,
    error_is_no_larger_than_the_official_one,
    oracle_agrees,
    gelu_is_the_tanh_form,
    future_is_hidden,
    mean_of_a_thousand_loses_nothing,
)
