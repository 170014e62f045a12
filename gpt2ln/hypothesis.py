"""A way in which a port may differ, as formulas to put in place of the right ones in the float64 pass.

A hypothesis may have several forms, since a port may or may not report what it did: a variance divided by C - 1, or the
right one beside a wrong rstd.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from .reference import FORMULAS, Formula, Reference

Formulas = Mapping[str, Formula]


@dataclass(frozen=True)
class Hypothesis:
    """name: short and stable; says: one line for people; forms: each a set of formulas that would do it.

    harmless: the same model, written down otherwise.  renamed: only what is reported differs, what follows is right.
    everywhere: it reads what we compute later, so it cannot hold in some rows alone.
    """

    name: str
    says: str
    forms: tuple[Formulas, ...]
    harmless: bool = False
    renamed: bool = False
    everywhere: bool = False


def wrong(name: str, says: str, *forms: Formulas) -> Hypothesis:
    return Hypothesis(name, says, forms)


def rewritten(name: str, says: str, *forms: Formulas, renamed: bool = False) -> Hypothesis:
    """The same model."""
    return Hypothesis(name, says, forms, harmless=True, renamed=renamed)


def in_rows(formulas: Formulas, rows: np.ndarray) -> Formulas:
    """The same formulas in these rows alone, and ours in the others.  rows: [T] of bool"""
    return {kind: _either(formula, FORMULAS[kind], rows) for kind, formula in formulas.items()}


def _either(wrong: Formula, right: Formula, rows: np.ndarray) -> Formula:
    def formula(t: Reference, at: str) -> np.ndarray:
        x = right(t, at)
        return np.where(rows.reshape(-1, *[1] * (x.ndim - 1)), wrong(t, at), x)

    return formula


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
