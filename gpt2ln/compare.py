"""Two readings against each other, tap by tap in the order of the forward pass: which differs first, and is it a bug.

float32 rounds, and every layer adds to it: how far an honest program may be off is known for each tap, because A and
the same computation rounded after every tap are held against float64.  What is farther off than LIMIT times that is no
rounding.  Side A is right, B is asked about.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from .apart import Apart, measure, rms
from .causes import Cause, likely, prepended
from .errors import BadInput, first_five
from .noise import Ruler, floors
from .pairing import differing_tokens, in_order, settled
from .readings import Document, Reading
from .reference import Missing, hidden, kind
from .spec import HParams

LIMIT = 16.0
RTOL, ATOL = 1e-4, 0.0
SAFE = -0.99e9  # a score below it is hidden, whatever the mask
EQUAL, ROUNDING, BUG = "equal", "rounding", "bug"


@dataclass(frozen=True)
class Measure:
    """What is taken as the same.  weights: of the model of A, or empty, and then rtol and atol alone count."""

    hparams: HParams | None = None
    weights: Mapping[str, np.ndarray] = field(default_factory=dict)
    rtol: float = RTOL
    atol: float = ATOL


@dataclass(frozen=True)
class Row:
    """One tap, in the text where it is farthest off.

    ratio: of B's error to float32's, where that is known.  own: whether the operation itself went wrong, None where
    that is not known.  hidden: scores of the future that are not the same, which no softmax need show.
    """

    tap: str
    verdict: str
    apart: Apart
    document: int
    position: int
    ratio: float | None = None
    own: bool | None = None
    hidden: int = 0
    seen: bool = True  # what a softmax sees differs, or may


@dataclass(frozen=True)
class Report:
    """tokens: what is wrong with the texts themselves, and then no taps are compared."""

    rows: tuple[Row, ...]
    only: tuple[tuple[str, ...], tuple[str, ...]]
    tokens: str | None = None
    causes: tuple[Cause, ...] = ()
    notes: tuple[str, ...] = ()
    argmax: tuple[int, int] | None = None  # tokens whose most likely next one is the same, of how many
    referred: bool = False
    also: tuple[Cause, ...] = ()  # of taps behind the first that went wrong by themselves, of each kind the first
    texts: tuple[int, ...] = ()  # which ones differ
    off: tuple[str, float] | None = None  # where A itself is not what the model computes, and how many times the noise

    @property
    def first(self) -> Row | None:
        """The first tap that differs by more than rounding.

        How the future is hidden is no matter as long as it is: scores that differ there alone come after what went
        wrong by itself.
        """
        bugs = [row for row in self.rows if row.verdict == BUG]
        seen = next((row for row in bugs if row.seen), None)
        return seen if seen and seen.own is not False else next(iter(bugs), None)

    @property
    def verdict(self) -> str:
        if self.tokens or self.first or self.off:
            return BUG
        return ROUNDING if any(row.verdict == ROUNDING for row in self.rows) else EQUAL


@np.errstate(all="ignore")  # what is past all bounds is a difference, or the same on both sides
def compare(a: Reading, b: Reading, by: Measure, on_difference: Callable[[str], object] = lambda tap: None) -> Report:
    """BadInput where both have no tap, or no position, in common.

    on_difference: told of the first tap that differs, before its cause is looked for, which may take long.
    """
    if tokens := differing_tokens(a, b):
        return Report((), ((), ()), tokens, tuple(_prepended(a, b, by)))
    a, b, notes = settled(a, b)
    names = in_order(a, b, by.hparams)
    common = [name for name in names if name in a.taps and name in b.taps]
    only = tuple(tuple(n for n in names if n in one.taps and n not in other.taps) for one, other in ((a, b), (b, a)))
    if not common:
        held = [f"{letter} holds {first_five(one.taps)}" for letter, one in (("A", a), ("B", b))]
        raise BadInput(f"no tap is in both: {'; '.join(held)}")
    pairs = [_Pair(n, x, y, a, b, by) for n, (x, y) in enumerate(zip(a.documents, b.documents, strict=True))]
    each = [list(pair.rows(common)) for pair in pairs]
    rows = _farthest([row for rows in each for row in rows], common)
    texts = tuple(n for n, rows in enumerate(each) if any(row.verdict == BUG for row in rows))
    off = next(((name, worst) for name in common if (worst := max(pair.off.get(name, 0.0) for pair in pairs))), None)
    report = Report(tuple(rows), only, None, (), tuple(notes), _argmax(pairs), pairs[0].referred, (), texts, off)
    if report.first:
        on_difference(report.first.tap)
        report = replace(report, causes=tuple(pairs[report.first.document].causes(report.first.tap)))
        report = replace(report, also=tuple(_also(report, pairs)))
    return report


def _also(report: Report, pairs: Sequence["_Pair"]) -> Iterator[Cause]:
    """Causes of what went wrong behind the first, one of each kind of tap and of each name."""
    kinds, named = {kind(report.first.tap)}, {cause.name for cause in report.causes}
    for row in report.rows:
        if row.verdict == BUG and row.own and kind(row.tap) not in kinds:
            kinds.add(kind(row.tap))
            for cause in pairs[row.document].causes(row.tap)[:1]:
                if cause.name not in named:
                    named.add(cause.name)
                    yield cause


def _prepended(a: Reading, b: Reading, by: Measure) -> Iterator[Cause]:
    """Of the first text, where B holds a row more than A."""
    if by.hparams is None or len(a.documents) != len(b.documents):
        return
    for x, y in zip(a.documents, b.documents, strict=True):
        if x.ids is not None and y.T == x.T + 1 and x.whole and y.whole:
            if cause := prepended(x.taps, y.taps, hparams=by.hparams, ids=x.ids, weights=by.weights):
                yield cause
            return


# numbers


class _Pair:
    """One text on both sides, at the positions that both hold."""

    def __init__(self, n: int, a: Document, b: Document, a_reading: Reading, b_reading: Reading, by: Measure):
        self.n, self.by, self._dtypes = n, by, (a_reading.dtypes, b_reading.dtypes)
        self.ids = a.ids if a.ids is not None else b.ids
        self.positions, at_a, at_b = np.intersect1d(a.rows, b.rows, return_indices=True)
        if not len(self.positions) and a.T:
            raise BadInput(f"text {n}: no position is in both: {_few(a.rows)} in A, {_few(b.rows)} in B")
        self.a = {name: x[at_a] for name, x in a.taps.items()}
        self.b = {name: x[at_b] for name, x in b.taps.items()}
        self.whole = len(self.positions) == a.T
        self.referred = bool(by.weights) and self.ids is not None
        ids = [0] * a.T if self.ids is None else self.ids  # then no tap that needs them is computed
        self.ruler = Ruler(by.hparams, ids, by.weights, self.positions) if by.hparams else None
        self._noise: dict[str, float] = {}
        self.off: dict[str, float] = {}

    def rows(self, common: Sequence[str]) -> Iterator[Row]:
        names = [name for name in common if name in self.a and name in self.b]
        self._check_shapes(names)
        if not self.referred:
            yield from (self._limited(name) for name in names)
            return
        for name, exact, rounded in self.ruler.walk(names):
            yield self._judged(name, exact, rounded)

    def _check_shapes(self, names: Sequence[str]) -> None:
        bad = [name for name in names if self.a[name].shape != self.b[name].shape]
        if bad:
            said = [f"{name} is {list(self.a[name].shape)} in A, {list(self.b[name].shape)} in B" for name in bad]
            raise BadInput(f"text {self.n}: {first_five(said, '; ')}")

    def _measured(self, name: str, scale: np.ndarray) -> tuple[Apart, int]:
        """Distance, and how many scores of the future are not the same."""
        x, y = self.a[name], self.b[name]
        if not name.endswith("attn/scores"):
            return measure(x, y, scale), 0
        future = self._future(name)
        shown = (x > SAFE) | (y > SAFE) | np.isnan(x) | np.isnan(y)
        return measure(x, y, scale, future), measure(x, y, scale, ~(future & shown)).differ

    def _future(self, name: str) -> np.ndarray:
        """Places of a score that no softmax is to see."""
        x = self.a[name]
        return np.broadcast_to(hidden(x.shape[-1])[self.positions], x.shape)

    def _visible(self, name: str, x: np.ndarray) -> np.ndarray:
        return np.where(self._future(name), np.nan, x) if name.endswith("attn/scores") else x

    def _scale(self, name: str) -> np.ndarray:
        """What a row is measured by: its RMS; for a mean, which may be 0 by chance, that of what it is the mean of."""
        x = rms(self._visible(name, self.a[name]))
        if name.endswith("/mean"):
            var = self.a.get(name.removesuffix("mean") + "var")
            spread = rms(x[None]) if var is None else np.sqrt(np.maximum(np.asarray(var, np.float64)[:, 0], 0))
            x = np.hypot(x, spread)
        return x

    def _row(self, name: str, verdict: str, apart: Apart, hidden: int, **more) -> Row:
        position = int(self.positions[apart.row]) if len(self.positions) else 0
        return Row(name, verdict, apart, self.n, position, hidden=hidden, **more)

    def _limited(self, name: str) -> Row:
        """By rtol and atol."""
        scale = self._scale(name)
        apart, hidden = self._measured(name, scale)
        limit = self.by.rtol * scale + self.by.atol
        seen = bool(apart.unmatched or (apart.far > limit).any())
        own = self._own(name, limit, scale) if seen else hidden > 0 or None
        return self._row(name, _verdict(apart, seen or hidden > 0), apart, hidden, own=own, seen=seen)

    def _judged(self, name: str, exact: np.ndarray, rounded: np.ndarray) -> Row:
        """By how far float32 is off."""
        scale = self.ruler.scale(name, self._visible(name, exact))
        apart, hidden = self._measured(name, scale)
        noise, b, right = self._noise_of(name, exact, rounded, scale)
        ratio = _worst(rms(b - right), noise)
        seen = bool(apart.unmatched or ratio > LIMIT)
        own = self._own(name, LIMIT * noise, scale) if seen else hidden > 0 or None
        return self._row(name, _verdict(apart, seen or hidden > 0), apart, hidden, ratio=ratio, own=own, seen=seen)

    def _noise_of(self, name: str, exact, rounded, scale) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """rms of float32's error by row; B and float64, with what is hidden left out."""
        a, b, right, near = (
            self._visible(name, x.astype(np.float64)) for x in (self.a[name], self.b[name], exact, rounded)
        )
        dtypes = [held.get(name, "float32") for held in self._dtypes]
        noise = floors(rms(a - right), rms(near - right), scale, dtypes)
        known = floors(np.zeros(len(scale)), rms(near - right), scale, dtypes)
        if (far := _worst(rms(a - right), known)) > LIMIT:
            self.off[name], noise = far, known
        self._noise[name] = float(np.sqrt(np.square(noise).mean())) if len(noise) else 0.0
        return noise, b, right

    def _own(self, name: str, limit: np.ndarray, scale: np.ndarray) -> bool | None:
        """Whether B's inputs do not give what B got out of them; None where that cannot be told."""
        if not self.whole or self.ruler is None:
            return None
        try:
            expected = self.ruler.from_inputs(self.b, name)
        except Missing:
            return None
        except ValueError:  # B's own inputs do not fit together
            return True
        found, expected = (self._visible(name, x) for x in (self.b[name].astype(np.float64), expected))
        if not np.array_equal(np.isfinite(found), np.isfinite(expected)):
            return True
        larger = self.ruler.scale_from_inputs(name, expected) / np.where(scale > 0, scale, 1)
        return not bool((rms(found - expected) <= limit * np.maximum(1, larger)).all())

    def causes(self, first: str) -> list[Cause]:
        if not self.whole or self.ids is None or self.by.hparams is None:
            return []
        noise = {name: self._noise.get(name, 0.0) for name in self.b}
        return likely(
            self.a, self.b, first=first, hparams=self.by.hparams, ids=self.ids, weights=self.by.weights, noise=noise
        )


def _verdict(apart: Apart, over: bool) -> str:
    if over:
        return BUG
    return ROUNDING if apart.differ else EQUAL


def _worst(error: np.ndarray, noise: np.ndarray) -> float:
    return float(np.max(error / np.where(noise > 0, noise, 1), initial=0.0))


def _farthest(rows: Sequence[Row], order: Sequence[str]) -> list[Row]:
    """One for each tap: of several texts that where it is worst."""
    worst: dict[str, Row] = {}
    for row in rows:
        key = ([EQUAL, ROUNDING, BUG].index(row.verdict), row.ratio or 0.0, row.apart.relative)
        held = worst.get(row.tap)
        if held is None or key > ([EQUAL, ROUNDING, BUG].index(held.verdict), held.ratio or 0.0, held.apart.relative):
            worst[row.tap] = row
    return [worst[name] for name in order if name in worst]


def _argmax(pairs: Sequence[_Pair]) -> tuple[int, int] | None:
    held = [(pair.a["logits"], pair.b["logits"]) for pair in pairs if "logits" in pair.a and "logits" in pair.b]
    if not held:
        return None
    return sum(int((x.argmax(-1) == y.argmax(-1)).sum()) for x, y in held), sum(len(x) for x, _ in held)


def _few(rows: np.ndarray) -> str:
    return ", ".join(map(str, rows[:5].tolist())) + (", ..." if len(rows) > 5 else "")
