"""What Hugging Face calls our variables, and how they lie there.

Its GPT-2 stores `conv1d` weights as [in, out], as OpenAI does, without the axis of length 1 in front; a port made of
`Linear` layers stores [out, in].  Buffers of the mask and a second copy of `wte` are no variables.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .spec import HPARAM_NAMES, HParams

TIED = "lm_head.weight"
VOCABULARY = {"encoder.json": "vocab.json", "vocab.bpe": "merges.txt"}  # ours -> theirs, the same bytes
_LEAF = {"g": "weight", "w": "weight", "b": "bias"}
_VARIABLE = re.compile(
    r"(?:transformer\.)?(?:(?P<top>wte|wpe)\.weight"
    r"|(?P<norm>ln_f|h\.[0-9]+\.ln_[12])\.(?P<gb>weight|bias)"
    r"|(?P<conv>h\.[0-9]+\.(?:attn\.c_attn|attn\.c_proj|mlp\.c_fc|mlp\.c_proj))\.(?P<wb>weight|bias))"
)
_MASK = re.compile(r"(?:transformer\.)?h\.[0-9]+\.attn\.(?:masked_)?bias")


def to_hf(name: str) -> str:
    """`model/h3/ln_1/g` -> `h.3.ln_1.weight`, as in Hugging Face's own copy: without `transformer.` in front."""
    *scope, leaf = name.split("/")[1:]
    if not scope:
        return f"{leaf}.weight"
    return re.sub(r"^h(\d+)\.", r"h.\1.", ".".join(scope)) + "." + _LEAF[leaf]


def from_hf(name: str) -> str | None:
    """`h.3.ln_1.weight`, with or without `transformer.` in front, -> `model/h3/ln_1/g`; None for no variable."""
    match = _VARIABLE.fullmatch(name)
    if not match:
        return None
    if match["top"]:
        return f"model/{match['top']}"
    leaf = {"weight": "g" if match["norm"] else "w", "bias": "b"}[match["gb"] or match["wb"]]
    scope = re.sub(r"^h\.(\d+)\.", r"h\1/", match["norm"] or match["conv"]).replace(".", "/")
    return f"model/{scope}/{leaf}"


@dataclass(frozen=True)
class Spelling:
    """The names of a file.  ours: our name, or what is none, -> theirs; masks, tied: theirs; twice: ours."""

    ours: Mapping[str, str]
    masks: tuple[str, ...]
    tied: str | None
    twice: tuple[str, ...]


def spelling(names: Iterable[str]) -> Spelling:
    """Hugging Face's names as ours; any other name as it is."""
    ours, masks, tied, twice = {}, [], None, []
    for name in names:
        if name == TIED:
            tied = name
        elif _MASK.fullmatch(name):
            masks.append(name)
        elif (known := from_hf(name) or name) in ours:
            twice.append(known)
        else:
            ours[known] = name
    return Spelling(ours, tuple(masks), tied, tuple(twice))


# Settings under which Hugging Face's GPT-2 is OpenAI's; absent means the same.
_SAME_MODEL = {
    "model_type": "gpt2",
    "layer_norm_epsilon": 1e-05,
    "n_inner": None,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "tie_word_embeddings": True,
    "add_cross_attention": False,
    "activation_function": "gelu_new",
}
_GELU = ("gelu_new", "gelu_pytorch_tanh")  # one formula under two names
_SPELT = {"n_vocab": "vocab_size", "n_ctx": "n_positions"}


def config(hparams: HParams, eot: int) -> dict:
    """`config.json`: the hyperparameters, and that everything else is as OpenAI has it."""
    sizes = {_SPELT.get(name, name): value for name, value in hparams.as_dict().items()}
    return {
        "architectures": ["GPT2LMHeadModel"],
        **_SAME_MODEL,
        **sizes,
        "n_ctx": hparams.n_ctx,
        "reorder_and_upcast_attn": False,
        "attn_pdrop": 0.1,
        "embd_pdrop": 0.1,
        "resid_pdrop": 0.1,
        "initializer_range": 0.02,
        "use_cache": True,
        "bos_token_id": eot,
        "eos_token_id": eot,
        "torch_dtype": "float32",
    }


def sizes_of(config: Mapping) -> dict[str, object]:
    """The five numbers as a `config.json` spells them, under our names; what is absent is absent."""
    return {name: config[_SPELT.get(name, name)] for name in HPARAM_NAMES if _SPELT.get(name, name) in config}


def strange(config: Mapping) -> list[str]:
    """Settings of a `config.json` under which the same weights are another function."""
    same = {key: (value,) for key, value in _SAME_MODEL.items()}
    same["activation_function"] = _GELU
    if type(config.get("n_embd")) is int:
        same["n_inner"] = (None, 4 * config["n_embd"])
    found = {key: config.get(key, values[0]) for key, values in same.items()}
    return [
        f"{key} is {value!r}, expected {_SAME_MODEL[key]!r}" for key, value in found.items() if value not in same[key]
    ]
