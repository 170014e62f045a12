"""Every command that README, help and docstrings print runs as printed, and says what they say it says."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from gpt2ln import commands

from .conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


RUN = ("gpt2ln", "echo", "printf")


def examples(block: str) -> list[tuple[str, str]]:
    """-> (command, what it prints), for each `$ ` line of a block that starts with one of ours."""
    parts = [part.partition("\n") for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    return [(command, output) for command, _, output in parts if command.startswith(RUN)]


EXAMPLES = [(block, found) for block in BLOCKS if not block.startswith("$ scripts/demo") and (found := examples(block))]


def run_in(folder: Path, command: str) -> subprocess.CompletedProcess:
    """Run a line in a shell in which `gpt2ln` and `python` are these."""
    bin_folder = folder / "bin"
    bin_folder.mkdir(exist_ok=True)
    for name, how in (("gpt2ln", " -m gpt2ln"), ("python", "")):
        launcher = bin_folder / name
        launcher.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)}{how} "$@"\n')
        launcher.chmod(0o755)
    env = os.environ | {"PATH": f"{bin_folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )


def same(printed: str, found: str) -> bool:
    """Equal word for word; numbers to a part in a hundred, since other processors sum in another order."""
    a, b = (re.split(r"(\d+\.\d+(?:e-?\d+)?)|\s+", text.strip()) for text in (printed, found))
    return len(a) == len(b) and all(map(_same_word, a, b))


def _same_word(a, b) -> bool:
    if a == b:
        return True
    try:
        return abs(float(a) - float(b)) <= 0.01 * abs(float(b))
    except (TypeError, ValueError):
        return False


def test_there_are_examples():
    assert sum(len(found) for _, found in EXAMPLES) >= 20


@pytest.mark.slow
@pytest.mark.parametrize("found", [found for _, found in EXAMPLES], ids=[found[0][0][:60] for _, found in EXAMPLES])
def test_readme(found, tmp_path):
    """The lines of a block one after the other, in one folder."""
    for command, printed in found:
        r = run_in(tmp_path, command)
        assert r.returncode in ((0, 141) if "| head" in command else (0,)), r.stderr
        assert printed.strip(), command
        assert same(printed, r.stdout), f"README prints\n{printed}\nfound\n{r.stdout}"
        assert "error" not in r.stderr


def test_the_comparison_can_fail():
    assert same("h0 0.1234 (0.02) a", "h0 0.1235 (0.02)  a\n")
    assert not same("h0 0.1234", "h0 0.1334")
    assert not same("one two", "one three")
    assert not same("one two", "one two three")


@pytest.mark.slow
@pytest.mark.parametrize("name", list(commands.COMMANDS))
def test_help_has_an_example_that_runs(name, tmp_path, cli):
    text = cli(name, "--help").out
    example = re.search(r"Example: (.*)", click.unstyle(text), re.DOTALL)
    assert example, f"{name} --help has no example"
    command = " ".join(example[1].split())
    if any(command in line for _, found in EXAMPLES for line, _ in found):  # which runs it
        return
    r = run_in(tmp_path, command)
    assert r.returncode == 0, r.stderr
    assert r.stdout


@pytest.mark.parametrize("source", PYTHON, ids=range(len(PYTHON)))
def test_readme_python(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(source, "README.md", "exec"), {})


def test_demo_prints_what_readme_shows():
    """The first screen of README is the real output of `scripts/demo`."""
    shown = next(block for block in BLOCKS if block.startswith("$ scripts/demo"))
    script = (ROOT / "scripts/demo").read_text()
    run = [line for line in script.splitlines() if line.startswith("$gpt2ln ")]
    assert len(run) == 2
    for line in run:
        assert line.replace("$gpt2ln", "$ gpt2ln") in shown
    parts = re.split(r"^\$ gpt2ln ", shown, flags=re.MULTILINE)[1:]
    for part in parts:
        command, _, output = part.partition("\n")
        r = subprocess.run(
            [sys.executable, "-m", "gpt2ln", *shlex.split(command)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert r.returncode == 0, r.stderr
        assert same(output, r.stdout), r.stdout


def test_scripts_can_be_run():
    for name in ("demo", "test", "check", "bench"):
        path = ROOT / "scripts" / name
        assert os.access(path, os.X_OK), f"scripts/{name} has no run bit"
        assert subprocess.run([shutil.which("bash"), "-n", path]).returncode == 0
