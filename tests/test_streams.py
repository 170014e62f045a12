"""Streams as a shell gives and takes them: code pages, closed pipes, full disks and Ctrl-C."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from .conftest import ROOT
from .tiny import ID

FULL = "/dev/full"
INTERRUPTIBLE = "import signal as s; s.signal(s.SIGINT, s.default_int_handler); from gpt2ln.commands import run; run()"


# code pages


def test_what_stdout_cannot_show_is_replaced(shell, T):
    ids = [str(ID[b]) for b in "aé😨".encode()] + [str(ID[0xFF])]
    assert shell("detokenize", "-m", T, *ids).stdout.decode() == "aé😨\ufffd"
    ran = shell("detokenize", "-m", T, *ids, env={"PYTHONIOENCODING": "cp1252"})
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"a\xe9??", b"")
    ran = shell("tokenize", "-m", "no 😨", "a", env={"PYTHONIOENCODING": "cp1252"})
    assert (ran.returncode, ran.stdout) == (3, b"")
    assert ran.stderr.startswith(b"error: model no ?: ")
    assert ran.stderr.count(b"\n") == 1


C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_files_arguments_and_names_are_utf8_in_every_locale(shell, T, tmp_path):
    folder = shutil.copytree(T, tmp_path / "mo dèl 模型")
    (tmp_path / "tëxt").write_bytes("é😨".encode())
    ids = " ".join(str(ID[b]) for b in "é😨".encode()).encode() + b"\n"
    for env in (C_LOCALE, {"PYTHONIOENCODING": "cp1252"}, {"PYTHONIOENCODING": "utf-16"}):
        for source in (["é😨"], ["-f", tmp_path / "tëxt"]):
            ran = shell("tokenize", "-m", folder, *source, env=env)
            out = ran.stdout.decode("utf-16").encode() if "utf-16" in env.values() else ran.stdout
            assert (ran.returncode, out, ran.stderr) == (0, ids, b""), env
        with (tmp_path / "tëxt").open() as stdin:
            ran = shell("tokenize", "-m", folder, "-f", "-", env=env, stdin=stdin)
        out = ran.stdout.decode("utf-16").encode() if "utf-16" in env.values() else ran.stdout
        assert (ran.returncode, out, ran.stderr) == (0, ids, b""), env


@pytest.mark.slow
def test_a_file_holds_the_same_bytes_in_every_locale(shell, T, tmp_path):
    folder = shutil.copytree(T, tmp_path / "mo dèl 模型")
    argv = ["generate", "-q", "-m", folder, "é😨", "--include-prompt", "--greedy", "--length", 4, "--format", "jsonl"]
    kept = []
    for name, env in {"utf8": {}, "c": C_LOCALE, "cp1252": {"PYTHONIOENCODING": "cp1252"}}.items():
        ran = shell(*argv, "-o", tmp_path / name, env=env)
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"", b"")
        record = json.loads((tmp_path / name).read_bytes().decode("utf-8"))
        kept.append({k: v for k, v in record.items() if k != "timing"})
    assert kept[0]["prompt"] == "é😨"
    assert kept[0]["text"].startswith("é😨")
    assert kept[0]["model"]["name"] == str(folder)
    assert kept[1:] == [kept[0]] * 2


# streams that end early


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_pipe_is_141_without_a_word(T, tmp_path, unbuffered):
    (tmp_path / "long").write_text("x " * 500_000)
    argv = [sys.executable, "-m", "gpt2ln", "tokenize", "-m", T, "-f", tmp_path / "long"]
    env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, env=env) as process:
        assert process.stdout.read(7) == b"87 220 "
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


@pytest.mark.slow
def test_a_pipe_closed_while_generating(T):
    argv = [sys.executable, "-m", "gpt2ln", "generate", "-q", "-m", T, "a", "--length", "8", "--nsamples", "10000"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout.read(1) != b""
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


@pytest.mark.skipif(not os.path.exists(FULL), reason=f"no {FULL} on this system")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_one_line(T, unbuffered):
    argv = [sys.executable, "-m", "gpt2ln", "tokenize", "-m", T, "a"]
    env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with open(FULL, "wb") as full:
        ran = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, cwd=ROOT, env=env, timeout=120)
    assert (ran.returncode, ran.stderr) == (7, b"error: disk: No space left on device\n")


@pytest.mark.skipif(os.name != "posix", reason="no sh")
@pytest.mark.parametrize(
    ("closing", "status", "err"),
    [(">&-", 0, b""), ("-f - <&-", 0, b""), ("2>&-", 0, b"")],
)
def test_closed_streams_are_no_bug(T, closing, status, err):
    text = "" if "-f" in closing else "a"
    line = f'"{sys.executable}" -m gpt2ln tokenize -m "{T}" {text} {closing}'
    ran = subprocess.run(["sh", "-c", line], capture_output=True, cwd=ROOT, timeout=120)
    assert (ran.returncode, ran.stderr) == (status, err)


# Ctrl-C


@contextlib.contextmanager
def start_long_run(T, *argv):
    """A run of minutes, in a process that takes Ctrl-C even where its parent ignores it; it ends with the test."""
    argv = ["generate", "-q", "-m", T, "a", "--seed", 1, "--nsamples", 100_000, "--format", "jsonl", *argv]
    command = [sys.executable, "-c", INTERRUPTIBLE, *map(str, argv)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_ctrl_c_leaves_whole_lines_on_stdout(T):
    with start_long_run(T) as process:
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, b"")
    lines = (first + out).decode().splitlines(keepends=True)
    assert [line[-1] for line in lines] == ["\n"] * len(lines)
    records = [json.loads(line) for line in lines]
    assert [record["index"] for record in records] == list(range(len(records)))
    assert {record["finish"] for record in records[:-1]} <= {"length"}
    assert records[-1]["finish"] in ("length", "interrupted")


@pytest.mark.slow
def test_ctrl_c_leaves_no_file_under_its_final_name(T, tmp_path):
    part = tmp_path / "out.part"
    with start_long_run(T, "-o", tmp_path / "out") as process:
        deadline = time.monotonic() + 60
        while not (part.exists() and part.stat().st_size) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, b"")
    assert err.decode() == f"interrupted: what was written is in {part}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["out.part"]
    lines = part.read_text(encoding="utf-8").splitlines(keepends=True)
    assert [line[-1] for line in lines] == ["\n"] * len(lines)
    assert [json.loads(line)["index"] for line in lines] == list(range(len(lines)))
    assert lines
