"""How much memory a command takes at most, and a checkpoint large enough to show."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from . import tiny
from .conftest import ROOT

POSITIONS = 1_600_000


def peak(*argv) -> int:
    """Largest resident memory of `gpt2ln ARGV`, in bytes.

    As the process itself finds it at its end: what the system says of a child counts the parent it was forked from.
    """
    if not Path("/proc/self/status").exists():
        pytest.skip("no /proc here")
    code = "import sys, gpt2ln.commands as m; s = m.main(sys.argv[1:]); print(open('/proc/self/status').read(), s)"
    command = [sys.executable, "-c", code, *map(str, argv)]
    run = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert run.stdout.split()[-1] in ("0", "1"), run
    return 1024 * int(re.search(r"VmHWM:\s*(\d+) kB", run.stdout)[1])


def large(folder: Path, edit=lambda w: None) -> tuple[Path, int]:
    """T with a `wpe` of 51 MB -> folder, bytes of that."""
    w = tiny.weights() | {"model/wpe": np.random.default_rng(0).normal(size=(POSITIONS, 8)).astype("f4")}
    tiny.tiny(folder)
    edit(w)
    tiny.save(folder / "model.ckpt", w)
    hparams = json.loads((folder / "hparams.json").read_text())
    (folder / "hparams.json").write_text(json.dumps(hparams | {"n_ctx": POSITIONS}))
    return folder, w["model/wpe"].nbytes
