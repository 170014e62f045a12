"""The arrays of a file that another program wrote, and which taps their names mean.

Names are ours, TransformerLens's or Hugging Face's, with `model/` in front or `.` and `__` for `/`.  What has no name
of ours is left out and said to be; a name that means one of two taps stays open until both sides are seen.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from . import aliases, marks
from .checkpoint import Entry
from .errors import BadInput, Damaged, first_five, printable
from .provenance import BESIDE
from .spec import HParams
from .taps import all_taps
from .tensors import Npz, SafeTensors, readable, values

_AGAIN = "write it again"
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_HEADS_FIRST = ("attentions", "past_key_values", "hook_pattern", "hook_attn_scores")
_HIDDEN = np.float32(-1e10)  # what our scores hold where a position lies in the future


@dataclass
class Found:
    """arrays: by tap, as they lie.  either: of those, a name that is open -> the two taps it may be."""

    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    orders: dict[str, str] = field(default_factory=dict)
    either: dict[str, tuple[str, str]] = field(default_factory=dict)
    marks: dict[str, tuple[str, np.ndarray]] = field(default_factory=dict)  # by kind: of what is no tap
    notes: list[str] = field(default_factory=list)
    left_out: int = 0
    named: dict[str, str] = field(default_factory=dict)  # tap -> its name in the file


# files


@dataclass(frozen=True)
class Folder:
    """`.npy` files, named by their path without the suffix."""

    where: Path
    entries: Mapping[str, Entry]

    def array(self, entry: Entry) -> np.ndarray:
        return _npy(self.where / f"{entry.name}.npy")

    def release(self, entry: Entry) -> None:
        pass


def _npy(path: Path) -> np.ndarray:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as cause:  # a garbled header can raise what it likes
        why = str(cause).partition("\n")[0]
        if "pickle" in why or "object" in why.lower():
            raise BadInput(_pickled(path, path.name)) from None
        raise Damaged(f"{path}: no whole npy file ({why}); make it again") from None


def _pickled(where: Path, name: str) -> str:
    return f"{where}: {name} holds Python objects, which only a pickle reads; save an array of floats"


def opened(path: Path) -> Npz | SafeTensors | Folder:
    """BadInput for what is none of these."""
    if path.is_dir():
        return _folder(path)
    if path.suffix == ".npz":
        return Npz(path)
    if path.suffix == ".safetensors":
        return SafeTensors(path, [path], again=_AGAIN)
    if path.suffix == ".npy":
        names = {path.stem: _entry(path, path.stem)}
        return Folder(path.parent, names)
    how = "expected .npz, .npy, .safetensors or a folder of them; docs/porting.md shows how to write one"
    raise BadInput(f"{path}: is no file that compare reads; {how}")


def _folder(path: Path) -> SafeTensors | Folder:
    npy = sorted(one for depth in range(4) for one in path.glob("*/" * depth + "*.npy"))  # h0/ln_1/out.npy
    safe = sorted(path.glob("*.safetensors"))
    if npy and safe:
        raise BadInput(f"{path}: holds {len(npy)} .npy and {len(safe)} .safetensors files; expected one kind")
    if safe:
        return SafeTensors(path, safe, again=_AGAIN)
    if not npy:
        raise BadInput(f"{path}: holds no dump, no .npy and no .safetensors; name a file in it if there is one")
    names = {one.relative_to(path).with_suffix("").as_posix(): one for one in npy}
    return Folder(path, {name: _entry(one, name) for name, one in names.items()})


def _entry(path: Path, name: str) -> Entry:
    x = _npy(path)
    plain = x.dtype.name if x.dtype.kind in "fiubc" else x.dtype.str
    return Entry(name, plain, x.shape, 0, 0, x.nbytes, None)


def arrays_of(path: Path) -> Mapping[str, Entry]:
    """What a file lists, its values unread."""
    return opened(path).entries


# names


def taps_of(path: Path, hparams: HParams | None) -> Found:
    """BadInput where no name of the file is a tap's, or two names of one differ."""
    file, found = opened(path), Found()
    names = list(file.entries)
    n_layer = hparams.n_layer if hparams else aliases.layers([*names, *_stacked_names(file.entries)])
    ours = {tap.name for tap in all_taps(hparams or HParams(1, 1, 1, 1, n_layer))}
    left: list[str] = []
    found.marks = _marks(file)
    for name, entry in file.entries.items():
        if name in marks.KINDS:
            continue
        try:
            takers = list(_takers(name, entry, n_layer, ours))
        except BadInput as cause:
            raise BadInput(f"{path}: {cause}") from None
        if not takers:
            left.append(_left(name, n_layer))
            continue
        x = _values(file, entry)
        for tap, kind, part in takers:
            try:
                one = part(x)
            except (IndexError, ValueError):
                whole = ", ".join(dict.fromkeys(other for other, *_ in takers))
                raise BadInput(f"{path}: {name} is {list(x.shape)}, which does not come apart into {whole}") from None
            _take(found, path, name, tap, kind, one, entry.dtype, hparams)
    if not found.arrays:
        said = first_five([printable(name) for name in left]) or "nothing"
        raise BadInput(f"{path}: holds {said}; no name of a tap: see gpt2ln taps, and taps --as tl or hf")
    found.notes = [*_mapped(found), *aliases.every_layer(found.notes)]
    found.left_out = sum(name not in BESIDE for name in left)
    if left:
        found.notes.append(f"left out: {first_five(aliases.every_layer(left))}")
    return found


def _marks(file) -> dict[str, tuple[str, np.ndarray]]:
    """What says how texts lie; BadInput, with all that is wrong, where an array does not, or two differ."""
    found: dict[str, tuple[str, np.ndarray]] = {}
    bad: list[str] = []
    for name in (name for name in file.entries if name in marks.KINDS):
        x, kind = _values(file, file.entries[name], any_=True), marks.KINDS[name]
        if why := marks.wrong(name, x):
            bad.append(why)
        elif kind in found and not np.array_equal(*(np.atleast_2d(y) for y in (x, found[kind][1]))):
            bad.append(f"{found[kind][0]} and {name} differ, expected one of them")
        else:
            found.setdefault(kind, (name, x))
    if bad:
        raise BadInput(f"{file.where}: {first_five(bad, '; ')}")
    return found


def _values(file, entry: Entry, *, any_: bool = False) -> np.ndarray:
    if "O" in entry.dtype:
        raise BadInput(_pickled(file.where, entry.name))
    if not readable(entry) or not (any_ or entry.dtype in _FLOATS):
        expected = "whole numbers" if any_ else ", ".join(_FLOATS)
        raise BadInput(f"{file.where}: {entry.name} is {entry.dtype}, expected {expected}")
    if not all(entry.shape):
        raise BadInput(f"{file.where}: {entry.name} is {list(entry.shape)}, which holds nothing")
    return np.array(values(file, entry))


def _whole(x: np.ndarray) -> np.ndarray:
    return x


def _takers(name: str, entry: Entry, n_layer: int, ours: set[str]) -> Iterator[tuple]:
    """(tap, kind, part) for each tap that a name of the file gives: kind says what is to be done with it."""
    for spelt in aliases.spellings(name):
        if spelt in ours:
            yield spelt, "ours", _whole
            return
        for scheme in aliases.SCHEMES:
            if tap := aliases.same(scheme, n_layer).get(spelt):
                yield tap, scheme, _whole
                return
            if spelt in aliases.near(scheme, n_layer):
                yield from _near(spelt, entry, n_layer)
                return


def _near(name: str, entry: Entry, n_layer: int) -> Iterator[tuple]:
    """Of names that are not the same numbers as one tap: those that it can be had from."""
    if name in ("hidden_states", "attentions", "past_key_values"):
        yield from _stacked(name, entry.shape, n_layer)
        return
    norm = _norm(name)
    if name.endswith("hook_scale"):
        yield f"{norm}/rstd", "inverse", _whole
    elif name.endswith("hook_normalized"):
        yield f"{norm}/norm", "either", _whole
    elif name.endswith("hook_attn_scores"):
        yield f"h{_number(name)}/attn/scores", "masked", _whole
    elif name.endswith("attn.c_attn"):
        for n, leaf in enumerate("qkv"):
            yield f"h{_number(name)}/attn/{leaf}", "third", lambda x, n=n: np.split(x, 3, -1)[n]
    elif name.startswith("past_key_values"):
        for n, leaf in enumerate("kv"):
            yield f"h{_number(name)}/attn/{leaf}", "hf", lambda x, n=n: x[n]


def _number(name: str) -> int:
    return int(re.search(r"[0-9]+", name)[0])


def _norm(name: str) -> str:
    return "ln_f" if name.startswith("ln_final") else f"h{_number(name)}/ln_{2 if '.ln2.' in name else 1}"


def _stacked_names(entries: Mapping[str, Entry]) -> list[str]:
    """What an array that holds a whole tuple speaks of."""
    last = {"hidden_states": 1, "attentions": 1, "past_key_values": 1}
    found = {name: entry.shape[0] - 1 for name, entry in entries.items() if name in last and entry.shape}
    return [f"{name}[{n}]" for name, n in found.items() if n >= 0]


def _stacked(name: str, shape: tuple[int, ...], n_layer: int) -> Iterator[tuple]:
    """Each entry of a tuple that was saved as one array."""
    expected = n_layer + (name == "hidden_states")
    if not shape or shape[0] != expected:
        raise BadInput(f"{name}: {list(shape)}, expected {expected} in front: this model has {n_layer} blocks")
    for i in range(expected):
        if name == "past_key_values":
            for n, leaf in enumerate("kv"):
                yield f"h{i}/attn/{leaf}", "hf", lambda x, i=i, n=n: x[i][n]
        else:
            tap = aliases.same("hf", n_layer)[f"{name}[{i}]"]
            yield tap, "hf", lambda x, i=i: x[i]


def _take(found: Found, path: Path, name: str, tap: str, kind: str, x: np.ndarray, dtype: str, hparams) -> None:
    if kind == "third" and hparams is None:
        raise BadInput(f"{path}: {name}: into how many heads it is to be split is not known; name the model with -m")
    if kind == "either":
        found.either[tap] = (tap, tap.replace("/norm", "/out"))
    if kind == "inverse":
        with np.errstate(all="ignore"):
            x = 1 / x
    if kind == "masked":
        x = np.where(x < -1e30, _HIDDEN, x)
    if tap in found.arrays:
        _twice(found, path, name, tap, x)
        return
    found.arrays[tap], found.dtypes[tap], found.named[tap] = x, dtype, name
    if kind in ("tl", "hf", "masked"):
        found.orders[tap] = "H T" if any(part in name for part in _HEADS_FIRST) else "T H"
    found.notes += _done(name, tap, kind)


def _done(name: str, tap: str, kind: str) -> list[str]:
    """What was done to the numbers."""
    if kind == "inverse":
        return [f"{name}: 1/x taken as {tap}"]
    if kind == "masked":
        return [f"{name}: -inf and what is below -1e30 taken as -1e10"]
    if kind == "third":
        return [f"{name}: a third of it taken as {tap}"]
    return []


def _twice(found: Found, path: Path, name: str, tap: str, x: np.ndarray) -> None:
    held = found.arrays[tap]
    if held.shape != x.shape or not np.array_equal(held, x, equal_nan=True):
        raise BadInput(f"{path}: {found.named[tap]} and {name} are both {tap}, and differ; expected one of them")
    found.notes.append(f"{name}: the same as {found.named[tap]}")


def _mapped(found: Found) -> list[str]:
    """Names of the file that are not ours, in one line."""
    other = [f"{name} -> {tap}" for tap, name in found.named.items() if name != tap]
    return [f"names: {first_five(aliases.every_layer(other))}"] * bool(other)


def _left(name: str, n_layer: int) -> str:
    """Why it is no tap, where that is known."""
    if name == "mask":
        return "mask (one that tells padding is attention_mask)"
    for spelt in aliases.spellings(name):
        for scheme in aliases.SCHEMES:
            if what := aliases.near(scheme, n_layer).get(spelt):
                return f"{printable(name)} ({what.partition(';')[0]})"
    return printable(name)
