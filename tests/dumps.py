"""Dumps for tests: plans and rows that need no model, and readers that are not our own."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from gpt2ln.folder import Folder
from gpt2ln.plan import Plan, Positions
from gpt2ln.prompt import Prompt
from gpt2ln.taps import Tap

TAPS = (Tap("h0/ln_1/mean", (1,)), Tap("h0/attn/probs", (2, "T")), Tap("h0/out", (8,)))
BESIDE = {"tokens", "doc_ptr", "token_bytes", "token_ptr", "rows", "meta"}


def spell(i: int) -> bytes:
    """As many bytes as the last digit of the id says, so that none is taken for another."""
    return bytes([i % 256]) * (i % 10)


def plan_of(lengths: Iterable[int], positions: str = "all", dtype: str = "float32", taps: Sequence[Tap] = TAPS) -> Plan:
    """Documents of these lengths; ids rise through all of them."""
    documents, at = [], 0
    for n, length in enumerate(lengths):
        documents.append(Prompt(tuple(range(at, at + length)), None, f"doc {n}"))
        at += length
    return Plan(tuple(taps), tuple(documents), spell, Positions(positions), dtype)


def rows_of(plan: Plan, document: int) -> dict[str, np.ndarray]:
    """Numbers that no other document, tap or row has."""
    n = len(plan.rows[document])
    draw = np.random.default_rng(document).normal
    return {tap.name: draw(0, 1, (n, *plan.shape(tap))).astype("f4") for tap in plan.taps}


def fill(sink, *, groups: int | None = None, piece: int = 3) -> None:
    """Write what a sink still lacks, a few rows at a time, last document of a group first."""
    for group in list(sink.pending())[:groups]:
        sink.begin(group)
        for n in reversed(group):
            taps = rows_of(sink.plan, n)
            for row in range(0, len(sink.plan.rows[n]), piece):
                sink.write(n, row, {name: x[row : row + piece] for name, x in taps.items()}, True)
        sink.end(group)


def expected(plan: Plan) -> dict[str, np.ndarray]:
    """The taps that a dump filled by `fill` holds."""
    parts = [rows_of(plan, n) for n in range(len(plan.documents))]
    return {tap.name: np.concatenate([p[tap.name] for p in parts]).astype(plan.dtype) for tap in plan.taps}


LENGTHS = [3, 1, 7, 2, 2, 5]
LIMIT = 400  # bytes: five shards
STATED = {"model": {"index_sha256": "0" * 64}, "threads": 2, "command": ["gpt2ln", "dump"]}


def begin(path, *, lengths=LENGTHS, limit=LIMIT, resume=False, force=False, stated=STATED, **plan) -> Folder:
    return Folder(path, plan_of(lengths, **plan), stated, limit=limit, resume=resume, force=force)


def whole(path, **settings) -> Folder:
    folder = begin(path, **settings)
    fill(folder)
    folder.finish()
    return folder


def refuse_constant(name: str):
    raise ValueError(f"{name} is no JSON")


def strict(text: str):
    """JSON as other languages read it: without NaN."""
    return json.loads(text, parse_constant=refuse_constant)


def manifest(folder: Path) -> dict:
    return strict((folder / "manifest.json").read_text(encoding="utf-8"))


def read_folder(folder: Path) -> dict[str, np.ndarray]:
    """Taps, and the tokens, of all shards, one after the other."""
    parts = [load_file(folder / entry["file"]) for entry in manifest(folder)["shards"]]
    names = [name for name in parts[0] if name == "tokens" or name not in BESIDE]
    return {name: np.concatenate([part[name] for part in parts]) for name in names}


def read_npz(path: Path) -> tuple[dict, dict[str, np.ndarray]]:
    """-> meta, arrays"""
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return strict(str(arrays.pop("meta"))), arrays


def read_lines(text: str) -> tuple[dict, list[dict], dict]:
    """-> meta, an object a row, summary"""
    first, *rows, last = map(strict, text.splitlines())
    return first["meta"], rows, last["summary"]


def equal(ours: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    """The same names, types, shapes and bits; NaN is equal to itself."""
    assert list(ours) == list(right)
    for name, x in right.items():
        assert (ours[name].dtype, ours[name].shape) == (x.dtype, x.shape), name
        np.testing.assert_array_equal(ours[name].view(np.uint8), x.view(np.uint8), err_msg=name)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def here() -> list[str]:
    return names(Path())
