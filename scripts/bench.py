#!/usr/bin/env python
"""Generation by ours, `exact` and prepared, and by its peers, in one run, on the same weights.

Each system is one process with the model loaded.  They take turns, task by task and round by round, so that a slow
minute of the machine hits all; figures are medians over rounds, and what counts is the ratio.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from bench_cold import BIG, cold, large
from bench_formats import FAST, PACKAGES, convert, missing, prepare, versions
from bench_peers import THREADS
from bench_report import (
    BATCH,
    COLD_PEAK,
    EARLY,
    FILE,
    FIRST,
    FORTY,
    LOADED,
    LOOKUP,
    PEAK,
    REPEATED,
    WEIGHTS,
    judged,
    late,
    ln_stats,
    markdown,
    picture,
    prefill,
    remarks,
    table,
    verdicts,
)  # fmt: skip
from bench_systems import EXACT, Process

HERE = Path(__file__).parent
OUR_PACKAGES = ("tensorflow", "ai-edge-litert", "numpy")
SHORTEST = 256  # positions: what the tasks take


def text(n: int, n_vocab: int, *, seed: int = 9) -> list[int]:
    """Ids drawn alike; the last of the vocabulary, `<|endoftext|>`, is never among them."""
    import numpy as np

    return np.random.default_rng(seed).integers(0, n_vocab - 1, n).tolist()


@dataclass(frozen=True)
class Task:
    """A call that systems answer, of which seconds a token come."""

    row: str
    call: tuple
    only: str | None = None  # by this system alone


def tasks(n_ctx: int, n_vocab: int) -> list[Task]:
    def ids(n: int, **more) -> list[int]:
        return text(n, n_vocab, **more)

    repeated = ids(16, seed=10) * 8
    return [
        Task(EARLY, ("decode", ids(32), 128)),
        Task(late(n_ctx), ("decode", ids(n_ctx - 124), 120)),
        Task(prefill(n_ctx), ("prefill", ids(n_ctx - 1))),
        Task(BATCH, ("batch", [ids(32, seed=20 + i) for i in range(8)], 64)),
        Task(REPEATED, ("decode", repeated, 128), only=FAST),
        Task(LOOKUP, ("lookup", repeated, 128), only=FAST),
        Task(ln_stats(n_ctx), ("ln_stats", [ids(n_ctx - 1)]), only=EXACT),
    ]


class Found:
    """Values by row and system, round by round."""

    def __init__(self):
        self.rows, self.ids, self.speculation, self.load_average = {}, {}, None, []

    def add(self, row: str, unit: str, system: str, value: float) -> None:
        self.rows.setdefault(row, {"unit": unit, "values": {}})["values"].setdefault(system, []).append(value)
        self.load_average.append(os.getloadavg()[0])

    def greedy(self) -> dict:
        """For each row and system: how many ids come before the first that is not exact's, of how many."""
        found = {}
        for row, systems in self.ids.items():
            expected = systems.get(EXACT) or self.ids[REPEATED][FAST]
            found[row] = {
                name: [sum(map(before_apart, ids, expected)), sum(map(len, expected))]
                for name, ids in systems.items()
                if ids is not expected
            }
        return found


def before_apart(ids: list[int], expected: list[int]) -> int:
    same = [a == b for a, b in zip(ids, expected, strict=True)]
    return same.index(False) if False in same else len(same)


def turns(found: Found, folder: str, systems: list[str], rounds: int, every: list[Task]) -> None:
    """Every task by every system, `rounds` times in turn after one round that does not count."""
    processes, peaks = {name: Process(name, folder) for name in systems}, {}
    for number in range(rounds + 1):
        for task in every:
            for name in [name for name in systems if task.only in (None, name)]:
                reply = processes[name].ask(*task.call)
                print(f"round {number} {task.row} {name}: {1 / reply['seconds']:.1f} tokens/s", file=sys.stderr)
                peaks[name] = reply["peak"]
                if reply["ids"]:
                    found.ids.setdefault(task.row, {})[name] = reply["ids"]
                if "speculation" in reply:
                    found.speculation = reply["speculation"]
                if number:
                    found.add(task.row, "tokens/s", name, 1 / reply["seconds"])
    for name, process in processes.items():
        found.add(PEAK, "bytes", name, peaks[name])
        found.add(LOADED, "s", name, process.load_s)
        process.end()


def starts(found: Found, folder: str, systems: list[str], rounds: int, ids: list[int]) -> None:
    """Whole processes in turn, after one round that does not count."""
    for number in range(rounds + 1):
        for row, new in ((FIRST, 1), (FORTY, 40)):
            for name in systems:
                took = cold(name, folder, ids, new)
                print(f"round {number} {row} {name}: {took['seconds']:.2f} s", file=sys.stderr)
                found.ids.setdefault(row, {})[name] = took["ids"]
                if number:
                    found.add(row, "s", name, took["seconds"])
                if number and new == 40:
                    found.add(COLD_PEAK, "bytes", name, took["peak"])


def chosen(folder: str, peers: list[str]) -> tuple[list[str], dict[str, list[str]], dict | None]:
    """Ours and the peers that are here, their models made -> systems, what others lack, what `prepare` recorded."""
    left_out = {peer: lack for peer in peers if (lack := missing(peer))}
    for peer, lack in left_out.items():
        print(f"{peer} is left out: not installed ({', '.join(lack)})", file=sys.stderr)
    there = [peer for peer in peers if peer not in left_out]
    for peer in there:
        convert(folder, peer)
    record = prepare(folder)
    return [EXACT, *([FAST] if record else []), *there], left_out, record


def measure(folder: str, peers: list[str], rounds: int) -> dict:
    hparams = json.loads((Path(folder) / "hparams.json").read_text())
    if hparams["n_ctx"] < SHORTEST:
        raise SystemExit(f"{folder}: context {hparams['n_ctx']}, expected {SHORTEST} or more")
    systems, left_out, record = chosen(folder, peers)
    found = Found()
    turns(found, folder, systems, rounds, tasks(hparams["n_ctx"], hparams["n_vocab"]))
    starts(found, folder, systems, rounds, text(32, hparams["n_vocab"]))
    found.add(WEIGHTS, "bytes", FILE, weight_bytes(folder))
    return {
        "rounds": rounds,
        "shape": hparams,
        "systems": systems,
        "left_out": left_out,
        "rows": found.rows,
        "greedy": found.greedy(),
        "speculation": found.speculation,
        "distance": record["distance"] if record else None,
        "load_average": found.load_average,
    }


def weight_bytes(folder: str) -> int:
    return sum(path.stat().st_size for path in Path(folder).glob("*.data-*"))


def options(output: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(sys.modules["__main__"].__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="models/made-up-124M", help="made anew when it is not there")
    parser.add_argument("-o", "--output", default=output)
    return parser


def made(folder: str, shape: str = "124M") -> str:
    if not Path(folder).exists():
        subprocess.run([sys.executable, str(HERE / "make_checkpoint.py"), shape, folder], check=True)
    return folder


def show(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())


def processor() -> str:
    found = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return found[0].split(":")[1].strip() if found else platform.machine()


def write(path: str, found: dict, packages: tuple[str, ...]) -> None:
    Path(path).write_text(json.dumps(here() | found | {"versions": versions(packages)}, indent=1) + "\n")


def here() -> dict:
    """The date and the machine."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    machine = {"processor": processor(), "cores": os.cpu_count(), "memory_bytes": memory, "threads": THREADS}
    return {"date": datetime.now(timezone.utc).isoformat(timespec="seconds"), "machine": machine}


def main() -> None:
    parser = options("benchmarks.json")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", default=",".join(PACKAGES), help="which, with commas between  [%(default)s]")
    parser.add_argument("--large", action="store_true", help=f"also the {BIG} shape: 12.5 GB of disk")
    parser.add_argument("--readme", action="store_true", help="print the tables as markdown")
    args = parser.parse_args()
    peers = [peer for peer in args.peers.split(",") if peer]
    if args.rounds < 1 or set(peers) - set(PACKAGES):
        parser.error(f"--rounds {args.rounds}, --peers {args.peers}: expected 1 or more, and of {', '.join(PACKAGES)}")
    if Path(args.output).suffix != ".json" or not Path(args.output).absolute().parent.is_dir():
        parser.error(f"-o {args.output}: expected a name in .json, in a folder that is there")
    found = here() | measure(made(args.model), peers, args.rounds)
    if args.large:
        write(args.output, found, ())  # what comes next takes long, and a lot of disk
        big = made(f"models/made-up-{BIG}", BIG)
        found["rows"] |= large(big, text(32, 50257), args.rounds)
    report(found, args.output, readme=args.readme)


def report(found: dict, output: str, *, readme: bool) -> None:
    found["targets"] = judged(found)
    write(output, found, (*OUR_PACKAGES, *dict.fromkeys(name for names in PACKAGES.values() for name in names)))
    picture(found).savefig(Path(output).with_suffix(".png"), dpi=130)
    if readme:
        print(markdown(found))
    else:
        show(list(table(found)))
        print()
        show(list(verdicts(found)))
    print(*remarks(found), sep="\n")


if __name__ == "__main__":
    main()
