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
from .readings import Document, Reading
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
        if said := _differing_some(x, y):
            return text + said
        if x.open or y.open:
            continue
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
    if _padded(longer, shorter):
        asked = "is one side padded? save its attention_mask too"
    return f"token ids differ at position {at} ({said[0]} vs {said[1]}); {asked}"


def _padded(longer: Sequence[int], shorter: Sequence[int]) -> bool:
    """Whether one id, twice or more, is all that the longer has before or behind the other."""
    n = len(longer) - len(shorter)
    return n > 1 and any(
        text == shorter and len(set(more)) == 1 for text, more in ((longer[:-n], longer[-n:]), (longer[n:], longer[:n]))
    )


def _differing_some(x: Document, y: Document) -> str | None:
    """In words, where rows of an open text hold other tokens than the other side, or lie behind its end."""
    if not (x.open or y.open):
        return None
    p, q = (_known(one) for one in (x, y))
    for at in sorted(set(p) & set(q)):
        if p[at] != q[at]:
            return f"token ids differ at position {at} ({p[at]} vs {q[at]}); {_shifted(x, y)}"
    if short := [(letter, one, other) for letter, one, other in (("A", x, y), ("B", y, x)) if not one.open]:
        letter, one, other = short[0]
        if other.T > one.T:
            return f"{one.T} tokens in {letter}, at least {other.T} on the other side; dump the same text"
    return None


def _known(one: Document) -> dict[int, int]:
    """Position -> id."""
    if one.ids is not None:
        return dict(enumerate(one.ids))
    return dict(zip(one.rows.tolist(), one.some or (), strict=False))


def _shifted(x: Document, y: Document) -> str:
    for one, other in ((x, y), (y, x)):
        if one.open and one.some and other.ids and one.some == other.ids[: len(one.some)]:
            return f"its tokens are those from position 0 on: is the first row position {one.rows[0]}, or 0?"
    return "dump the same text with both"


def _completed(one: Document, other: Document) -> Document:
    """With the length, and the tokens, that the other side knows of an open text."""
    if not one.open or one.T > other.T:
        return one
    ids = other.ids if one.T < other.T or one.ids is None else one.ids
    return replace(one, T=other.T, ids=ids, open=other.open)


# names


def in_order(a: Reading, b: Reading, hparams: HParams | None) -> list[str]:
    """All taps of both, as the forward pass has them."""
    held = dict.fromkeys([*a.taps, *b.taps])
    blocks = max(layers(list(held)), hparams.n_layer if hparams else 1)
    known = [tap.name for tap in all_taps(HParams(1, 1, 1, 1, blocks))]
    return [name for name in known if name in held]


def settled(a: Reading, b: Reading) -> tuple[Reading, Reading, list[str]]:
    """With names that may be either of two taps decided, each by the other side, and open texts as long as its own."""
    pairs = list(zip(a.documents, b.documents, strict=True))
    a, b = (
        replace(one, documents=tuple(_completed(*pair[::step]) for pair in pairs)) for one, step in ((a, 1), (b, -1))
    )
    b, said_b = _decided(b, a, "B")
    a, said_a = _decided(a, b, "A")
    return a, b, [*said_a, *said_b]


def _decided(one: Reading, other: Reading, letter: str) -> tuple[Reading, list[str]]:
    """All of a file are before gain and bias, or all are after: it is what most of them say."""
    if not any(document.either for document in one.documents):
        return one, []
    votes = _votes(one, other)
    norm, out = next(iter(one.documents[0].either))
    if not any(votes):
        said = f"a normalized is {norm} or {out}, and here it agrees with neither; name it as one of them"
        if not set(one.taps) & set(other.taps):
            raise BadInput(f"{one.where}: {said}")
        documents = tuple(replace(x, either={}) for x in one.documents)
        return replace(one, documents=documents), [f"note: {letter}: left out: {said}"]
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


def _votes(one: Reading, other: Reading) -> list[int]:
    """How many arrays agree with the first tap of each pair, and how many with the second, where both hold rows."""
    votes = [0, 0]
    for x, y in zip(one.documents, other.documents, strict=True):
        _, at_x, at_y = np.intersect1d(x.rows, y.rows, return_indices=True)
        for taps, values in x.either.items():
            held = [y.taps[tap][at_y] if tap in y.taps else None for tap in taps]
            votes = [n + _agreeing(values[at_x], z) for n, z in zip(votes, held, strict=True)]
    return votes


def _agreeing(x: np.ndarray, y: np.ndarray | None) -> bool:
    """Whether both are the same numbers, but for rounding."""
    if y is None or x.shape != y.shape or not len(x):
        return False
    off, size = (float(np.sqrt(np.square(rms(z)).mean())) if len(z) else 0.0 for z in (x.astype(np.float64) - y, y))
    return off <= AGREES * size
