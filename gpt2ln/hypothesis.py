"""A way in which a port may differ, as formulas to put in place of the right ones in the float64 pass.

A hypothesis may have several forms, since a port may or may not report what it did: a variance divided by C - 1, or the
right one beside a wrong rstd.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from .reference import Formula

Formulas = Mapping[str, Formula]


@dataclass(frozen=True)
class Hypothesis:
    """name: short and stable; says: one line for people; forms: each a set of formulas that would do it.

    harmless: the same model, written down otherwise.  renamed: only what is reported differs, what follows is right.
    """

    name: str
    says: str
    forms: tuple[Formulas, ...]
    harmless: bool = False
    renamed: bool = False


def wrong(name: str, says: str, *forms: Formulas) -> Hypothesis:
    return Hypothesis(name, says, forms)


def rewritten(name: str, says: str, *forms: Formulas, renamed: bool = False) -> Hypothesis:
    """The same model."""
    return Hypothesis(name, says, forms, harmless=True, renamed=renamed)


class Moved(Mapping[str, np.ndarray]):
    """Weights, those below one scope taken from another."""

    def __init__(self, weights: Mapping[str, np.ndarray], here: str, there: str):
        self._weights, self._here, self._there = weights, f"model/{here}/", f"model/{there}/"

    def __getitem__(self, name: str) -> np.ndarray:
        return self._weights[name.replace(self._here, self._there)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)
