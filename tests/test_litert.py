"""A file of LiteRT: opened, run with any number of rows, and its pages given back."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gpt2ln
from gpt2ln import convert as convert_module
from gpt2ln import litert
from gpt2ln.checkpoint import load as arrays
from gpt2ln.convert import Recipe, convert, recipes
from gpt2ln.errors import Damaged, NotFound
from gpt2ln.runtime import tf
from gpt2ln.spec import variables

from .conftest import ROOT


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    """16 MB of weights: [N, 2048] -> [N, 2048]"""
    path = tmp_path_factory.mktemp("part") / "large.tflite"
    weights = {"model/w": np.random.default_rng(0).normal(size=(2048, 2048)).astype(np.float32)}
    recipe = Recipe("large.tflite", lambda scope, h: tf.matmul(h, scope["w"]), {"h": (None, 2048)}, ("w",))
    path.write_bytes(convert(recipe, weights))
    return path


def test_any_number_of_rows(large):
    part = litert.Part(large, threads=2)
    x = np.random.default_rng(1).normal(size=(40, 2048)).astype(np.float32)
    all_rows = part(h=x)
    for n in (1, 3, 40, 1, 7):
        np.testing.assert_array_equal(part(h=x[:n]), all_rows[:n])
    kept = part(h=x[:1])
    part(h=x[1:2])
    np.testing.assert_array_equal(kept, all_rows[:1])  # what came out is not written over


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps"), reason="this system does not list mapped pages")
def test_pages_of_the_file_are_given_back(large, monkeypatch):
    def resident() -> int:
        """kB of the file in the memory of this process."""
        blocks = Path("/proc/self/smaps").read_text().split("VmFlags")
        own = [b for b in blocks if str(large) in b]
        assert own, "not mapped?"
        return sum(int(line.split()[1]) for b in own for line in b.splitlines() if line.startswith("Rss:"))

    part = litert.Part(large, threads=1)
    assert resident() < 200
    monkeypatch.setattr(litert, "give_back", lambda path: None)
    other = litert.Part(large, threads=1)
    assert resident() > 16000
    x = np.ones((2, 2048), np.float32)
    np.testing.assert_array_equal(part(h=x), other(h=x))


def test_every_part_runs_whole(T):
    """One operation, which is XNNPACK's: a part that the converter cuts in pieces takes several times as long."""
    model = gpt2ln.load(T)
    shapes = variables(model.hparams)
    files = list(recipes(model.hparams))
    assert len(files) == 2 * 2 + 2
    for recipe in files:
        weights = dict(arrays(model.bundle, {f"model/{n}": shapes[f"model/{n}"] for n in recipe.variables}))
        path = T.parent / recipe.file
        path.write_bytes(convert(recipe, weights))
        part = litert.Part(path, threads=1)
        names = [op["op_name"] for op in part._interpreter._get_ops_details()]
        assert names.count("DELEGATE") == 1, (recipe.file, names)
        assert not {"SHAPE", "PACK", "STRIDED_SLICE"} & set(names), (recipe.file, names)


def test_every_variable_is_in_one_part(T):
    hparams = gpt2ln.load(T).hparams
    used = [name for recipe in recipes(hparams) for name in recipe.variables]
    assert sorted([*used, "wpe"]) == sorted(name.removeprefix("model/") for name in variables(hparams))


@pytest.mark.parametrize("content", [b"", b"TFL3", b"garbage" * 100], ids=len)
def test_what_is_no_graph_is_refused(tmp_path, content):
    path = tmp_path / "x.tflite"
    path.write_bytes(content)
    with pytest.raises(Damaged, match=r"x\.tflite: not a graph of LiteRT"):
        litert.Part(path, threads=1)


def test_without_the_package(monkeypatch, large):
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", None)
    with pytest.raises(NotFound) as told:
        litert.Part(large, threads=1)
    assert str(told.value).startswith("LiteRT: cannot be imported (ModuleNotFoundError: ")
    assert str(told.value).endswith("is needed by --engine fast; run: pip install 'ai-edge-litert>=1.2'")


def test_nothing_reaches_stderr(large):
    """In a process of its own: LiteRT says so once in each that XNNPACK is there."""
    code = "import sys, pathlib; from gpt2ln.litert import Part; Part(pathlib.Path(sys.argv[1]), threads=1)"
    ran = subprocess.run([sys.executable, "-c", code, large], capture_output=True, cwd=ROOT)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"", b"")


def test_columns_in_pieces_are_the_whole(tmp_path, monkeypatch):
    """6.3 MB of weights in three pieces, and in one: the same bits."""
    rng = np.random.default_rng(3)
    weights = {"model/w": rng.normal(size=(1, 1024, 1537)), "model/b": rng.normal(size=1537)}
    weights = {name: array.astype(np.float32) for name, array in weights.items()}
    recipe = Recipe("x.tflite", lambda scope, h: convert_module.conv1d(h, scope), {"h": (None, 1024)}, ("w", "b"))
    x = rng.normal(size=(9, 1024)).astype(np.float32)
    found = []
    for piece in (convert_module.PIECE, 1 << 40):
        monkeypatch.setattr(convert_module, "PIECE", piece)
        (tmp_path / "x.tflite").write_bytes(convert(recipe, weights))
        part = litert.Part(tmp_path / "x.tflite", threads=2)
        found.append((part(h=x), [op["op_name"] for op in part._interpreter._get_ops_details()]))
    (pieces, several), (whole, one) = found
    np.testing.assert_array_equal(pieces, whole)
    np.testing.assert_allclose(whole, x @ weights["model/w"][0] + weights["model/b"], atol=2e-4)
    assert (several.count("FULLY_CONNECTED"), one.count("FULLY_CONNECTED")) == (3, 1)
    assert several.count("DELEGATE") == 1
