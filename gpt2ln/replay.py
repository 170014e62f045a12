"""A dump read back: its documents, and the `mean` and `rstd` of each norm that a rerun is to use in place of its own.

Frozen statistics make every norm linear in its input, which attribution and patching need.  Given its own statistics
a run repeats itself bit for bit.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from .disk import sha256
from .errors import BadInput, Damaged, NotFound
from .prompt import Prompt
from .provenance import BESIDE, FORMAT, array_sha256, read_sealed, seal
from .spec import HParams
from .taps import norm_scopes

FROZEN = ("mean", "rstd")
_ANEW = "make it again with dump"


class Replay:
    """A dump, whole and with every position; called with the number of a document, the statistics to freeze there.

    BadInput for what is no such dump or has no `mean` and `rstd` of a norm of this model, Damaged for a broken one.
    """

    def __init__(self, path: Path, hparams: HParams):
        self.path, self.documents, self._frozen = path, [], []
        record = meta(path)
        self.seal, self.index_sha256 = record["seal"], record["model"]["index_sha256"]
        self.prefix_token, self.dtype = record["prefix_token"], record["dtype"]
        norms = norm_scopes(hparams)
        for stated, (ids, taps) in zip(record["documents"], documents(path, leaves=FROZEN), strict=True):
            self.documents.append(Prompt(tuple(ids), None, stated["id"]))
            try:
                self._frozen.append(frozen_from(taps, len(ids), norms))
            except BadInput as cause:
                raise BadInput(f"{path}: {cause}") from None

    def __call__(self, document: int) -> dict[str, np.ndarray]:
        return self._frozen[document]

    def check_lengths(self, lengths: Sequence[int]) -> None:
        """The texts must be as long as those of the dump: statistics go by position."""
        held = [len(document.ids) for document in self.documents]
        if list(lengths) != held:
            raise BadInput(
                f"{self.path}: {len(held)} documents of {_few(held)} tokens, the texts are {len(lengths)} of"
                f" {_few(lengths)}; statistics go by position, so the lengths must be equal"
            )


def _few(lengths: Sequence[int]) -> str:
    return ", ".join(map(str, lengths[:5])) + (", ..." if len(lengths) > 5 else "")


def documents(path: Path, *, leaves: Sequence[str] | None = None) -> Iterator[tuple[list[int], dict[str, np.ndarray]]]:
    """Token ids and taps [rows, ...] of each document of a dump, folder or npz.  Damaged, or BadInput for no dump.

    leaves: taps that end so, and no others.
    """

    def kept(name: str) -> bool:
        return leaves is None or name in BESIDE or name.rsplit("/", 1)[-1] in leaves

    for where, arrays in files(path, kept):
        if missing := [name for name in ("tokens", "doc_ptr") if name not in arrays]:
            raise Damaged(f"{where}: has no {missing[0]}; {_ANEW}")
        if "rows" in arrays:
            raise BadInput(f"{path}: holds some positions alone; {_ANEW} --positions all")
        taps = {name: x for name, x in arrays.items() if name not in BESIDE}
        for first, last in pairwise(arrays["doc_ptr"].tolist()):
            yield arrays["tokens"][first:last].tolist(), {name: x[first:last] for name, x in taps.items()}


def meta(path: Path) -> dict:
    """What a dump says of itself, its seal checked."""
    if path.is_dir():
        manifest = path / "manifest.json"
        if not manifest.exists():
            begun = (path / "manifest.json.part").exists()
            raise BadInput(f"{path}: " + ("an interrupted dump; finish it with --resume" if begun else "is no dump"))
        record = read_sealed(manifest, next_step=_ANEW)
    else:
        record = _npz_meta(path)
    if record.get("format") != FORMAT or "seal" not in record:
        raise BadInput(f"{path}: format {record.get('format')!r}, expected {FORMAT!r} with its seal")
    return record


def _npz_meta(path: Path) -> dict:
    held = _npz(path, "meta".__eq__)
    try:
        record = json.loads(str(held["meta"]))
    except (KeyError, ValueError):
        raise BadInput(f"{path}: has no meta that is JSON; expected an npz that dump wrote") from None
    if not isinstance(record, dict):
        raise BadInput(f"{path}: its meta is no object; expected an npz that dump wrote")
    if record.get("seal") != seal(record):
        raise Damaged(f"{path}: its meta was changed after it was sealed; {_ANEW}")
    return record


def _npz(path: Path, kept: Callable[[str], bool]) -> dict[str, np.ndarray]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:  # numpy leaves a bad one open
            return {name: arrays[name] for name in arrays.files if kept(name)}
    except FileNotFoundError:
        raise NotFound(f"{path.absolute()}: no such dump") from None
    except Exception as cause:  # what numpy and zipfile raise has no common class
        raise Damaged(f"{path}: cannot be read as npz ({str(cause).partition(chr(10))[0]}); {_ANEW}") from None


def files(path: Path, kept: Callable[[str], bool]) -> Iterator[tuple[Path, dict[str, np.ndarray]]]:
    """Arrays file by file, each held against the digest that the seal covers."""
    record = meta(path)
    if not path.is_dir():
        arrays = _npz(path, kept)
        for name, x in arrays.items():
            if name != "meta" and record["arrays_sha256"].get(name) != array_sha256(x):
                raise Damaged(f"{path}: {name} was changed after it was sealed; {_ANEW}")
        yield path, arrays
        return
    from safetensors import safe_open

    for entry in record["shards"]:
        shard = path / entry["file"]
        try:
            if sha256(shard) != entry["sha256"]:
                raise Damaged(f"{shard}: was changed after it was sealed; {_ANEW}")
            with safe_open(shard, "numpy") as file:
                yield shard, {name: file.get_tensor(name) for name in file.keys() if kept(name)}  # noqa: SIM118
        except OSError as cause:
            raise Damaged(f"{shard}: {cause.strerror or cause}; {_ANEW}") from None


def frozen_from(taps: Mapping[str, np.ndarray], T: int, norms: Sequence[str]) -> dict[str, np.ndarray]:
    """`<norm>/mean` and `<norm>/rstd` [T, 1] of those norms that have both.  BadInput where none has, or T differs."""
    found = {}
    for norm in norms:
        names = [f"{norm}/{leaf}" for leaf in FROZEN]
        if all(name in taps for name in names):
            found |= {name: np.asarray(taps[name]) for name in names}
    if not found:
        raise BadInput(f"no norm has both its mean and its rstd, {names[0]} for one; dump them with --taps @ln-stats")
    for name, x in found.items():
        if x.shape != (T, 1) or x.dtype.kind != "f":
            raise BadInput(f"{name}: shape {list(x.shape)}, expected [{T}, 1]: a row for each token of the text")
    return found
