"""What tests share: checkpoints made once, the command line run in this process or in one of its own."""

import contextlib
import fcntl
import gc
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

import gpt2ln
from gpt2ln import commands

from . import tiny as made_up
from .warm import keep_engines

settings.register_profile("shared machine", deadline=None)  # a slow example says nothing about the code
settings.load_profile("shared machine")

HERE = Path(__file__).parent
ROOT = HERE.parent
GOLDEN = Path(gpt2ln.__file__).parent / "golden"
NO_PREPARE = {"GPT2LN_DOWNLOAD_PREPARE": "0"}  # after each download; the tests that are about it ask for it


def pytest_collection_finish():
    """What is there now stays: each conversion of a graph collects garbage, and would look at all of it again."""
    gc.collect()
    gc.freeze()


@dataclass
class Ran:
    status: int
    out: str
    err: str


@pytest.fixture
def cli(capfd, monkeypatch):
    """Run a command line in this process: `cli("taps", "-m", folder)` -> status, stdout, stderr."""
    for name in [name for name in os.environ if name.startswith("GPT2LN")]:
        monkeypatch.delenv(name)
    for name, value in NO_PREPARE.items():
        monkeypatch.setenv(name, value)

    def call(*argv) -> Ran:
        capfd.readouterr()
        status = commands.main([str(a) for a in argv])
        sys.stdout.flush()
        return Ran(status, *capfd.readouterr())

    return call


@pytest.fixture
def shell():
    """Run a command line in a process of its own, as a person does."""

    def call(*argv, env=None, **kwargs) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "gpt2ln", *map(str, argv)]
        kwargs = {"stdin": subprocess.DEVNULL, "env": os.environ | NO_PREPARE | (env or {})} | kwargs
        return subprocess.run(command, capture_output=True, cwd=ROOT, timeout=120, **kwargs)

    return call


@pytest.fixture(scope="session")
def T(tmp_path_factory) -> Path:
    """The made-up checkpoint; a test that changes files copies it first."""
    return made_up.tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def golden():
    """What the official source computed on the golden checkpoint."""
    return np.load(GOLDEN / "expected.npz")


@pytest.fixture(scope="session")
def golden_model():
    return gpt2ln.load(GOLDEN / "model")


@pytest.fixture(scope="session")
def small(T):
    return gpt2ln.load(T)


@pytest.fixture(scope="session")
def long(tmp_path_factory):
    """A model whose context holds several chunks."""
    return gpt2ln.load(made_up.tiny(tmp_path_factory.mktemp("long") / "m", n_ctx=700))


@pytest.fixture(scope="session")
def engines(tmp_path_factory, T) -> Path:
    """A folder for `cache_dir=`: prepared engines of the demo, of the golden model and of T; copied before a change.

    Processes that share the tests share the work: each makes what no other is making, then waits for those.
    """
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, todo = base / "engines", ["demo", GOLDEN / "model", T]
    for how in (fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_EX):
        for name in list(todo):
            with (base / f"{Path(name).name}.lock").open("w") as lock, contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, how)
                gpt2ln.load(name, cache_dir=folder).prepare()
                todo.remove(name)
    return folder


@pytest.fixture
def kept(engines, tmp_path) -> Path:
    """The folder of prepared engines, to be changed."""
    return Path(shutil.copytree(engines, tmp_path / "kept"))


@pytest.fixture
def converted(engines, T, monkeypatch) -> Path:
    """Graphs are taken from T's engine, not made: all else is as it is."""
    ready = gpt2ln.load(T, cache_dir=engines).prepared.folder
    monkeypatch.setattr("gpt2ln.prepare.convert", lambda recipe, weights: (ready / recipe.file).read_bytes())
    return ready


@pytest.fixture
def warm(monkeypatch):
    """Commands in this process keep the engines they have opened."""
    keep_engines(monkeypatch)


@pytest.fixture
def dump(cli, T, tmp_path, monkeypatch, warm):
    """`dump -m T ...` in an empty folder."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return lambda *argv: cli("dump", "-m", T, *argv)


@pytest.fixture
def no_weights(monkeypatch):
    """A command that reads the weights fails the test."""
    for engine in ("exact", "fast"):
        monkeypatch.setattr(f"gpt2ln.library.Model.{engine}", property(lambda model: pytest.fail("weights were read")))


@pytest.fixture(scope="session")
def broken(tmp_path_factory) -> Path:
    """T with NaN in a gain of the last ln_2."""

    def edit(w):
        w["model/h1/ln_2/g"][3] = np.nan

    return made_up.tiny(tmp_path_factory.mktemp("broken") / "m", edit)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def hf(cli, T, here) -> Path:
    """T as `export` writes it, in the folder `hf`."""
    assert cli("-m", T, "export", "hf").status == 0
    return here / "hf"


@pytest.fixture
def server():
    """A web server on this machine with the golden model as `tiny`."""
    from .server import serving

    with serving() as it:
        it.put(GOLDEN / "model", "tiny")
        yield it


@pytest.fixture
def get(cli, server, tmp_path):
    """`get(...)` is `download tiny` from it."""
    from .downloads import Get

    return Get(cli, server, tmp_path)
