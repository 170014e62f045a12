"""Every mistake that ports make is named, from the numbers alone, and a right port gets no name."""

import numpy as np
import pytest

from gpt2ln import causes
from gpt2ln.causes import likely, prepended
from gpt2ln.compare import BUG, EQUAL, ROUNDING, Measure, compare
from gpt2ln.readings import Document, Reading

from . import numpy_port as ports
from .port_mistakes import HARMLESS, MISTAKES

ALL = HARMLESS + MISTAKES


def reading(taps, ids=None, dtype="float32") -> Reading:
    T = len(next(iter(taps.values())))
    document = Document(T, np.arange(T), taps, None if ids is None else tuple(ids))
    return Reading("made up", (document,), None, (), dict.fromkeys(taps, dtype))


@pytest.fixture(scope="module")
def case(golden_model, golden):
    """ids, the exact graph's taps, hyperparameters, weights."""
    ids = golden["ids"][0].tolist()
    model = golden_model
    return ids, model.observe(ids, "@all"), model.hparams, model.weights


def _hidden_states(name: str) -> bool:
    """What `output_hidden_states=True` of Hugging Face gives, and the logits."""
    return name in ("ln_f/out", "logits") or name.endswith("/in")


KEPT = {"every tap": lambda name: True, "hidden states": _hidden_states}


def report_of(case, b, kept=KEPT["every tap"], *, weights=True):
    ids, a, hparams, w = case
    sides = [reading({n: x for n, x in taps.items() if kept(n)}, ids) for taps in (a, b)]
    return compare(*sides, Measure(hparams, w if weights else {}))


@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
@pytest.mark.parametrize("port", MISTAKES, ids=str)
def test_a_mistake_is_named(case, port, kept):
    ids, _, hparams, weights = case
    report = report_of(case, port.run(weights, ids, hparams.n_head), kept)
    assert report.verdict == BUG
    found = report.causes[0]
    assert (found.name, found.harmless) == (port.name, False)
    assert 0.9 < found.explains <= 1


@pytest.mark.parametrize("port", MISTAKES[::4], ids=str)
def test_the_beginning_of_a_long_text_is_enough(case, monkeypatch, port):
    monkeypatch.setattr("gpt2ln.causes.ENOUGH", 12)
    looked = []
    monkeypatch.setattr("gpt2ln.causes._fitting", lambda c, f=causes._fitting: looked.append(len(c.ids)) or f(c))
    ids, _, hparams, weights = case
    assert report_of(case, port.run(weights, ids, hparams.n_head)).causes[0].name == port.name
    assert looked[0] == 12


def test_a_mistake_that_needs_the_whole_text(case, monkeypatch):
    monkeypatch.setattr("gpt2ln.causes.ENOUGH", 12)
    ids, a, hparams, weights = case
    flat = ports.run(weights, ids, hparams.n_head, split=ports.split_flat)
    assert report_of(case, flat).causes[0].name == "head split order"
    late = {**a, "h0/mlp/gelu": np.concatenate([a["h0/mlp/gelu"][:20], np.maximum(a["h0/mlp/fc"][20:], 0)])}
    assert report_of(case, late).causes[0].says.startswith("in rows 20..22 alone: GELU is max(x, 0)")


@pytest.mark.parametrize("port", HARMLESS, ids=str)
def test_the_same_model_written_otherwise_is_named_as_that(case, port):
    ids, _, hparams, weights = case
    b = port.run(weights, ids, hparams.n_head)
    if port.name == "centred weights":
        b = ports.run(port.weights(weights), ids, hparams.n_head, head=weights["model/wte"])
    report = report_of(case, b)
    assert (report.causes[0].name, report.causes[0].harmless) == (port.name, True)


def test_a_mask_that_lets_the_future_through_is_no_bookkeeping(case):
    ids, _, hparams, weights = case
    loud = {name: x * np.float32(1000 if name.endswith("c_attn/w") else 1) for name, x in weights.items()}
    a, b = (ports.run(loud, ids, hparams.n_head, mask=ports.put_mask(value)) for value in (-1e10, -1e4))
    report = compare(reading(a, ids), reading(b, ids), Measure(hparams, loud))
    assert (report.first.tap, report.causes[0].name) == ("h0/attn/scores", "mask value")
    assert not report.causes[0].harmless
    unseen = [{n: x for n, x in taps.items() if not n.endswith("/scores")} for taps in (a, b)]
    report = compare(*(reading(taps, ids) for taps in unseen), Measure(hparams, loud))
    assert (report.first.tap, report.causes[0].name) == ("h0/attn/probs", "mask value")


@pytest.mark.parametrize("value", [-np.inf, -3.4e38, -1e9])
def test_a_mask_that_hides_as_well_is_no_difference(case, value):
    ids, _, hparams, weights = case
    report = report_of(case, ports.run(weights, ids, hparams.n_head, mask=ports.put_mask(value)))
    assert (report.verdict, report.causes) == (ROUNDING, ())


def _altered(a, weights, tap, formula):
    """Of the right taps, one by a formula of the others, and nothing behind it."""
    return {**a, tap: formula(a, {name.removeprefix("model/"): np.squeeze(x) for name, x in weights.items()})}


def _q(c):
    return np.split(c, 3, -1)[0].reshape(len(c), 4, -1)


ALONE = {
    "ln_1 missing": ("h1/attn/q", lambda a, w: _q(a["h1/in"] @ w["h1/attn/c_attn/w"] + w["h1/attn/c_attn/b"])),
    "ln_2 missing": ("h1/mlp/fc", lambda a, w: a["h1/mid"] @ w["h1/mlp/c_fc/w"] + w["h1/mlp/c_fc/b"]),
    "residual from the norm": ("h1/mid", lambda a, w: a["h1/ln_1/out"] + a["h1/attn/out"]),
    "wpe missing": ("wpe/out", lambda a, w: 0 * a["wpe/out"]),
    "GELU constant": ("h1/mlp/gelu", lambda a, w: ports.tanh_gelu(a["h1/mlp/fc"], by=0.0044715)),
    "logits scaled": ("logits", lambda a, w: a["logits"] / np.sqrt(np.float32(48))),
    "log-probabilities": ("logits", lambda a, w: np.log(ports.softmax(a["logits"]))),
    "rstd inverted": ("h1/ln_1/rstd", lambda a, w: 1 / a["h1/ln_1/rstd"]),
}  # fmt: skip


@pytest.mark.parametrize("name", ALONE)
def test_one_tap_that_is_wrong_alone(case, name):
    _ids, a, _hparams, weights = case
    cause = report_of(case, _altered(a, weights, *ALONE[name])).causes[0]
    assert (cause.name, cause.tap) == (name, ALONE[name][0])
    assert cause.harmless == (name in ("log-probabilities", "rstd inverted"))


@pytest.mark.parametrize("factor", [0.5, 0.9, 0.99, 1.01])
def test_a_factor_is_no_epsilon(case, factor):
    _, a, *_ = case
    b = {**a, "h2/ln_1/rstd": a["h2/ln_1/rstd"] * np.float32(factor)}
    assert report_of(case, b).causes == ()


def test_of_two_mistakes_both_are_named(case):
    ids, _, hparams, weights = case
    b = ports.run(weights, ids, hparams.n_head, norm=ports.epsilon(1e-3), gelu=ports.erf_gelu)
    report = report_of(case, b)
    assert [cause.name for cause in report.causes] == ["epsilon 0.001"]
    assert [(cause.name, cause.tap) for cause in report.also] == [("erf GELU", "h0/mlp/gelu")]


def test_sides_that_are_swapped(case):
    """What the model does not compute is not taken for right, whatever the other side holds."""
    ids, a, hparams, weights = case
    wrong = ports.run(weights, ids, hparams.n_head, gelu=ports.erf_gelu)
    report = compare(reading(wrong, ids), reading(a, ids), Measure(hparams, weights))
    assert (report.verdict, report.off[0]) == (BUG, "h0/mlp/gelu")
    assert report.off[1] > 100
    assert report_of(case, a).off is None


def test_the_order_of_thirds_is_told(case):
    ids, _, hparams, weights = case
    cause = report_of(case, ports.run(weights, ids, hparams.n_head, order=(2, 0, 1))).causes[0]
    assert cause.says == "c_attn is taken as k, v, q, expected q, k, v"


def test_logits_that_differ_by_a_constant(case):
    _ids, a, *_ = case
    b = {**a, "logits": a["logits"] - a["logits"].mean(-1, keepdims=True)}
    cause = report_of(case, b).causes[0]
    assert (cause.name, cause.tap, cause.harmless) == ("centred unembedding", "logits", True)
    assert "softmax equal" in cause.says


@pytest.mark.parametrize(("here", "there", "name"), [
    ("norm", "out", "norm after gain and bias"), ("out", "norm", "folded gain"),
])  # fmt: skip
def test_one_name_for_the_other(case, here, there, name):
    _, a, *_ = case
    cause = report_of(case, {**a, f"h0/ln_1/{here}": a[f"h0/ln_1/{there}"]}).causes[0]
    assert (cause.name, cause.harmless) == (name, True)


@pytest.mark.parametrize("norm", ["h0/ln_2", "h2/ln_1"])
def test_the_scale_of_the_last_norm_used_for_another(case, norm):
    """As where a whole stack of residual streams is divided by the final scale."""
    _ids, a, _, weights = case
    rstd = a["ln_f/rstd"]
    x = a[norm.replace("ln_1", "in").replace("ln_2", "mid")]
    n = (x - a[f"{norm}/mean"]) * rstd
    out = n * weights[f"model/{norm}/g"] + weights[f"model/{norm}/b"]
    b = {**a, f"{norm}/rstd": rstd, f"{norm}/norm": n, f"{norm}/out": out}
    cause = report_of(case, b).causes[0]
    assert (cause.name, cause.says) == ("final scale reused", f"rstd of {norm} is that of ln_f")
    unseen = {name: x for name, x in b.items() if name.rpartition("/")[2] not in ("var", "rstd", "norm")}
    assert report_of(case, unseen).causes[0].name == "final scale reused"


NEEDS = ("missing transposition", "TF32 products", "bfloat16 products",
         "blocks in another order", "Bessel, epsilon outside the root")  # fmt: skip


@pytest.mark.parametrize("port", [port for port in ALL if port.name not in NEEDS], ids=str)
def test_most_are_named_without_the_weights(case, port):
    ids, _, hparams, weights = case
    port_taps = port.run(weights, ids, hparams.n_head)
    report = report_of(case, port_taps, weights=False)
    if report.verdict == BUG:
        assert report.causes[0].name == port.name
    else:  # below the limit that stands in for what is not known
        assert port.name in (
            "epsilon 1e-06",
            "epsilon 1e-12",
            "epsilon 3e-06",
            "epsilon 3e-05",
            "epsilon outside the root",
        )


def test_what_no_hypothesis_gives_gets_no_name(case):
    ids, _, hparams, weights = case
    bad = {**weights, "model/h1/mlp/c_proj/w": weights["model/h1/mlp/c_proj/w"] * np.float32(1.01)}
    report = report_of(case, ports.run(bad, ids, hparams.n_head))
    assert (report.first.tap, report.first.own, report.causes) == ("h1/mlp/out", True, ())
    assert {row.tap for row in report.rows if row.verdict == BUG and row.own} == {"h1/mlp/out"}


def test_numbers_that_only_look_like_a_known_mistake_get_no_name(case):
    _ids, a, _hparams, _weights = case
    b = {**a, "h0/ln_1/var": a["h0/ln_1/var"] * np.float32(1.3)}
    assert report_of(case, b).causes == ()
    b = {name: x for name, x in a.items() if not name.endswith(("var", "rstd"))}
    b["h0/ln_1/norm"] = b["h0/ln_1/norm"] + np.float32(0.01)
    assert report_of(case, b).causes == ()


def test_fewer_bits_on_both_sides_explain_nothing(case):
    ids, a, hparams, weights = case
    a = {name: ports.fewer_bits(7)(x) for name, x in a.items()}
    b = {**a, "h1/mlp/out": a["h1/mlp/out"] * 2}
    sides = reading(a, ids, "bfloat16"), reading(b, ids, "bfloat16")
    assert compare(*sides, Measure(hparams, weights)).causes == ()


def test_one_row_shows_no_missing_bias(case):
    ids, a, hparams, _ = case
    one = {name: x[:1] for name, x in a.items() if not name.endswith(("scores", "probs"))}
    b = {**one, "h1/mlp/out": one["h1/mlp/out"] * 2}
    assert report_of((ids[:1], one, hparams, {}), b).causes == ()


def test_epsilon_says_how_sure_it_is(case):
    ids, _, hparams, weights = case
    says = report_of(case, ports.run(weights, ids, hparams.n_head, norm=ports.epsilon(1e-6))).causes[0].says
    assert says.startswith("rstd fits epsilon 1e-06 (from ")
    assert says.endswith("), expected 1e-05")
    low, high = (float(word) for word in says.partition("from ")[2].partition(")")[0].split(" to "))
    assert low < 1e-6 < high < 1.5e-6


def test_a_variance_in_one_pass_shows_at_a_large_mean(case):
    ids, _, hparams, weights = case
    shifted = {**weights, "model/wpe": weights["model/wpe"] + np.float32(1000)}
    a, b = (ports.run(shifted, ids, hparams.n_head, norm=norm) for norm in (ports.layer_norm, ports.one_pass))
    report = compare(reading(a, ids), reading(b, ids), Measure(hparams, shifted))
    assert (report.first.tap, report.causes[0].name) == ("h0/ln_1/var", "one-pass variance")
    same = {name: x for name, x in b.items() if not name.endswith(("/var", "/rstd"))}
    report = compare(reading(a, ids), reading(same, ids), Measure(hparams, shifted))
    assert (report.first.tap, report.causes[0].name) == ("h0/ln_1/norm", "one-pass variance")


def test_a_hidden_token_before_the_text(case):
    ids, a, hparams, weights = case
    eot = hparams.n_vocab - 1
    longer = ports.run(weights, [eot, *ids], hparams.n_head)
    for w in (weights, {}):
        cause = prepended(a, longer, hparams=hparams, ids=ids, weights=w)
        assert cause.name == "hidden BOS"
    report = compare(reading(a, ids), reading(longer), Measure(hparams, weights))
    assert report.tokens == "23 tokens in A, 24 in B; did one side prepend <|endoftext|>?"
    assert [cause.name for cause in report.causes] == ["hidden BOS"]
    other = ports.run(weights, [5, *ids], hparams.n_head)
    kept = {name: x for name, x in other.items() if name != "wte/out"}
    assert prepended(a, kept, hparams=hparams, ids=ids, weights=weights) is None


def test_a_hidden_token_whose_row_was_cut_off(case):
    ids, _, hparams, weights = case
    longer = ports.run(weights, [hparams.n_vocab - 1, *ids], hparams.n_head)
    cut = {n: x[1:, ..., 1:] if n.endswith(("scores", "probs")) else x[1:] for n, x in longer.items()}
    report = report_of(case, cut)
    assert (report.first.tap, report.causes[0].name) == ("wpe/out", "hidden BOS")
    hidden = report_of(case, cut, KEPT["hidden states"])
    assert hidden.causes[0].name == "hidden BOS"


def test_nothing_is_named_where_nothing_can_be_computed(case):
    ids, a, hparams, _ = case
    b = {**a, "logits": a["logits"] * 2}
    assert likely(a, b, first="logits", hparams=hparams, ids=ids, weights={}, noise={}) == []
    b = {**a, "h0/attn/z": np.full_like(a["h0/attn/z"], np.nan)}
    assert likely(a, b, first="h0/attn/z", hparams=hparams, ids=ids, weights={}, noise={}) == []


# --- clean ports: no false alarm ---


def _pairwise(x):
    """A mean added up otherwise."""
    return np.cumsum(x, -1, dtype=np.float32)[..., -1:] / np.float32(x.shape[-1])


def _other_sums(x, g, b):
    u = _pairwise(x)
    s = _pairwise((x - u) ** 2)
    r = 1 / np.sqrt(s + np.float32(1e-5))
    return dict(mean=u, var=s, rstd=r, norm=(x - u) * r, out=x * (r * g) + (b - u * r * g))


def _divided(x, g, b):
    seen = ports.layer_norm(x, g, b)
    n = (x - seen["mean"]) / np.sqrt(seen["var"] + np.float32(1e-5))
    return seen | dict(norm=n, out=n * g + b)


CLEAN = {
    "as it is": {},
    "sums in another order, gain folded into rstd": dict(norm=_other_sums),
    "division by a root": dict(norm=_divided),
    "mask put": dict(mask=ports.put_mask(-1e10)),
    "mask added": dict(mask=ports.add_mask(-1e10)),
    "factors of 16 bits": dict(factor=ports.fewer_bits(22)),
}


@pytest.mark.parametrize("switches", CLEAN.values(), ids=CLEAN)
@pytest.mark.parametrize("text", [0, 1])
@pytest.mark.parametrize("weights", [True, False])
def test_a_clean_port_gets_no_name(golden_model, golden, switches, text, weights):
    ids, model = golden["ids"][text].tolist(), golden_model
    a = {name: x.astype(np.float32) for name, x in model.reference(ids).items()}
    b = ports.run(model.weights, ids, model.hparams.n_head, **switches)
    report = report_of((ids, a, model.hparams, model.weights), b, weights=weights)
    assert (report.verdict, report.causes) == (ROUNDING, ())


def test_the_graph_against_itself(case):
    report = report_of(case, case[1])
    assert (report.verdict, report.causes) == (EQUAL, ())
