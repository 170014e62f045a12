"""Foreign names: each that resolves is the same numbers in the library it comes from; the others are refused.

The libraries are in the extra `bench`; where they are not installed, their half is skipped, the grammar is not.
"""

import json

import numpy as np
import pytest

import gpt2ln
from gpt2ln.aliases import SCHEMES, near, same
from gpt2ln.errors import UsageError
from gpt2ln.spec import HParams
from gpt2ln.taps import all_taps, choose

from .refusals import done, refused

TINY = HParams(n_vocab=260, n_ctx=16, n_embd=8, n_head=2, n_layer=2)
IDS = [64, 65, 200, 66, 31]


def names(spec: str) -> list[str]:
    return [tap.name for tap in choose(spec, TINY)]


@pytest.mark.parametrize("scheme", list(SCHEMES))
def test_every_name_resolves_to_its_tap(scheme):
    taps = {tap.name for tap in all_taps(TINY)}
    found = same(scheme, TINY.n_layer)
    assert set(found.values()) <= taps
    for name, tap in found.items():
        assert names(name) == [tap]


@pytest.mark.parametrize("scheme", list(SCHEMES))
def test_no_name_is_both_taken_and_refused(scheme):
    assert set(same(scheme, 2)) & set(near(scheme, 2)) == set()
    for name in near(scheme, 2):
        with pytest.raises(UsageError, match=r"of (TransformerLens|Hugging Face transformers) (is|gives)"):
            choose(name, TINY)


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        ("blocks.*.hook_resid_pre", ["h0/in", "h1/in"]),
        ("blocks.{0,1}.hook_mlp_out", ["h0/mlp/out", "h1/mlp/out"]),
        ("hook_embed,logits", ["wte/out", "logits"]),
        ("hidden_states[0],hidden_states[2]", ["h0/in", "ln_f/out"]),
        ("hidden_states[-1]", ["ln_f/out"]),
        ("attentions[1],transformer.h.1.mlp", ["h1/attn/probs", "h1/mlp/out"]),
        ("@resid,!blocks.*.hook_resid_mid", ["embed", "h0/in", "h0/out", "h1/in", "h1/out"]),
    ],
)
def test_foreign_names_in_a_spec(spec, found):
    assert names(spec) == found


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("blocks.1.ln1.hook_normalized", "h1/ln_1/out in TransformerLens 2 and h1/ln_1/norm from 3 on; say which"),
        ("ln_final.hook_scale", "is 1 / ln_f/rstd; take ln_f/rstd"),
        ("blocks.0.attn.hook_attn_scores", "-inf or -3.4e38 where h0/attn/scores is -1e10"),
        ("hidden_states", "2 + 1 taps: h0/in ... h1/in, ln_f/out"),
        ("transformer.h.0.attn.c_attn", "three taps: h0/attn/q, h0/attn/k, h0/attn/v"),
        ("blocks.*.ln1.*", "blocks.0.ln1.hook_scale"),
        ("blocks.2.hook_resid_pre", "no tap matches 'blocks.2.hook_resid_pre'"),
        ("hidden_states[3]", "no tap matches"),
        ("h*", "no tap matches 'h*'"),
        ("h0/out,h0/ln_1/scale", "no tap matches 'h0/ln_1/scale'"),
    ],
)
def test_what_is_refused(spec, says, cli, T):
    refused(cli("taps", "-m", T, spec), 2, says)


def test_taps_as_lists_every_name_once(cli, T):
    for scheme in SCHEMES:
        out = done(cli("taps", "-m", T, "-q", "--as", scheme, "--json"))
        found = {name: row["tap"] for row in map(json.loads, out.splitlines()) for name in row[scheme]}
        assert found == same(scheme, 2)
        table = done(cli("taps", "-m", T, "-q", "--as", scheme))
        for name in found:
            assert name in table


def test_taps_as_says_what_is_refused(cli, T):
    ran = cli("taps", "-m", T, "--as", "tl")
    assert "blocks.0.ln1.hook_scale is 1 / h0/ln_1/rstd" in ran.err
    assert "folds and centres weights" in ran.err


# the libraries themselves


def hugging_face(m):
    """The same weights as `GPT2LMHeadModel`, attention step by step."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from gpt2ln.checkpoint import load
    from gpt2ln.spec import variables

    hp = m.hparams
    config = transformers.GPT2Config(
        vocab_size=hp.n_vocab, n_positions=hp.n_ctx, n_embd=hp.n_embd, n_layer=hp.n_layer, n_head=hp.n_head
    )
    config._attn_implementation = "eager"
    theirs = transformers.GPT2LMHeadModel(config).eval()
    state = theirs.transformer.state_dict()
    ends = {"g": "weight", "b": "bias", "w": "weight", "wte": "wte.weight", "wpe": "wpe.weight"}
    for name, array in load(m.bundle, variables(hp)):
        *path, leaf = name.removeprefix("model/").split("/")
        path = ["h", path[0][1:], *path[1:]] if path and path[0][1:].isdigit() else path
        key = ".".join([*path, ends[leaf]])
        state[key].copy_(torch.from_numpy(array.copy()).reshape(state[key].shape))
    return torch, theirs


def alike(ours: np.ndarray, theirs) -> None:
    """Other kernels sum in another order: 2e-5 of the largest value is what three blocks of float32 make of that."""
    theirs = theirs.detach().numpy()
    assert ours.size == theirs.size
    np.testing.assert_allclose(ours.reshape(theirs.shape), theirs, rtol=0, atol=2e-5 * np.abs(theirs).max())


def positions_first(tap: str, x):
    """[1, H, T, ...] -> [T, H, ...], as our rows are."""
    return x[0].transpose(0, 1) if tap.endswith(("/k", "/v", "/probs")) else x[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_hugging_face_gives_the_same_numbers(golden_model):
    torch, theirs = hugging_face(golden_model)
    modules, handles = {}, []
    for name, module in theirs.named_modules():
        hook = lambda module, given, out, name=name: modules.__setitem__(name, out)  # noqa: E731
        handles.append(module.register_forward_hook(hook))
    out = theirs(torch.tensor([IDS]), output_hidden_states=True, output_attentions=True, use_cache=True)
    L = golden_model.hparams.n_layer
    ours = golden_model.observe(IDS, "**")
    for name, tap in same("hf", L).items():
        if name.startswith("past_key_values"):
            i, which = int(name.split("[")[1][:-1]), name[-2] == "1"
            layer = out.past_key_values.layers[i]
            value = layer.values if which else layer.keys
        elif "[" in name:
            value = getattr(out, name.split("[")[0])[int(name.split("[")[1][:-1])]
        else:
            value = modules["transformer.ln_f" if name == "last_hidden_state" else name]
        alike(ours[tap], positions_first(tap, value))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_transformer_lens_gives_the_same_numbers(golden_model, tmp_path):
    bridges = pytest.importorskip("transformer_lens.model_bridge")
    torch, theirs = hugging_face(golden_model)
    theirs.save_pretrained(tmp_path)
    bridge = bridges.TransformerBridge.boot_transformers(str(tmp_path), hf_model=theirs)
    _, cache = bridge.run_with_cache(torch.tensor([IDS]))
    L = golden_model.hparams.n_layer
    ours = golden_model.observe(IDS, "**")
    for name, tap in same("tl", L).items():
        value = cache[name][0]
        alike(ours[tap], value.transpose(0, 1) if tap.endswith("/probs") else value)
    for norm, hook in (("h0/ln_1", "blocks.0.ln1"), ("h1/ln_2", "blocks.1.ln2"), ("ln_f", "ln_final")):
        alike(1 / ours[f"{norm}/rstd"], cache[f"{hook}.hook_scale"][0])
        alike(ours[f"{norm}/norm"], cache[f"{hook}.hook_normalized"][0])
    assert bool((cache["blocks.0.attn.hook_attn_scores"] < -1e30).any())


def test_the_wrong_tap_would_not_pass(golden_model):
    """`alike` tells neighbours apart: `norm` is not `out`, `in` is not `mid`."""
    ours = golden_model.observe(IDS, "h1/{in,mid},h1/ln_1/{norm,out}")
    for a, b in (("h1/in", "h1/mid"), ("h1/ln_1/norm", "h1/ln_1/out")):
        with pytest.raises(AssertionError):
            np.testing.assert_allclose(ours[a], ours[b], rtol=0, atol=2e-5 * np.abs(ours[b]).max())


def test_the_demo_has_the_same_names():
    m = gpt2ln.load("demo")
    np.testing.assert_array_equal(
        m.observe("To be", "blocks.5.hook_resid_post")["h5/out"], m.observe("To be", "h5/out")["h5/out"]
    )
