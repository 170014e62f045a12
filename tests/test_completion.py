"""`completion`: a script that a shell takes, and what it completes there: commands, options, models, taps, files."""

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
def launched(tmp_path):
    """-> environment in which `gpt2ln` is this one, and TensorFlow cannot be imported."""
    launcher = tmp_path / "gpt2ln"
    launcher.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m gpt2ln "$@"\n')
    launcher.chmod(0o755)
    (tmp_path / "tensorflow.py").write_text("raise ImportError('stub')")
    return os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": f"{tmp_path}:{ROOT}"}


def ask(launched, where, *command: object) -> list[str]:
    """-> lines of a shell that has nothing to say beside."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    ran = subprocess.run(command, capture_output=True, text=True, env=launched, cwd=where, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout.splitlines()


LINES = {
    "gpt2ln gen": "generate",
    "gpt2ln dump -t @ln,@r": "@ln,@resid",
    "gpt2ln -m de": "demo",
}


def test_bash(cli, launched, tmp_path):
    """It takes words apart at @ and =, and replaces the last part alone."""
    taken_apart = {"gpt2ln dump -t @ln,@r": "resid", "gpt2ln dump --taps=@m": "mlp"}
    lines = LINES | {"gpt2ln generate 'a b' --nuc": "--nucleus"} | taken_apart
    script = """
        compopt() { COMPREPLY+=("($*)"); }
        COMP_WORDBREAKS=$' \\t\\n"\\'><=;|&(:@'
        for COMP_LINE in "$@"; do
            COMP_POINT=${#COMP_LINE} COMP_LINE+=" later"
            _gpt2ln_completion gpt2ln
            echo "${COMPREPLY[@]}"
        done
        complete -p gpt2ln
    """
    (tmp_path / "script").write_text(done(cli("completion", "bash")) + script)
    *found, registered = ask(launched, tmp_path, "bash", "--norc", "script", *lines, "gpt2ln import --npy")
    assert [line.removeprefix("(-o default) ") for line in found] == [*lines.values(), ""]
    assert found[2] == "(-o default) demo"
    assert registered.endswith(" -F _gpt2ln_completion gpt2ln")


def test_zsh(cli, launched, tmp_path):
    script = """
        compdef() { :; }
        compadd() { print -r -- ${completions}; }
        _describe() { print -r -- ${completions_with_descriptions%%:*}; }
        _path_files() { print -r -- "files $@"; }
        . ./script
        for line in "$@"; do
            words=("${(@z)line}")
            CURRENT=${#words}
            _gpt2ln_completion
        done
    """
    (tmp_path / "script").write_text(done(cli("completion", "zsh")))
    found = ask(launched, tmp_path, "zsh", "-f", "-c", script, "zsh", *LINES)
    assert [line for line in found if line != "files -f"] == [*LINES.values()]
    assert found.count("files -f") == 1


def test_fish(cli, launched, tmp_path):
    (tmp_path / "script").write_text(done(cli("completion", "fish")))
    (tmp_path / "demons").mkdir()
    script = "source script; for line in $argv; complete -C $line; end"
    found = ask(launched | {"HOME": str(tmp_path)}, tmp_path, "fish", "-N", "-c", script, *LINES)
    assert [line.split("\t")[0] for line in found] == [*LINES.values(), "demons/"]
    assert found[0] == "generate\tContinue TEXT; without one, write from..."


# what is offered, whatever the shell


@pytest.fixture
def offered(cli, monkeypatch):
    """`offered("-m d")` -> what a shell is told."""

    def call(line: str) -> list[str]:
        monkeypatch.setenv("_GPT2LN_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_LINE", f"gpt2ln {line}")
        monkeypatch.setenv("COMP_WORDBREAKS", "")
        return [word.removeprefix("plain,") for word in done(cli()).splitlines() if word]

    return call


RELEASED = ["124M", "355M", "774M", "1558M"]


def test_models_are_those_there_are_and_those_on_the_shelves(offered, T, tmp_path, monkeypatch):
    shutil.copytree(T, tmp_path / "shelf" / "mine")
    (tmp_path / "shelf" / "124M").mkdir()
    (tmp_path / "shelf" / "notes").mkdir()
    (tmp_path / "shelf" / "model.ckpt.index").touch()
    for line in ("-m ", "taps -m ", "verify ", "prepare ", "diff demo ", "diff "):
        assert offered(f"--models-dir {tmp_path}/shelf {line}") == ["file,", "demo", *RELEASED, "mine"]
    assert offered(f"taps --models-dir {tmp_path}/shelf -m mi") == ["file,mi", "mine"]
    assert offered(f"--models-dir {tmp_path}/none -m m") == ["file,m"]
    assert offered("download ") == RELEASED
    assert offered("download 124M 3") == ["355M"]
    assert offered("generate --speculate ") == ["file,", "demo", *RELEASED, "lookup"]
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    (tmp_path / "gpt2ln").mkdir()
    (tmp_path / "shelf").rename(tmp_path / "gpt2ln" / "models")
    assert offered("generate -m mi") == ["file,mi", "mine"]


def test_taps(offered):
    assert offered("dump -t ") == ["@ln-stats", "@ln", "@resid", "@attn", "@mlp", "@all"]
    assert offered("generate --dump-taps !@a") == ["!@attn", "!@all"]
    assert offered("taps h0/in,!@m") == ["h0/in,!@mlp"]
    assert offered("taps h") == []


@pytest.mark.parametrize("line", ["score -f x", "compare x", "export x", "dump -o x", "--checkpoint x", "import x"])
def test_files_are_the_shells_own(offered, line):
    assert offered(line) == ["file,x"]
    assert offered("inspect --npy x") == offered("--models-dir x") == ["dir,x"]


def test_a_script_of_an_earlier_version_still_works(cli, monkeypatch):
    monkeypatch.setenv("_GPT2LN_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "gpt2ln\ngen")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert done(cli()) == "plain,generate\n"


@pytest.mark.parametrize("shell", SHELLS)
def test_the_variable_alone_is_refused(cli, monkeypatch, shell):
    monkeypatch.setenv("_GPT2LN_COMPLETE", f"{shell}_complete")
    refused(cli("--help"), 2, f"_GPT2LN_COMPLETE={shell}_complete: set without what a shell sets beside it; unset it")
