"""`completion`: a script that a shell takes, and what it completes."""

import os
import shlex
import shutil
import subprocess
import sys

import pytest

from .conftest import ROOT
from .refusals import done, refused

SHELLS = ("bash", "zsh", "fish")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_and_where_it_goes(cli, shell):
    ran = cli("completion", shell)
    assert f"_GPT2LN_COMPLETE={shell}_complete" in done(ran)
    assert ran.out.count("\n\n\n") == 0
    assert ran.err == ""  # as in `source <(gpt2ln completion bash)`, at each start of a shell


@pytest.mark.parametrize("shell", SHELLS)
def test_on_a_terminal_it_says_where_to_keep_it(cli, shell, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    said = cli("completion", shell).err
    assert said.startswith("to keep it: ")
    assert f"gpt2ln completion {shell} > " in said
    assert cli("completion", shell, "-q").err == ""


def test_other_shells_are_refused(cli):
    refused(cli("completion", "tcsh"), 2, "'tcsh' is not one of 'bash', 'zsh', 'fish'")
    refused(cli("completion"), 2, "SHELL")
    refused(cli("completion", "bash", "zsh"), 2, "zsh")


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_takes_it(cli, shell, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "script"
    script.write_text(done(cli("completion", shell)))
    ran = subprocess.run([shell, "-n", script], capture_output=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, b"")


@pytest.fixture
def completed(cli, tmp_path):
    """`completed("gpt2ln", "gen")` -> what bash offers for the last word, where TensorFlow cannot be imported."""
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    launcher = tmp_path / "gpt2ln"
    launcher.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m gpt2ln "$@"\n')
    launcher.chmod(0o755)
    (tmp_path / "tensorflow.py").write_text("raise ImportError('stub')")
    script = done(cli("completion", "bash"))

    def ask(*words: str) -> list[str]:
        line = f"COMP_WORDS=({shlex.join(words)}) COMP_CWORD={len(words) - 1}; _gpt2ln_completion gpt2ln"
        env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": f"{tmp_path}:{ROOT}"}
        command = ["bash", "--norc", "-c", f'{script}\n{line}\nprintf "%s\\n" "${{COMPREPLY[@]}}"\ncomplete -p gpt2ln']
        ran = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60)
        assert (ran.returncode, ran.stderr) == (0, "")
        *offered, registered = ran.stdout.splitlines()
        assert registered.endswith(" -F _gpt2ln_completion gpt2ln")
        return offered

    return ask


def test_bash_completes_commands_options_and_choices(completed):
    assert completed("gpt2ln", "gen") == ["generate"]
    assert completed("gpt2ln", "generate", "--nuc") == ["--nucleus"]
    assert completed("gpt2ln", "completion", "f") == ["fish"]
