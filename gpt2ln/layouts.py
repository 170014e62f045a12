"""How the axes of an activation lie in a file that another program wrote, and how they get to lie as ours.

Letters: B batch, T positions, S positions attended to, H heads, D of a head, C channels, 1 a single number.  What the
shapes say is taken together, over all taps of a file: a layout is used where it alone fits; where two do, the file is
refused rather than read as one of them.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass

import numpy as np

from .errors import BadInput, first_five
from .spec import HParams
from .taps import all_taps

_LAYOUTS = {  # ours first
    "wide": ("T C", "B T C"),
    "one": ("T 1", "T", "B T 1", "B T"),
    "heads": ("T H D", "H T D", "B T H D", "B H T D", "T C", "B T C"),
    "attention": ("T H S", "H T S", "B T H S", "B H T S"),
    "merged": ("T C", "B T C", "T H D", "H T D", "B T H D", "B H T D"),
}
_KINDS = {"mean": "one", "var": "one", "rstd": "one", "q": "heads", "k": "heads", "v": "heads", "z": "merged"}
_KINDS |= {"scores": "attention", "probs": "attention"}


@dataclass(frozen=True)
class Laid:
    """A layout that a shape fits: with so many texts, of so many positions each."""

    layout: str
    B: int
    T: int


def _kind(tap: str) -> str:
    leaf = tap.rsplit("/", 1)[-1]
    return _KINDS.get(leaf, "wide")


def sizes_of(hparams: HParams | None, tap: str) -> dict[str, int]:
    """What is known of the letters: H, D and C of this tap."""
    if hparams is None:
        return {}
    wide = {"fc": 4 * hparams.n_embd, "gelu": 4 * hparams.n_embd, "logits": hparams.n_vocab}
    C = wide.get(tap.rsplit("/", 1)[-1], hparams.n_embd)
    return {"H": hparams.n_head, "D": hparams.head_dim, "C": C}


def _fit(layout: str, shape: tuple[int, ...], sizes: Mapping[str, int], keys: Container[int] | None) -> Laid | None:
    letters = layout.split()
    if len(letters) != len(shape):
        return None
    bound = {"1": 1, **sizes}
    for letter, size in zip(letters, shape, strict=True):
        if letter == "S" and keys is not None:
            if size not in keys:
                return None
        elif bound.setdefault("T" if letter == "S" else letter, size) != size:
            return None
    return Laid(layout, bound.get("B", 1), bound["T"])


def _fits(tap: str, shape: tuple[int, ...], hparams: HParams | None, keys: Container[int] | None) -> list[Laid]:
    sizes = sizes_of(hparams, tap)
    found = [_fit(layout, shape, sizes, keys) for layout in _LAYOUTS[_kind(tap)]]
    if _kind(tap) == "heads" and hparams is None:  # into how many is not known
        found = [laid for laid in found if laid and "H" in laid.layout]
    return [laid for laid in found if laid]


def _wanted(tap: str, hparams: HParams | None, keys: Container[int] | None) -> str:
    """Our shape of a tap, for people."""
    axes = _LAYOUTS[_kind(tap)][0].split()
    if hparams is not None:
        axes = ["T", *(str(size) for known in all_taps(hparams) if known.name == tap for size in known.shape)]
    if is_attention(tap) and keys is not None:
        sizes = f"{keys.start} or more" if isinstance(keys, range) else " or ".join(map(str, sorted(keys)))
        axes = ["rows", axes[1], sizes]
    return ", ".join(axes)


def is_attention(tap: str) -> bool:
    """Whether its last axis is one of keys."""
    return _kind(tap) == "attention"


def settle(
    shapes: Mapping[str, tuple[int, ...]],
    hparams: HParams | None,
    *,
    lengths: tuple[int, int] | None = None,
    stated: str = "token ids",
    keys: Container[int] | None = None,
    orders: Mapping[str, str] | None = None,
) -> dict[str, Laid]:
    """Tap -> its layout.  BadInput, with all that is wrong, where one fits none or two.

    lengths: texts and positions, where they are known from what is called stated.  keys: how many there may be, None
    for as many as positions.  orders: tap -> "T H" or "H T", where its name says how it lies.
    """
    fitting = {tap: _fits(tap, shape, hparams, keys) for tap, shape in shapes.items()}
    if bad := [
        f"{tap} is {list(shapes[tap])}, expected [{_wanted(tap, hparams, keys)}]" for tap in fitting if not fitting[tap]
    ]:
        raise BadInput(first_five(bad, "; "))
    B, T = _common(fitting, shapes, lengths, stated)
    fitting = {tap: _of(laid, tap, B, T) for tap, laid in fitting.items()}
    if bad := [f"{tap} {list(shapes[tap])}" for tap in fitting if not fitting[tap]]:  # wpe/out alone has no say above
        raise BadInput(f"{first_five(bad)}, expected {B} x {T} positions, as the others have")
    fitting = {tap: _ordered(laid, (orders or {}).get(tap, "")) for tap, laid in fitting.items()}
    heads_first = {"H T" in laid[0].layout for tap, laid in fitting.items() if len(laid) == 1 and "H" in laid[0].layout}
    if len(heads_first) == 1:
        (first,) = heads_first
        fitting = {tap: _ordered(laid, "H T" if first else "T H") for tap, laid in fitting.items()}
    if open_ := [tap for tap, laid in fitting.items() if not _alike(laid, shapes[tap])]:
        tap, laid = open_[0], fitting[open_[0]]
        avoid = "take a text of a length" if keys is None else "save a number of rows"
        ways = " and ".join(f"[{one.layout.replace(' ', ', ')}]" for one in laid)
        raise BadInput(f"{tap} {list(shapes[tap])} fits {ways}; {avoid} other than the number of heads")
    return {tap: laid[0] for tap, laid in fitting.items()}


def _ordered(laid: list[Laid], order: str) -> list[Laid]:
    return [one for one in laid if order in one.layout] or laid


def _of(laid: list[Laid], tap: str, B: int, T: int) -> list[Laid]:
    """Those of these lengths; positions are the same for every text of a batch."""
    return [one for one in laid if one.T == T and (one.B == B or (tap == "wpe/out" and one.B == 1))]


def _common(fitting, shapes, lengths: tuple[int, int] | None, stated: str) -> tuple[int, int]:
    """How many texts of how many positions all taps agree on."""
    sets = {
        tap: {(one.B, one.T) for one in laid} for tap, laid in fitting.items() if tap != "wpe/out" or len(fitting) == 1
    }
    common = set.intersection(*sets.values())
    if lengths is not None:
        common &= {lengths}
    if not common:
        said = [f"{tap} {list(shapes[tap])}" for tap in _apart(sets)]
        ids = "" if lengths is None else f"{stated}: {lengths[0]} x {lengths[1]}, "
        raise BadInput(f"{ids}{first_five(said)}: not the same positions in all")
    fewest = min(B for B, _ in common)
    lengths_left = sorted({T for B, T in common if fewest == B})
    if len(lengths_left) > 1:
        tap = next(tap for tap in sets if len({T for _, T in sets[tap]}) > 1)
        ways = " or ".join(map(str, lengths_left))
        raise BadInput(f"{tap} {list(shapes[tap])} may be {ways} positions; add token ids, as tokens [T]")
    return fewest, lengths_left[0]


def _apart(sets: Mapping[str, set]) -> list[str]:
    """One tap of each opinion."""
    seen: dict[frozenset, str] = {}
    for tap, opinions in sets.items():
        seen.setdefault(frozenset(opinions), tap)
    return list(seen.values())


def _alike(laid: list[Laid], shape: tuple[int, ...]) -> bool:
    """Whether all of them put every value in the same place."""
    if len(laid) < 2:
        return True
    places = np.arange(np.prod(shape)).reshape(shape)
    first, *others = [np.stack([x.reshape(x.shape[0], -1) for x in brought(places, one, None)]) for one in laid]
    return all(np.array_equal(first, other) for other in others)


def brought(x: np.ndarray, laid: Laid, n_head: int | None, tap: str = "") -> list[np.ndarray]:
    """-> one array a text, as our taps lie: positions first."""
    letters = laid.layout.split()
    if letters[0] != "B":
        x, letters = x[None], ["B", *letters]
    order = [letters.index("B"), letters.index("T"), *(i for i, letter in enumerate(letters) if letter not in "BT")]
    x = x.transpose(order)
    kind = _kind(tap)
    if kind == "one":
        x = x.reshape(*x.shape[:2], 1)
    elif kind == "heads" and x.ndim == 3:
        x = x.reshape(*x.shape[:2], n_head, -1)
    elif kind == "merged":
        x = x.reshape(*x.shape[:2], -1)
    return list(x)


def said(tap: str, laid: Laid) -> str | None:
    """In words what was done to it, None where it lay as ours do."""
    kind = _kind(tap)
    ours = _LAYOUTS[kind][0]
    if laid.layout == ours:
        return None
    theirs = laid.layout.replace("B", "1") if laid.B == 1 else laid.layout
    return f"axes {theirs.replace(' ', ',')} -> {ours.replace(' ', ',')}"
