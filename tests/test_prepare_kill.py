"""A preparation that is killed, stopped or locked out: nothing half-made is used, and the next one succeeds."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import gpt2ln
from gpt2ln.prepared import check

from .conftest import ROOT
from .refusals import done, refused
from .test_download_kill import Run, on_a_terminal

pytestmark = pytest.mark.slow


def begun(kept: Path) -> list[Path]:
    """Graphs of an engine that is being made."""
    return sorted(kept.glob("fast-*.part/*.tflite"))


def names(kept: Path) -> list[str]:
    return sorted(path.name for path in kept.glob("*"))


def is_whole(T, kept: Path) -> None:
    found = gpt2ln.load(T, cache_dir=kept).prepared
    check(found)
    assert names(kept) == [found.folder.name]


def test_ctrl_c(tmp_path, T):
    kept = tmp_path / "c"
    with Run(["prepare", T, "--cache-dir", kept]) as run:
        run.until(lambda: len(begun(kept)) > 2)
        run.process.send_signal(signal.SIGINT)
        ran = run.end()
    assert (ran.status, ran.out, ran.err) == (130, "", "")
    assert names(kept) == []


def test_kill_9(tmp_path, cli, T):
    """What is left is no engine, and makes room for the next one."""
    kept = tmp_path / "c"
    with Run(["prepare", T, "--cache-dir", kept]) as run:
        run.until(lambda: len(begun(kept)) > 2)
        run.process.send_signal(signal.SIGKILL)
        assert run.end().status == -signal.SIGKILL
    (left,) = names(kept)
    assert left.endswith(".part")
    assert gpt2ln.load(T, cache_dir=kept).prepared.state == "none"
    argv = ("-m", T, "generate", "ab", "--length", 5, "--seed", 1, "--cache-dir", kept)
    assert done(cli(*argv)) == done(cli(*argv, "--engine", "exact"))
    refused(cli(*argv, "--engine", "fast"), 3, "no prepared engine of this checkpoint in ")
    done(cli("prepare", T, "--cache-dir", kept))
    is_whole(T, kept)


def test_two_at_once(tmp_path, cli, T):
    """The second is told, and harms nothing."""
    kept = tmp_path / "c"
    with Run(["prepare", T, "--cache-dir", kept]) as first:
        first.until(lambda: len(begun(kept)) > 2)
        (part,) = kept.iterdir()
        words = f"{part}: locked, another process writes it; wait for it to end"
        refused(cli("prepare", T, "--cache-dir", kept), 7, words)
        refused(cli("prepare", T, "--cache-dir", kept, "--force"), 7, words)
        assert first.end().status == 0
    is_whole(T, kept)


def test_generation_needs_no_tensorflow(engines):
    """In a process of its own, from the command line to the text; numpy and LiteRT are all there is."""
    code = "import sys; from gpt2ln.commands import main; status = main(sys.argv[1:]); "
    code += "print(status, 'tensorflow' in sys.modules, 'ai_edge_litert' in sys.modules)"
    argv = ["-m", "demo", "generate", "To be", "--length", "8", "--seed", "1", "--cache-dir", str(engines)]
    for more in ([], ["--engine", "fast"], ["--format", "jsonl"]):
        command = [sys.executable, "-c", code, *argv, *more]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert ran.stdout.splitlines()[-1] == "0 False True", ran
        assert ran.stderr.splitlines()[-1].startswith("engine: fast (max |d logit| "), ran
        assert ('"engine": "fast"' in ran.stdout) == ("jsonl" in more)


def test_the_bar(tmp_path, T):
    argv = ["prepare", T, "--cache-dir", tmp_path / "c"]
    assert "8/8" in on_a_terminal([*argv, "--force"])
    assert on_a_terminal([*argv, "-q"]) == ""


def test_a_closed_pipe(engines):
    command = [sys.executable, "-m", "gpt2ln", "prepare", "demo", "--cache-dir", str(engines)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b"note: demo was already prepared; --force makes it anew\n"
    assert process.returncode == 141
