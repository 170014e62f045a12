"""The published right answers of the released models, and which of them hold for the weights at hand.

`answers.json` has each with its sources.  sure: two independent sources, or one and a byte-exact check; where only a
part of a continuation is sure, that part is an answer of its own.  What one source alone says may be its mistake.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import BadInput, NonFinite

if TYPE_CHECKING:
    import numpy as np

PUBLISHED = Path(__file__).parent / "answers.json"


@dataclass(frozen=True)
class Held:
    """Whether one answer holds.  difference: the largest, of numbers; tolerance: what it may be."""

    name: str
    sure: bool
    holds: bool
    found: str
    sources: tuple[str, ...] = ()
    difference: float | None = None
    tolerance: float | None = None


def read_answers(path: Path = PUBLISHED) -> dict[str, list[dict]]:
    """Model -> its answers; the sources of each in full."""
    read = json.loads(path.read_text(encoding="utf-8"))
    full = read["sources"]
    return {
        model: [answer | {"sources": [full[source] for source in answer["sources"]]} for answer in answers]
        for model, answers in read["answers"].items()
    }


def check(model, answers: Sequence[Mapping], *, greedy) -> Iterator[Held]:
    """Ask `model`, a `library.Model`, for each answer.  greedy: the `Sampling` under which it draws the best token.

    What the model cannot take, or has no finite numbers for, does not hold.
    """
    for answer in answers:
        if "prompt" in answer:
            yield from _encodes(model, answer)
        try:
            if answer["kind"] in ("greedy", "text"):
                yield from _continues(model, answer, greedy)
            else:
                yield _number(model, answer)
        except (BadInput, NonFinite) as cause:
            yield _held(answer, False, str(cause))


def _held(answer: Mapping, holds: bool, found: str, sure: object = None, **numbers) -> Held:
    sure = bool(answer["sure"] if sure is None else sure)
    return Held(answer["name"], sure, holds, found, tuple(answer["sources"]), **numbers)


def _encodes(model, answer: Mapping) -> Iterator[Held]:
    """The text of the prompt under the folder's own vocabulary; told only where it gives other ids."""
    ids = model.bpe.encode(answer["prompt"], allow_special=True)
    if ids != answer["ids"]:
        yield _held(
            answer, False, f"the prompt is {len(ids)} ids {_some(ids)}, expected {_some(answer['ids'])}", sure=True
        )


def _continues(model, answer: Mapping, greedy) -> Iterator[Held]:
    length = answer["within"] if answer["kind"] == "text" else len(answer["next"])
    (sample,) = model.generate(answer["ids"], length=length, sampling=greedy)
    if answer["kind"] == "text":
        holds = answer["contains"] in sample.text
        yield _held(answer, holds, f"{length} tokens {'with' if holds else 'without'} {answer['contains']!r}")
        return
    yield from _tokens(answer, sample.tokens)


def _tokens(answer: Mapping, found: Sequence[int]) -> Iterator[Held]:
    """The sure part, and what comes after it."""
    expected, sure = answer["next"], answer["sure"]
    same = next((i for i, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1]), len(expected))
    for first, last in ((0, sure), (sure, len(expected))):
        if same >= last:
            found_text = f"tokens {first + 1} to {last} as published"
        elif same < first:
            found_text = f"what comes before token {first + 1} differs already"
        else:
            found_text = f"token {same + 1} is {found[same]}, expected {expected[same]}"
        if first < last:
            yield _held(answer, same >= last, found_text, sure=last <= sure)


def _number(model, answer: Mapping) -> Held:
    """The largest difference, and whether it is within the tolerance: absolute, or relative to the number published."""
    import numpy as np

    expected = np.array(answer["values"] if "values" in answer else answer["logits"], np.float64)
    found, ids_hold = KINDS[answer["kind"]](model, answer)
    if found.shape != expected.shape:
        return _held(answer, False, f"{list(found.shape)} numbers, expected {list(expected.shape)}")
    allowed = np.abs(expected) * answer.get("rtol", 0) + answer.get("atol", 0)
    off = np.abs(found - expected)
    worst = np.unravel_index(np.argmax(off - allowed), off.shape)
    holds = bool((off <= allowed).all()) and ids_hold
    text = f"off by {off[worst]:.2g} at most, allowed {allowed[worst]:.2g} ({answer['why']})"
    if not ids_hold:
        text = f"other ids than {answer['top']} are largest; {text}"
    return _held(answer, holds, text, difference=float(off[worst]), tolerance=float(allowed[worst]))


def _values(model, answer: Mapping) -> "tuple[np.ndarray, bool]":
    (first, last), (left, right) = answer["rows"], answer["columns"]
    return model.observe(answer["ids"], answer["tap"])[answer["tap"]][first:last, left:right], True


def _top(model, answer: Mapping) -> "tuple[np.ndarray, bool]":
    """The logits of the ids that are published as the largest, whether they are."""
    import numpy as np

    model.ids(answer["top"])
    logits = model.logits(answer["ids"])[-1]
    return logits[answer["top"]], np.argsort(-logits, kind="stable")[: len(answer["top"])].tolist() == answer["top"]


def _logprobs(model, context: Sequence[int], ids: Sequence[int]) -> "np.ndarray":
    """Of each of `ids` after all before it: [len(ids)] float64."""
    return model.score([*context, *ids]).logprobs[len(context) - 1 :]


def _each(model, answer: Mapping) -> "tuple[np.ndarray, bool]":
    return _logprobs(model, answer["context"], answer["ids"]), True


def _sum(model, answer: Mapping) -> "tuple[np.ndarray, bool]":
    """Context and continuation are encoded apart and then joined, as upstream does."""
    import numpy as np

    if "text" in answer:
        context, ids = model.encode(answer["context_text"]), model.encode(answer["text"])
    else:
        context, ids = answer["context"], answer["ids"]
    return np.array([_logprobs(model, context, ids).sum()]), True


def _loss(model, answer: Mapping) -> "tuple[np.ndarray, bool]":
    """Mean over rows that go on in each other; `last` is what comes after the last one."""
    import numpy as np

    rows = answer["rows"]
    after = [[row[0]] for row in rows[1:]] + [[answer["last"]] if "last" in answer else []]
    logprobs = [_logprobs(model, row[:1], [*row[1:], *more]) for row, more in zip(rows, after, strict=True)]
    return np.array([-np.concatenate(logprobs).mean()]), True


KINDS: dict[str, Callable] = {"values": _values, "top": _top, "logprobs": _each, "sum": _sum, "loss": _loss}


def _some(ids: Sequence[int]) -> str:
    return str(list(ids[:4]))[:-1] + (", ...]" if len(ids) > 4 else "]")
