"""What a dump says of itself: its format, a seal over everything it states, and what in it is not finite."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from .errors import Damaged

if TYPE_CHECKING:  # what only reads a seal does without
    import numpy as np

FORMAT = "gpt2ln dump 1"
BESIDE = ("tokens", "doc_ptr", "token_bytes", "token_ptr", "rows", "meta")  # the arrays of a dump that are no taps


def seal(record: Mapping) -> str:
    """sha256 of a manifest, its seal left out."""
    rest = {key: value for key, value in record.items() if key != "seal"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def sealed(record: Mapping) -> dict:
    return {**record, "seal": seal(record)}


def array_sha256(x: "np.ndarray") -> str:
    return hashlib.sha256(memoryview(x).cast("B") if x.size else b"").hexdigest()


class Counts:
    """Values that are not finite, by tap, and the documents whose forward pass was not.  Any thread may add."""

    def __init__(self):
        self.taps: dict[str, int] = {}
        self._documents: set[int] = set()
        self._lock = Lock()

    def add(self, document: int, taps: "Mapping[str, np.ndarray]", finite: bool, dtype: str) -> None:
        if finite and dtype == "float32":
            return
        import numpy as np

        with np.errstate(over="ignore"):
            bad = {name: int(np.count_nonzero(~np.isfinite(x.astype(dtype, copy=False)))) for name, x in taps.items()}
        with self._lock:
            self._documents |= set() if finite else {document}
            self.taps = total([self.taps, {name: count for name, count in bad.items() if count}])

    @property
    def documents(self) -> list[int]:
        return sorted(self._documents)

    def record(self) -> dict:
        return {"nonfinite": dict(sorted(self.taps.items())), "nonfinite_documents": self.documents}


def read_sealed(path: Path, *, next_step: str) -> dict:
    """A JSON object, its seal checked where it has one.  Damaged when it is not what was written."""
    try:
        record = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as cause:  # brackets without end
        raise Damaged(f"{path}: not JSON ({cause}); {next_step}") from None
    if not isinstance(record, dict):
        raise Damaged(f"{path}: JSON, but no object; {next_step}")
    if "seal" in record and record["seal"] != seal(record):
        raise Damaged(f"{path}: was changed after it was sealed; {next_step}")
    return record


def total(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    out: dict[str, int] = {}
    for part in counts:
        for name, count in part.items():
            out[name] = out.get(name, 0) + count
    return out
