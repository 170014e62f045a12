"""A study as people and programs read it: a table of 80 columns, and one JSON object."""

import numpy as np

from ..figure import amount
from ..study import MATTERS, Effect, Study
from .output import as_table

HEAD = ("variant", "first norm", "logits", "KL", "worst", "flips", "ppl %", "from")


def table(study: Study) -> str:
    """Of what was read, a line a mistake, and what is not finite."""
    return _head(study) + "\n" + as_table(HEAD, [_cells(study, e) for e in study.effects], left=(0, 7)) + _broken(study)


def _head(study: Study) -> str:
    perplexity = _perplexity(study)
    read = amount(study) + ("" if perplexity is None else f", perplexity {perplexity:.4g}")
    (low, *_), (high, *_) = study.var
    first = f"variance of its input {_number(low)} to {_number(high)}, rms of its output {_number(study.rms)}"
    return f"{read}\n{study.norms[0]}: {first}"


def _cells(study: Study, effect: Effect) -> list[str]:
    row = as_row(study, effect)
    change = row["perplexity_change"]
    kl = row["kl"] or {"mean": None, "worst": None}
    return [
        row["variant"],
        *(_number(x) for x in (row["first_norm"]["max"], row["logits"], kl["mean"], kl["worst"])),
        "-" if row["flips"] is None else str(row["flips"]),
        "-" if change is None else _signed(100 * change),
        row["from"] or "-",
    ]


def _broken(study: Study) -> str:
    found = [(effect.mistake.name, study.breaks(effect)) for effect in study.effects]
    return "".join(f"{name}: not finite, first at {where}\n" for name, where in found if where)


def _number(x: float | None) -> str:
    """Three digits, and an exponent without noughts: `4.53e-5`."""
    if x is None:
        return "-"
    if x == 0 or 1e-3 <= abs(x) < 9999.5:
        return f"{x:.3g}" if abs(x) < 999.5 else f"{x:.0f}"
    digits, exponent = f"{x:.2e}".split("e")
    return f"{digits}e{int(exponent)}"


def _signed(x: float) -> str:
    return ("+" if x > 0 else "") + _number(x)


def as_record(study: Study) -> dict:
    """Every digit; null where a result is not finite or there is none."""
    norms = [
        {"norm": norm, "var": {"min": float(low), "max": float(high)}, "noise": float(noise)}
        for norm, noise, low, high in zip(study.norms, study.noise, *study.var, strict=True)
    ]
    read = {"documents": study.documents, "tokens": study.tokens, "scored": study.scored}
    exact = {"perplexity": _perplexity(study), "first_norm_rms": study.rms, "norms": norms}
    return read | exact | {"matters": MATTERS, "variants": [as_row(study, effect) for effect in study.effects]}


def as_row(study: Study, effect: Effect) -> dict:
    broken, first = study.breaks(effect), finite(effect.norms[0])
    row = {"variant": effect.mistake.name, "group": effect.mistake.group, "what": effect.mistake.what}
    row["first_norm"] = {"max": first, "relative": None if first is None or not study.rms else first / study.rms}
    row |= dict.fromkeys(("logits", "kl", "flips", "perplexity", "perplexity_change"))
    if not broken:
        document, position = effect.worst_at
        row["logits"], row["flips"] = float(effect.logits), effect.flips
        row["kl"] = {
            "mean": effect.kl / study.tokens,
            "worst": effect.kl_worst,
            "document": document,
            "position": position,
        }
        row |= _change(study, effect)
    return row | {"from": study.starts(effect), "not_finite": broken, "norms": [finite(x) for x in effect.norms]}


def _change(study: Study, effect: Effect) -> dict:
    if not study.scored:
        return {}
    with np.errstate(over="ignore"):
        perplexity = np.exp(effect.nats / study.scored)
        change = np.expm1((effect.nats - study.nats) / study.scored)
    return {"perplexity": finite(perplexity), "perplexity_change": finite(change)}


def _perplexity(study: Study) -> float | None:
    with np.errstate(over="ignore"):
        return finite(np.exp(study.nats / study.scored)) if study.scored else None


def finite(x: float) -> float | None:
    return float(x) if np.isfinite(x) else None
