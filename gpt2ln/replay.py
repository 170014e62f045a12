"""A dump read back: its documents, and the `mean` and `rstd` of each norm that a rerun is to use in place of its own.

Frozen statistics make every norm linear in its input, which attribution and patching need.  Given its own statistics
a run repeats itself bit for bit.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from .errors import BadInput, Damaged, NotFound
from .prompt import Prompt
from .provenance import FORMAT, read_sealed, seal
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
        norms = norm_scopes(hparams)
        for ids, taps in documents(path):
            self.documents.append(Prompt(tuple(ids)))
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


def documents(path: Path) -> Iterator[tuple[list[int], dict[str, np.ndarray]]]:
    """Token ids and taps [rows, ...] of each document of a dump, folder or npz.  Damaged, or BadInput for no dump."""
    for arrays in _files(path):
        taps = {name: x for name, x in arrays.items() if name not in _BESIDE}
        starts = arrays["doc_ptr"]
        if "rows" in arrays:
            raise BadInput(f"{path}: holds some positions alone; {_ANEW} --positions all")
        for first, last in pairwise(starts.tolist()):
            yield arrays["tokens"][first:last].tolist(), {name: x[first:last] for name, x in taps.items()}


_BESIDE = ("tokens", "doc_ptr", "token_bytes", "token_ptr", "rows", "meta")


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
    with _npz(path) as arrays:
        if "meta" not in arrays:
            raise BadInput(f"{path}: has no meta; expected an npz that dump wrote")
        record = json.loads(str(arrays["meta"]))
    if record.get("seal") != seal(record):
        raise Damaged(f"{path}: its meta was changed after it was sealed; {_ANEW}")
    return record


def _npz(path: Path):
    try:
        return np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise NotFound(f"{path.absolute()}: no such dump") from None
    except (ValueError, EOFError, OSError) as cause:
        raise Damaged(f"{path}: cannot be read as npz ({str(cause).splitlines()[0]}); {_ANEW}") from None


def _files(path: Path) -> Iterator[Mapping[str, np.ndarray]]:
    record = meta(path)
    if not path.is_dir():
        with _npz(path) as arrays:
            yield {name: arrays[name] for name in arrays.files}
        return
    from safetensors.numpy import load_file

    for entry in record["shards"]:
        try:
            yield load_file(path / entry["file"])
        except Exception as cause:  # the library's errors have no common class
            raise Damaged(f"{path / entry['file']}: {cause}; {_ANEW}") from None


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
