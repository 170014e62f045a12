"""Watching: it changes no bit, gives what it says by name and shape, and neighbours do not touch one another."""

import threading

import numpy as np
import pytest

import gpt2ln
from gpt2ln import observe
from gpt2ln.errors import BadInput, NonFinite, UsageError
from gpt2ln.runtime import tf
from gpt2ln.taps import all_taps

from . import proofs


@pytest.fixture(scope="module")
def ids():
    return np.random.default_rng(3).integers(0, 260, 600).tolist()


def test_watching_changes_no_bit_of_the_logits(long, golden_model, ids):
    """Alone, with every other tap, and with the statistics: the same bits."""
    for model, text in ((long, ids), (golden_model, proofs.golden_values()["ids"][0].tolist())):
        alone = model.observe(text, "logits")["logits"]
        for spec in ("**", "logits,@ln-stats", "logits,@resid,@attn"):
            np.testing.assert_array_equal(model.observe(text, spec)["logits"], alone, err_msg=spec)


def test_a_tap_is_the_same_whatever_is_watched_beside_it(long, ids):
    every = long.observe(ids, "**")
    for spec in ("@ln-stats", "h1/attn/*", "h0/mlp/gelu", "embed,ln_f/out"):
        for name, x in long.observe(ids, spec).items():
            np.testing.assert_array_equal(x, every[name], err_msg=name)


def test_golden_taps(golden, golden_model):
    """Against what the official source computed: 4e-6 of the largest value, the distance of two orders of summation."""
    for row in range(len(golden["ids"])):
        seen = golden_model.observe(golden["ids"][row].tolist(), "@ln,logits")
        for norm in proofs.NORMS:
            for leaf in ("mean", "var", "rstd", "norm", "out"):
                right = golden[f"f32/{norm}/{leaf}"]
                np.testing.assert_allclose(
                    seen[f"{norm}/{leaf}"], right[row], rtol=0, atol=4e-6 * np.abs(right).max(), err_msg=norm
                )
        right = golden["f32/logits"]
        np.testing.assert_allclose(seen["logits"], right[row], rtol=0, atol=4e-6 * np.abs(right).max())


def test_shapes_are_those_of_the_taps(long):
    seen = long.observe("abcde", "**")
    assert list(seen) == [tap.name for tap in all_taps(long.hparams)]
    for tap in all_taps(long.hparams):
        assert seen[tap.name].shape == (5, *(5 if axis == "T" else axis for axis in tap.shape)), tap
        assert seen[tap.name].dtype == np.float32


def test_names_say_what_they_hold(long, ids):
    """The identities between taps that the names promise, bit for bit."""
    x = long.observe(ids, "**")
    same = np.testing.assert_array_equal
    same(x["embed"], x["wte/out"] + x["wpe/out"])
    same(x["h0/in"], x["embed"])
    same(x["h1/in"], x["h0/out"])
    same(x["h0/mid"], x["h0/in"] + x["h0/attn/out"])
    same(x["h0/out"], x["h0/mid"] + x["h0/mlp/out"])
    for norm, of in (("h0/ln_1", "h0/in"), ("h0/ln_2", "h0/mid"), ("ln_f", "h1/out")):
        same(x[f"{norm}/norm"], (x[of] - x[f"{norm}/mean"]) * x[f"{norm}/rstd"])
        gains = long.gains()[norm]
        same(x[f"{norm}/out"], x[f"{norm}/norm"] * gains["g"] + gains["b"])
        var = np.mean((x[of].astype(np.float64) - x[f"{norm}/mean"]) ** 2, axis=-1, keepdims=True)
        np.testing.assert_allclose(x[f"{norm}/var"], var, rtol=1e-5)  # biased, before epsilon; summed in float32
        np.testing.assert_allclose(x[f"{norm}/rstd"], (x[f"{norm}/var"] + 1e-5) ** -0.5, rtol=4e-6)
    assert not np.array_equal(x["h1/out"], x["ln_f/out"])


def test_attention_hides_the_future(long, ids):
    x = long.observe(ids, "h1/attn/{scores,probs}")
    later = np.triu(np.ones((600, 600), bool), 1)[:, None, :].repeat(2, 1)
    np.testing.assert_array_equal(x["h1/attn/probs"][later], np.float32(0))
    np.testing.assert_array_equal(x["h1/attn/scores"][later], np.float32(-1e10))
    np.testing.assert_allclose(x["h1/attn/probs"].sum(-1), 1, rtol=1e-5)  # 600 float32 terms


def test_a_text_side_by_side_with_others_is_the_text_alone(long, ids):
    """Eight texts of unequal lengths, two at a time, from two threads: each what it gives alone, traced once."""
    texts = [ids[:n] for n in (600, 1, 257, 256, 2, 300, 512, 3)]
    model = gpt2ln.load(long.place.prefix)
    alone = [model.observe(text, "@ln-stats,logits") for text in texts]
    traces = model.engine.traces
    wanted = list(alone[0])
    together = list(observe.in_order(lambda text: observe.observe(model.engine, text, wanted), texts))
    for a, b in zip(alone, together, strict=True):
        for name in wanted:
            np.testing.assert_array_equal(a[name], b[name], err_msg=name)
    assert model.engine.traces == traces


def test_results_come_in_order_and_errors_come_out():
    started, gate = [], threading.Event()

    def work(n):
        started.append(n)
        if n == 0:
            gate.wait(5)
        if n == 1:
            gate.set()
        if n == 5:
            raise NonFinite("five")
        return n

    found = []
    with pytest.raises(NonFinite, match="five"):
        found.extend(observe.in_order(work, range(100)))
    assert found == [0, 1, 2, 3, 4]
    assert max(started) < 10, "after an error nothing more is begun"


def test_nothing_behind_the_last_wanted_tap_is_traced(T):
    """The graph of `h0/mid` has the four products of one block's attention and no other."""
    m = gpt2ln.load(T)
    counts = {}
    for wanted in ("h0/mid", "h1/mid", "logits"):
        function = m.engine._watching((wanted,), ())
        operations = function.get_concrete_function().graph.get_operations()
        counts[wanted] = sum(op.type in ("MatMul", "BatchMatMulV2") for op in operations)
    assert counts == {"h0/mid": 4, "h1/mid": 10, "logits": 13}


def test_the_first_tap_that_is_not_finite_is_named(T):
    m = gpt2ln.load(T)
    m.engine.weights = m.engine.weights | {"model/h1/ln_2/g": tf.fill([8], np.float32("nan"))}
    with pytest.raises(NonFinite, match="h1/ln_2/out"):
        m.observe("abc", "ln_f/mean")
    assert np.isfinite(m.observe("abc", "h1/ln_2/norm")["h1/ln_2/norm"]).all()


def test_what_python_refuses(T):
    m = gpt2ln.load(T)
    with pytest.raises(UsageError, match="no tap matches 'h9/in'"):
        m.observe("abc", "h9/in")
    with pytest.raises(BadInput, match="17 tokens, expected"):
        m.observe([1] * 17)
    with pytest.raises(BadInput, match="0 tokens"):
        m.observe("")


def test_layers_limit_what_is_observed(T):
    assert list(gpt2ln.load(T).observe("abc", "**/mean", layers="-1")) == ["h1/ln_1/mean", "h1/ln_2/mean"]
