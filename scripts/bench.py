#!/usr/bin/env python
"""Ours against Hugging Face transformers + torch, in one run, on the same weights.

Each system is one process with the model loaded.  They take turns, task by task and round by round, so that a slow
minute of the machine hits both; figures are medians over rounds and what counts is the ratio.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
THREADS = 2
DECODE = {"decode, context 32-160": (32, 128), "decode, context 900-1020": (900, 120)}
PREFILL, LN_STATS = "prefill, 1,023 tokens", "ln-stats, 1,023 tokens"
TASKS = (*DECODE, PREFILL, LN_STATS)


def prompt(n: int) -> list[int]:
    import numpy as np

    return np.random.default_rng(9).integers(0, 50000, n).tolist()


class Ours:
    """The `exact` engine through the library."""

    def __init__(self, folder: str):
        import gpt2ln

        self.model = gpt2ln.load(folder, threads=THREADS)
        _ = self.model.engine

    def decode(self, start: int, new: int) -> dict:
        """Seconds a token of greedy decoding, prompt not counted; the ids."""
        from gpt2ln.generate import generate
        from gpt2ln.prompt import Prompt
        from gpt2ln.sample import Sampling
        from gpt2ln.settings import Settings

        settings = Settings(sampling=Sampling(temperature=0), length=new + 1)
        prompts = [Prompt(tuple(prompt(start)))]
        (sample,) = generate(self.model.engine, self.model.bpe, prompts, settings, clock=time.perf_counter)
        return {"seconds": sample.decode_s / new, "ids": sample.tokens}

    def prefill(self) -> dict:
        began = time.perf_counter()
        self.model.engine.prefill(prompt(1023))
        return {"seconds": (time.perf_counter() - began) / 1023}

    def ln_stats(self, documents: list[list[int]] | None = None) -> dict:
        from gpt2ln.observe import ln_stats

        documents = documents or [prompt(1023)]
        began = time.perf_counter()
        ln_stats(self.model.engine, documents)
        return {"seconds": (time.perf_counter() - began) / sum(map(len, documents))}

    def forward(self, documents: list[list[int]]) -> dict:
        """The plain forward pass: logits after the last token of each text, nothing watched."""
        began = time.perf_counter()
        for ids in documents:
            self.model.engine.prefill(ids)
        return {"seconds": (time.perf_counter() - began) / sum(map(len, documents))}

    def dump(self, documents: list[list[int]], spec: str) -> dict:
        """Into a folder of shards, as `dump` does; removed afterwards."""
        from gpt2ln.folder import Folder
        from gpt2ln.observe import dump
        from gpt2ln.plan import Plan
        from gpt2ln.prompt import Prompt
        from gpt2ln.taps import choose

        taps = tuple(choose(spec, self.model.hparams))
        plan = Plan(taps, tuple(Prompt(tuple(ids)) for ids in documents), self.model.bpe.token_bytes)
        with tempfile.TemporaryDirectory(dir=".") as parent:
            began = time.perf_counter()
            folder = Folder(Path(parent) / "dump", plan, {}, limit=512_000_000, resume=False, force=False)
            dump(self.model.engine, folder)
            folder.finish()
            seconds = time.perf_counter() - began
        return {"seconds": seconds / plan.n_tokens}


class Transformers:
    """`GPT2LMHeadModel`, float32, its own `generate`."""

    def __init__(self, folder: str):
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel

        from gpt2ln.checkpoint import load as arrays
        from gpt2ln.hf import to_hf
        from gpt2ln.library import load
        from gpt2ln.spec import variables

        torch.set_num_threads(THREADS)
        ours = load(folder)
        hp = ours.hparams
        config = GPT2Config(
            vocab_size=hp.n_vocab, n_positions=hp.n_ctx, n_embd=hp.n_embd, n_layer=hp.n_layer, n_head=hp.n_head
        )
        self.torch, self.model = torch, GPT2LMHeadModel(config).eval()
        state = self.model.state_dict()
        with torch.no_grad():
            for name, array in arrays(ours.bundle, variables(hp)):
                mine = state["transformer." + to_hf(name)]
                mine.copy_(torch.from_numpy(array.copy()).reshape(mine.shape))

    def _generate(self, start: int, new: int):
        ids = self.torch.tensor([prompt(start)])
        with self.torch.inference_mode():
            began = time.perf_counter()
            out = self.model.generate(
                ids, attention_mask=ids * 0 + 1, max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0
            )
        return time.perf_counter() - began, out[0, start:].tolist()

    def decode(self, start: int, new: int) -> dict:
        first, _ = self._generate(start, 1)
        whole, ids = self._generate(start, new + 1)
        return {"seconds": (whole - first) / new, "ids": ids}

    def prefill(self) -> dict:
        with self.torch.inference_mode():
            began = time.perf_counter()
            self.model(self.torch.tensor([prompt(1023)]), logits_to_keep=1)
        return {"seconds": (time.perf_counter() - began) / 1023}


class TransformerLens(Transformers):
    """`run_with_cache` of a bridge over the same model: names as `@resid` has them, kept in memory."""

    def __init__(self, folder: str):
        super().__init__(folder)
        from transformer_lens.model_bridge import TransformerBridge

        with tempfile.TemporaryDirectory() as saved:
            self.model.save_pretrained(saved)
            self.bridge = TransformerBridge.boot_transformers(saved, hf_model=self.model)

    def cached(self, documents: list[list[int]]) -> dict:
        ends = ("hook_embed", "hook_resid_pre", "hook_resid_mid", "hook_resid_post")
        began = time.perf_counter()
        with self.torch.inference_mode():
            for ids in documents:
                _, cache = self.bridge.run_with_cache(
                    self.torch.tensor([ids]), return_type=None, names_filter=lambda name: name.endswith(ends)
                )
                assert len(cache) == 1 + 3 * self.model.config.n_layer, sorted(cache)
        return {"seconds": (time.perf_counter() - began) / sum(map(len, documents))}


SYSTEMS = {"gpt2ln exact": Ours, "transformers": Transformers, "TransformerLens": TransformerLens}
PEERS = ("gpt2ln exact", "transformers")
CALLS = {task: ("decode", *numbers) for task, numbers in DECODE.items()}
CALLS |= {PREFILL: ("prefill",), LN_STATS: ("ln_stats",)}


def worker(name: str, folder: str) -> None:
    """Answer one line a call: seconds a token, ids where there are any, peak memory so far."""
    began = time.perf_counter()
    system = SYSTEMS[name](folder)
    print(json.dumps({"load_s": time.perf_counter() - began}), flush=True)
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        reply = getattr(system, method)(*arguments)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"ids": None, "peak": peak} | reply), flush=True)


class Process:
    def __init__(self, name: str, folder: str):
        command = [sys.executable, str(HERE / "bench.py"), "--worker", name, "--model", folder]
        env = os.environ | {"OMP_NUM_THREADS": str(THREADS), "HF_HUB_OFFLINE": "1"}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        self.load_s = json.loads(self._line())["load_s"]

    def _line(self) -> str:
        while line := self.process.stdout.readline():
            if line.startswith("{"):  # others talk on stdout too
                return line
        raise SystemExit("a worker ended early; its error is above")

    def ask(self, method: str, *arguments) -> dict:
        self.process.stdin.write(json.dumps([method, *arguments]) + "\n")
        self.process.stdin.flush()
        return json.loads(self._line())


def measure(folder: str, rounds: int) -> dict:
    """Every task by every system, `rounds` times in turn after one round that does not count."""
    processes = {name: Process(name, folder) for name in PEERS}
    seconds = {name: {task: [] for task in TASKS} for name in PEERS}
    ids, peaks = {}, {}
    for number in range(rounds + 1):
        for task in TASKS:
            for name, process in processes.items():
                if task == LN_STATS and name != "gpt2ln exact":
                    continue
                reply = process.ask(*CALLS[task])
                peaks[name] = reply["peak"]
                ids.setdefault(task, {})[name] = reply["ids"]
                if number:
                    seconds[name][task].append(reply["seconds"])
                print(f"round {number} {task} {name}: {1 / reply['seconds']:.1f} tokens/s", file=sys.stderr)
    return {
        "seconds_a_token": seconds,
        "same_greedy_ids": {task: ids[task]["gpt2ln exact"] == ids[task]["transformers"] for task in DECODE},
        "peak_bytes": peaks,
        "load_s": {name: process.load_s for name, process in processes.items()},
    }


def table(found: dict) -> list[tuple[str, str, str, str]]:
    """Rows: what, ours, theirs, ratio (the median of the ratios round by round)."""
    ours, theirs = (found["seconds_a_token"][name] for name in PEERS)
    rows = []
    for task in (*DECODE, PREFILL):
        ratio = statistics.median(b / a for a, b in zip(ours[task], theirs[task], strict=True))
        speeds = [f"{1 / statistics.median(s[task]):.1f} tokens/s" for s in (ours, theirs)]
        rows.append((task, *speeds, f"{ratio:.2f}x"))
    extra = statistics.median(a / b for a, b in zip(ours[LN_STATS], ours[PREFILL], strict=True))
    rows.append(
        (LN_STATS, f"{1 / statistics.median(ours[LN_STATS]):.1f} tokens/s", "-", f"{extra:.2f}x time of prefill")
    )
    peaks = [found["peak_bytes"][name] for name in PEERS]
    rows.append(("peak memory", *(f"{p / 1e9:.2f} GB" for p in peaks), f"{peaks[0] / peaks[1]:.2f}x"))
    loads = [found["load_s"][name] for name in PEERS]
    rows.append(("import and load", *(f"{s:.1f} s" for s in loads), f"{loads[0] / loads[1]:.2f}x time"))
    return rows


def options(output: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(sys.modules["__main__"].__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="models/made-up-124M", help="made anew when it is not there")
    parser.add_argument("-o", "--output", default=output)
    return parser


def made(folder: str) -> str:
    if not Path(folder).exists():
        subprocess.run([sys.executable, str(HERE / "make_checkpoint.py"), "124M", folder], check=True)
    return folder


def show(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())


def write(path: str, found: dict, packages: tuple[str, ...]) -> None:
    from importlib.metadata import version

    found["versions"] = {name: version(name) for name in packages}
    found["machine"] = {"processor": platform.processor() or platform.machine(), "threads": THREADS}
    Path(path).write_text(json.dumps(found, indent=1) + "\n")


def main() -> None:
    parser = options("bench.json")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", choices=list(SYSTEMS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.worker, args.model)
        return
    found = measure(made(args.model), args.rounds)
    show([("", *PEERS, "ratio"), *table(found)])
    print(
        "greedy ids:",
        ", ".join(f"{task} {'equal' if same else 'DIFFER'}" for task, same in found["same_greedy_ids"].items()),
    )
    write(args.output, found, ("tensorflow", "torch", "transformers", "numpy"))


if __name__ == "__main__":
    main()
