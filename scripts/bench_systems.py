#!/usr/bin/env python
"""Each system in a process of its own that keeps its model loaded and answers a line a call; and ours among them.

Processes take turns.  Before each turn the others get time to fall asleep: worker threads of some libraries go on
turning for a fifth of a second when their work is done.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench_formats import FAST, kept
from bench_peers import PEERS, THREADS, TransformerLens

HERE = Path(__file__).parent
EXACT = "gpt2ln exact"
ASLEEP = 0.4  # seconds


class Ours:
    """Through the library, as `generate` calls it."""

    engine = "exact"

    def __init__(self, folder: str):
        import gpt2ln

        cache_dir = kept(folder, FAST) if self.engine == "fast" else None
        self.model = gpt2ln.load(folder, threads=THREADS, engine=self.engine, cache_dir=cache_dir)
        _ = self.model.engine

    def _generate(self, prompts: list[list[int]], length: int, *, batch_size: int = 1, **more) -> list:
        from gpt2ln.generate import generate
        from gpt2ln.prompt import Prompt
        from gpt2ln.sample import Sampling
        from gpt2ln.settings import Settings

        settings = Settings(sampling=Sampling(temperature=0), length=length, batch_size=batch_size)
        asked = [Prompt(tuple(ids)) for ids in prompts]
        return list(generate(self.model.engine, self.model.bpe, asked, settings, clock=time.perf_counter, **more))

    def decode(self, prompt: list[int], new: int) -> dict:
        (sample,) = self._generate([prompt], new + 1)
        return {"seconds": sample.decode_s / new, "ids": [sample.tokens]}

    def batch(self, prompts: list[list[int]], new: int) -> dict:
        began = time.perf_counter()
        samples = self._generate(prompts, new, batch_size=len(prompts))
        seconds = time.perf_counter() - began
        return {"seconds": seconds / (len(prompts) * new), "ids": [sample.tokens for sample in samples]}

    def prefill(self, prompt: list[int]) -> dict:
        began = time.perf_counter()
        self.model.engine.prefill(prompt)
        return {"seconds": (time.perf_counter() - began) / len(prompt)}

    def ln_stats(self, documents: list[list[int]]) -> dict:
        from gpt2ln.observe import ln_stats

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


class Fast(Ours):
    """The prepared engine."""

    engine = "fast"

    def lookup(self, prompt: list[int], new: int) -> dict:
        """A decode with guesses looked up in prompt and text."""
        from gpt2ln.speculate import Speculation

        (sample,) = self._generate([prompt], new + 1, speculation=Speculation())
        counts = {"guesses": sample.guesses, "accepted": sample.accepted, "passes": sample.passes}
        return {"seconds": sample.decode_s / new, "ids": [sample.tokens], "speculation": counts}


SYSTEMS = {EXACT: Ours, FAST: Fast, **PEERS, "TransformerLens": TransformerLens}


def peak() -> int:
    """Bytes: the most that was resident at once."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def answer(name: str, folder: str) -> None:
    """A line a call: its method and arguments; a line back: seconds a token, ids where there are any, peak memory."""
    began = time.perf_counter()
    system = SYSTEMS[name](folder)
    print(json.dumps({"load_s": time.perf_counter() - began}), flush=True)
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        reply = getattr(system, method)(*arguments)
        print(json.dumps({"ids": None, "peak": peak()} | reply), flush=True)


class Process:
    def __init__(self, name: str, folder: str):
        command = [sys.executable, str(HERE / "bench_systems.py"), name, folder]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env())
        self.load_s = json.loads(self._line())["load_s"]

    def _line(self) -> str:
        while line := self.process.stdout.readline():
            if line.startswith("{"):  # others talk on stdout too
                return line
        raise SystemExit("a worker ended early; its error is above")

    def ask(self, method: str, *arguments) -> dict:
        time.sleep(ASLEEP)
        self.process.stdin.write(json.dumps([method, *arguments]) + "\n")
        self.process.stdin.flush()
        return json.loads(self._line())

    def end(self) -> None:
        self.process.communicate()


def env() -> dict[str, str]:
    """As a user has it, with THREADS for those that ask OpenMP; nothing is looked up on the net."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return own | {"OMP_NUM_THREADS": str(THREADS), "HF_HUB_OFFLINE": "1"}


if __name__ == "__main__":
    answer(*sys.argv[1:])
