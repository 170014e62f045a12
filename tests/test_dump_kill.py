"""A dump that is killed, at whatever moment, goes on with --resume and is in the end the same bytes."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from .conftest import ROOT
from .dumps import contents, names
from .refusals import refused

pytestmark = pytest.mark.slow

DOCUMENTS = 600
ARGV = ("dump", "-t", "@mlp,logits", "--jsonl", "../texts.jsonl", "-o", "d", "--shard-mb", "1")


class Run:
    """`gpt2ln -m T dump ... -o d` in a process of its own and a folder of its own."""

    def __init__(self, T: Path, place: Path, *more: str, **streams):
        place.mkdir(exist_ok=True)
        self.folder = place / "d"
        command = [sys.executable, "-m", "gpt2ln", "-m", str(T), *ARGV, *more]
        env = os.environ | {"PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(command, cwd=place, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, **streams)  # fmt: skip

    def until(self, name: str) -> None:
        """Wait for a file in the folder; the run must not end before."""
        while not (self.folder / name).exists():
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.001)

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        """Leave nothing running, whatever a test has found."""
        self.process.kill()
        self.process.communicate()

    def end(self) -> tuple[int, str]:
        """-> exit status, stderr"""
        _, err = self.process.communicate(timeout=120)
        return self.process.returncode, err.decode()


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    texts = (f'{{"id": {n}, "prompt": "{"abcdefgh"[: n % 8 + 1] * 2}"}}\n' for n in range(DOCUMENTS))
    (folder / "texts.jsonl").write_text("".join(texts))
    return folder


@pytest.fixture(scope="module")
def right(T, place) -> dict[str, bytes]:
    """Files of a run that nothing interrupted."""
    with Run(T, place / "right") as run:
        assert run.end() == (0, "")
    found = contents(run.folder)
    assert len(found) > 8
    return found


def check_what_is_there(folder: Path, right: dict[str, bytes]) -> int:
    """Whatever has its final name is whole -> how many shards are."""
    assert not (folder / "manifest.json").exists()
    shards = sorted(folder.glob("shard-*.safetensors"))
    for path in shards:
        assert path.read_bytes() == right[path.name]
        load_file(path)
    return len(shards)


def test_killed_at_any_moment_it_ends_as_the_same_bytes(T, place, right):
    """At the first file it makes, between two shards, and in the midst of one."""
    whole = 0
    for n, moment in enumerate(["manifest.json.part", "shard-00001.safetensors", "shard-00003.safetensors.part"]):
        with Run(T, place / "killed", *["--resume"][: min(n, 1)]) as run:
            run.until(moment)
            time.sleep(0.003 * n)
            run.send(signal.SIGKILL)
            assert run.end()[0] == -signal.SIGKILL
        before, whole = whole, check_what_is_there(run.folder, right)
        assert before <= whole < len(right) - 1
    assert whole >= 3
    with Run(T, place / "killed", "--resume") as run:
        status, err = run.end()
    assert status == 0
    assert f" of {len(right) - 1} shards are whole, " in err
    assert contents(run.folder) == right


def test_ctrl_c_keeps_whole_shards_and_a_second_run_waits_its_turn(T, place, right, cli, monkeypatch, warm):
    with Run(T, place / "stopped") as run:
        run.until("shard-00001.safetensors")
        run.send(signal.SIGSTOP)
        monkeypatch.chdir(place / "stopped")
        for flag in ("--resume", "--force"):
            refused(cli("-m", T, *ARGV, flag), 7, f"{run.folder}: locked, another process writes it")
        run.send(signal.SIGCONT)
        run.send(signal.SIGINT)
        status, err = run.end()
    whole = check_what_is_there(run.folder, right)
    assert status == 130
    assert err == f"interrupted: {whole} of {len(right) - 1} shards are whole; --resume goes on\n"
    assert names(run.folder)[0] == "manifest.json.part"
    assert len(names(run.folder)) == 1 + whole
    with Run(T, place / "stopped", "--resume") as again:
        assert again.end()[0] == 0
    assert contents(run.folder) == right


def test_a_lock_that_another_holds(T, place, cli, monkeypatch, warm):
    held = place / "held" / "d"
    held.mkdir(parents=True)
    handle = os.open(held, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    monkeypatch.chdir(held.parent)
    refused(cli("-m", T, *ARGV), 7, f"{held}: locked, another process writes it; wait for it to end")
    os.close(handle)
    assert names(held) == []


def test_a_reader_that_goes_away_is_no_error(T, place):
    place.joinpath("pipe").mkdir()
    command = [sys.executable, "-m", "gpt2ln", "-m", str(T), "dump", "--jsonl", "../texts.jsonl", "-q"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    run = subprocess.Popen(command, cwd=place / "pipe", env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert run.stdout.readline().startswith(b'{"meta": ')
    run.stdout.close()
    assert (run.stderr.read(), run.wait(60)) == (b"", 141)
    run.stderr.close()
