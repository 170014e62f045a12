"""What the tests of prepared engines share: the state of an engine, and changes of its record."""

import json
from pathlib import Path

import gpt2ln
from gpt2ln.prepared import RECORD
from gpt2ln.provenance import sealed


def state(model: Path, kept: Path) -> tuple[str, str]:
    found = gpt2ln.load(model, cache_dir=kept).prepared
    return found.state, found.why


def edit(folder: Path, seal=True, **changes) -> None:
    """Change the record; None removes."""
    record = json.loads((folder / RECORD).read_text())
    record = {key: value for key, value in (record | changes).items() if value is not None}
    (folder / RECORD).write_text(json.dumps(sealed(record) if seal else record))


def unseal(folder: Path) -> None:
    record = record_of(folder)
    del record["seal"]
    (folder / RECORD).write_text(json.dumps(record))


def record_of(folder: Path) -> dict:
    return json.loads((folder / RECORD).read_text())
