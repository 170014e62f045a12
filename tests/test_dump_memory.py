"""A dump needs no more memory for many texts than for few.  (JSON lines hold nothing back by their nature.)"""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from . import tiny as made_up
from .conftest import ROOT

TEXTS, TOKENS, SLACK = (8, 32), 512, 20e6  # bytes that two runs of one program differ by anyway


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    return made_up.tiny(tmp_path_factory.mktemp("deep") / "m", n_layer=12, n_embd=256, n_head=4, n_ctx=TOKENS)


def peak(folder, *argv) -> int:
    """Largest resident memory of a command, in bytes; what it prints is thrown away."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gpt2ln", "-q", "-m", str(folder), *map(str, argv)], stdout=subprocess.DEVNULL, cwd=ROOT
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_maxrss * 1024


@pytest.mark.slow
@pytest.mark.parametrize("output", ["dump", "dump.npz"])
def test_memory_does_not_grow_with_the_corpus(deep, tmp_path, output):
    """24 more texts are 75 MB of these taps: kept, they would show."""
    used, tap = [], "h3/{in,mid,out},h3/ln_2/{norm,out,mean}"
    for n in TEXTS:
        draw = np.random.default_rng(n).integers
        texts = tmp_path / f"{n}.jsonl"
        texts.write_text("".join(json.dumps({"tokens": draw(0, 260, TOKENS).tolist()}) + "\n" for _ in range(n)))
        used.append(peak(deep, "dump", "--jsonl", texts, "-t", tap, "-o", tmp_path / f"{n}-{output}", "--shard-mb", 8))
    assert abs(used[1] - used[0]) < SLACK, used
