"""The proofs of faithfulness, each a function that raises AssertionError: `test_model` runs them on the graph as it is,
`test_mutants` on graphs that are wrong in one place each.

They call `gpt2ln.model` through the module, so that a mutant put there is what they meet.
"""

import json
from pathlib import Path

import numpy as np

from gpt2ln import model as m
from gpt2ln.checkpoint import load, read_index
from gpt2ln.runtime import tf
from gpt2ln.spec import HParams, variables

from . import oracle
from . import tiny as made_up

GOLDEN = Path(__file__).parent / "golden"
HPARAMS = HParams(**json.loads((GOLDEN / "model/hparams.json").read_text()))
NORMS = [f"h{i}/ln_{n}" for i in range(HPARAMS.n_layer) for n in (1, 2)] + ["ln_f"]


def golden_values():
    return np.load(GOLDEN / "expected.npz")


def golden_weights() -> dict[str, tf.Tensor]:
    bundle = read_index(GOLDEN / "model/model.ckpt")
    return {name: tf.constant(x) for name, x in load(bundle, variables(HPARAMS))}


def watched(weights, hparams, ids, *, graph: bool) -> dict[str, np.ndarray]:
    """Every tap of a forward pass, run as one graph or one operation after the other."""

    def forward(ids):
        seen = {}
        m.model(ids, m.Scope("model", weights, seen.__setitem__), hparams=hparams)
        return seen

    if graph:
        forward = tf.function(forward, autograph=False, input_signature=[tf.TensorSpec([None, None], tf.int32)])
    return {name: x.numpy() for name, x in forward(tf.constant(ids, tf.int32)).items()}


def watched_norm(x, g, b, *, graph: bool) -> dict[str, np.ndarray]:
    def forward(x):
        seen = {}
        m.norm(x, m.Scope("model/n", {"model/n/g": tf.constant(g), "model/n/b": tf.constant(b)}, seen.__setitem__))
        return seen

    forward = tf.function(forward, autograph=False) if graph else forward
    return {name.removeprefix("n/"): value.numpy() for name, value in forward(tf.constant(x)).items()}


def norm_is_the_official_one() -> None:
    """Golden `norm` alone: widths 1 to 1600, scales 1e-6 to 1e4, constant rows, large offsets.

    A float32 mean may be off by 4 units in the last place of max|x|; the variance, rstd and output that follow are
    held against float64 on the mean that was computed.
    """
    e = golden_values()
    for i in sorted({key.split("/")[1] for key in e.files if key.startswith("norm/")}):
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


def taps_are_the_official_ones() -> None:
    """Every norm's five values and the logits of the golden checkpoint, 4e-6 of the largest value of the tensor."""
    e, seen = golden_values(), watched(golden_weights(), HPARAMS, golden_values()["ids"], graph=True)
    inputs = {
        norm: ("h2/out" if norm == "ln_f" else norm.replace("ln_1", "in").replace("ln_2", "mid")) for norm in NORMS
    }
    for norm in NORMS:
        for leaf in ("mean", "var", "rstd", "norm", "out"):
            _close(seen[f"{norm}/{leaf}"], e[f"f32/{norm}/{leaf}"], f"{norm}/{leaf}")
        _close(seen[inputs[norm]], e[f"f32/{norm}/x"], inputs[norm])
    _close(seen["logits"], e["f32/logits"], "logits")
    present = np.stack([[seen[f"h{i}/attn/{leaf}"] for leaf in "kv"] for i in range(HPARAMS.n_layer)])
    _close(present.transpose(2, 0, 1, 3, 4, 5), e["f32/present"], "present")


def _within(ours, right, limit) -> None:
    """|ours - right| <= limit, an array of limits."""
    distance, limit = np.broadcast_arrays(np.abs(ours.astype(np.float64) - right), limit)
    np.testing.assert_array_compare(np.less_equal, distance, limit)


def _close(ours, official, name, tolerance=4e-6) -> None:
    np.testing.assert_allclose(ours, official, rtol=0, atol=tolerance * np.abs(official).max(), err_msg=name)


def graph_is_eager() -> None:
    """Not one bit differs at any tap between the graph and the same operations run one by one."""
    weights, ids = golden_weights(), golden_values()["ids"]
    graph, eager = (watched(weights, HPARAMS, ids, graph=g) for g in (True, False))
    for name in eager:
        np.testing.assert_array_equal(graph[name], eager[name], err_msg=name)
    rng = np.random.default_rng(0)
    x, g, b = (rng.normal(0, s, n).astype("f4") for s, n in ((3, (1, 64, 768)), (1, 768), (1, 768)))
    graph, eager = (watched_norm(x, g, b, graph=way) for way in (True, False))
    for name in eager:
        np.testing.assert_array_equal(graph[name], eager[name], err_msg=name)


def official_steps_on_real_widths(gains=None) -> None:
    """`norm` in the graph is, bit for bit, the ten operations that the official `.meta` names, run one by one."""
    rng = np.random.default_rng(1)
    for g, b in gains or [(rng.normal(1, 0.5, 768).astype("f4"), rng.normal(0, 0.2, 768).astype("f4"))]:
        for scale in (1, 0.02, 1e-3, 3e3):
            x = tf.constant(rng.normal(0.1, scale, (1, 64, 768)).astype("f4"))
            u = tf.reduce_mean(x, -1, keepdims=True)
            s = tf.reduce_mean(tf.square(x - u), -1, keepdims=True)
            official = (x - u) * tf.math.rsqrt(s + np.float32(1e-5)) * g + b
            scope = m.Scope("model/n", {"model/n/g": tf.constant(g), "model/n/b": tf.constant(b)})
            np.testing.assert_array_equal(_normed_in_graph(x, scope), official.numpy())


def _normed_in_graph(x, scope) -> np.ndarray:
    """The output alone: with nothing else asked for, the rewriting passes are free to do what they do."""
    return tf.function(lambda x: m.norm(x, scope), autograph=False)(x).numpy()


def error_is_no_larger_than_the_official_one() -> None:
    """Against float64, at every norm and the logits: our error at most 1.5 times that of the official graph."""
    e, seen = golden_values(), watched(golden_weights(), HPARAMS, golden_values()["ids"], graph=True)
    for name in [f"{norm}/out" for norm in NORMS] + ["logits"]:
        exact = e[f"f64/{name}"]
        ours, official = (np.sqrt(np.mean((x - exact) ** 2)) for x in (seen[name], e[f"f32/{name}"]))
        assert ours <= 1.5 * official, f"{name}: rms error {ours:.3g}, the official graph's is {official:.3g}"


def oracle_agrees() -> None:
    """The float64 pass in the tests is the one that came with the golden values."""
    e = golden_values()
    seen = oracle.forward(golden_weights(), e["ids"], HPARAMS.n_head, HPARAMS.n_layer)
    for name in [f"{norm}/out" for norm in NORMS] + ["logits"]:
        np.testing.assert_allclose(seen[name], e[f"f64/{name}"], rtol=0, atol=1e-12 * np.abs(seen[name]).max())


def gelu_is_the_tanh_form() -> None:
    """20,001 points of [-6, 6], bit for bit TensorFlow's own tanh form; 4.7e-4 from the erf form."""
    x = tf.constant(np.linspace(-6, 6, 20001, dtype="f4"))
    graph = tf.function(lambda x: m.gelu(x), autograph=False)(x)
    np.testing.assert_array_equal(graph.numpy(), tf.nn.gelu(x, approximate=True).numpy())


def future_is_hidden() -> None:
    """With c_attn/w x 1000 a mask of -1e4 lets later tokens through; -1e10 must not, in any bit."""
    w = made_up.weights()
    for name in w:
        w[name] *= 1000 if name.endswith("c_attn/w") else 1
    w = {name: tf.constant(x) for name, x in w.items()}
    hparams = HParams(n_vocab=260, n_ctx=16, n_embd=8, n_head=2, n_layer=2)
    ids = np.arange(12)[None] * 7
    other = ids.copy()
    other[0, -1] = 200
    a, b = (watched(w, hparams, i, graph=True) for i in (ids, other))
    for name in a:
        axis = 2 if "/attn/" in name and a[name].ndim == 4 else 1
        earlier = [np.take(x[name], range(11), axis) for x in (a, b)]
        np.testing.assert_array_equal(*earlier, err_msg=name)
    for i in range(2):
        probs = a[f"h{i}/attn/probs"]
        assert not np.triu(probs, 1).any(), f"h{i}/attn/probs above the diagonal"
        np.testing.assert_allclose(probs.sum(-1), 1, atol=1e-6)


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
