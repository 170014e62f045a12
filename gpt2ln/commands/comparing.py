"""What `compare` says: the first tap that differs, what came after it, and why; for people and as JSON."""

import math
import textwrap
from collections.abc import Iterable

from ..apart import BINS
from ..compare import BUG, EQUAL, LIMIT, ROUNDING, Measure, Report, Row
from ..errors import first_five, printable
from ..readings import Reading
from .output import as_json, as_table

_DEPENDS = ("gpt2ln", "formulas_version", "engine", "tensorflow", "onednn", "tf32", "threads", "device", "cpu", "dtype")
_DEPENDS += ("prefix_token", "chunk", "ln_from")


def described(letter: str, one: Reading) -> str:
    """One line of a side."""
    texts, tokens = len(one.documents), sum(document.T for document in one.documents)
    kinds = ", ".join(dict.fromkeys(one.dtypes.values()))
    taps = _count(one)
    said = [f"{texts} texts" * (texts != 1), f"{tokens} tokens", f"{taps} tap{'s' * (taps != 1)}", kinds]
    said.append(f"{one.left_out} array{'s' * (one.left_out != 1)} left out" * (one.left_out > 0))
    return f"{letter}: {printable(one.where)}: {', '.join(part for part in said if part)}"


def _count(one: Reading) -> int:
    """Taps, with those whose name is not decided yet."""
    return len(one.taps) + max((len(document.either) for document in one.documents), default=0)


def remarks(a: Reading, b: Reading) -> list[str]:
    """What was read other than as it lay, and what the digits may depend on that is not the same."""
    said = [f"note: {letter}: {note}" for letter, one in (("A", a), ("B", b)) for note in one.notes]
    said += [f"note: {letter} holds {few}" for letter, one in (("A", a), ("B", b)) if (few := _partial(one))]
    if a.record and b.record:
        other = [f"{key} {_short(a.record.get(key))} / {_short(b.record.get(key))}" for key in _DEPENDS
                 if a.record.get(key) != b.record.get(key)]  # fmt: skip
        if digest_of(a) != digest_of(b):
            other.insert(0, "checkpoint")
        if other:
            said.append(f"warning: A and B were not made alike: {', '.join(other)}")
    return said


def digest_of(one: Reading) -> object:
    """Of the checkpoint that a dump of ours was made by."""
    model = one.record.get("model")
    return model.get("index_sha256") if isinstance(model, dict) else None


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _partial(one: Reading) -> str:
    held, tokens = sum(len(d.rows) for d in one.documents), sum(d.T for d in one.documents)
    return "" if held == tokens else f"{held} of {tokens} positions, so no cause is looked for"


def measured_by(by: Measure, report: Report, model: str) -> str:
    """The limit, in words."""
    if report.referred:
        return f"rounding is up to {LIMIT:g} times the noise of float32, known from {model} in float64"
    return f"rounding is up to {by.rtol:g} of a row's RMS (--rtol)" + f" and {by.atol:g} (--atol)" * (by.atol > 0)


def tables(a: Reading, b: Reading, report: Report, limit: str, *, everything: bool) -> str:
    """Text for people, 80 columns wide."""
    lines = [described("A", a), described("B", b)]
    if report.tokens:
        return _text([*lines, "", report.tokens, *_causes(report)])
    lines += [limit, _counts(report.rows)]
    lines += [
        f"only in {letter}: {first_five(names)}" for letter, names in zip("AB", report.only, strict=True) if names
    ]
    if report.argmax:
        same, rows = report.argmax
        lines.append(f"most likely next token: the same at {same} of {rows}")
    if report.texts and (of := len(a.documents)) > 1:
        which = "all of them" if len(report.texts) == of else first_five(list(map(str, report.texts)))
        lines.append(f"texts that differ: {which}, of 0 to {of - 1}")
    if report.off:
        lines.append(_wrapped(off(report)))
    text = _text(lines)
    if (row := report.first) is not None:
        text += "\n" + _text([f"first difference: {row.tap}", *_details(a, row), *_causes(report)])
    elif report.verdict != EQUAL:
        worst = largest(report)
        text += "\n" + _text([f"largest error: {worst.tap}", *_details(a, worst)])
    shown = [row for row in report.rows if everything or row.verdict == BUG]
    return text + ("\n" + _table(shown) if shown else "")


def _text(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def largest(report: Report) -> Row:
    return max(
        (row for row in report.rows if row.verdict == ROUNDING), key=lambda row: (row.ratio or 0.0, row.apart.relative)
    )


def _counts(rows: Iterable[Row]) -> str:
    rows = list(rows)
    counts = [
        (sum(row.verdict == verdict for row in rows), verdict) for verdict in dict.fromkeys(r.verdict for r in rows)
    ]
    return f"{len(rows)} tap{'s' * (len(rows) != 1)} in both: " + ", ".join(
        f"{n} {'differ' if verdict == BUG else verdict}" for n, verdict in counts
    )


def _causes(report: Report) -> list[str]:
    if not report.causes:
        return ["  likely cause  none that is known fits"] if report.first else []
    lines = []
    for n, cause in enumerate(report.causes[:3]):
        said = (
            f"{printable(cause.name)}: {printable(cause.says)}" + "; the same model, other bookkeeping" * cause.harmless
        )
        lines.append(_wrapped(said, f"  {'or' if n else 'likely cause':<12}  ", " " * 16))
    for cause in report.also:
        lines.append(_wrapped(f"{cause.tap}: {cause.name}: {cause.says}", f"  {'later':<12}  ", " " * 16))
    return lines


def _wrapped(text: str, first: str = "", rest: str = "  ") -> str:
    return textwrap.fill(text, 80, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def _details(a: Reading, row: Row) -> list[str]:
    """What is known of one tap, a line each."""
    d = row.apart
    lines = [f"  max |d|       {d.largest:.3g}"]
    lines.append(f"  relative      {d.relative:.3g} of the row's RMS, at {place(a, row)}")
    if row.ratio is not None:
        lines.append(f"  noise         B's error is {row.ratio:.3g} times float32's")
    if d.cosine is not None:
        lines.append(f"  cosine        {_cosine(d.cosine)}")
    lines.append(f"  float32 steps {'  '.join(f'{name}: {n}' for name, n in zip(BINS, d.steps, strict=True) if n)}")
    if any(d.nonfinite):
        lines.append(
            f"  not finite    {d.nonfinite[0]} in A, {d.nonfinite[1]} in B, {d.unmatched} not the same in both"
        )
    if row.hidden:
        lines.append(f"  hidden        {row.hidden} scores of the future are not the same")
    return lines


def place(a: Reading, row: Row) -> str:
    """Token and channel where it is worst."""
    document = a.documents[row.document]
    spelt = f" {document.spelt[row.position].decode('utf-8', 'replace')!r}" if document.spelt else ""
    ident = f" ({document.ids[row.position]}{spelt})" if document.ids else ""
    text = f"text {row.document}, " if len(a.documents) > 1 else ""
    channel = ",".join(map(str, row.apart.channel))
    return f"{text}token {row.position}{ident}, channel {channel}"


def _cosine(x: float) -> str:
    return f"1-{1 - x:.2g}" if 0.99 < x < 1 else f"{x:.4g}"


def _table(rows: list[Row]) -> str:
    head = ["tap", "verdict", "max |d|", "relative", "noise", "cosine", "token", "from"]
    cells = []
    for row in rows:
        d = row.apart
        ratio = "-" if row.ratio is None else f"{row.ratio:.2g}"
        token = str(row.position) if row.verdict != EQUAL else "-"
        origin = {None: "-", True: "here", False: "before"}[row.own]
        cosine = "-" if d.cosine is None else _cosine(d.cosine)
        size = ["nan", "nan", "-", "-"] if d.unmatched else [f"{d.largest:.3g}", f"{d.relative:.2g}", ratio, cosine]
        numbers = [*size, token]
        cells.append([row.tap, "differs" if row.verdict == BUG else row.verdict, *numbers, origin])
    return as_table(head, cells, left=(0, 1, 7))


def off(report: Report) -> str:
    """That A is not right."""
    tap, ratio = report.off
    said = f"A is not what the model computes, first at {tap}: {ratio:.3g} times float32's noise"
    return f"{said}; are A and B swapped? --against none compares one with the other"


def in_short(a: Reading, report: Report) -> str:
    """The error line of what is different."""
    if report.tokens:
        return report.tokens
    if report.off:
        return off(report)
    row = report.first
    said = f"first difference: {row.tap}: {_how(row)} at {place(a, row)}"
    if row.ratio is not None and row.seen and not row.apart.unmatched:
        said += f", {row.ratio:.3g} times float32's noise"
    if report.causes:
        said += f"; likely cause: {report.causes[0].name}: {report.causes[0].says}"
    return said


def _how(row: Row) -> str:
    if row.apart.unmatched:
        return f"NaN or Inf on one side alone ({row.apart.unmatched} of {row.apart.values} values), first"
    return (
        f"{row.apart.relative:.3g} of the row's RMS"
        if row.seen
        else f"{row.hidden} scores of the future; the others agree, worst"
    )


# JSON


def record(a: Reading, b: Reading, report: Report, by: Measure, notes: list[str]) -> str:
    first = report.first
    out = {
        "verdict": report.verdict,
        "first": first.tap if first else None,
        "a": _side(a),
        "b": _side(b),
        "tokens": report.tokens,
        "texts": list(report.texts),
        "causes": [vars(cause) for cause in report.causes],
        "later_causes": [vars(cause) for cause in report.also],
        "a_off": dict(zip(("tap", "ratio"), report.off, strict=True)) if report.off else None,
        "limit": {"noise": LIMIT} if report.referred else {"rtol": by.rtol, "atol": by.atol},
        "argmax": None if report.argmax is None else dict(zip(("same", "of"), report.argmax, strict=True)),
        "only_a": report.only[0],
        "only_b": report.only[1],
        "notes": notes,
        "taps": [_tap(row) for row in report.rows],
    }
    return as_json(_finite(out)) + "\n"


def _side(one: Reading) -> dict:
    tokens, dtypes = sum(document.T for document in one.documents), list(dict.fromkeys(one.dtypes.values()))
    held = {"texts": len(one.documents), "tokens": tokens, "taps": _count(one), "dtypes": dtypes}
    return {"where": one.where, **held, "left_out": one.left_out}


def _tap(row: Row) -> dict:
    d = row.apart
    out = {"tap": row.tap, "verdict": row.verdict, "ratio": row.ratio, "own": row.own, "values": d.values}
    out |= {"differ": d.differ, "max_abs": d.largest, "relative": d.relative, "cosine": d.cosine}
    out |= {"text": row.document, "token": row.position, "channel": d.channel, "hidden": row.hidden}
    out |= {"nonfinite_a": d.nonfinite[0], "nonfinite_b": d.nonfinite[1], "unmatched_nonfinite": d.unmatched}
    return out | {"steps": dict(zip(BINS, d.steps, strict=True))}


def _finite(x: object) -> object:
    """What JSON has no number for is null."""
    if isinstance(x, dict):
        return {key: _finite(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [_finite(value) for value in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x
