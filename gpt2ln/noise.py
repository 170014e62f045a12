"""How far float32 is off at every tap of a text: a computation in float64, and the same one rounded after each tap.

A itself tells it too, but where A happens to be right, or is float64, its error says nothing about that of others.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from .apart import rms
from .reference import FORMULAS, Formula, Reference, input_of
from .spec import HParams

SUMS = 4.0  # what a product of matrices rounds on its way, in units of rounding its result; measured 3 to 12
FLOOR = 2.0**-24  # half a step of float32, relative
STEPS = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # of what is only stored so


def _rounded(formula: Formula) -> Formula:
    """Its results as float32 holds them."""
    return lambda taps, at: formula(taps, at).astype(np.float32).astype(np.float64)


class Ruler:
    """float64 of one text, at some of its positions."""

    def __init__(self, hparams: HParams, ids: Sequence[int], weights: Mapping[str, np.ndarray], positions: np.ndarray):
        self.hparams, self.ids, self._weights, self.positions = hparams, ids, weights, positions
        self._given: Reference | None = None
        self._inputs: dict[str, np.ndarray] = {}  # norm -> RMS of what it normalizes, by row

    def walk(self, names: Sequence[str]) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """(tap, float64, float64 rounded after each tap)"""
        formulas = {kind: _rounded(formula) for kind, formula in FORMULAS.items()}
        near = Reference(self.hparams, self.ids, self._weights, formulas=formulas)
        exact = Reference(self.hparams, self.ids, self._weights)
        norms = [name.removesuffix("/mean") for name in names if name.endswith("/mean")]
        inputs = {input_of(norm, self.hparams) for norm in norms}
        for (name, x), (_, y) in zip(exact.walk({*names, *inputs}), near.walk({*names, *inputs}), strict=True):
            if name in inputs:
                self._inputs[name] = rms(x)[self.positions]
            if name in names:
                yield name, x[self.positions], y[self.positions]

    def scale(self, name: str, exact: np.ndarray) -> np.ndarray:
        """RMS of each row; of a mean, which may be 0 by chance, that of what it is the mean of."""
        of = input_of(name.removesuffix("/mean"), self.hparams) if name.endswith("/mean") else ""
        return self._inputs[of] if of in self._inputs else rms(exact)

    def from_inputs(self, given: Mapping[str, np.ndarray], name: str) -> np.ndarray:
        """What float64 makes of the taps that are given, this one computed anew; all positions."""
        if self._given is None:
            self._given = Reference(self.hparams, self.ids, self._weights, given=given)
        return self._given.computed(name)

    def scale_from_inputs(self, name: str, expected: np.ndarray) -> np.ndarray:
        """`scale`, of what `from_inputs` gave."""
        return rms(self._given.input(name.removesuffix("/mean")) if name.endswith("/mean") else expected)


def floors(of_a: np.ndarray, rounded: np.ndarray, scale: np.ndarray, dtypes: Sequence[str]) -> np.ndarray:
    """rms of float32's error in each row, and at least what it is over the whole tap in units of a row: [T]

    of_a, rounded: errors of A, and of a computation rounded after every tap.
    """
    rounded, known = SUMS * rounded, scale > 0
    pooled = [
        float(np.sqrt(np.square(e[known] / scale[known]).mean())) if known.any() else 0.0 for e in (of_a, rounded)
    ]
    relative = max(FLOOR, *pooled, *(STEPS.get(dtype, 0.0) for dtype in dtypes))
    return np.maximum(np.maximum(of_a, rounded), relative * scale)
