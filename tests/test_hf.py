"""Hugging Face's names and configuration: ours and theirs are one to one, and what is another function is named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2ln.hf import config, from_hf, sizes_of, spelling, strange, to_hf
from gpt2ln.spec import RELEASED, HParams, variables

TINY = HParams(n_vocab=260, n_ctx=16, n_embd=8, n_head=2, n_layer=12)

PAIRS = {
    "model/wte": "wte.weight",
    "model/wpe": "wpe.weight",
    "model/h0/ln_1/g": "h.0.ln_1.weight",
    "model/h11/ln_2/b": "h.11.ln_2.bias",
    "model/h3/attn/c_attn/w": "h.3.attn.c_attn.weight",
    "model/h3/attn/c_proj/b": "h.3.attn.c_proj.bias",
    "model/h3/mlp/c_fc/w": "h.3.mlp.c_fc.weight",
    "model/h10/mlp/c_proj/w": "h.10.mlp.c_proj.weight",
    "model/ln_f/g": "ln_f.weight",
    "model/ln_f/b": "ln_f.bias",
}


@pytest.mark.parametrize(("ours", "theirs"), PAIRS.items())
def test_names(ours, theirs):
    assert to_hf(ours) == theirs
    assert from_hf(theirs) == from_hf(f"transformer.{theirs}") == ours


def test_every_variable_there_and_back():
    names = list(variables(TINY))
    assert [from_hf(to_hf(name)) for name in names] == names
    assert len({to_hf(name) for name in names}) == len(names)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_names_are_those_of_transformers():
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**config(TINY, 259))).transformer.state_dict()
    ours = {to_hf(name): shape[-2:] for name, shape in variables(TINY).items()}
    assert ours == {name: tuple(x.shape) for name, x in theirs.items()}


@pytest.mark.parametrize(
    "name",
    [
        "h.0.ln_1.g", "h0.ln_1.weight", "h.x.ln_1.weight", "h.٣.ln_1.weight", "wte", "wte.bias", "ln_f", "ln_1.weight",
        "h.0.ln_3.weight", "h.0.attn.c_fc.weight", "h.0.mlp.c_attn.bias", "transformer.transformer.wte.weight",
        "score.weight", "h.0.attn.bias", "lm_head.weight", "h.0.ln_1.weight\n", "", "model/wte", "xwte.weight",
    ],
)  # fmt: skip
def test_what_is_no_variable(name):
    assert from_hf(name) is None


@given(st.text(max_size=20))
def test_any_text(text):
    ours = from_hf(text)
    assert ours is None or text.removeprefix("transformer.") == to_hf(ours)


def test_spelling():
    prefixed = ["transformer.wte.weight", "transformer.h.1.attn.masked_bias"]
    rest = ["model/h0/ln_1/g", "score.weight", "h.0.attn.c_attn.bias"]
    found = spelling(["wte.weight", *prefixed, "h.0.attn.bias", "lm_head.weight", *rest])
    assert found.ours == {
        "model/wte": "wte.weight",
        "model/h0/ln_1/g": "model/h0/ln_1/g",
        "score.weight": "score.weight",
        "model/h0/attn/c_attn/b": "h.0.attn.c_attn.bias",
    }
    assert found.masks == ("transformer.h.1.attn.masked_bias", "h.0.attn.bias")
    assert (found.tied, found.twice) == ("lm_head.weight", ("model/wte",))


@pytest.mark.parametrize("name", sorted(RELEASED))
def test_the_configuration_says_the_sizes_and_nothing_strange(name):
    record = config(RELEASED[name], 50256)
    assert sizes_of(record) == RELEASED[name].as_dict()
    assert strange(record) == []
    assert (record["bos_token_id"], record["eos_token_id"], record["n_ctx"]) == (50256, 50256, 1024)


def test_what_is_absent_is_absent_and_normal():
    assert (sizes_of({}), strange({})) == ({}, [])
    assert sizes_of({"vocab_size": "x", "n_positions": None, "n_ctx": 7}) == {"n_vocab": "x", "n_ctx": None}


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"activation_function": "gelu"}, "activation_function is 'gelu', expected 'gelu_new'"),
        ({"activation_function": ["relu"]}, "activation_function is ['relu'], expected 'gelu_new'"),
        ({"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon is 1e-06, expected 1e-05"),
        ({"n_inner": 33}, "n_inner is 33, expected None"),
        ({"n_inner": 31, "n_embd": "8"}, "n_inner is 31, expected None"),
        ({"scale_attn_weights": False}, "scale_attn_weights is False, expected True"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True, expected False"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False, expected True"),
        ({"add_cross_attention": True}, "add_cross_attention is True, expected False"),
        ({"model_type": "gpt_neo"}, "model_type is 'gpt_neo', expected 'gpt2'"),
    ],
)
def test_another_function(setting, says):
    assert strange(config(TINY, 259) | setting) == [says]


@pytest.mark.parametrize("setting", [{"n_inner": 32}, {"activation_function": "gelu_pytorch_tanh"}, {"n_inner": None}])
def test_the_same_function_otherwise_spelt(setting):
    assert strange(config(TINY, 259) | setting) == []


def test_all_that_is_strange_is_named():
    assert len(strange({"model_type": "bert", "n_inner": 1, "activation_function": "relu"})) == 3
