"""Files of `ln-stats`: runs that are kept and merged, figures, pages; whole or not there, and never over another."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from gpt2ln.provenance import sealed

from . import proofs
from . import tiny as made_up
from .conftest import ROOT
from .refusals import done, refused
from .warm import keep_engines

TEXT = "abc abd the"
LINES = ["abc abd the", "the the", "x", "hello, hello", "a b c d", "zz"]


@pytest.fixture(autouse=True)
def _warm(monkeypatch):
    keep_engines(monkeypatch)


def records(out: str) -> list[dict]:
    return [json.loads(line, parse_constant=pytest.fail) for line in out.splitlines()]


def far(w) -> None:
    """edit: position 0 a hundred times as large."""
    w["model/wpe"][0] *= 100


@pytest.fixture(scope="module")
def apart(tmp_path_factory):
    return made_up.tiny(tmp_path_factory.mktemp("models") / "far", far)


@pytest.fixture
def kept(tmp_path, cli):
    """`kept(model, name, texts)`: a run over these texts, and its file."""

    def keep(model, name: str, texts):
        (tmp_path / "lines").write_text("".join(text + "\n" for text in texts))
        path = tmp_path / name
        done(cli("ln-stats", "-m", model, "--lines", tmp_path / "lines", "-q", "-o", path))
        return path

    return keep


def merged(cli, *argv) -> list[dict]:
    return records(done(cli("ln-stats", "--merge", *argv, "--format", "json", "-q")))


def close(a, b, tolerance: float, where: str = "") -> None:
    """Two records: whole numbers, names and None alike; floats to `tolerance` of the larger, or of 1."""
    if isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            close(a[key], b[key], tolerance, f"{where} {key}")
    elif isinstance(a, list):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            close(x, y, tolerance, f"{where} {i}")
    elif isinstance(a, float):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=where)
    else:
        assert a == b, where


@pytest.mark.parametrize("by", ["layer", "position", "channel"])
def test_merged_halves_are_one_run(by, apart, kept, cli):
    """V49: counts exact; 1e-12, what float64 does to a dozen additions in another order."""
    whole = kept(apart, "whole.json", LINES)
    halves = kept(apart, "a.json", LINES[:3]), kept(apart, "b.json", LINES[3:])
    right = merged(cli, whole, "--by", by)
    close(merged(cli, *halves, "--by", by), right, 1e-12)
    close(merged(cli, *halves[::-1], "--by", by), right, 1e-12)
    assert len(right) > 0


def test_three_parts_in_any_grouping(T, kept, tmp_path, cli):
    a, b, c = (kept(T, f"{n}.json", LINES[2 * n : 2 * n + 2]) for n in range(3))
    done(cli("ln-stats", "--merge", a, c, "-o", tmp_path / "ac.json", "-q"))
    right = merged(cli, a, b, c)
    for order in ((c, a, b), (tmp_path / "ac.json", b), (b, tmp_path / "ac.json")):
        close(merged(cli, *order), right, 1e-12)


def test_position_0_is_said_of_merged_runs_too(apart, kept, cli):
    halves = kept(apart, "a.json", LINES[:3]), kept(apart, "b.json", LINES[3:])
    assert "note: position 0 stands apart: its variance is " in cli("ln-stats", "--merge", *halves).err


@pytest.mark.parametrize("form", ["table", "json", "csv"])
def test_a_kept_run_says_what_the_run_said(form, T, tmp_path, cli):
    said = done(cli("ln-stats", "-m", T, TEXT, "--format", form, "-o", tmp_path / "run.json"))
    assert done(cli("ln-stats", "--merge", tmp_path / "run.json", "--format", form)) == said


def test_a_kept_run_says_what_it_came_from(T, tmp_path, cli):
    done(cli("ln-stats", "-m", T, TEXT, "-q", "-o", tmp_path / "run.json", "--force"))
    record = json.loads((tmp_path / "run.json").read_text(), parse_constant=pytest.fail)
    assert record["command"] == ["gpt2ln", "ln-stats", "-m", str(T), TEXT, "-o", str(tmp_path / "run.json")]
    assert record["prefix_token"] == "none"
    assert record["overflow"] == "error"
    assert len(record["documents_sha256"]) == record["stats"]["documents"] == 1
    assert re.fullmatch("[0-9a-f]{64}", record["model"]["index_sha256"])


def test_the_same_command_writes_the_same_bytes(T, tmp_path, cli):
    files = [("-o", "run.json"), ("--html", "run.html"), ("--plot", "run.png")]
    argv = [part for flag, name in files for part in (flag, tmp_path / name)]
    found = []
    for _ in range(2):
        done(cli("ln-stats", "-m", T, TEXT, "-q", "--force", *argv))
        found.append([(tmp_path / name).read_bytes() for _, name in files])
    assert found[0] == found[1]
    assert found[0][2].startswith(b"\x89PNG")


# Refusals


@pytest.fixture
def run(T, tmp_path, cli):
    done(cli("ln-stats", "-m", T, TEXT, "-q", "-o", tmp_path / "run.json"))
    return tmp_path / "run.json"


def test_runs_of_other_models_are_refused(run, apart, kept, tmp_path, cli):
    other = kept(apart, "other.json", LINES[:1])
    refused(cli("ln-stats", "--merge", run, other), 5, other, "model is ", f"in {run} ", "runs of one model merge")
    golden = tmp_path / "golden.json"
    done(cli("ln-stats", "-m", proofs.GOLDEN / "model", "--ids", "1 2", "-q", "-o", golden))
    refused(cli("ln-stats", "--merge", run, golden), 5, golden, "model is ")


def resealed(run, path, **changes):
    record = json.loads(run.read_text()) | changes
    path.write_text(json.dumps(sealed(record)))
    return path


def test_runs_of_other_formulas_are_refused(run, tmp_path, cli):
    other = resealed(run, tmp_path / "other.json", formulas_version=99)
    refused(cli("ln-stats", "--merge", run, other), 5, other, "formulas_version is 99")
    refused(cli("ln-stats", "--merge", resealed(run, other, format="gpt2ln dump 1")), 5, other, "'gpt2ln dump 1'")


def test_other_threads_are_only_said(run, tmp_path, cli):
    other = resealed(run, tmp_path / "other.json", threads=77, documents_sha256=["0"])
    ran = cli("ln-stats", "--merge", run, other)
    assert f"note: threads is 77 in {other}, " in ran.err
    assert {line.split()[1] for line in done(ran).splitlines()[1:]} == {"16"}


def test_what_is_no_run_is_refused(run, tmp_path, cli):
    bad = tmp_path / "bad.json"
    record = json.loads(run.read_text())
    bad.write_text(json.dumps(record | {"threads": 77}))
    refused(cli("ln-stats", "--merge", run, bad), 4, bad, "was changed after it was sealed", "ln-stats -o")
    for content, words in ((b"{", "not JSON"), (b"", "not JSON"), (b"[]", "JSON, but no object")):
        bad.write_bytes(content)
        refused(cli("ln-stats", "--merge", bad), 4, bad, words, "make it again with ln-stats -o")
    np.savez(tmp_path / "bad.npz", x=np.zeros(9))
    refused(cli("ln-stats", "--merge", tmp_path / "bad.npz"), 4, "bad.npz: not JSON")
    refused(cli("ln-stats", "--merge", run, tmp_path / "none.json"), 3, tmp_path / "none.json", "no such file")
    refused(cli("ln-stats", "--merge", tmp_path), 3, f"{tmp_path}: is a folder, expected a file that ln-stats -o wrote")


def test_a_run_from_a_pipe(run, cli):
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as file:
        file.write(run.read_bytes())
    assert merged(cli, f"/dev/fd/{reading}") == merged(cli, run)
    os.close(reading)


def test_merging_without_files_or_with_texts_is_refused(run, tmp_path, cli):
    for argv in ([], [run, "--ids", "64"], [run, "--lines", run], ["-f", run]):
        refused(cli("ln-stats", "--merge", *argv), 2, "expected files that ln-stats -o wrote", "--merge a.json b.json")


def test_the_same_run_twice_is_said(run, cli):
    ran = cli("ln-stats", "--merge", run, run)
    assert f"warning: {run} holds documents that {run} holds too; they count twice" in ran.err
    assert {line.split()[1] for line in done(ran).splitlines()[1:]} == {"16"}


def test_nothing_is_overwritten(T, tmp_path, cli):
    for flag, name in (("-o", "run.json"), ("--plot", "run.png"), ("--html", "run.html")):
        path = tmp_path / name
        path.write_text("mine")
        ran = cli("ln-stats", "-m", "no such model", TEXT, flag, path)  # said before a model is looked for
        refused(ran, 2, f"{path}: exists; --force overwrites it")
        assert path.read_text() == "mine"
        done(cli("ln-stats", "-m", T, TEXT, flag, path, "--force"))
        assert path.read_bytes()[:4] != b"mine"
        refused(cli("ln-stats", "-m", T, TEXT, flag, tmp_path), 2)
        refused(cli("ln-stats", "-m", T, TEXT, flag, tmp_path / "no" / name), 3, "no such folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.html", "run.json", "run.png"]


@pytest.mark.parametrize("flag", ["-o", "--html"])
def test_a_full_disk(flag, T, cli):
    refused(cli("ln-stats", "-m", T, TEXT, "-q", flag, "/dev/full"), 7, "No space left")


def test_a_disk_that_fails_leaves_nothing(T, tmp_path, cli, monkeypatch):
    """The figure is written last; the run before it stays, whole."""

    def fails(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gpt2ln.commands.ln_stats._html", fails)
    refused(cli("ln-stats", "-m", T, TEXT, "-q", "-o", tmp_path / "a.json", "--html", tmp_path / "a.html"), 7)
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert len(merged(cli, tmp_path / "a.json")) == 5


@pytest.mark.parametrize("name", ["a.jpg", "a", "a.PNG", "a.json"])
def test_a_plot_of_another_kind_is_refused_before_anything_is_read(name, T, tmp_path, cli):
    ran = cli("ln-stats", "-m", "no such model", TEXT, "--plot", tmp_path / name)
    refused(ran, 2, "--plot: ", "expected a name that ends in .png, .pdf or .svg")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("file", [("--plot", "a.png"), ("--html", "a.html")])
def test_without_matplotlib(file, T, tmp_path, cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ran = cli("ln-stats", "-m", "no such model", TEXT, file[0], tmp_path / file[1])
    refused(ran, 3, "matplotlib", "run: pip install 'gpt2ln[plot]'")
    assert list(tmp_path.iterdir()) == []
    done(cli("ln-stats", "-m", T, TEXT, "-q"))


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_a_plot_of_each_kind(suffix, run, tmp_path, cli):
    done(cli("ln-stats", "--merge", run, "--plot", tmp_path / f"a.{suffix}"))
    assert (tmp_path / f"a.{suffix}").read_bytes()[:4] in (b"\x89PNG", b"%PDF", b"<?xm")


def test_merging_needs_no_model_and_no_tensorflow(run, tmp_path):
    """In a folder without models, where importing TensorFlow fails and says so in a file."""
    (tmp_path / "stub").mkdir()
    stub = f"open({str(tmp_path / 'tried')!r}, 'w').close()\nraise ImportError('not today')\n"
    (tmp_path / "stub" / "tensorflow.py").write_text(stub)
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path / "stub"), str(ROOT)])}
    argv = ["-W", "error", "-m", "gpt2ln", "ln-stats", "--merge", "run.json", "--html", "a.html", "-o", "b.json"]
    ran = subprocess.run([sys.executable, *argv], capture_output=True, cwd=tmp_path, env=env, timeout=120, text=True)
    assert (ran.returncode, ran.stdout.split()[0]) == (0, "norm"), ran.stderr
    assert not (tmp_path / "tried").exists()
    assert (tmp_path / "a.html").exists()
    assert (tmp_path / "b.json").exists()


@pytest.mark.parametrize("argv", [["-o", "-"], ["--html", "-"], ["-o", "x.svg", "--plot", "./x.svg"]])
def test_every_file_has_a_name_of_its_own(T, cli, tmp_path, monkeypatch, argv):
    monkeypatch.chdir(tmp_path)
    refused(cli("ln-stats", "-m", T, "abc", *argv), 2, "take a name of a file each")
    assert list(tmp_path.iterdir()) == []
