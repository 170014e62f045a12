"""Whether two readings are of the same texts, and which names they have in common.

A row is a position: where one side has put a token in front, or holds another text, every number differs and none of
that says anything, so ids come before values.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .aliases import layers
from .apart import rms
from .errors import BadInput
from .readings import Reading
from .spec import HParams
from .taps import all_taps

AGREES = 1e-3  # of the RMS, for a name that may be either of two taps


# texts


def differing_tokens(a: Reading, b: Reading) -> str | None:
    """In words, where both do not hold the same texts."""
    if len(a.documents) != len(b.documents):
        return f"{len(a.documents)} texts in A, {len(b.documents)} in B; dump the same ones"
    for n, (x, y) in enumerate(zip(a.documents, b.documents, strict=True)):
        text = f"text {n}: " if len(a.documents) > 1 else ""
        if x.ids is not None and y.ids is not None and x.ids != y.ids:
            return text + _differing_ids(x.ids, y.ids)
        if x.T != y.T:
            asked = "; did one side prepend <|endoftext|>?" if abs(x.T - y.T) == 1 else "; dump the same text"
            return f"{text}{x.T} tokens in A, {y.T} in B{asked}"
    return None


def _differing_ids(x: Sequence[int], y: Sequence[int]) -> str:
    at = next((i for i, (p, q) in enumerate(zip(x, y, strict=False)) if p != q), min(len(x), len(y)))
    said = [str(ids[at]) if at < len(ids) else "none" for ids in (x, y)]
    longer, shorter = max(x, y, key=len), min(x, y, key=len)
    asked = "did one side prepend <|endoftext|>?" if longer[1:] == shorter else "dump the same text with both"
    return f"token ids differ at position {at} ({said[0]} vs {said[1]}); {asked}"


# names


def in_order(a: Reading, b: Reading, hparams: HParams | None) -> list[str]:
    """All taps of both, as the forward pass has them."""
    held = dict.fromkeys([*a.taps, *b.taps])
    blocks = max(layers(list(held)), hparams.n_layer if hparams else 1)
    known = [tap.name for tap in all_taps(HParams(1, 1, 1, 1, blocks))]
    return [name for name in known if name in held]


def settled(a: Reading, b: Reading) -> tuple[Reading, Reading, list[str]]:
    """With names that may be either of two taps decided, each by the other side."""
    b, said_b = _decided(b, a, "B")
    a, said_a = _decided(a, b, "A")
    return a, b, [*said_a, *said_b]


def _decided(one: Reading, other: Reading, letter: str) -> tuple[Reading, list[str]]:
    """All of a file are before gain and bias, or all are after: it is what most of them say."""
    if not any(document.either for document in one.documents):
        return one, []
    votes = [0, 0]
    for x, y in zip(one.documents, other.documents, strict=True):
        for taps, values in x.either.items():
            votes = [n + _agreeing(values, y.taps.get(tap)) for n, tap in zip(votes, taps, strict=True)]
    norm, out = next(iter(one.documents[0].either))
    if not any(votes):
        raise BadInput(
            f"{one.where}: a normalized is {norm} or {out}, and here it agrees with neither; name it as one of them"
        )
    chosen = int(votes[1] > votes[0])
    documents = []
    for x in one.documents:
        more = {taps[chosen]: values for taps, values in x.either.items()}
        documents.append(replace(x, taps={**more, **x.taps}, either={}))
    when = ("before", "after")[chosen]
    said = f"note: {letter}: normalized is {when} gain and bias: there it agrees with the other side"
    dtypes = dict(one.dtypes)
    dtypes |= {taps[chosen]: dtypes[taps[0]] for taps in one.documents[0].either}
    return replace(one, documents=tuple(documents), dtypes=dtypes), [said]


def _agreeing(x: np.ndarray, y: np.ndarray | None) -> bool:
    """Whether both are the same numbers, but for rounding."""
    if y is None or x.shape != y.shape:
        return False
    off, size = (float(np.sqrt(np.square(rms(z)).mean())) if len(z) else 0.0 for z in (x.astype(np.float64) - y, y))
    return off <= AGREES * size
