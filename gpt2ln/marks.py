"""The arrays of a file that say how its texts lie: their names, and which values say nothing.

Padded texts have a mask or lengths, packed ones where each begins and ends, and some positions alone have numbers.
"""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from .errors import first_five

Marks = Mapping[str, tuple[str, np.ndarray]]  # by kind: the name of an array in the file, and its values

_NAMES = {
    "ids": ("tokens", "input_ids", "ids", "token_ids"),
    "mask": ("attention_mask",),
    "lengths": ("lengths",),
    "ends": ("doc_ptr", "cu_seqlens"),
    "positions": ("positions", "position_ids", "rows"),
}
KINDS = {name: kind for kind, names in _NAMES.items() for name in names}
LONGEST = 1 << 20  # positions; no GPT-2 is near
_SHAPES = {"ids": "token ids [T] or [B, T]", "mask": "0 and 1, [B, T]", "lengths": "whole numbers [B]"}
_SHAPES |= {"ends": "whole numbers [texts + 1]", "positions": "whole numbers [rows] or [B, rows]"}


def wrong(name: str, x: np.ndarray) -> str | None:
    """In words, why an array says nothing of how texts lie."""
    kind = KINDS[name]
    dtypes, axes = ("biuf" if kind == "mask" else "iu"), ((1,) if kind in ("lengths", "ends") else (1, 2))
    if x.dtype.kind not in dtypes or x.ndim not in axes or not x.size:
        return f"{name} is {x.dtype.name} {list(x.shape)}, expected {_SHAPES[kind]}"
    return _REFUSED[kind](name, x)


def _no_mask(name: str, x: np.ndarray) -> str | None:
    """A run of ones in each text, with padding before or behind it."""
    if (bad := x[(x != 0) & (x != 1)]).size:
        return f"{name} holds {bad[0]}, expected 0 where padding is and 1 elsewhere"
    for n, text in enumerate(x.reshape(-1, x.shape[-1])):
        held = np.flatnonzero(text)
        if not held.size:
            return f"{name} leaves no token of text {n}"
        if (gaps := np.flatnonzero(np.diff(held) > 1)).size:
            at = held[gaps[0]] + 1
            return f"{name} of text {n} has a hole at {at}, expected padding before or behind its tokens alone"
    return None


def _no_lengths(name: str, x: np.ndarray) -> str | None:
    bad = np.flatnonzero((x < 1) | (x > LONGEST))
    return f"{name} of text {bad[0]} is {x[bad[0]]}, expected 1 or more tokens" if bad.size else None


def _no_ends(name: str, x: np.ndarray) -> str | None:
    ends = x.tolist()
    if len(ends) > 1 and ends[0] == 0 and all(p < q for p, q in pairwise(ends)):
        return None
    return f"{name} is {listed(x)}; expected 0 and where each text ends, none of them empty"


def _no_positions(name: str, x: np.ndarray) -> str | None:
    bad = x[(x < 0) | (x >= LONGEST)]
    return f"{name} holds {bad[0]}, expected positions, counted from 0" if bad.size else None


_REFUSED = {"ids": lambda name, x: None, "mask": _no_mask, "lengths": _no_lengths, "ends": _no_ends}
_REFUSED |= {"positions": _no_positions}


def listed(x: np.ndarray) -> str:
    return first_five([str(n) for n in x.ravel().tolist()])
