"""The benchmark as a process, on the demo; peers where they are installed."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec

import pytest

import gpt2ln
from gpt2ln.sample import Sampling

from .conftest import ROOT

SCRIPTS = ROOT / "scripts"
PACKAGES = {
    "transformers": ("transformers", "torch"),
    "CTranslate2": ("ctranslate2", "transformers", "torch"),
    "llama.cpp": ("llama_cpp", "gguf"),
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """A copy, so that what is made for it is made beside the copy."""
    folder = tmp_path_factory.mktemp("bench") / "demo"
    shutil.copytree(gpt2ln.load("demo").place.folder, folder, ignore=shutil.ignore_patterns("fast-*"))
    return folder


def script(name, *argv, cwd):
    return python(SCRIPTS / name, *argv, cwd=cwd)


def python(*argv, cwd):
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(SCRIPTS)])}
    ran = subprocess.run(
        [sys.executable, *map(str, argv)], capture_output=True, text=True, cwd=cwd, env=env, timeout=600
    )
    assert ran.returncode == 0, ran.stderr
    return ran


def shape(rows):
    """Row -> its unit, who was measured, how often."""
    return {row: (m["unit"], [*m["values"]], [*map(len, m["values"].values())]) for row, m in rows.items()}


def test_one_command_measures_writes_and_draws(demo, tmp_path):
    ran = script("bench.py", "--model", demo, "--peers", "", "--rounds", "1", "--readme", "-o", "it.json", cwd=tmp_path)
    it = json.loads((tmp_path / "it.json").read_text())
    ours = ["gpt2ln exact", "gpt2ln fast"]
    assert it["systems"] == ours
    assert shape(it["rows"]) == {
        "decode, context 32-160": ("tokens/s", ours, [1, 1]),
        "decode, context 132-252": ("tokens/s", ours, [1, 1]),
        "prefill, 255 tokens": ("tokens/s", ours, [1, 1]),
        "batch of 8, 32 + 64 tokens each": ("tokens/s", ours, [1, 1]),
        "decode, a repeated prompt": ("tokens/s", ours[1:], [1]),
        "the same, --speculate lookup": ("tokens/s", ours[1:], [1]),
        "ln-stats, 255 tokens": ("tokens/s", ours[:1], [1]),
        "peak memory, all of the rows above": ("bytes", ours, [1, 1]),
        "import and load": ("s", ours, [1, 1]),
        "cold process, 1 token": ("s", ours, [1, 1]),
        "cold process, 40 tokens": ("s", ours, [1, 1]),
        "peak memory, 40 tokens": ("bytes", ours, [1, 1]),
        "weights": ("bytes", ["checkpoint"], [1]),
    }  # fmt: skip
    assert all(value > 0 for m in it["rows"].values() for values in m["values"].values() for value in values)
    weights = (demo / "model.ckpt.data-00000-of-00001").stat().st_size
    assert it["rows"]["weights"]["values"] == {"checkpoint": [weights]}
    assert all(same == of for systems in it["greedy"].values() for same, of in systems.values()), it["greedy"]
    assert it["greedy"]["batch of 8, 32 + 64 tokens each"] == {"gpt2ln fast": [512, 512]}
    assert it["greedy"]["cold process, 40 tokens"] == {"gpt2ln fast": [40, 40]}
    assert it["distance"]["greedy_agree"] == it["distance"]["greedy_of"] > 0
    assert 0 <= it["speculation"]["accepted"] <= it["speculation"]["guesses"]
    assert (tmp_path / "it.png").read_bytes().startswith(b"\x89PNG")
    assert ran.stdout.startswith(f"| {it['date'][:10]} | gpt2ln exact | gpt2ln fast |\n| --- | --- | --- |\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["it.json", "it.png"]


@pytest.mark.parametrize("peer", PACKAGES)
def test_a_peer_continues_as_we_do(demo, tmp_path, peer):
    if lack := [name for name in PACKAGES[peer] if find_spec(name) is None]:
        pytest.skip(f"not installed: {', '.join(lack)}")
    python("-c", f"from bench_formats import convert; convert({str(demo)!r}, {peer!r})", cwd=tmp_path)
    ids = [10, 500, 3, 77]
    ran = script("bench_peers.py", peer, demo, 24, json.dumps(ids), cwd=tmp_path)
    (sample,) = gpt2ln.load("demo").generate(ids, sampling=Sampling(temperature=0), length=24)
    assert json.loads(ran.stdout.splitlines()[-1]) == {"tokens": sample.tokens}


def test_the_largest_shape_is_prepared_read_loaded_and_run(demo, tmp_path):
    """By the same steps on the demo."""
    code = f"import json; from bench_cold import large; print(json.dumps(large({str(demo)!r}, [5, 6], 2)))"
    ran = python("-c", code, cwd=tmp_path)
    fast = ["gpt2ln fast"]
    assert shape(json.loads(ran.stdout)) == {
        "1558M: prepare": ("s", fast, [1]),
        "1558M: prepare, peak memory": ("bytes", fast, [1]),
        "1558M: read the files once, from the disk": ("s", ["reading"], [1]),
        "1558M: load, from the disk": ("s", fast, [1]),
        "1558M: read the files once, from memory": ("s", ["reading"], [2]),
        "1558M: load, from memory": ("s", fast, [2]),
        "1558M: 20 tokens, whole process": ("s", fast, [1]),
        "1558M: 20 tokens, peak memory": ("bytes", fast, [1]),
    }
