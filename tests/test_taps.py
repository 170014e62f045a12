"""Names of activations: those the forward pass offers, at their sizes, and a grammar that misses nothing in silence."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpt2ln
from gpt2ln.checkpoint import load as load_arrays
from gpt2ln.errors import UsageError
from gpt2ln.spec import RELEASED, HParams, variables
from gpt2ln.taps import FORMULAS, PRESETS, Tap, all_taps, choose, formula, glob, norm_scopes

TINY = HParams(n_vocab=260, n_ctx=16, n_embd=8, n_head=2, n_layer=2)
DEEP = HParams(n_vocab=260, n_ctx=16, n_embd=8, n_head=2, n_layer=12)
TOKENS = 5


@pytest.fixture(scope="module")
def seen(T) -> dict[str, np.ndarray]:
    """Every value a forward pass offers, in the order in which it does."""
    import tensorflow as tf

    from gpt2ln.model import Scope, model

    opened = gpt2ln.load(T)
    weights = {k: tf.constant(v) for k, v in load_arrays(opened.bundle, variables(opened.hparams))}
    values = {}

    def tap(name, value):
        assert name not in values
        values[name] = value.numpy()

    model(tf.constant([[64, 65, 258, 66, 259]]), Scope("model", weights, tap), hparams=opened.hparams)
    return values


def names(spec: str, hparams: HParams = TINY) -> list[str]:
    return [tap.name for tap in choose(spec, hparams)]


def test_names_and_order_are_those_of_the_forward_pass(seen):
    assert [tap.name for tap in all_taps(TINY)] == list(seen)
    assert len(seen) == 3 + 2 * (3 + 5 + 7 + 5 + 3) + 5 + 1


def test_shapes_and_bytes_are_those_of_the_real_arrays(seen):
    for tap in all_taps(TINY):
        array = seen[tap.name]
        axes = [TOKENS if axis == "T" else axis for axis in tap.shape]
        heads_first = len(axes) == 2
        shape = (1, axes[0], TOKENS, axes[1]) if heads_first else (1, TOKENS, *axes)
        assert array.shape == shape, tap
        assert array.dtype == np.float32, tap
        assert array.nbytes == TOKENS * tap.bytes_a_token(TOKENS), tap


def test_a_tap_counts_its_own_bytes():
    assert Tap("x", (12, 64)).bytes_a_token() == 3072
    assert Tap("x", (12, "T")).bytes_a_token(1024) == 49152


def test_norm_scopes_in_order(seen):
    assert norm_scopes(TINY) == ["h0/ln_1", "h0/ln_2", "h1/ln_1", "h1/ln_2", "ln_f"]
    assert [name.removesuffix("/mean") for name in seen if name.endswith("/mean")] == norm_scopes(TINY)


@pytest.mark.parametrize("model", list(RELEASED))
def test_ln_stats_preset_is_three_numbers_a_norm(model):
    hparams = RELEASED[model]
    chosen = choose("@ln-stats", hparams)
    assert [tap.name for tap in chosen] == [f"{s}/{x}" for s in norm_scopes(hparams) for x in ("mean", "var", "rstd")]
    assert sum(tap.bytes_a_token() for tap in chosen) == 12 * (2 * hparams.n_layer + 1)


def test_ln_stats_is_300_bytes_a_token_on_124M():
    assert sum(tap.bytes_a_token() for tap in choose("@ln-stats", RELEASED["124M"])) == 300


# the grammar


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        ("h0/in", ["h0/in"]),
        ("h*/in", ["h0/in", "h1/in"]),
        ("*/out", ["wte/out", "wpe/out", "h0/out", "h1/out", "ln_f/out"]),
        ("*", ["embed", "logits"]),
        ("h0/ln_*/mean", ["h0/ln_1/mean", "h0/ln_2/mean"]),
        ("**/mean", ["h0/ln_1/mean", "h0/ln_2/mean", "h1/ln_1/mean", "h1/ln_2/mean", "ln_f/mean"]),
        ("h0/**/out", ["h0/ln_1/out", "h0/attn/out", "h0/ln_2/out", "h0/mlp/out", "h0/out"]),
        ("**mid", ["h0/mid", "h1/mid"]),
        ("h?/mid", ["h0/mid", "h1/mid"]),
        ("h{0..1}/mid", ["h0/mid", "h1/mid"]),
        ("h{1}/mid", ["h1/mid"]),
        ("h1/ln_{1,2}/{mean,var}", ["h1/ln_1/mean", "h1/ln_1/var", "h1/ln_2/mean", "h1/ln_2/var"]),
        ("h1/{ mean , mid }", None),
        ("h1/{ in , mid }", ["h1/in", "h1/mid"]),
        ("h-1/mid", ["h1/mid"]),
        ("h-2/mid,h-1/in", ["h0/mid", "h1/in"]),
        ("h1/mid, h0/in ,", ["h0/in", "h1/mid"]),
        ("h0/mid,h0/mid", ["h0/mid"]),
        ("h*/mid,!h0/*", ["h1/mid"]),
        ("!h*/**,!ln_f/*", ["wte/out", "wpe/out", "embed", "logits"]),
        ("h*/mid,!h0/*,h0/mid", ["h0/mid", "h1/mid"]),
        ("@resid", ["embed", "h0/in", "h0/mid", "h0/out", "h1/in", "h1/mid", "h1/out"]),
        ("@resid,!h*/{mid,out}", ["embed", "h0/in", "h1/in"]),
        ("@ln,!@ln-stats,!**/out", ["h0/ln_1/norm", "h0/ln_2/norm", "h1/ln_1/norm", "h1/ln_2/norm", "ln_f/norm"]),
        ("@mlp,!h0/**", ["h1/mlp/fc", "h1/mlp/gelu", "h1/mlp/out"]),
        ("@attn,!h0/**", [f"h1/attn/{leaf}" for leaf in ("q", "k", "v", "scores", "probs", "z", "out")]),
    ],
)
def test_what_a_spec_picks(spec, found):
    if found is None:
        with pytest.raises(UsageError):
            choose(spec, TINY)
    else:
        assert names(spec) == found


def test_all_is_all():
    assert names("@all") == names("**") == [tap.name for tap in all_taps(TINY)]


@pytest.mark.parametrize("preset", list(PRESETS))
@pytest.mark.parametrize("n_layer", [1, 2, 12])
def test_every_preset_picks_something_of_every_model(preset, n_layer):
    hparams = HParams(260, 16, 8, 2, n_layer)
    assert 0 < len(choose(preset, hparams)) <= len(all_taps(hparams))


def test_a_number_is_never_cut():
    assert names("h1/mid", DEEP) == ["h1/mid"]
    assert names("h1*/mid", DEEP) == ["h1/mid", "h10/mid", "h11/mid"]
    assert names("h{1..2}/mid", DEEP) == ["h1/mid", "h2/mid"]
    assert names("h-12/mid", DEEP) == ["h0/mid"]


@pytest.mark.parametrize("name", ["h0.in", "h[01]/in", "h0/in$", "(h0/in)", "h0/i+", "h0|h1", "h0/\nin", "h0/in\\"])
def test_nothing_but_globs_is_special(name):
    with pytest.raises(UsageError, match="no tap matches"):
        choose(name, TINY)


@given(picked=st.sets(st.sampled_from([tap.name for tap in all_taps(TINY)]), min_size=1))
def test_a_list_of_names_picks_these_in_order(picked):
    assert names(",".join(picked)) == [tap.name for tap in all_taps(TINY) if tap.name in picked]
    rest = [tap.name for tap in all_taps(TINY) if tap.name not in picked]
    if rest:
        assert names("**," + ",".join(f"!{name}" for name in picked)) == rest


def test_a_glob_of_several_is_either():
    pattern = glob("a/*,b")
    assert [bool(pattern.fullmatch(name)) for name in ("a/x", "b", "a/x/y", "bb", "a/")] == [1, 1, 0, 0, 1]


# what matches nothing


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("h13/*", "no tap matches 'h13/*' (this model has h0..h1)"),
        ("h2/in", "no tap matches 'h2/in' (this model has h0..h1)"),
        ("h-3/in", "no tap matches 'h-3/in' (this model has h0..h1)"),
        ("h-0/in", "no tap matches 'h-0/in' (this model has h0..h1)"),
        ("h{0,13}/in", "no tap matches 'h13/in' (this model has h0..h1)"),
        ("h{0..5}/in", "no tap matches 'h2/in' (this model has h0..h1)"),
        ("h0/out,h0/ln_1/scale", "no tap matches 'h0/ln_1/scale'; did you mean "),
        ("h0/ot", "no tap matches 'h0/ot'; did you mean h0/out"),
        ("h0/out,!h0/nothing", "no tap matches 'h0/nothing'"),
        ("h0/ln_1/{mean,mu}", "no tap matches 'h0/ln_1/mu'"),
        ("model/h0/in", "no tap matches 'model/h0/in'; did you mean h0/in"),
        ("zzzzzz", "no tap matches 'zzzzzz'; list them: gpt2ln taps"),
        ("@lnstats", "no preset '@lnstats'; choose @ln-stats, @ln, @resid, @attn, @mlp, @all"),
        ("h{1..0}/in", "{1..0}: 1..0 is no range"),
        ("h{0..999999999}/in", "{0..999999999}: 0..999999999 is no range"),
        ("h{0..1/in", "no tap matches 'h{0..1/in'"),
        ("h" + "9" * 5000 + "/in", "no tap matches 'h999"),
        ("h-" + "9" * 5000 + "/in", "no tap matches 'h-999"),
        ("", "no tap is left by ''"),
        (" , ", "no tap is left by ' , '"),
        ("h0/in,!h0/in", "no tap is left by 'h0/in,!h0/in'"),
        ("!", "no tap matches ''"),
    ],
)
def test_what_matches_nothing_is_refused(spec, says):
    with pytest.raises(UsageError) as caught:
        choose(spec, TINY)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


# the command


def test_taps_lists_names_shapes_and_bytes(cli, T):
    ran = cli("taps", "-m", T, "h0/ln_1/mean", "h0/attn/{q,probs}", "logits")
    assert (ran.status, ran.err) == (0, "4 taps, 1076 bytes a token and 8 more for each position attended to\n")
    assert ran.out.splitlines() == [
        "tap            shape  bytes a token  what",
        "h0/ln_1/mean   1                  4  u = mean of x over C",
        "h0/attn/q      2x4               32  queries, heads split",
        "h0/attn/probs  2xT            8 x T  softmax of scores",
        "logits         260             1040  ln_f/out wte^T",
    ]


def test_taps_as_json(cli, T):
    ran = cli("taps", "-m", T, "--json", "h-1/attn/{q,probs}")
    assert [json.loads(line) for line in ran.out.splitlines()] == [
        {"tap": "h1/attn/q", "shape": [2, 4], "bytes": 32, "what": "queries, heads split"},
        {"tap": "h1/attn/probs", "shape": [2, "T"], "bytes": None, "what": "softmax of scores"},
    ]


def test_taps_without_a_glob_is_all_of_them(cli, T):
    ran = cli("taps", "-m", T)
    assert [line.split()[0] for line in ran.out.splitlines()[1:]] == [tap.name for tap in all_taps(TINY)]
    assert ran.err.splitlines()[-1] == "presets: @ln-stats @ln @resid @attn @mlp @all"
    quiet = cli("taps", "-q", "-m", T)
    assert (quiet.out, quiet.err) == (ran.out, "")


@pytest.mark.parametrize("spec", ["h13/*", "h0/ln_1/scale", "", "@no", "!h9/in"])
def test_taps_refuses_what_matches_nothing(cli, T, spec):
    ran = cli("taps", "-m", T, spec)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("error: no ")
    assert ran.err.count("\n") == 1


def test_inspect_shares_the_grammar(cli, T):
    ran = cli("inspect", "-q", "-m", T, "h{0,1}/ln_?/g", "**/c_proj/b")
    assert [line.split()[0] for line in ran.out.splitlines()[1:]] == [
        f"model/h{i}/{k}" for i in (0, 1) for k in ("attn/c_proj/b", "ln_1/g", "ln_2/g", "mlp/c_proj/b")
    ]


# blocks, the end of the pass, and what each tap is


@pytest.mark.parametrize(
    ("layers", "blocks"),
    [
        ("0", [0]),
        ("-1", [11]),
        ("0,3-5,-1", [0, 3, 4, 5, 11]),
        ("-3--1", [9, 10, 11]),
        ("2-2", [2]),
        (" 1 , 2 ", [1, 2]),
    ],
)
def test_layers_keep_taps_of_those_blocks_alone(layers, blocks):
    found = [tap.name for tap in choose("**/mean,embed", DEEP, layers=layers)]
    assert found == [f"h{i}/ln_{n}/mean" for i in blocks for n in (1, 2)]


@pytest.mark.parametrize(
    ("layers", "says"),
    [
        ("12", "12 is out of range; this model has 0..11"),
        ("-13", "-13 is out of range"),
        ("0-12", "12 is out of range"),
        ("5-3", "'5-3' is no rising range"),
        ("", "'' is no layer"),
        ("a", "'a' is no layer; expected numbers and ranges: 0,3-5,-1"),
        ("1;2", "is no layer"),
        ("1,,2", "'' is no layer"),
    ],
)
def test_layers_that_are_none(layers, says, cli, T):
    with pytest.raises(UsageError) as caught:
        choose("**", DEEP, layers=layers)
    assert says in str(caught.value)


def test_layers_that_leave_nothing():
    with pytest.raises(UsageError, match="no tap is left by 'embed' with --layers 0"):
        choose("embed", TINY, layers="0")


def test_stop_after_leaves_out_what_is_computed_later():
    assert [tap.name for tap in choose("@resid", TINY, stop_after="h0/mid")] == ["embed", "h0/in", "h0/mid"]
    assert [tap.name for tap in choose("@resid", TINY, stop_after="h-1/attn/out")] == names("@resid")[:-2]
    with pytest.raises(UsageError, match="no tap is left by 'logits' with --stop-after h0/mid"):
        choose("logits", TINY, stop_after="h0/mid")
    with pytest.raises(UsageError, match=r"'h0/ln_1/\*' is 5 taps, h0/ln_1/mean ... h0/ln_1/out; expected one"):
        choose("**", TINY, stop_after="h0/ln_1/*")
    with pytest.raises(UsageError, match="no tap matches 'h7/out'"):
        choose("**", TINY, stop_after="h7/out")


def test_every_tap_has_a_formula():
    found = {tap.name: formula(tap.name) for tap in all_taps(TINY)}
    assert set(found.values()) == set(FORMULAS.values())
    assert found["h1/ln_2/out"] == found["ln_f/out"] == "n * g + b"
    assert found["h1/out"] == "mid + mlp/out, residual stream out"
    assert found["h1/attn/out"] == "c_proj of z"
