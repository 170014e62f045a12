"""A mistake in some rows alone, as in what follows a prompt: which rows differ, and how well a cause must fit each."""

from collections.abc import Iterator

import numpy as np

from .case import Case, Taps
from .reference import Missing, kind

CLEAR = 4  # roundings of a row, more than which is a difference
SURE = 100  # times that, where a row or two of a norm are all there is: each tells one number only
RUNS = 5  # of rows that are listed


def cases(case: Case) -> Iterator[Case]:
    """The case in a stretch of rows that holds all that differ, and in these; none if every row differs, or no row."""
    try:
        differ = case.left_by_row(case.right) > CLEAR * case.rounding_by_row
    except (Missing, ValueError):
        return
    if differ.all() or not differ.any():
        return
    at, every = np.flatnonzero(differ), np.arange(len(differ))
    stretch = (every >= at[0]) & (every <= at[-1])
    if not stretch.all():
        yield case.only(stretch)
    if not (stretch == differ).all():
        yield case.only(differ)


def fits(case: Case, taps: Taps, best: float) -> bool:
    """Whether next to nothing is left in every row that can be told: `best` of its difference, or rounding."""
    before, left, rounding = case.left_by_row(case.right), case.left_by_row(taps), CLEAR * case.rounding_by_row
    known = ~np.isnan(left)
    telling = known & (before > rounding)
    if not telling.any():
        return False
    if kind(case.first).startswith("ln/") and telling.sum() < 3:
        return bool((left <= rounding)[known].all() and (before > SURE * rounding)[telling].all())
    limit = np.where(np.isfinite(before), np.maximum(best * before, rounding), rounding)
    return bool((left <= limit)[known].all())


def named(rows: np.ndarray) -> str:
    """[T] of bool -> `row 3`, `rows 0, 2, 5..9`"""
    at = np.flatnonzero(rows)
    runs = np.split(at, np.flatnonzero(np.diff(at) > 1) + 1)
    said = [f"{run[0]}..{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    few = ", ".join(said[:RUNS]) + (f" and {len(said) - RUNS} more runs" if len(said) > RUNS else "")
    return f"row{'s' if len(at) > 1 else ''} {few}"
