#!/usr/bin/env python
"""What watching costs: statistics and dumps against the plain forward pass, and against TransformerLens.

Texts come in blocks; each block is read by every task in turn, so that a slow minute of the machine hits all of them.
Ratios are of whole runs.  Memory is that of `gpt2ln dump` as a process of its own, over few texts and over all.
"""

import json
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from bench import made, options, show, write
from bench_formats import convert
from bench_systems import THREADS, Process

FORWARD, TASKS = "plain forward pass", {
    "plain forward pass": ("gpt2ln exact", "forward"),
    "ln-stats": ("gpt2ln exact", "ln_stats"),
    "dump --taps @ln-stats": ("gpt2ln exact", "dump", "@ln-stats"),
    "dump --taps @resid": ("gpt2ln exact", "dump", "@resid"),
    "TransformerLens run_with_cache, @resid": ("TransformerLens", "cached"),
}  # fmt: skip
FEW, BLOCK = 20, 10


def text(n: int, tokens: int) -> list[int]:
    import numpy as np

    return np.random.default_rng(n).integers(0, 50000, tokens).tolist()


def measure(folder: str, documents: int, tokens: int) -> dict:
    """Seconds a token of each task, block by block."""
    systems = {system for system, *_ in TASKS.values()}
    if find_spec("transformer_lens") is None:
        print("transformer-lens is not installed: its row is left out", file=sys.stderr)
        systems.discard("TransformerLens")
    else:
        convert(folder, "transformers")
    processes = {name: Process(name, folder) for name in sorted(systems)}
    tasks = {task: call for task, call in TASKS.items() if call[0] in processes}
    seconds = {task: [] for task in tasks}
    for first in range(-BLOCK, documents, BLOCK):  # the first block warms up and does not count
        block = [text(n, tokens) for n in range(max(first, 0), min(max(first, 0) + BLOCK, documents))]
        for task, (system, method, *arguments) in tasks.items():
            reply = processes[system].ask(method, block, *arguments)
            if first >= 0:
                seconds[task] += [reply["seconds"]] * len(block)
            print(f"texts from {first} {task}: {1 / reply['seconds']:.0f} tokens/s", file=sys.stderr)
    return {"seconds_a_token": {task: sum(s) / len(s) for task, s in seconds.items()}, "texts": documents}


def memory(folder: str, documents: int, tokens: int) -> int:
    """Peak resident bytes of `gpt2ln dump --taps @resid` over that many texts."""
    with tempfile.TemporaryDirectory(dir=".") as parent:
        texts = Path(parent) / "texts.jsonl"
        texts.write_text("".join(json.dumps({"tokens": text(n, tokens)}) + "\n" for n in range(documents)))
        command = [sys.executable, "-m", "gpt2ln", "-m", folder, "--threads", str(THREADS), "-q", "dump"]
        command += ["--jsonl", str(texts), "--taps", "@resid", "-o", str(Path(parent) / "dump")]
        process = subprocess.Popen(command)
        _, status, used = os.wait4(process.pid, 0)
        if status:
            raise SystemExit("dump failed; its error is above")
    return used.ru_maxrss * 1024


def table(found: dict) -> list[tuple[str, str, str]]:
    speed = found["seconds_a_token"]
    rows = []
    for task, seconds in speed.items():
        if task.startswith("TransformerLens"):
            ratio = f"{seconds / speed['dump --taps @resid']:.2f}x the time of dump --taps @resid"
        else:
            ratio = f"{seconds / speed[FORWARD]:.3f}x the time of the plain pass"
        rows.append((task, f"{1 / seconds:.0f} tokens/s", ratio))
    for n, peak in found["peak_bytes"].items():
        rows.append((f"peak memory, dump @resid, {n} texts", f"{peak / 1e9:.3f} GB", ""))
    return rows


def main() -> None:
    parser = options("bench_watch.json")
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=512)
    args = parser.parse_args()
    folder = made(args.model)
    found = {"peak_bytes": {n: memory(folder, n, args.tokens) for n in (FEW, args.texts)}}
    found |= measure(folder, args.texts, args.tokens)
    show([("", "speed", "ratio"), *table(found)])
    write(args.output, found, ("tensorflow", "torch", "transformers", "numpy"))


if __name__ == "__main__":
    main()
