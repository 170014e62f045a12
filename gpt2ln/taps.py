"""The names of activations: which there are, how large, and the little language that picks some.

A name is the checkpoint's scope without `model/`, then a leaf: who knows `model/h3/ln_1/g` can guess `h3/ln_1/mean`.
`*` stays within a level, `**` crosses levels, `{mean,var}` and `h{0..5}` expand, `h-1` is the last block, commas add,
`!` removes (from all of them where it comes first), `@ln-stats` and its like are presets.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from . import aliases
from .errors import UsageError
from .spec import HParams

NORM_LEAVES = ("mean", "var", "rstd", "norm", "out")
WIDEST = 1000  # of a range in braces; no GPT-2 has as many layers
FORMULAS_VERSION = 1  # rises when one of FORMULAS changes its meaning
FORMULAS = {
    "wte/out": "wte[id]",
    "wpe/out": "wpe[position]",
    "embed": "wte/out + wpe/out",
    "in": "residual stream into the block",
    "mean": "u = mean of x over C",
    "var": "s = mean of (x - u)^2 over C, biased, before epsilon",
    "rstd": "r = rsqrt(s + 1e-5)",
    "norm": "n = (x - u) * r",
    "ln/out": "n * g + b",
    "attn/q": "queries, heads split",
    "attn/k": "keys, heads split",
    "attn/v": "values, heads split",
    "attn/scores": "q k^T * rsqrt(D), -1e10 where masked",
    "attn/probs": "softmax of scores",
    "attn/z": "probs v, heads merged, before c_proj",
    "attn/out": "c_proj of z",
    "mid": "in + attn/out",
    "mlp/fc": "c_fc of ln_2/out",
    "mlp/gelu": "gelu of fc, tanh form",
    "mlp/out": "c_proj of gelu",
    "out": "mid + mlp/out, residual stream out",
    "logits": "ln_f/out wte^T",
}
PRESETS = {
    "@ln-stats": "**/ln_*/{mean,var,rstd},ln_f/{mean,var,rstd}",
    "@ln": "**/ln_*/*,ln_f/*",
    "@resid": "embed,h*/in,h*/mid,h*/out",
    "@attn": "h*/attn/*",
    "@mlp": "h*/mlp/*",
    "@all": "**",
}


@dataclass(frozen=True)
class Tap:
    """One activation.  shape: axes of one token; "T" stands for the positions attended to."""

    name: str
    shape: tuple[int | str, ...]

    def bytes_a_token(self, T: int = 1) -> int:
        """Float32 bytes for each token of a text of T tokens."""
        size = 4
        for axis in self.shape:
            size *= T if axis == "T" else axis
        return size


def formula(name: str) -> str:
    """What a tap is, in the letters of `model.norm`: x is `in` for ln_1, `mid` for ln_2, the last `out` for ln_f."""
    *_, scope, leaf = "", *name.split("/")
    if scope.startswith("ln_"):
        return FORMULAS.get(f"ln/{leaf}") or FORMULAS[leaf]
    return FORMULAS.get(f"{scope}/{leaf}") or FORMULAS[leaf]


def norm_scopes(hparams: HParams) -> list[str]:
    """`h0/ln_1`, `h0/ln_2`, ... `ln_f`, in the order of the forward pass."""
    return [f"h{i}/ln_{n}" for i in range(hparams.n_layer) for n in (1, 2)] + ["ln_f"]


def all_taps(hparams: HParams) -> list[Tap]:
    """Every tap of a model, in the order in which the forward pass computes them."""
    C, H, D, V = hparams.n_embd, hparams.n_head, hparams.head_dim, hparams.n_vocab
    ln = dict(zip(NORM_LEAVES, ((1,), (1,), (1,), (C,), (C,)), strict=True))
    attn = {"q": (H, D), "k": (H, D), "v": (H, D), "scores": (H, "T"), "probs": (H, "T"), "z": (C,), "out": (C,)}
    mlp = {"fc": (4 * C,), "gelu": (4 * C,), "out": (C,)}
    shapes: dict[str, tuple] = {"wte/out": (C,), "wpe/out": (C,), "embed": (C,)}
    for i in range(hparams.n_layer):
        shapes[f"h{i}/in"] = (C,)
        shapes |= {f"h{i}/ln_1/{leaf}": s for leaf, s in ln.items()}
        shapes |= {f"h{i}/attn/{leaf}": s for leaf, s in attn.items()}
        shapes[f"h{i}/mid"] = (C,)
        shapes |= {f"h{i}/ln_2/{leaf}": s for leaf, s in ln.items()}
        shapes |= {f"h{i}/mlp/{leaf}": s for leaf, s in mlp.items()}
        shapes[f"h{i}/out"] = (C,)
    shapes |= {f"ln_f/{leaf}": s for leaf, s in ln.items()} | {"logits": (V,)}
    return [Tap(name, shape) for name, shape in shapes.items()]


def choose(spec: str, hparams: HParams, *, layers: str | None = None, stop_after: str | None = None) -> list[Tap]:
    """The taps that `spec` picks, in order.  UsageError when a part of it, or a choice in braces, matches nothing.

    layers: "0,3-5,-1" keeps taps of those blocks alone.  stop_after: a tap; what is computed after it is left out.
    """
    taps, parts = all_taps(hparams), split_list(spec)
    names = [tap.name for tap in taps]
    chosen = set(names) if parts and parts[0].startswith("!") else set()
    for part in parts:
        pattern = part.removeprefix("!").strip()
        found = _found(PRESETS.get(pattern, pattern), names, hparams.n_layer)
        for single in [] if pattern in PRESETS else one_choice(pattern):
            if not _found(single, names, hparams.n_layer):
                raise UsageError(_no_match(single, names, hparams.n_layer))
        chosen = chosen - found if part.startswith("!") else chosen | found
    if layers is not None:
        kept = parse_layers(layers, hparams.n_layer)
        chosen = {name for name in chosen if _layer(name) in kept}
    if stop_after is not None:
        chosen &= set(names[: names.index(one(stop_after, hparams).name) + 1])
    if not chosen:
        limits = {"--layers": layers, "--stop-after": stop_after}
        within = "".join(f" with {option} {value}" for option, value in limits.items() if value is not None)
        raise UsageError(f"no tap is left by {spec!r}{within}; list them: gpt2ln taps")
    return [tap for tap in taps if tap.name in chosen]


def one(pattern: str, hparams: HParams) -> Tap:
    """The single tap that a pattern names; UsageError where it names several."""
    found = choose(pattern, hparams)
    if len(found) > 1:
        raise UsageError(f"{pattern!r} is {len(found)} taps, {found[0].name} ... {found[-1].name}; expected one")
    return found[0]


def _layer(name: str) -> int | None:
    block = re.match(r"h([0-9]+)/", name)
    return int(block[1]) if block else None


def parse_layers(text: str, n_layer: int) -> set[int]:
    """ "0,3-5,-1" -> blocks; -1 is the last.  UsageError for what is no layer of the model."""
    chosen: set[int] = set()
    for part in text.split(","):
        span = re.fullmatch(r"\s*(-?[0-9]{1,9})(?:-(-?[0-9]{1,9}))?\s*", part)
        if span is None:
            raise UsageError(f"layers {text!r}: {part.strip()!r} is no layer; expected numbers and ranges: 0,3-5,-1")
        ends = [int(end) for end in span.groups() if end is not None]
        for end in ends:
            if not -n_layer <= end < n_layer:
                raise UsageError(f"layers {text!r}: {end} is out of range; this model has 0..{n_layer - 1}")
        first, last = (end % n_layer for end in (ends[0], ends[-1]))
        if last < first:
            raise UsageError(f"layers {text!r}: {part.strip()!r} is no rising range")
        chosen |= set(range(first, last + 1))
    return chosen


def _found(pattern: str, names: Iterable[str], n_layer: int) -> set[str]:
    """Our names first; foreign ones where ours have no match."""
    matches = glob(pattern, n_layer).fullmatch
    found = {name for name in names if matches(name)}
    foreign = re.search(r"[._\[]|^attentions$", pattern)
    return aliases.resolve(matches, n_layer) if foreign and not found else found


def one_choice(pattern: str) -> list[str]:
    """The pattern itself, and for each choice of each of its braces the pattern with that choice alone."""
    singles = [pattern]
    for braces in re.finditer(r"\{[^}]*\}", pattern):
        singles += [pattern[: braces.start()] + choice + pattern[braces.end() :] for choice in _choices(braces[0])]
    return singles


def split_list(spec: str) -> list[str]:
    """Split at commas that are not inside braces."""
    return [part.strip() for part in re.split(r",(?![^{]*\})", spec) if part.strip()]


def glob(pattern: str, n_layer: int = 0) -> re.Pattern:
    """The regular expression a glob, or a list of globs, stands for."""
    return re.compile("|".join(_one(part, n_layer) for part in split_list(pattern)))


def _one(pattern: str, n_layer: int) -> str:
    pattern = re.sub(r"(?<![^/])h-([0-9]{1,9})(?=/|$)", lambda m: f"h{n_layer - int(m[1])}", pattern)
    out = ""
    for token in re.findall(r"\*\*/|\*\*|\*|\?|\{[^}]*\}|.", pattern, re.DOTALL):
        out += {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(token) or _literal(token)
    return out


def _literal(token: str) -> str:
    if not (token.startswith("{") and token.endswith("}")):
        return re.escape(token)
    return "(?:" + "|".join(map(re.escape, _choices(token))) + ")"


def _choices(braces: str) -> list[str]:
    """`{a,b}` -> a, b; `{0..2}` -> 0, 1, 2"""
    choices = []
    for choice in braces[1:-1].split(","):
        span = re.fullmatch(r"([0-9]{1,9})\.\.([0-9]{1,9})", choice.strip())
        if span is None:
            choices.append(choice.strip())
            continue
        first, last = int(span[1]), int(span[2])
        if not 0 <= last - first < WIDEST:
            raise UsageError(
                f"{braces}: {span[0]} is no range; expected a rising one such as 0..5, below {WIDEST} wide"
            )
        choices += map(str, range(first, last + 1))
    return choices


def _no_match(pattern: str, names: Sequence[str], n_layer: int) -> str:
    layer = re.match(r"h(-?)([0-9]{1,9})(?=/|$)", pattern)
    if pattern.startswith("@"):
        return f"no preset {pattern!r}; choose {', '.join(PRESETS)}"
    if layer and not (1 <= int(layer[2]) <= n_layer if layer[1] else int(layer[2]) < n_layer):
        return f"no tap matches {pattern!r} (this model has h0..h{n_layer - 1})"
    near = near_names(pattern, names)
    return f"no tap matches {pattern!r}{near}; list them: gpt2ln taps"


def near_names(pattern: str, names: Iterable[str]) -> str:
    spelt = {name.lower(): name for name in names}
    close = [spelt[name] for name in get_close_matches(pattern.lower(), list(spelt), n=3, cutoff=0.5)]
    return f"; did you mean {', '.join(close)}?" if close else ""
