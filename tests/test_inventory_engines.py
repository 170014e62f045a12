"""`models` tells which models have a prepared engine, from its record and the sizes of its files."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import gpt2ln
from gpt2ln.inventory import take
from gpt2ln.locate import DEMO
from gpt2ln.prepared import RECORD

from .conftest import ROOT
from .refusals import done, refused


@pytest.fixture
def shelf(T, engines, tmp_path) -> Path:
    """T with its engine beside it."""
    ready = gpt2ln.load(T, cache_dir=engines).prepared.folder
    model = Path(shutil.copytree(T, tmp_path / "models" / "tiny"))
    shutil.copytree(ready, model / ready.name)
    return tmp_path / "models"


@pytest.fixture
def engine(shelf) -> Path:
    (folder,) = (shelf / "tiny").glob("fast-*")
    return folder


def row(cli, *argv) -> list[str]:
    """That of the first model."""
    return done(cli("models", *argv)).splitlines()[1].split(maxsplit=6)


def test_beside_the_model(cli, shelf, engine):
    d = json.loads((engine / RECORD).read_text())["distance"]
    size = sum(path.stat().st_size for path in (shelf / "tiny").iterdir() if path.is_file())
    shown = f"{d['max_abs_dlogit']:.1e}"
    assert row(cli, "--models-dir", shelf) == ["tiny", "whole", "no", shown, f"{size:,}", str(shelf / "tiny")]


def test_in_the_folder_for_engines(cli, shelf, engine, engines):
    """Also where that is a shelf: an engine is no model."""
    shutil.rmtree(engine)
    argv = ("--models-dir", shelf, "--cache-dir")
    assert row(cli, *argv, shelf)[3] == "-"
    assert row(cli, *argv, engines)[3] != "-"
    for path in engines.iterdir():
        shutil.copytree(path, shelf / path.name)
    names = [line.split()[0] for line in done(cli("models", *argv, shelf)).splitlines()]
    assert names == ["name", "tiny", "demo"]
    refused(cli("models", "--cache-dir", ""), 2, "--cache-dir: empty, expected a path")


@pytest.mark.parametrize(
    ("damage", "state", "why"),
    [
        (lambda e: (e / "h0.tflite").unlink(), "damaged", "{e}: h0.tflite missing; run: gpt2ln prepare tiny"),
        (lambda e: (e / RECORD).write_text("["), "damaged", "{e}/engine.json: not JSON "),
        (lambda e: e.rename(e.with_name(e.name[:-12] + "0" * 12)), "stale", "{e}: made by other code of gpt2ln "),
    ],
)
def test_why_it_is_none(cli, shelf, engine, damage, state, why):
    damage(engine)
    name = f"{engine.name[:-12]}{'0' * 12}" if state == "stale" else engine.name
    line = done(cli("models", "--models-dir", shelf)).splitlines()[1]
    assert line.split()[3] == state
    assert f"  fast: {why.format(e=engine.with_name(name))}" in line


def test_as_json(cli, shelf, engine):
    def tiny():
        return json.loads(done(cli("models", "--json", "--models-dir", shelf)).splitlines()[0])["fast"]

    record = json.loads((engine / RECORD).read_text())
    size = sum(path.stat().st_size for path in engine.glob("*.tflite"))
    assert tiny() == {"state": "ready", "why": "", "folder": str(engine), "bytes": size} | {
        key: record[key] for key in ("distance", "versions", "cpu", "threads")
    }
    (engine / RECORD).unlink()
    why = f"{engine / RECORD}: missing; run: gpt2ln prepare tiny"
    assert tiny() == {"state": "damaged", "why": why, "folder": str(engine)}


def test_a_preparation_that_was_killed_is_no_download(shelf, engine):
    engine.rename(engine.with_name(engine.name + ".part"))
    (shelf / "tiny" / "vocab.bpe").unlink()
    (found,) = take([shelf])[0].models
    assert (found.state, found.text) == ("incomplete", "vocab.bpe missing")


def test_of_a_model_that_is_not_whole(shelf, engine):
    """It runs with none."""
    (shelf / "tiny" / "vocab.bpe").unlink()
    (found,) = take([shelf])[0].models
    assert found.engine is None


def test_demo_too(engines):
    (demo,) = take([], engines)[0].models
    assert (demo.path, demo.engine.state, demo.engine.run) == (
        DEMO,
        "ready",
        f"gpt2ln prepare demo --cache-dir {engines}",
    )


def test_light(shelf, engines):
    """No numpy for it, no TensorFlow, no LiteRT; and quick."""
    code = "import sys, time; from gpt2ln.commands import main; main(sys.argv[1:]); took = time.process_time(); "
    code += "print(took, {'numpy', 'tensorflow', 'ai_edge_litert', 'importlib.metadata'} & set(sys.modules))"
    command = [sys.executable, "-c", code, "models", "--models-dir", str(shelf), "--cache-dir", str(engines)]
    best = 9.0
    for _ in range(3):
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        took, modules = ran.stdout.splitlines()[-1].split(maxsplit=1)
        assert modules == "set()"
        best = min(best, float(took))
        time.sleep(0.01)
    assert best < 0.6  # 0.15 s on an idle machine
