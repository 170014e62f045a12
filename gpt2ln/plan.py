"""What a dump will hold, decided before anything is computed: taps x documents x positions -> rows, bytes, shards.

Rows are packed `[rows, ...]`: one row a token, documents one after the other, no padding.  Attention taps are as wide
as the longest document; past the end of a shorter one stands what the official graph gives there, a masked position.
"""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np

from .errors import BadInput, UsageError
from .prompt import Prompt
from .shards import Arrays, array_bytes, file_bytes
from .taps import Tap

DTYPES = ("float32", "float16")


@dataclass(frozen=True)
class Positions:
    """`all`, `last`, `5`, `-1`, `0:16`, `:4,-4:`; counted in each document, slices as in Python."""

    text: str = "all"

    def __post_init__(self):
        for part in self._parts:
            if not re.fullmatch(r"-?[0-9]{1,9}|(-?[0-9]{1,9})?:(-?[0-9]{1,9})?", part):
                raise UsageError(f"positions {self.text!r}: {part!r} is none; expected all, last, 5, 0:16 or -4:")

    @property
    def _parts(self) -> list[str]:
        return [{"all": ":", "last": "-1"}.get(part.strip(), part.strip()) for part in self.text.split(",")]

    def of(self, T: int) -> np.ndarray:
        """Positions of a document of T tokens, rising; one that it does not have is left out."""
        chosen = np.zeros(T, bool)
        for part in self._parts:
            if ":" in part:
                chosen[slice(*(int(end) if end else None for end in part.split(":")))] = True
            elif -T <= int(part) < T:
                chosen[int(part)] = True
        return np.flatnonzero(chosen)


@dataclass(frozen=True)
class Plan:
    """documents: at least one token each.  spell: bytes of a token id."""

    taps: tuple[Tap, ...]
    documents: tuple[Prompt, ...]
    spell: Callable[[int], bytes]
    positions: Positions = Positions()
    dtype: str = "float32"

    def __post_init__(self):
        if self.dtype not in DTYPES:
            raise UsageError(f"dtype {self.dtype!r}, expected {', '.join(DTYPES)}")
        if not self.documents:
            raise BadInput("0 documents, expected at least 1")
        if not self.n_rows:
            raise BadInput(
                f"positions {self.positions.text!r}: no document has any; the longest is {self.width} tokens"
            )

    @cached_property
    def rows(self) -> list[np.ndarray]:
        """Positions kept, document by document."""
        return [self.positions.of(len(document.ids)) for document in self.documents]

    @cached_property
    def n_rows(self) -> int:
        return sum(map(len, self.rows))

    @cached_property
    def n_tokens(self) -> int:
        return sum(len(document.ids) for document in self.documents)

    @cached_property
    def width(self) -> int:
        """Tokens of the longest document: the width of attention taps."""
        return max(len(document.ids) for document in self.documents)

    def shape(self, tap: Tap) -> tuple[int, ...]:
        """Of one row."""
        return tuple(self.width if axis == "T" else axis for axis in tap.shape)

    def tokens(self, first: int, last: int) -> dict[str, np.ndarray]:
        """What stands beside the taps of documents first ... last - 1.

        `tokens` all ids, `doc_ptr` where each document begins in them, `token_bytes` and `token_ptr` their bytes;
        `rows`, unless every row is kept, says which token each row belongs to.
        """
        ids = [i for document in self.documents[first:last] for i in document.ids]
        spelt = [self.spell(i) for i in ids]
        starts = [0, *accumulate(len(document.ids) for document in self.documents[first:last])]
        beside = {
            "tokens": np.array(ids, np.int32),
            "doc_ptr": np.array(starts, np.int64),
            "token_bytes": np.frombuffer(b"".join(spelt), np.uint8),
            "token_ptr": np.array([0, *accumulate(map(len, spelt))], np.int64),
        }
        if self.n_rows < self.n_tokens:
            kept = [start + rows for start, rows in zip(starts, self.rows[first:last], strict=False)]
            beside["rows"] = np.concatenate(kept).astype(np.int64)
        return beside

    def arrays(self, first: int = 0, last: int | None = None) -> Arrays:
        """Every array of a file that holds documents first ... last - 1."""
        last = len(self.documents) if last is None else last
        n = sum(map(len, self.rows[first:last]))
        taps = {tap.name: (self.dtype, (n, *self.shape(tap))) for tap in self.taps}
        return taps | {name: (x.dtype.name, x.shape) for name, x in self.tokens(first, last).items()}

    @cached_property
    def row_bytes(self) -> int:
        """Of all taps, one row."""
        return array_bytes({tap.name: (self.dtype, self.shape(tap)) for tap in self.taps})

    @property
    def tap_bytes(self) -> int:
        return self.n_rows * self.row_bytes

    def shards(self, limit: int) -> list[tuple[int, int]]:
        """Documents first ... last - 1 of each file, cut where the taps pass `limit` bytes; a document stays whole."""
        edges, held = [0], 0
        for n, rows in enumerate(self.rows):
            size = len(rows) * self.row_bytes
            if size and held and held + size > limit:
                edges.append(n)
                held = 0
            held += size
        return list(zip(edges, [*edges[1:], len(self.documents)], strict=True))

    def file_bytes(self, limit: int) -> int:
        """Exact size of all files of a folder but its manifest."""
        return sum(file_bytes(self.arrays(*edges)) for edges in self.shards(limit))

    def record(self) -> dict:
        """The plan as JSON: two plans are the same exactly where their records are."""
        from .taps import FORMULAS_VERSION, formula

        return {
            "formulas_version": FORMULAS_VERSION,
            "dtype": self.dtype,
            "positions": self.positions.text,
            "taps": {tap.name: {"shape": list(self.shape(tap)), "what": formula(tap.name)} for tap in self.taps},
            "documents": [{"id": d.id, "tokens": len(d.ids)} for d in self.documents],
            "documents_sha256": digest_of([d.ids for d in self.documents]),
        }


def digest_of(documents: Sequence[Sequence[int]]) -> str:
    """sha256 of token ids, document by document."""
    return hashlib.sha256(json.dumps([list(ids) for ids in documents]).encode()).hexdigest()
