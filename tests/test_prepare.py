"""`prepare`: what it makes and says, and what stops it before or after the work is done."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gpt2ln
from gpt2ln import distance, litert, prepare, processor, runtime
from gpt2ln.errors import Different, NonFinite
from gpt2ln.prepared import RECORD, check, find
from gpt2ln.provenance import seal

from . import tiny as made_up
from .conftest import ROOT
from .disks import mounted
from .refusals import done, refused


@pytest.fixture
def model(T, tmp_path) -> Path:
    """T, to be changed."""
    return Path(shutil.copytree(T, tmp_path / "tiny"))


def nothing(folder: Path) -> None:
    assert [name for name in os.listdir(folder) if name.startswith("fast")] == []


# --- what it makes ------------------------------------------------------------------------------------------------


def test_beside_the_checkpoint(model, cli, here):
    """By argument and by -m; once; anew with --force."""
    ran = cli("prepare", "tiny")
    found = gpt2ln.load("tiny").prepared
    assert done(ran) == (f"tiny: {found.distance}\n{found.folder.absolute()}: {found.bytes:,} bytes in 6 files\n")
    assert ran.err == ""
    assert found.folder.parent == Path("tiny")
    inode = found.folder.stat().st_ino
    again = cli("-m", "tiny", "prepare")
    assert (again.out, again.err) == (ran.out, "note: tiny was already prepared; --force makes it anew\n")
    assert cli("prepare", "tiny", "-q").err == ""
    assert found.folder.stat().st_ino == inode
    (found.folder / RECORD).touch()
    ran = cli("prepare", "tiny", "--force")
    assert done(ran) == again.out
    assert ran.err == ""
    assert found.folder.stat().st_ino != inode


def test_as_json(T, engines, cli):
    ran = cli("prepare", T, "--cache-dir", engines, "--json")
    record = json.loads(done(ran))
    found = gpt2ln.load(T, cache_dir=engines).prepared
    assert list(record)[:2] == ["model", "folder"]
    assert (record.pop("model"), record.pop("folder")) == (str(T), str(found.folder))
    assert record == found.record
    assert record["seal"] == seal(record)
    assert set(record) == {
        "format", "index_sha256", "hparams", "code", "versions", "cpu", "threads", "files", "distance", "seal"
    }  # fmt: skip
    assert record["hparams"] == gpt2ln.load(T).hparams.as_dict()
    assert record["cpu"] == processor.name()
    assert set(record["versions"]) == {"gpt2ln", "tensorflow", "ai-edge-litert", "numpy"}


def test_by_prefix_and_into_a_folder_that_is_not_there(model, cli, here, converted):
    ran = cli("prepare", "tiny/model.ckpt", "--cache-dir", "a/b")
    assert "tiny/model.ckpt: max |d logit| " in done(ran)
    (folder,) = (here / "a" / "b").iterdir()
    check(gpt2ln.load(model, cache_dir="a/b").prepared)
    assert json.loads((folder / RECORD).read_text())["threads"] == len(os.sched_getaffinity(0))
    nothing(model)


def test_the_default_is_said(cli, engines, here):
    ran = cli("prepare", "--cache-dir", engines)
    assert "demo: max |d logit| " in done(ran)
    assert ran.err.splitlines()[0] == "model: demo (choose another with -m)"


def test_what_older_code_has_made_goes(model, cli, here, converted):
    """Whole or not; what somebody else keeps there, writes, or calls so, stays."""
    name = gpt2ln.load("tiny").prepared.folder.name
    assert name.startswith("fast-")
    older = {end: model / f"{name[:-12]}{code * 12}{end}" for code, end in (("0", ""), ("1", ".part"), ("2", ".old"))}
    for folder in (*older.values(), mine := model / f"{name[:-12]}{'3' * 12}", other := model / f"fast-{'4' * 25}"):
        folder.mkdir()
        (folder / "h7.tflite").touch()
        (folder / RECORD).touch()
    (mine / "notes.txt").touch()
    (model / f"{name}.old").mkdir()
    (model / f"{name}.old" / "h0.tflite").touch()
    busy = model / f"{name[:-12]}{'5' * 12}.part"
    busy.mkdir()
    handle = os.open(busy, os.O_RDONLY)
    gpt2ln.disk.lock(handle, busy)
    done(cli("prepare", "tiny"))
    os.close(handle)
    left = {path.name for path in model.iterdir() if path.name.startswith("fast")}
    assert left == {name, mine.name, other.name, busy.name}
    assert sorted(os.listdir(mine)) == [RECORD, "h7.tflite", "notes.txt"]


# --- what stops it ------------------------------------------------------------------------------------------------


def test_usage(T, cli):
    refused(cli("-m", "demo", "prepare", T), 2, f"{T}: a second model beside -m demo; name one")
    refused(cli("prepare", T, "demo"), 2, "unexpected extra argument")
    refused(cli("prepare", T, "--device", "gpu:0"), 2, "--device gpu:0: a prepared engine runs on the processor alone")
    refused(cli("prepare", T, "--cache-dir", ""), 2, "--cache-dir: empty, expected a path")
    refused(cli("prepare", "nowhere"), 3, "model nowhere: no such name, folder or prefix")


def test_a_file_where_the_folder_should_be(T, cli, here):
    (here / "engines").write_text("mine")
    refused(cli("prepare", T, "--cache-dir", "engines"), 2, "--cache-dir engines: a file, expected a folder")
    refused(cli("prepare", T, "--cache-dir", "engines/in"), 7, "engines/in: Not a directory; another folder: gpt2ln ")
    assert (here / "engines").read_text() == "mine"


def test_too_far_from_exact(model, cli, here, converted, monkeypatch):
    """One value of one graph is wrong: found by the probe, and nothing is kept."""
    bias = made_up.weights()["model/h1/mlp/c_proj/b"]
    right = (converted / "h1.tflite").read_bytes()
    assert right.count(bias.tobytes()) == 1
    bent = right.replace(bias.tobytes(), (bias + np.eye(8, dtype="f4")[0] / 100).tobytes())
    whole = prepare.convert
    monkeypatch.setattr(prepare, "convert", lambda r, w: bent if r.file == "h1.tflite" else whole(r, w))
    line = refused(cli("prepare", "tiny"), 1, "fast engine: logits differ by up to ", " from exact, expected at most ")
    assert line.endswith("(0.0001 of the largest); not kept: generate runs on exact")
    nothing(model)
    ran = cli("-m", "tiny", "generate", "Hello", "--length", 5, "--seed", 1)
    assert (ran.status, ran.err) == (0, "")


def test_not_finite_where_exact_is(model, cli, here, converted, monkeypatch):
    def fails(*_):
        raise NonFinite("h1/out: NaN")

    monkeypatch.setattr(prepare.Fast, "_attend_row", fails)
    refused(cli("prepare", "tiny"), 1, "fast engine: h1/out: NaN; not kept: generate runs on exact")
    nothing(model)


def test_a_model_that_is_not_finite(broken, cli, tmp_path):
    refused(cli("prepare", broken, "--cache-dir", tmp_path / "c"), 8, "h1/ln_2/")
    assert os.listdir(tmp_path / "c") == []


def test_a_damaged_checkpoint(model, cli, here):
    with (model / "model.ckpt.data-00000-of-00001").open("r+b") as file:
        file.seek(100)
        file.write(b"xxxx")
    refused(cli("prepare", "tiny"), 4, "damaged: model/", "gpt2ln download NAME --force")
    nothing(model)


def test_no_avx(model, engines, cli, here, monkeypatch, tmp_path):
    """Refused before the library that would end the process is loaded: in a process that has not loaded it."""
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Old\nflags\t\t: fpu sse sse2\n")
    code = "import pathlib, sys; from gpt2ln import processor; from gpt2ln.commands import main; "
    code += f"processor.CPUINFO = pathlib.Path({str(tmp_path / 'cpuinfo')!r}); status = main(sys.argv[1:]); "
    code += "assert 'tensorflow' not in sys.modules; sys.exit(status)"

    def ran(*argv):
        command = [sys.executable, "-c", code, *map(str, argv)]
        return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})

    none = "was never tried on a processor without AVX, as this one is"
    r = ran("prepare", "tiny")
    assert (r.returncode, r.stdout, none in r.stderr) == (3, "", True)
    argv = ("-m", "demo", "generate", "x", "--length", 3, "--seed", 1, "--cache-dir", engines)
    r = ran(*argv, "--engine", "fast")
    assert (r.returncode, r.stdout, none in r.stderr) == (3, "", True)
    r = ran(*argv)
    assert (r.returncode, r.stdout) == (3, "")
    assert re.search(f"warning: the prepared engine is not used: .*{none}\nerror: TensorFlow: .*AVX", r.stderr)
    nothing(model)


def test_tensorflow_without_a_converter(model, cli, here, monkeypatch):
    def gone(*_):
        raise AttributeError("module 'tensorflow' has no attribute 'lite'")

    monkeypatch.setattr(prepare, "convert", gone)
    refused(cli("prepare", "tiny"), 3, "no converter for LiteRT in it (module 'tensorflow' has no attribute 'lite')")
    nothing(model)


def test_litert_that_cannot_be_imported(model, cli, here, monkeypatch):
    """Before the work."""
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", None)
    monkeypatch.setattr("gpt2ln.library.Model.encode", lambda *_: pytest.fail("began"))
    refused(cli("prepare", "tiny"), 3, "LiteRT: cannot be imported", f"run: pip install '{litert.SUPPORTED[:14]}")
    nothing(model)


# --- disks --------------------------------------------------------------------------------------------------------


def test_a_model_on_a_disk_that_may_only_be_read(T, cli, tmp_path):
    with mounted(tmp_path / "disk", "size=4m"):
        shutil.copytree(T, tmp_path / "disk" / "tiny")
        subprocess.run(["mount", "-o", "remount,ro", tmp_path / "disk"], check=True)
        name = tmp_path / "disk" / "tiny"
        words = f"Read-only file system; another folder: gpt2ln prepare {name} --cache-dir DIR"
        refused(cli("prepare", name), 7, name, words)
        done(cli("prepare", name, "--cache-dir", tmp_path / "engines"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_model_in_a_folder_without_the_right_to_write(model, cli, here):
    model.chmod(0o500)
    refused(cli("prepare", "tiny"), 7, "Permission denied; another folder: gpt2ln prepare tiny --cache-dir DIR")


def test_no_room(T, cli, tmp_path):
    """Before anything is computed."""
    with mounted(tmp_path / "disk", "size=64k"):
        words = f"{tmp_path / 'disk'}: no space: ", " bytes needed, ", " free; another folder: --cache-dir DIR"
        refused(cli("prepare", T, "--cache-dir", tmp_path / "disk"), 7, *words)
        nothing(tmp_path / "disk")


def test_a_disk_that_gets_full_on_the_way(T, cli, tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "OVERHEAD", 0)
    with mounted(tmp_path / "disk", "size=20k"):
        run = f"another folder: gpt2ln prepare {T} --cache-dir DIR"
        refused(cli("prepare", T, "--cache-dir", tmp_path / "disk"), 7, ".tflite: No space left on device; ", run)
        nothing(tmp_path / "disk")


@pytest.mark.slow
def test_no_room_for_the_converter(T, tmp_path, shell):
    """It goes another way where its files of no name have no room, and is held to the same bound."""
    with mounted(tmp_path / "disk", "size=64k"):
        (tmp_path / "disk" / "full").write_bytes(bytes(60_000))
        ran = shell("prepare", T, "--cache-dir", tmp_path / "c", env={"TMPDIR": str(tmp_path / "disk")})
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert b"greedy 32 of 32 from exact" in ran.stdout


# --- in Python ----------------------------------------------------------------------------------------------------


def test_prepared_by_another_process_meanwhile(model, converted, monkeypatch):
    """Seen once more when TensorFlow has been loaded, which takes a while."""
    opened, other, made = gpt2ln.load(model), gpt2ln.load(model), []
    configure = runtime.configure

    def meanwhile(**how):
        if not made:
            made.append(None)
            made[0] = other.prepare().folder.stat().st_ino
        return configure(**how)

    monkeypatch.setattr(runtime, "configure", meanwhile)
    assert [opened.prepare().folder.stat().st_ino] == made


def test_bound(model, converted, monkeypatch):
    """What is refused is what lies above it."""
    monkeypatch.setattr(distance, "BOUND", 1e-9)
    with pytest.raises(Different, match=r"not kept: generate runs on exact"):
        gpt2ln.load(model).prepare()
    nothing(model)
    opened = gpt2ln.load(model)
    assert find(opened.index_sha256, opened.hparams, [model], run="x").state == "none"
