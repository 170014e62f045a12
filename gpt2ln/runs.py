"""Statistics of a run as a file that merges: `ln-stats -o run.json`, `ln-stats --merge a.json b.json`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .errors import BadInput, in_short
from .provenance import read_sealed, sealed
from .stats import LnStats
from .summary import Gains

FORMAT = "gpt2ln ln-stats 1"
# What must be equal for two runs to be parts of one: the numbers would not mean the same otherwise.
_SAME = ("formulas_version", "model", "tokenizer_sha256")


@dataclass(frozen=True)
class Run:
    """provenance: what the numbers depend on.  documents: digests of the token ids that were read."""

    provenance: Mapping
    stats: LnStats
    gains: Gains
    documents: Sequence[str]

    def record(self) -> dict:
        gains = {
            norm: {k: np.asarray(v, np.float64).tolist() for k, v in pair.items()} for norm, pair in self.gains.items()
        }
        return sealed(
            {"format": FORMAT, **self.provenance, "documents_sha256": list(self.documents)}
            | {"gains": gains, "stats": self.stats.record()}
        )

    @classmethod
    def read(cls, path: Path) -> "Run":
        record = read_sealed(path, next_step="make it again with ln-stats -o")
        if record.get("format") != FORMAT or "seal" not in record:
            raise BadInput(f"{path}: format {record.get('format')!r}, expected {FORMAT!r}, as ln-stats -o writes it")
        try:
            stats = LnStats.of(record["stats"])
            given = record["gains"]
            gains = {n: {k: np.array(given[n][k], float).reshape(stats.width) for k in "gb"} for n in stats.norms}
            documents = list(record["documents_sha256"])
        except (KeyError, OverflowError, TypeError, ValueError) as cause:
            raise BadInput(f"{path}: not what ln-stats -o writes ({cause!r}); make it again with ln-stats -o") from None
        rest = {k: v for k, v in record.items() if k not in ("format", "stats", "gains", "documents_sha256", "seal")}
        return cls(rest, stats, gains, documents)


def merge(runs: Sequence[Run], names: Sequence[str]) -> tuple[Run, list[str]]:
    """The run over all of their documents, and remarks.  BadInput where they are not parts of one."""
    first, notes = runs[0], []
    seen: dict[str, str] = {}
    stats, documents, commands = first.stats, [], []
    for run, name in zip(runs, names, strict=True):
        for key in _SAME:
            if (was := first.provenance.get(key)) != (now := run.provenance.get(key)):
                was, now = in_short(was), in_short(now)
                raise BadInput(f"{name}: {key} is {now}, in {names[0]} {was}; runs of one model merge")
        for key in sorted({*first.provenance, *run.provenance} - {*_SAME, "command"}):
            if (was := first.provenance.get(key)) != (now := run.provenance.get(key)):
                notes.append(f"note: {key} is {in_short(now)} in {name}, {in_short(was)} in {names[0]}")
        if twice := next((d for d in run.documents if d in seen), None):
            notes.append(f"warning: {name} holds documents that {seen[twice]} holds too; they count twice")
        seen |= dict.fromkeys(run.documents, name)
        documents += run.documents
        commands.append(run.provenance.get("command"))
        stats = stats if run is first else stats + run.stats
    return Run({**first.provenance, "command": commands}, stats, first.gains, documents), notes
