#!/usr/bin/env python
"""Whole processes: from the command to the first token and to the last, with the files in memory or dropped from it.

`python scripts/bench_cold.py FOLDER` opens the prepared engine and writes the seconds that takes.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench_formats import FAST, kept
from bench_peers import PEERS, THREADS
from bench_systems import ASLEEP, EXACT, env

HERE = Path(__file__).parent
READ = """
import sys
block = bytearray(1 << 22)
for name in sys.argv[1:]:
    file = open(name, "rb", 0)
    while file.readinto(block): pass
"""
BIG = "1558M"
BIG_TOKENS = 20


def drop(path: Path) -> None:
    """Forget the pages of a file, so that reading it goes to the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def run(command: list[str], statuses: tuple[int, ...] = (0,), stdout=subprocess.DEVNULL) -> tuple[float, int]:
    """-> seconds of a whole process, its peak resident bytes"""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=stdout, env=env())
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in statuses:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return seconds, used.ru_maxrss * 1024


def gpt2ln(folder: str, *argv: str) -> list[str]:
    kept_at = ["--cache-dir", str(kept(folder, FAST))]
    return [sys.executable, "-m", "gpt2ln", "-q", "-m", folder, "--threads", str(THREADS), *kept_at, *argv]


def command(system: str, folder: str, ids: list[int], new: int) -> list[str]:
    """Continue `ids` by `new` tokens and write them, as one JSON line with `tokens`."""
    if system in PEERS:
        return [sys.executable, str(HERE / "bench_peers.py"), system, folder, str(new), json.dumps(ids)]
    engine = {EXACT: "exact", FAST: "fast"}[system]
    asked = ["--ids", " ".join(map(str, ids)), "--length", str(new), "--greedy", "--format", "jsonl"]
    return gpt2ln(folder, "generate", "--engine", engine, *asked)


def cold(system: str, folder: str, ids: list[int], new: int) -> dict:
    """-> seconds, peak bytes, tokens of a whole process"""
    time.sleep(ASLEEP)
    with tempfile.TemporaryFile() as out:
        seconds, peak = run(command(system, folder, ids, new), stdout=out)
        out.seek(0)
        found = next(line for line in out if line.startswith(b"{"))  # others talk on stdout too
    return {"seconds": seconds, "peak": peak, "ids": [json.loads(found)["tokens"]]}


def large(folder: str, ids: list[int], rounds: int) -> dict[str, dict]:
    """Rows of the largest shape: prepared once; read, loaded and run, once from the disk and `rounds` times after."""
    out = kept(folder, FAST)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    rows: dict[str, dict] = {}

    def add(row: str, unit: str, system: str, value: float) -> None:
        rows.setdefault(f"{BIG}: {row}", {"unit": unit, "values": {}})["values"].setdefault(system, []).append(value)
        print(f"{BIG}: {row}, {system}: {value:.4g} {unit}", file=sys.stderr)

    seconds, peak = run(gpt2ln(folder, "prepare"))
    add("prepare", "s", FAST, seconds)
    add("prepare, peak memory", "bytes", FAST, peak)
    files = [str(path) for path in sorted(out.rglob("*.tflite"))]
    for where in ("from the disk", *["from memory"] * rounds):
        for row, system, argv in (
            ("read the files once", "reading", [sys.executable, "-S", "-c", READ, *files]),
            ("load", FAST, [sys.executable, str(HERE / "bench_cold.py"), folder]),
        ):
            for file in files if where == "from the disk" else ():
                drop(Path(file))
            add(f"{row}, {where}", "s", system, _seconds(argv) if system == FAST else run(argv)[0])
    took = cold(FAST, folder, ids, BIG_TOKENS)
    add(f"{BIG_TOKENS} tokens, whole process", "s", FAST, took["seconds"])
    add(f"{BIG_TOKENS} tokens, peak memory", "bytes", FAST, took["peak"])
    return rows


def _seconds(argv: list[str]) -> float:
    return json.loads(subprocess.run(argv, stdout=subprocess.PIPE, check=True, env=env()).stdout)["load_s"]


def load(folder: str) -> None:
    began = time.perf_counter()
    import gpt2ln

    model = gpt2ln.load(folder, threads=THREADS, engine="fast", cache_dir=kept(folder, FAST))
    _ = model.engine
    print(json.dumps({"load_s": time.perf_counter() - began}))


if __name__ == "__main__":
    load(sys.argv[1])
