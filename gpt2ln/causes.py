"""Why two dumps part: each hypothesis is computed in float64 from the numbers that the other side itself put into the
operation, and the one that gives what it got out of it is named.

Everything before the first tap that differs agrees, so B's own values there are the inputs; what is left of a
difference under its right cause is rounding.  Where an operation does what it should and still differs, the cause is
before it, too small to be seen there: then the pass is computed from the token ids.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from . import rowwise
from .case import EMBEDDINGS, ULP, Case, Taps, rms, seen, size
from .evidence import (
    HALVES,
    constant,
    epsilons,
    epsilons_behind,
    from_sums,
    in_one_pass,
    longer,
    narrow,
    positions,
    scales,
)
from .hypothesis import Hypothesis
from .reference import Missing, Reference, hidden
from .rewritings import REWRITINGS
from .spec import HParams
from .wrong_blocks import WRONG_BLOCKS, blocks_exchanged, cache_late
from .wrong_norms import WRONG_NORMS, scales_reused

FITS = 0.01  # of a difference is left at most by its cause
ENOUGH = 128  # positions, where the difference shows there: a pass over a thousand needs gigabytes
SHOWN = 3  # causes that are named, if more fit


@dataclass(frozen=True)
class Cause:
    """name: short and stable.  says: one line with the numbers.  explains: 0..1 of the rms difference at the tap.

    harmless: the same model, written down otherwise.
    """

    name: str
    says: str
    tap: str
    explains: float
    harmless: bool = False


@dataclass(frozen=True)
class _Fit:
    """left: rms of the difference that a cause leaves; later: what it leaves of the taps after it, relative.

    here: it would have shown in the block before, and has not; so it is a mistake in this block alone.
    """

    cause: Cause
    left: float
    later: float
    here: bool = False


def likely(
    a: Taps, b: Taps, *, first: str, hparams: HParams, ids: Sequence[int], weights: Taps, noise: Mapping[str, float]
) -> list[Cause]:
    """What makes B's tap `first` of what B held before it, best first; empty where nothing fits.

    a, b: taps of one text, positions first, a the right ones.  weights: `model/...`, or empty; noise: rms of float32's
    error by tap.
    """
    case = Case(a, b, first, hparams, ids, weights, noise.get(first, 0.0))
    with np.errstate(all="ignore"):
        return _causes([case.beginning(ENOUGH)] * _shows_early(case) + [case])


def _shows_early(case: Case) -> bool:
    """No position depends on a later one, so the first of a long text tell as much; but for mistakes in just that."""
    if len(case.ids) <= ENOUGH:
        return False
    beginning = case.beginning(ENOUGH)
    return beginning.left(beginning.a, case.first) > 16 * beginning.rounding


def _causes(texts: Sequence[Case]) -> list[Cause]:
    """Of the beginning of a text, if that is enough, and of all of it."""
    if mask := next(filter(None, map(_mask, texts)), None):
        return [mask]
    for text, place in _places(texts):
        if fits := list(_fitting(place)):
            if place.rows is None and (shown := _shown(text, fits)):
                return shown
            return [_worded(fit.cause, place) for fit in _ranked(place, fits)][:SHOWN]
    return next((shown for text in texts if (shown := _shown(text, []))), [])


def _worded(cause: Cause, case: Case) -> Cause:
    """With the rows, if it is a mistake in some alone."""
    return cause if case.rows is None else replace(cause, says=f"in {rowwise.named(case.rows)} alone: {cause.says}")


def prepended(a: Taps, b: Taps, *, hparams: HParams, ids: Sequence[int], weights: Taps) -> Cause | None:
    """B has a row more than the text: did something go before it?"""
    shared = [name for name in b if name in a and not name.endswith(("wpe/out", "/scores", "/probs"))]
    says = "a row more than tokens: <|endoftext|> goes before the text"
    if "wte/out" in shared and np.allclose(b["wte/out"][1:], a["wte/out"]):
        return Cause("hidden BOS", f"{says}; the other rows of wte/out are those of the text", "wte/out", 1.0)
    if "model/wte" not in weights or len(ids) >= hparams.n_ctx or not shared:
        return None
    longer = Reference(hparams, (hparams.n_vocab - 1, *ids), weights)
    off, size = (rms(np.asarray(x, np.float64)) for x in (b[shared[0]] - longer[shared[0]], longer[shared[0]]))
    return Cause("hidden BOS", says, shared[0], 1.0 - off / size) if off < FITS * size else None


def _mask(case: Case) -> Cause | None:
    """Scores that differ in what is hidden alone."""
    if not case.first.endswith("/scores"):
        return None
    x = np.asarray(case.b[case.first], np.float64)
    future = np.broadcast_to(hidden(len(x)), x.shape)
    values = np.unique(x[future])
    try:
        apart = rms(np.where(future, 0, x - case.right[case.first]))
    except Missing:
        apart = rms(np.where(future, 0, x - np.asarray(case.a[case.first], np.float64)))
    if len(values) != 1 or values[0] == np.float32(-1e10) or apart > 8 * case.rounding:
        return None
    same = not np.exp(values[0] - x[~future].min())  # whatever the row, nothing comes through
    says = f"hidden scores are {values[0]:g}, expected -1e+10" + ("; probs are the same" if same else "")
    return Cause("mask value", says, case.first, 1.0, same)


def _places(texts: Sequence[Case]) -> Iterator[tuple[Case, Case]]:
    """(text, where to look): at what goes wrong by itself, in every row or in some, and at all that leads to it."""
    yield from ((text, place) for text in texts for place in _wrong_by_themselves(text))
    for place in _wrong_by_themselves(texts[-1]):
        yield from ((texts[-1], one) for one in rowwise.cases(place))
    for text in texts:
        case = text
        for scope in (f"{text.first.rpartition('/')[0]}/", ""):
            less = case.without(scope)
            if len(less.given) < len(case.given):
                yield text, less
                case = less


def _wrong_by_themselves(case: Case) -> Iterator[Case]:
    """The tap itself, and those before it."""
    yield case
    yield from (case.at(name) for name in case.given if name in case.b and _goes_wrong(case, name))


def _goes_wrong(case: Case, name: str) -> bool:
    """Whether B's inputs do not give what B got out of them, though it is too little to count as a difference."""
    try:
        expected = case.right.computed(name)
    except (Missing, ValueError):
        return False
    step = ULP * size(case.b[name])
    same = name in case.a and case.left(case.a, name) <= step
    return not same and rms(seen(case.b[name], name) - seen(expected, name)) > 16 * step


def _hypotheses(case: Case) -> Iterator[Hypothesis]:
    yield from chain(epsilons(case), scales(case), from_sums(case), WRONG_NORMS, positions(case))
    yield from chain(WRONG_BLOCKS, REWRITINGS)
    if case.rows is not None and not case.rows[0]:
        yield cache_late(int(case.rows.argmax()))
    for layer in case.blocks:
        yield from blocks_exchanged(case.hparams, layer)
    with contextlib.suppress(Missing):
        yield from epsilons_behind(case)
    if here := case.norm or ("ln_f" if case.first == "logits" else None):
        yield from scales_reused(here, case.right)


def _fits_in_sight(case: Case, taps: Taps) -> bool:
    """Whether scores fit without those that are hidden, which weigh most."""
    if not case.first.endswith("/scores"):
        return True
    return not case.left_in_sight(taps) > max(FITS * case.left_in_sight(case.right), 2 * case.rounding)


def _fitting(case: Case) -> Iterator[_Fit]:
    """Hypotheses that leave next to nothing of the difference."""
    try:
        before = case.left(case.right, case.first)
    except Missing:
        return
    if not before > 3 * case.rounding:  # B does here what it should, or has NaN
        return
    for hypothesis in _hypotheses(case):
        if case.rows is not None and hypothesis.everywhere:
            continue
        for form in hypothesis.forms:
            try:
                taps = case.run(form)
                left = case.left(taps, case.first)
            except (Missing, ValueError):  # a weight is not there, or of a shape that does not allow it
                continue
            close = left <= max(FITS * before, 2 * case.rounding) and left < before / 2 and _fits_in_sight(case, taps)
            alike = left <= size(case.b[case.first]) / 10 or case.first.endswith("/mean")  # a mean may be 0 by chance
            if close and alike and (case.rows is None or rowwise.fits(case, taps, FITS)):
                says, harmless = hypothesis.says, hypothesis.harmless
                cause = Cause(hypothesis.name, says, case.first, 1 - (left / before) ** 2, harmless)
                later = _later(case, case.a if hypothesis.renamed else taps)
                yield _Fit(cause, left, later, not _as_before(case, taps))
    cut = longer(case) if case.rows is None and (case.first in EMBEDDINGS or not case.given) else None
    if cut and (left := case.left(cut, case.first)) <= FITS * before:
        says = "the numbers are those of the text after <|endoftext|>, whose row was cut off"
        yield _Fit(Cause("hidden BOS", says, case.first, 1 - (left / before) ** 2), left, _later(case, cut))


def _later(case: Case, taps: Taps) -> float:
    """0..1: what is left of B's taps after the first, mean over those that can be computed."""
    found = []
    for name in case.ahead:
        with contextlib.suppress(Missing, ValueError):
            left = case.left(taps, name) / (size(case.b[name]) or 1.0)
            found.append(min(left, 1.0) if left == left else 1.0)
    return float(np.mean(found)) if found else 1.0


def _as_before(case: Case, taps: Reference) -> bool:
    """Whether the cause leaves the same tap of the block before as it is, which agrees."""
    name = re.sub("^h([0-9]+)", lambda block: f"h{int(block[1]) - 1}", case.first)
    if not case.layer or name not in case.given:
        return True
    try:
        off = rms(seen(case.b[name], name) - seen(taps.computed(name), name))
    except (Missing, ValueError):
        return True
    return off <= 16 * max(ULP * size(case.b[name]), case.noise)


def _ranked(case: Case, fits: Sequence[_Fit]) -> list[_Fit]:
    """Best first, each name once.  Where the first tap cannot tell, those after it do; then the likelier is first."""
    if not fits:
        return []
    fits = sorted(fits, key=lambda fit: fit.here)
    best = max(2 * min(fit.left for fit in fits), case.rounding)
    tied = [fit for fit in fits if fit.left <= best]
    tied = [fit for fit in tied if fit.here <= tied[0].here]
    later = max(2 * min(fit.later for fit in tied), 1e-6)
    ahead = [fit for fit in tied if fit.later <= later]
    rest = sorted((fit for fit in fits if fit not in ahead), key=lambda fit: (fit.left > best, fit.later))
    named: dict[str, _Fit] = {}
    for fit in [*ahead, *rest]:
        named.setdefault(fit.cause.name, fit)
    return list(named.values())


def _shown(case: Case, fits: Sequence[_Fit]) -> list[Cause]:
    """What the numbers show by themselves."""
    before, kind = case.left(case.a, case.first), narrow(case)
    if kind and (not fits or before <= 4 * HALVES[kind] * size(case.a[case.first])):
        says = f"every value from here on is one of {kind}"
        return [Cause(f"{kind} arithmetic", says, case.first, 1.0), *(fit.cause for fit in _ranked(case, fits)[:1])]
    if not fits and (says := in_one_pass(case)):
        return [Cause("one-pass variance", says, case.first, 1.0)]
    if not fits and constant(case):
        return [
            Cause(
                "bias missing", "the difference is the same in every row: a bias is wrong or missing", case.first, 1.0
            )
        ]
    return []
