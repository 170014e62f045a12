"""Two readings against each other: order, verdicts, what is inherited; and no alarm where there is none."""

from types import SimpleNamespace

import numpy as np
import pytest

from gpt2ln import compare as module
from gpt2ln.causes import Cause
from gpt2ln.compare import BUG, EQUAL, LIMIT, ROUNDING, Measure, compare
from gpt2ln.errors import BadInput
from gpt2ln.readings import Document, Reading, read
from gpt2ln.reference import Reference, gelu, hidden, products
from gpt2ln.taps import all_taps

from .ports import IDS, lens, reading, saved
from .test_replay import dumped


@pytest.fixture(scope="module")
def taps(small):
    return small.observe(IDS, "**")


@pytest.fixture(scope="module")
def by(small):
    return Measure(small.hparams, small.weights)


@pytest.fixture
def known(small):
    return Measure(small.hparams)


def float32(m, ids, **formulas) -> dict[str, np.ndarray]:
    """Another program: NumPy, float32 throughout."""

    class Single(Reference):
        def weight(self, name):
            return super().weight(name).astype("f4")

        def __getitem__(self, tap):
            if tap not in self._known:
                self._known[tap] = np.asarray(self.computed(tap), "f4")
            return self._known[tap]

    single = {
        "ln/rstd": lambda t, at: 1 / np.sqrt(t[f"{at}/var"] + np.float32(1e-5)),
        "attn/scores": lambda t, at: np.where(
            hidden(len(t.ids)), np.float32(-1e10), products(t, at) / np.float32(np.sqrt(t.hparams.head_dim))
        ),
    }
    run = Single(m.hparams, ids, m.weights, formulas=single | formulas)
    return {name: run[name] for name in run}


def noisy(taps, size: float) -> dict[str, np.ndarray]:
    """Noise of so much of each row's RMS, on what a softmax sees."""
    draw, out = np.random.default_rng(0).normal, {}
    for name, x in taps.items():
        seen = np.where(x < -1e9, 0, x).astype("f8")
        rms = np.sqrt(np.square(seen).reshape(len(x), -1).mean(1)).reshape(-1, *[1] * (x.ndim - 1))
        out[name] = (x + np.where(x < -1e9, 0, draw(0, 1, x.shape) * size * rms)).astype("f4")
    return out


def verdicts(report) -> dict[str, str]:
    return {row.tap: row.verdict for row in report.rows}


# what is the same


def test_a_dump_with_itself(taps, by):
    report = compare(reading(taps), reading(taps), by)
    assert (report.verdict, report.first, report.causes, report.argmax) == (EQUAL, None, (), (7, 7))
    assert [row.tap for row in report.rows] == [tap.name for tap in all_taps(by.hparams)]
    assert {row.apart.largest for row in report.rows} == {0.0}


@pytest.mark.parametrize("tokens", [1, 2, 7, 16])
def test_honest_programs_only_round(small, by, tokens):
    """float32 in NumPy, float64, float16 as it is stored; whichever is A."""
    ids = tuple(np.random.default_rng(tokens).integers(0, 260, tokens).tolist())
    ours, other = small.observe(ids, "**"), float32(small, ids)
    reference = small.reference(ids)
    exact = {name: reference[name] for name in reference}
    half = {name: x.astype("f2") for name, x in ours.items() if "scores" not in name}
    pairs = {
        "NumPy": (reading(ours, ids), reading(other, ids)),
        "float64": (reading(ours, ids), reading(exact, ids, "float64")),
        "against float64": (reading(exact, ids, "float64"), reading(other, ids)),
        "ours against float64": (reading(exact, ids, "float64"), reading(ours, ids)),
        "float16": (reading(ours, ids), reading(half, ids, "float16")),
    }
    for name, (a, b) in pairs.items():
        report = compare(a, b, by)
        assert (report.verdict, report.first, report.causes) == (ROUNDING, None, ()), name
        assert 0 <= max(row.ratio for row in report.rows) < LIMIT / 2, name


def test_honest_programs_on_a_trained_model(golden_model, golden):
    ids = tuple(golden["ids"][0].tolist())
    by = Measure(golden_model.hparams, golden_model.weights)
    report = compare(reading(golden_model.observe(ids, "**"), ids), reading(float32(golden_model, ids), ids), by)
    assert report.verdict == ROUNDING
    assert max(row.ratio for row in report.rows) < LIMIT / 2


# what is not (V52)


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize(("size", "verdict"), [(1e-7, ROUNDING), (1e-3, BUG)])
def test_noise(taps, by, known, weights, size, verdict):
    report = compare(reading(taps), reading(noisy(taps, size)), by if weights else known)
    assert report.verdict == verdict
    assert set(verdicts(report).values()) == {verdict}
    assert report.referred is weights


def test_limits(taps, small):
    """rtol in units of a row, atol beside it; a row of 3000 does not excuse one of 0.01."""
    b = dict(taps) | {"h1/out": taps["h1/out"].copy()}
    rms = np.sqrt(np.square(taps["h1/out"].astype("f8")).mean(1))
    b["h1/out"][3, 2] += 0.01 * rms[3]
    for rtol, atol, verdict in ((0.0099, 0, BUG), (0.0101, 0, ROUNDING), (1e-9, 0.011 * rms[3], ROUNDING)):
        report = compare(reading(taps), reading(b), Measure(small.hparams, rtol=rtol, atol=atol))
        assert report.verdict == verdict
    (row,) = [row for row in report.rows if row.tap == "h1/out"]
    assert (row.position, row.apart.channel) == (3, (2,))
    np.testing.assert_allclose(row.apart.relative, 0.01, rtol=1e-3)
    big = {"h1/out": np.float32([[3000, 3000], [0.01, 0.01]])}
    off = {"h1/out": np.float32([[3000, 3000], [0.01, 0.0101]])}
    assert compare(reading(big, IDS[:2]), reading(off, IDS[:2]), Measure()).verdict == BUG


# the first of them, and what came after (V51)


@pytest.mark.parametrize("weights", [True, False])
def test_a_wrong_weight(small, taps, by, known, weights):
    """All before agrees, it is named, and what follows is inherited wherever that can be told."""
    other = {**small.weights, "model/h1/mlp/c_proj/w": small.weights["model/h1/mlp/c_proj/w"] * np.float32(1.01)}
    wrong = Reference(small.hparams, IDS, other)
    b = {name: wrong[name].astype("f4") for name in wrong}
    report = compare(reading(taps), reading(b), by if weights else known)
    assert (report.verdict, report.first.tap) == (BUG, "h1/mlp/out")
    names = list(taps)
    differ = names[names.index("h1/mlp/out") :]
    assert [row.tap for row in report.rows if row.verdict == BUG] == differ
    own = {row.tap: row.own for row in report.rows}
    needs_weights = ("h1/mlp/out", "ln_f/out", "logits")
    for name in names:
        right = None if name not in differ else name == "h1/mlp/out"
        assert own[name] is (None if name in needs_weights and not weights else right), name


def test_names_that_one_side_lacks(taps, by):
    b = {name: x for name, x in taps.items() if not name.startswith("h0/mlp")}
    del b["ln_f/mean"]
    a = {name: x for name, x in taps.items() if name != "embed"}
    report = compare(reading(a), reading(b), by)
    assert report.only == (("h0/mlp/fc", "h0/mlp/gelu", "h0/mlp/out", "ln_f/mean"), ("embed",))
    assert (report.verdict, len(report.rows)) == (EQUAL, len(taps) - 5)
    with pytest.raises(BadInput, match=r"no tap is in both: A holds h0/in; B holds h1/in"):
        compare(reading({"h0/in": taps["h0/in"]}), reading({"h1/in": taps["h1/in"]}), by)
    with pytest.raises(BadInput, match=r"text 0: h0/in is \[7, 8\] in A, \[7, 4\] in B"):
        compare(reading({"h0/in": taps["h0/in"]}), reading({"h0/in": taps["h0/in"][:, :4]}), by)


def test_a_tap_that_a_few_taps_surround(small, taps, by):
    """What B does not hold is computed from what it holds before."""
    held = ("h0/out", "h1/out", "logits")
    wrong = Reference(small.hparams, IDS, small.weights, formulas={"mlp/gelu": lambda t, at: 1.1 * gelu(t[f"{at}/fc"])})
    report = compare(reading({n: taps[n] for n in held}), reading({n: wrong[n].astype("f4") for n in held}), by)
    assert [row.own for row in report.rows] == [True, True, False]


def test_what_follows_a_far_too_large_number_is_inherited(small, taps, by):
    """float32 rounds in units of what B holds, not of what A does."""
    wrong = {**small.weights, "model/h0/mlp/c_proj/w": small.weights["model/h0/mlp/c_proj/w"] * np.float32(1e4)}
    b = float32(SimpleNamespace(hparams=small.hparams, weights=wrong), IDS)
    report = compare(reading(taps), reading(b), by)
    assert report.first.tap == "h0/mlp/out"
    assert [row.tap for row in report.rows if row.own] == ["h0/mlp/out"]


def test_a_mean_that_is_0_by_chance(small):
    """Is measured by what it is the mean of, with weights and without."""
    w = {
        name: x - x.mean(-1, keepdims=True) if name in ("model/wte", "model/wpe") else x
        for name, x in small.weights.items()
    }
    run = Reference(small.hparams, IDS, w)
    names = ("h0/in", "h0/ln_1/mean", "h0/ln_1/var")
    a = {name: run[name].astype("f4") for name in names}
    rms = np.sqrt(np.square(run["h0/in"]).mean(-1, keepdims=True))
    assert np.abs(a["h0/ln_1/mean"]).max() < 1e-7 * rms.min()
    for by, size, verdict in (
        (Measure(small.hparams, w), 5e-7, ROUNDING),
        (Measure(small.hparams, w), 5e-6, BUG),
        (Measure(small.hparams), 5e-5, ROUNDING),
        (Measure(small.hparams), 2e-4, BUG),
    ):
        b = a | {"h0/ln_1/mean": (a["h0/ln_1/mean"] + size * rms).astype("f4")}
        report = compare(reading(a), reading(b), by)
        assert report.verdict == verdict, size
        np.testing.assert_allclose(report.rows[1].apart.relative, size, rtol=0.1)


# scores that are hidden


def test_how_the_future_is_hidden(taps, by):
    """-1e4 is another mask; softmax does not show it, and what is wrong elsewhere comes first."""
    b = dict(taps)
    for i in (0, 1):
        b[f"h{i}/attn/scores"] = np.where(taps[f"h{i}/attn/scores"] < -1e9, np.float32(-1e4), taps[f"h{i}/attn/scores"])
    report = compare(reading(taps), reading(b), by)
    assert (report.first.tap, report.first.hidden, report.first.seen, report.first.own) == (
        "h0/attn/scores",
        42,
        False,
        True,
    )
    assert verdicts(report) == {name: BUG if "scores" in name else EQUAL for name in taps}
    b["h1/mlp/fc"] = taps["h1/mlp/fc"] + 1
    assert compare(reading(taps), reading(b), by).first.tap == "h1/mlp/fc"
    b["h0/attn/scores"] = taps["h0/attn/scores"] * 1.01
    first = compare(reading(taps), reading(b), by).first
    assert (first.tap, first.own, first.seen) == ("h0/attn/scores", True, True)


# not finite


def test_nan_on_one_side(taps, by):
    b = dict(taps) | {"h0/mlp/fc": taps["h0/mlp/fc"].copy()}
    b["h0/mlp/fc"][4, 9] = np.nan
    report = compare(reading(taps), reading(b), by)
    row = report.first
    assert (row.tap, row.apart.unmatched, row.apart.nonfinite, row.position, row.own) == (
        "h0/mlp/fc",
        1,
        (0, 1),
        4,
        True,
    )
    assert row.apart.channel == (9,)


@pytest.mark.filterwarnings("error")
def test_nan_at_the_same_place_on_both(taps, by, known):
    a = {name: x.copy() for name, x in taps.items()}
    for x in a.values():
        x[2, ..., -1], x[3, ..., 0] = np.nan, np.inf
    for how in (by, known):
        report = compare(reading(a), reading(a), how)
        assert report.verdict == EQUAL
        assert {row.apart.unmatched for row in report.rows} == {0}


def test_a_model_that_is_broken(broken, T):
    """Both hold what float64 makes NaN too."""
    import gpt2ln

    m = gpt2ln.load(broken)
    b = {name: x.astype("f4") for name, x in m.reference(IDS).items()}
    report = compare(reading(b), reading(b), Measure(m.hparams, m.weights))
    assert (report.verdict, report.argmax) == (EQUAL, (7, 7))
    healthy = {name: x.astype("f4") for name, x in gpt2ln.load(T).reference(IDS).items()}
    report = compare(reading(healthy), reading(b), Measure(m.hparams, {}))
    assert report.first.tap == "h1/ln_2/out"


# texts and positions (V45)


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (
            (64, 65, 66),
            (259, 64, 65, 66),
            "token ids differ at position 0 (64 vs 259); did one side prepend <|endoftext|>?",
        ),
        ((259, 64), (64,), "token ids differ at position 0 (259 vs 64); did one side prepend <|endoftext|>?"),
        ((64, 65), (64, 66), "token ids differ at position 1 (65 vs 66); dump the same text with both"),
        ((64, 65), (64,), "token ids differ at position 1 (65 vs none); dump the same text with both"),
        ((64, 65, 66), None, "3 tokens in A, 4 in B; did one side prepend <|endoftext|>?"),
    ],
)
def test_other_tokens(small, by, a, b, words):
    second = reading(small.observe(b or (259, *a), "h0/out"), b or (259, *a))
    if b is None:
        (document,) = second.documents
        second = Reading("x", (Document(document.T, document.rows, document.taps),))
    report = compare(reading(small.observe(a, "h0/out"), a), second, by)
    assert (report.verdict, report.tokens, report.rows) == (BUG, words, ())


def test_other_texts(taps, by):
    two = Reading("x", reading(taps).documents * 2)
    report = compare(two, reading(taps), by)
    assert report.tokens == "2 texts in A, 1 in B; dump the same ones"


def test_the_worst_of_several_texts(small, tmp_path, by):
    a = read(dumped(small, tmp_path / "a.npz", "h0/out,logits"))
    for document in (1, 2):
        b = read(tmp_path / "a.npz")
        b.documents[document].taps["h0/out"][0] *= 1.1
        report = compare(a, b, by)
        assert (report.first.tap, report.first.document, report.first.position) == ("h0/out", document, 0)
        assert report.argmax == (12, 12)
        assert report.texts == (document,)


def test_positions_that_both_hold(small, tmp_path, by):
    """And only those; what needs all of them is not said."""
    whole = read(dumped(small, tmp_path / "a.npz", "**", texts=[IDS]))
    some = read(dumped(small, tmp_path / "b.npz", "**", texts=[IDS], positions="1,4:6"))
    for a, b in ((whole, some), (some, whole), (some, some)):
        report = compare(a, b, by)
        assert report.verdict == EQUAL
        assert {row.apart.values for row in report.rows if row.tap == "h0/out"} == {24}
    some.documents[0].taps["h0/out"][1] += 1
    report = compare(whole, some, by)
    assert (report.first.tap, report.first.position, report.first.own, report.causes) == ("h0/out", 4, None, ())
    other = read(dumped(small, tmp_path / "c.npz", "**", texts=[IDS], positions="0"))
    with pytest.raises(BadInput, match=r"text 0: no position is in both: 1, 4, 5 in A, 0 in B"):
        compare(some, other, by)


# names that may be two taps


def test_normalized_is_what_it_agrees_with(small, taps, tmp_path, by):
    """TransformerLens 3 has it before gain and bias, 2 after; A says which."""
    a = reading(taps)
    report = compare(a, read(saved(tmp_path / "b.npz", lens(taps)), small.hparams), by)
    assert report.first is None
    assert report.notes == ("note: B: normalized is before gain and bias: there it agrees with the other side",)
    assert verdicts(report)["h1/ln_2/norm"] == EQUAL
    norms = {f"blocks.{i}.ln{k}": f"h{i}/ln_{k}" for i in (0, 1) for k in (1, 2)} | {"ln_final": "ln_f"}
    after = {f"{name}.hook_normalized": taps[f"{norm}/out"][None] for name, norm in norms.items()}
    report = compare(a, read(saved(tmp_path / "b.npz", after), small.hparams), by)
    assert verdicts(report) == {n: EQUAL for n in taps if n.endswith(("ln_1/out", "ln_2/out", "ln_f/out"))}
    off = {name: x + 1 for name, x in after.items()}
    with pytest.raises(BadInput, match=r"a normalized is h0/ln_1/norm or h0/ln_1/out, and here it agrees with neither"):
        compare(a, read(saved(tmp_path / "b.npz", off), small.hparams), by)


def test_both_sides_may_be_open(small, taps, tmp_path, by):
    b = read(saved(tmp_path / "b.npz", {k: x for k, x in lens(taps).items() if "normalized" in k}), small.hparams)
    with pytest.raises(BadInput, match="agrees with neither"):
        compare(b, b, by)


IT = Cause("it", "is it", "h0/mlp/gelu", 1.0)


def test_causes_are_asked_for_where_all_is_known(monkeypatch, taps, by):
    asked = []
    monkeypatch.setattr(module, "likely", lambda a, b, **how: asked.append(how) or [IT])
    b = dict(taps) | {"h0/mlp/gelu": taps["h0/mlp/gelu"] * 1.5}
    assert compare(reading(taps), reading(b), by).causes == (IT,)
    how, *also = asked
    assert {one["first"] for one in also} == set()  # nothing else went wrong by itself
    assert (how["first"], tuple(how["ids"]), how["hparams"]) == ("h0/mlp/gelu", IDS, by.hparams)
    assert set(how["noise"]) == set(taps)
    assert 0 < how["noise"]["h1/out"] < 1e-5 * np.abs(taps["h1/out"]).max()
    assert compare(reading(taps), reading(b), Measure()).causes == ()
