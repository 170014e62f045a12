#!/usr/bin/env python
"""What trust costs: verify, inspect, diff, export and import, as whole processes, against reading the file once.

Tasks take turns, round by round, so that a slow minute of the machine hits all of them; figures are medians, ratios
are of the same round.  *Cold*: the pages of the data file are dropped first, so that it comes from the disk.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench import made, options, show, write
from bench_cold import READ, drop, run

from gpt2ln.checkpoint import Entry
from gpt2ln.official import index_bytes
from gpt2ln.spec import RELEASED, variables

HERE = Path(__file__).parent
DATA = "model.ckpt.data-00000-of-00001"


def gpt2ln(*argv: str) -> list[str]:
    return [sys.executable, "-m", "gpt2ln", "-q", *argv]


def listing_of(name: str, folder: Path) -> str:
    """A released model's index without its data: enough for a list."""
    at, entries = 0, []
    for variable, shape in sorted(variables(RELEASED[name]).items()):
        size = 4
        for axis in shape:
            size *= axis
        entries.append(Entry(variable, "float32", shape, 0, at, size, 1))
        at += size
    folder.mkdir()
    (folder / "model.ckpt.index").write_bytes(index_bytes(entries))
    return str(folder)


def tasks(model: str, pinned: str, other: str, big: str, out: Path) -> dict[str, tuple[list[str], Path | None]]:
    """Name -> command, the file to be dropped first."""
    read = [sys.executable, "-S", "-c", READ]
    data, pinned_data = Path(model) / DATA, Path(pinned) / DATA
    return {
        "read the data once, cold": ([*read, str(data)], data),
        "verify: every CRC32C, cold": (gpt2ln("verify", model), data),
        "verify with pins: sha256 as well, cold": (gpt2ln("verify", pinned), pinned_data),
        "read the data once, warm": ([*read, str(data)], None),
        "verify: every CRC32C, warm": (gpt2ln("verify", model), None),
        "verify with pins: sha256 as well, warm": (gpt2ln("verify", pinned), None),
        "sha256sum, warm": (["sha256sum", str(data)], None),
        "inspect, 1558M": (gpt2ln("-m", big, "inspect"), None),
        "inspect -l --json, 1558M": (gpt2ln("-m", big, "inspect", "-l", "--json"), None),
        "diff, from the indexes": (gpt2ln("diff", model, other), None),
        "diff --values": (gpt2ln("diff", model, other, "--values"), None),
        "export": (gpt2ln("-m", model, "export", str(out), "--force"), None),
        "import": (gpt2ln("import", str(out), "-o", str(out) + ".back", "--force"), None),
    }


def measure(model: str, rounds: int) -> dict:
    """Seconds and peak bytes of every task, round by round after one that does not count."""
    seconds, peaks = {}, {}
    with tempfile.TemporaryDirectory(dir=".") as parent:
        here = Path(parent)
        pinned, other = str(here / "pinned"), str(here / "other")
        shutil.copytree(model, pinned)
        subprocess.run(gpt2ln("verify", pinned, "--pin"), check=True, stdout=subprocess.DEVNULL)
        shutil.copytree(model, other)
        with (Path(other) / DATA).open("r+b") as file:  # other values, and an index that says so
            file.write(b"\x00\x00\x80\x3f" * 64)
        apart = f"from pathlib import Path; from bench_files import resealed; resealed(Path({other!r}))"
        # in a process of its own: what this one maps would count as memory of those that it starts
        subprocess.run([sys.executable, "-c", apart], check=True, env=os.environ | {"PYTHONPATH": str(HERE)})
        every = tasks(model, pinned, other, listing_of("1558M", here / "1558M"), here / "out")
        for number in range(rounds + 1):
            for task, (command, dropped) in every.items():
                if dropped:
                    drop(dropped)
                took, peak = run(command, (0, 1) if "diff" in task else (0,))
                peaks[task] = max(peak, peaks.get(task, 0))
                if number:
                    seconds.setdefault(task, []).append(took)
                print(f"round {number} {task}: {took:.3f} s", file=sys.stderr)
    return {"seconds": seconds, "peak_bytes": peaks, "bytes": (Path(model) / DATA).stat().st_size}


def resealed(folder: Path) -> None:
    """Write the index of changed data anew."""
    from dataclasses import replace

    from gpt2ln.checkpoint import read_index
    from gpt2ln.table import crc32c

    bundle = read_index(folder / "model.ckpt")
    entries = [replace(e, crc=crc32c(bundle.raw(e))) for e in bundle.entries.values()]
    (folder / "model.ckpt.index").write_bytes(index_bytes(entries))


def table(found: dict) -> list[tuple[str, ...]]:
    rows, seconds = [], found["seconds"]
    for task, took in seconds.items():
        base = next((f"read the data once, {how}" for how in ("cold", "warm") if task.endswith(how)), None)
        ratio = ""
        if base and base != task:
            ratio = f"{statistics.median(a / b for a, b in zip(took, seconds[base], strict=True)):.2f}x of reading it"
        peak = f"{found['peak_bytes'][task] / 1e6:.0f} MB"
        rows.append((task, f"{statistics.median(took):.3f} s", f"{min(took):.3f}-{max(took):.3f} s", peak, ratio))
    return rows


def main() -> None:
    parser = options("bench_files.json")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    found = measure(made(args.model), args.rounds)
    show([("", "median", "range", "peak memory", "ratio"), *table(found)])
    write(args.output, found, ("numpy", "google-crc32c"))


if __name__ == "__main__":
    main()
