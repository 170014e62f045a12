"""What others call our taps: TransformerLens (`tl`) and Hugging Face transformers (`hf`).

A name resolves only where it is the same tensor, number for number, under the official weights.  TransformerLens must
then be told to leave the weights as they are: by default it folds the gains of the norms away and centres what writes
into the residual stream.  A name that fits several taps, or none exactly, is refused with the candidates.
"""

import re
from collections.abc import Iterable, Iterator

from .errors import UsageError

SCHEMES = {"tl": "TransformerLens", "hf": "Hugging Face transformers"}

_SAME = {
    "tl": {
        "hook_embed": "wte/out",
        "embed.hook_out": "wte/out",
        "hook_pos_embed": "wpe/out",
        "pos_embed.hook_out": "wpe/out",
        "blocks.{i}.hook_resid_pre": "h{i}/in",
        "blocks.{i}.hook_in": "h{i}/in",
        "blocks.{i}.ln1.hook_out": "h{i}/ln_1/out",
        "blocks.{i}.attn.hook_q": "h{i}/attn/q",
        "blocks.{i}.attn.hook_k": "h{i}/attn/k",
        "blocks.{i}.attn.hook_v": "h{i}/attn/v",
        "blocks.{i}.attn.hook_pattern": "h{i}/attn/probs",
        "blocks.{i}.attn.hook_z": "h{i}/attn/z",
        "blocks.{i}.hook_attn_out": "h{i}/attn/out",
        "blocks.{i}.attn.hook_out": "h{i}/attn/out",
        "blocks.{i}.hook_resid_mid": "h{i}/mid",
        "blocks.{i}.ln2.hook_out": "h{i}/ln_2/out",
        "blocks.{i}.mlp.hook_pre": "h{i}/mlp/fc",
        "blocks.{i}.mlp.hook_post": "h{i}/mlp/gelu",
        "blocks.{i}.hook_mlp_out": "h{i}/mlp/out",
        "blocks.{i}.mlp.hook_out": "h{i}/mlp/out",
        "blocks.{i}.hook_resid_post": "h{i}/out",
        "blocks.{i}.hook_out": "h{i}/out",
        "ln_final.hook_out": "ln_f/out",
        "unembed.hook_out": "logits",
    },
    "hf": {
        "transformer.wte": "wte/out",
        "transformer.wpe": "wpe/out",
        "transformer.drop": "embed",
        "hidden_states[{i}]": "h{i}/in",
        "transformer.h.{i}.ln_1": "h{i}/ln_1/out",
        "past_key_values[{i}][0]": "h{i}/attn/k",
        "past_key_values[{i}][1]": "h{i}/attn/v",
        "attentions[{i}]": "h{i}/attn/probs",
        "transformer.h.{i}.attn.c_proj": "h{i}/attn/out",
        "transformer.h.{i}.ln_2": "h{i}/ln_2/out",
        "transformer.h.{i}.mlp.c_fc": "h{i}/mlp/fc",
        "transformer.h.{i}.mlp.act": "h{i}/mlp/gelu",
        "transformer.h.{i}.mlp": "h{i}/mlp/out",
        "transformer.h.{i}.mlp.c_proj": "h{i}/mlp/out",
        "transformer.h.{i}": "h{i}/out",
        "hidden_states[{L}]": "ln_f/out",
        "hidden_states[-1]": "ln_f/out",
        "last_hidden_state": "ln_f/out",
        "transformer.ln_f": "ln_f/out",
        "lm_head": "logits",
    },
}

_NORMALIZED = "is {norm}/out in TransformerLens 2 and {norm}/norm from 3 on; say which"
_SCALE = "is 1 / {norm}/rstd; take {norm}/rstd"
_NEAR = {
    "tl": {
        "blocks.{i}.ln1.hook_scale": _SCALE.format(norm="h{i}/ln_1"),
        "blocks.{i}.ln2.hook_scale": _SCALE.format(norm="h{i}/ln_2"),
        "ln_final.hook_scale": _SCALE.format(norm="ln_f"),
        "blocks.{i}.ln1.hook_normalized": _NORMALIZED.format(norm="h{i}/ln_1"),
        "blocks.{i}.ln2.hook_normalized": _NORMALIZED.format(norm="h{i}/ln_2"),
        "ln_final.hook_normalized": _NORMALIZED.format(norm="ln_f"),
        "blocks.{i}.attn.hook_attn_scores": "is -inf or -3.4e38 where h{i}/attn/scores is -1e10; take h{i}/attn/scores",
        "blocks.{i}.attn.hook_result": "is h{i}/attn/out by heads, before the bias; take h{i}/attn/z or h{i}/attn/out",
    },
    "hf": {
        "transformer.h.{i}.attn.c_attn": "is three taps: h{i}/attn/q, h{i}/attn/k, h{i}/attn/v; say which",
        "transformer.h.{i}.attn": "gives several tensors; take h{i}/attn/out or h{i}/attn/probs",
        "past_key_values[{i}]": "is two taps: h{i}/attn/k, h{i}/attn/v; say which",
        "hidden_states": "is {L} + 1 taps: h0/in ... h{last}/in, ln_f/out; say which, as in hidden_states[0]",
        "past_key_values": "is a pair a block; say which, as in past_key_values[0][1]",
        "attentions": "is a tensor a block; say which, as in attentions[0]",
    },
}


def _expand(table: dict[str, str], n_layer: int) -> dict[str, str]:
    """Fill in every layer."""
    out = {}
    for name, value in table.items():
        for i in range(n_layer) if "{i}" in name else [0]:
            fill = {"i": i, "L": n_layer, "last": n_layer - 1}
            out[name.format(**fill)] = value.format(**fill)
    return out


def same(scheme: str, n_layer: int) -> dict[str, str]:
    """Foreign name -> the tap that is the same numbers."""
    return _expand(_SAME[scheme], n_layer)


def near(scheme: str, n_layer: int) -> dict[str, str]:
    """Foreign name -> what it is instead, for names that are refused."""
    return _expand(_NEAR[scheme], n_layer)


def resolve(matches, n_layer: int) -> set[str]:
    """Taps meant by the foreign names that `matches(name)` accepts; UsageError where one of them is refused."""
    found = set()
    for scheme, title in SCHEMES.items():
        for name, what in near(scheme, n_layer).items():
            if matches(name):
                raise UsageError(f"{name} of {title} {what}")
        found |= {tap for name, tap in same(scheme, n_layer).items() if matches(name)}
    return found


def spellings(name: str) -> Iterator[str]:
    """A name in a file, and what it may stand for: file names hold no `/`, variables of a program no brackets."""
    name = re.sub(r"^model[/.]", "", name)
    tuples = r"(hidden_states|attentions|past_key_values)"
    yield name
    yield re.sub(rf"^{tuples}[_.]([0-9]+)(?:[_.]([01]))?$", lambda m: _indexed(*m.groups()), name)
    for between in ("__", "."):
        yield name.replace(between, "/")
    yield re.sub(r"^(h[0-9]+|wte|wpe|ln_f)_", r"\1/", re.sub(r"(?<=[0-9])_(ln_[12]|attn|mlp)_", r"/\1/", name))
    dotted = name.replace("__", ".")
    yield dotted
    yield f"transformer.{dotted}"


def _indexed(name: str, *numbers: str | None) -> str:
    return name + "".join(f"[{number}]" for number in numbers if number is not None)


def layers(names: list[str]) -> int:
    """How many blocks these names, ours or foreign, speak of: one at least."""
    found = [0]
    for name in names:
        for spelt in spellings(name):
            found += [int(n) for n in re.findall(r"(?:^|[/.])(?:h|blocks\.|h\.)([0-9]{1,4})(?=[/.])", spelt)]
            found += [int(n) for n in re.findall(r"^(?:attentions|past_key_values)\[([0-9]{1,4})\]", spelt)]
            found += [int(n) - 1 for n in re.findall(r"^hidden_states\[([0-9]{1,4})\]$", spelt)]
    return max(found) + 1


def every_layer(texts: Iterable[str]) -> list[str]:
    """Texts about taps, said once for all blocks: `h0/in`, `h1/in` -> `h*/in`; hidden_states[0] and so on too."""
    number = (
        r"(?:(?<=\bh)|(?<=\bh\.)|(?<=\bblocks\.)|(?<=_states[\[_.])|(?<=attentions[\[_.])|(?<=_values[\[_.]))[0-9]+\b"
    )
    return list(dict.fromkeys(re.sub(number, "*", text.replace("__", ".")) for text in texts))
