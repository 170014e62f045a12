"""Activations read back from whatever program wrote them, under our names and laid as ours: positions first.

Our own dumps say what they hold.  Of any other file each name, each squeezed axis, each transposition and each split is
stated in `notes`, so that nobody compares what was guessed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from . import layouts
from .aliases import every_layer
from .errors import BadInput, Damaged, NotFound, first_five
from .extents import Extent, extents, said, spread
from .foreign import Found, arrays_of, taps_of
from .provenance import BESIDE
from .replay import files as sealed_files
from .replay import meta
from .spec import HParams
from .taps import WIDEST, all_taps


@dataclass(frozen=True)
class Document:
    """One text.  taps: [rows, ...] each.  rows: their positions.  ids: of the whole text, if they are known.

    either: an array under a name that stands for one of two taps -> those taps.  some: ids of its rows, where those of
    the text need not be all.  open: T is the least that it can be.
    """

    T: int
    rows: np.ndarray
    taps: Mapping[str, np.ndarray]
    ids: tuple[int, ...] | None = None
    spelt: tuple[bytes, ...] | None = None
    either: Mapping[tuple[str, str], np.ndarray] = field(default_factory=dict)
    some: tuple[int, ...] | None = None
    open: bool = False

    @property
    def whole(self) -> bool:
        return len(self.rows) == self.T


@dataclass(frozen=True)
class Reading:
    """record: what a dump of ours says of itself.  dtypes: tap -> how its numbers are stored."""

    where: str
    documents: tuple[Document, ...]
    record: dict | None = None
    notes: tuple[str, ...] = ()
    dtypes: Mapping[str, str] = field(default_factory=dict)
    left_out: int = 0  # arrays that have no name of a tap

    @property
    def hparams(self) -> HParams | None:
        """As the dump states them."""
        return _stated(self.record or {})

    @property
    def taps(self) -> list[str]:
        return list(dict.fromkeys(name for document in self.documents for name in document.taps))


def _stated(record: dict) -> HParams | None:
    """Hyperparameters that a model can have."""
    try:
        hparams = HParams(**record["model"]["hparams"])
    except (KeyError, TypeError):
        return None
    numbers = hparams.as_dict().values()
    sound = all(type(n) is int and n > 0 for n in numbers) and hparams.n_layer <= WIDEST
    return hparams if sound and hparams.n_embd % hparams.n_head == 0 else None


def is_ours(path: Path) -> bool:
    """Whether it is a dump of this program, whole or not; NotFound where there is nothing."""
    if not path.exists():
        raise NotFound(f"{path.absolute()}: no such dump")
    if path.is_dir():
        return any((path / name).exists() for name in ("manifest.json", "manifest.json.part"))
    if path.suffix == ".jsonl":
        raise BadInput(f"{path}: JSON lines are for reading; compare takes what dump -o FILE.npz writes")
    if path.suffix == ".npz":
        held = arrays_of(path)
        return {"meta", "tokens", "doc_ptr"} <= set(held) and held["meta"].dtype.startswith("<U")
    return False


def read(path: Path, hparams: HParams | None = None) -> Reading:
    """hparams: of the model, for a file that says nothing of it.

    NotFound, Damaged, or BadInput where a file has nothing that is a tap, or does not say how it lies.
    """
    return _ours(path) if is_ours(path) else _foreign(path, hparams)


# our own


def _ours(path: Path) -> Reading:
    record, documents = meta(path), []
    try:
        for where, arrays in sealed_files(path, lambda name: True):
            if missing := [name for name in ("tokens", "doc_ptr") if name not in arrays]:
                raise Damaged(f"{where}: has no {missing[0]}; make it again with dump")
            if wrong := _misfit(arrays) or _misshapen(arrays, _stated(record)):
                raise Damaged(f"{where}: its parts do not fit together: {wrong}; make it again with dump")
            documents += _documents(arrays)
    except KeyError as cause:
        raise Damaged(f"{path}: says nothing of its {cause}; make it again with dump") from None
    taps = documents[0].taps if documents else {}
    return Reading(str(path), tuple(documents), record, (), {name: x.dtype.name for name, x in taps.items()})


def _misfit(arrays: Mapping[str, np.ndarray]) -> str | None:
    """Which array is not as long as the others say, or not what it must be."""
    whole = {name: arrays[name] for name in ("tokens", "doc_ptr", "token_ptr", "rows") if name in arrays}
    for name, x in whole.items():
        rising = name == "tokens" or not (np.diff(x) < 0).any()
        if x.ndim != 1 or x.dtype.kind not in "iu" or not (x.size or name == "rows") or not rising:
            return f"{name} is {x.dtype} {list(x.shape)}, expected whole numbers that rise"
    tokens, ptr = len(whole["tokens"]), whole["doc_ptr"]
    rows = len(whole.get("rows", whole["tokens"]))
    long = {"token_ptr": tokens + 1} | {name: rows for name in arrays if name not in BESIDE}
    if bad := [name for name, n in long.items() if name in arrays and arrays[name].shape[:1] != (n,)]:
        return f"{first_five(bad)} are not as long as tokens say"
    return None if ptr[0] == 0 and ptr[-1] == tokens else f"doc_ptr ends at {ptr[-1]}, there are {tokens} tokens"


def _misshapen(arrays: Mapping[str, np.ndarray], hparams: HParams | None) -> str | None:
    """Which tap is no array of floats, or not as wide as the model makes it."""
    longest = int(np.diff(arrays["doc_ptr"]).max(initial=0))
    shapes = {tap.name: tap.shape for tap in all_taps(hparams)} if hparams else {}
    for name, x in arrays.items():
        if name in BESIDE:
            continue
        axes = shapes.get(name, x.shape[1:])
        right = tuple(max(x.shape[-1], longest) if axis == "T" else axis for axis in axes)
        wide = x.ndim == 3 and x.shape[-1] >= longest if layouts.is_attention(name) else True
        if x.dtype.kind != "f" or x.shape[1:] != right or not wide:
            return f"{name} is {x.dtype} {list(x.shape)}, expected floats, [{', '.join(map(str, ['rows', *axes]))}]"
    return None


def _documents(arrays: Mapping[str, np.ndarray]) -> list[Document]:
    """Packed rows, cut into documents; attention as wide as the text."""
    ptr, ids = arrays["doc_ptr"].tolist(), arrays["tokens"].tolist()
    rows = arrays.get("rows", np.arange(len(ids)))
    spelt = _spelt(arrays)
    out = []
    for first, last in pairwise(ptr):
        start, end = np.searchsorted(rows, [first, last])
        taps = {name: x[start:end] for name, x in arrays.items() if name not in BESIDE}
        taps = {name: x[..., : last - first] if layouts.is_attention(name) else x for name, x in taps.items()}
        own = None if spelt is None else tuple(spelt[first:last])
        out.append(Document(last - first, rows[start:end] - first, taps, tuple(ids[first:last]), own))
    return out


def _spelt(arrays: Mapping[str, np.ndarray]) -> list[bytes] | None:
    if not {"token_bytes", "token_ptr"} <= set(arrays):
        return None
    text = arrays["token_bytes"].tobytes()
    return [text[first:last] for first, last in pairwise(arrays["token_ptr"].tolist())]


# anybody's


def _foreign(path: Path, hparams: HParams | None) -> Reading:
    found: Found = taps_of(path, hparams)
    try:
        held = spread(found.marks)
        shapes = {name: x.shape for name, x in found.arrays.items()}
        laid = layouts.settle(
            shapes, hparams, lengths=held.grid, stated=held.stated, keys=held.keys, orders=found.orders
        )
        grid = max(one.B for one in laid.values()), next(iter(laid.values())).T
        widest = max((shape[-1] for name, shape in shapes.items() if layouts.is_attention(name)), default=0)
        each = extents(held, grid, widest)
    except BadInput as cause:
        raise BadInput(f"{path}: {cause}") from None
    n_head = hparams.n_head if hparams else None
    texts = {name: layouts.brought(x, laid[name], n_head, name) for name, x in found.arrays.items()}
    documents = [_document(extent, texts, found.either) for extent in each]
    notes = (*found.notes, *_moved(laid, grid[0]), *said(held, each, grid))
    return Reading(str(path), tuple(documents), None, notes, found.dtypes, found.left_out)


def _document(extent: Extent, texts: Mapping[str, list[np.ndarray]], open_names: Mapping) -> Document:
    """What one text has of the arrays of all."""
    taps = {
        name: extent.cut(each[extent.at % len(each)], attention=layouts.is_attention(name))
        for name, each in texts.items()
    }
    either = {pair: taps.pop(name) for name, pair in open_names.items()}
    return Document(extent.T, extent.rows, taps, extent.ids, None, either, extent.some, extent.open)


def _moved(laid: Mapping[str, layouts.Laid], B: int) -> list[str]:
    """What was done to axes, once for taps of a kind."""
    groups: dict[str, list[str]] = {}
    for name, one in laid.items():
        if said := layouts.said(name, one):
            groups.setdefault(said, []).append(name)
    once = [name for name, one in laid.items() if one.B < B]
    return [
        *(f"{first_five(every_layer(names))}: {said}" for said, names in groups.items()),
        *(f"{name}: the same for each of {B} texts" for name in once),
    ]
