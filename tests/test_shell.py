"""The program as a shell sees it: exit statuses, options, environment, and what it costs to start."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from gpt2ln.commands import COMMANDS

from .conftest import ROOT


@pytest.fixture
def three(T, tmp_path):
    """Model folders `a`, `b`, `c` whose last block is h0, h1, h2: enough for `taps`, which reads no weights."""
    for n_layer, name in enumerate("abc", start=1):
        folder = shutil.copytree(T, tmp_path / "models" / name)
        hparams = json.loads((folder / "hparams.json").read_text())
        (folder / "hparams.json").write_text(json.dumps(hparams | {"n_layer": n_layer}))
        (folder / "model.ckpt.index").unlink()  # `taps` does without, and holds them against it where it is there
    return tmp_path / "models"


def one_error(ran, status: int, *words: str) -> None:
    """stdout empty, one line of error that holds the words."""
    assert (ran.status, ran.out) == (status, ""), ran
    assert ran.err.startswith("error: "), ran
    assert ran.err.count("\n") == 1, ran
    assert [word for word in words if word not in ran.err] == [], ran


def last_block(ran) -> str:
    assert (ran.status, ran.err) == (0, ""), ran
    return ran.out.splitlines()[-1].split("/")[0]


# exit statuses


def test_no_command_and_unknown_ones(cli):
    one_error(cli(), 2, "Missing command", "gpt2ln --help")
    one_error(cli("tokenise"), 2, "No such command 'tokenise'")
    one_error(cli("--nothing"), 2, "No such option '--nothing'")


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_help_with_an_example(cli, name):
    texts = []
    for spelling in ("-h", "--help"):
        ran = cli(name, spelling)
        assert (ran.status, ran.err) == (0, "")
        texts.append(ran.out)
    assert texts[0] == texts[1]
    assert texts[0].startswith(f"Usage: gpt2ln {name} ")
    assert "\n  Example: " in texts[0]
    one_error(cli(name, "--nothing"), 2, "No such option '--nothing'", f"gpt2ln {name} --help")


def test_version_and_help(cli):
    from gpt2ln import __version__

    assert cli("--version").out == f"gpt2ln, version {__version__}\n"
    ran = cli("--help")
    assert [name for name in COMMANDS if f"\n  {name} " not in ran.out] == []


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (RuntimeError("boom\n  in\tlines"), 70, "error: a bug in gpt2ln: RuntimeError: boom in lines; -v shows where"),
        (EOFError(), 70, "error: a bug in gpt2ln: EOFError: "),
        (RecursionError("deep"), 70, "error: a bug in gpt2ln: RecursionError: deep"),
        (MemoryError(), 5, "error: out of memory; a smaller model or --batch-size 1 takes less"),
        (OSError(28, "No space left on device"), 7, "error: disk: No space left on device"),
        (PermissionError(13, "Permission denied", "x/y"), 7, "error: x/y: Permission denied"),
    ],
)
def test_what_nobody_foresaw_is_one_line(cli, T, monkeypatch, error, status, says):
    def fail(_):
        raise error

    monkeypatch.setattr("gpt2ln.commands.taps.formula", fail)
    one_error(cli("taps", "-m", T), status, says)
    loud = cli("taps", "-v", "-m", T)
    assert loud.status == status
    assert ("Traceback" in loud.err) == (status == 70)
    assert loud.err.splitlines()[-1].startswith(says)


def test_ctrl_c_is_130_without_a_word(cli, T, monkeypatch):
    def fail(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("gpt2ln.commands.taps.formula", fail)
    ran = cli("taps", "-m", T)
    assert (ran.status, ran.out, ran.err) == (130, "", "")


# options: where they stand, how they are spelt, what the environment says


def test_global_options_stand_before_and_after_the_command_and_the_nearest_wins(cli, three):
    at = three / "a"
    assert last_block(cli("-q", "-m", at, "taps", "h-1/in")) == "h0"
    assert last_block(cli("taps", "-q", "-m", at, "h-1/in")) == "h0"
    assert last_block(cli("-q", "-m", three / "c", "taps", "-m", at, "h-1/in")) == "h0"
    assert last_block(cli("-q", "--models-dir", three, "taps", "-m", "b", "h-1/in")) == "h1"


def test_environment_and_its_precedence(cli, three, monkeypatch):
    taps = ("taps", "-q", "h-1/in")
    monkeypatch.setenv("GPT2LN_MODELS_DIR", str(three))
    monkeypatch.setenv("GPT2LN_MODEL_NAME", "a")
    assert last_block(cli(*taps)) == "h0"
    monkeypatch.setenv("GPT2LN_TAPS_MODEL_NAME", "b")
    assert last_block(cli(*taps)) == "h1"
    assert last_block(cli("-m", "c", *taps)) == "h2"
    assert last_block(cli("-m", "b", *taps, "-m", "c")) == "h2"
    monkeypatch.setenv("GPT2LN_TOKENIZE_MODEL_NAME", "gone")
    assert last_block(cli(*taps)) == "h1"
    one_error(cli("tokenize", "a"), 3, "model gone")


def test_each_command_has_its_own_variables(cli, T, monkeypatch):
    generate = ("generate", "-q", "-m", T, "--greedy", "--format", "jsonl", "a")
    monkeypatch.setenv("GPT2LN_LENGTH", "9")
    monkeypatch.setenv("GPT2LN_TAPS_LENGTH", "9")
    monkeypatch.setenv("GPT2LN_GENERATE_LENGTH", "3")
    assert len(json.loads(cli(*generate).out)["tokens"]) == 3
    assert len(json.loads(cli(*generate, "--length", 2).out)["tokens"]) == 2
    monkeypatch.setenv("GPT2LN_GENERATE_LENGTH", "three")
    one_error(cli(*generate), 2, "'--length'", "'three' is not a valid integer")
    monkeypatch.setenv("GPT2LN_LN_STATS_FORMAT", "csv")
    assert cli("ln-stats", "-q", "-m", T, "a").out.startswith("norm,count,mean_mean,")
    monkeypatch.setenv("GPT2LN_QUIET", "1")
    assert cli("tokenize", "-m", T, "<|endoftext|>").err == ""


def test_official_spellings(cli, T):
    argv = ("--length", 2, "--seed", 5, "--format", "jsonl", "a")
    ours = cli("generate", "-q", "-m", T, "--top-k", 3, "--batch-size", 2, "--nsamples", 2, *argv)
    where = (f"--models_dir={T.parent}", "--model_name=tiny")
    official = cli("generate", "-q", *where, "--top_k", 3, "--batch_size=2", "--nsamples=2", *argv)
    assert (ours.status, official.status, official.err) == (0, 0, "")
    keys = ("text", "tokens", "seed", "index", "settings")
    ours, official = ([[json.loads(row)[k] for k in keys] for row in ran.out.splitlines()] for ran in (ours, official))
    assert len(ours) == 2
    assert official == ours
    assert cli("ln_stats", "-q", "-m", T, "a").out == cli("ln-stats", "-q", "-m", T, "a").out


# TensorFlow: not there, and not asked for


@pytest.fixture
def no_tensorflow(tmp_path):
    """An environment in which importing tensorflow fails, and says in a file that somebody tried."""
    (tmp_path / "stub").mkdir()
    (tmp_path / "stub" / "tensorflow.py").write_text(
        f"open({str(tmp_path / 'tried')!r}, 'w').close()\nraise ImportError('libtensorflow.so: not today')\n"
    )
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path / "stub"), str(ROOT)])}


EVERYTHING = """
import json, sys
from gpt2ln.commands import main
for argv in json.loads(sys.argv[1]):
    status = main(argv)
    sys.stderr.flush()
    print("\\n@", json.dumps([argv, status, "tensorflow" in sys.modules]), flush=True)
"""


def test_commands_that_need_no_tensorflow_never_import_it(no_tensorflow, T, tmp_path):
    m = ["-m", str(T)]
    done = [["--help"], ["--version"], *[[name, "--help"] for name in COMMANDS], ["tokenize", *m, "a"]]
    done += [["detokenize", *m, "64"], ["taps", *m], ["inspect", *m], ["inspect", *m, "--stats"]]
    done += [["inspect", *m, "--values", "wpe"]]
    wrong = [[name, "--nothing"] for name in COMMANDS] + [["nothing"], [], ["--nothing"]]
    wrong += [["generate", *m, "--top-k", "x"], ["generate", *m, "--top-p", "2"], ["generate", *m, "a", "--ids", "1"]]
    bad = [["generate", *m, ""], ["generate", *m, "--ids", "260"], ["generate", *m, "a", "--length", "99"]]
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", EVERYTHING, json.dumps(done + wrong + bad)],
        capture_output=True, cwd=tmp_path, env=os.environ | no_tensorflow, timeout=120, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    found = [json.loads(line[2:]) for line in run.stdout.splitlines() if line.startswith("@ ")]
    expected = [[argv, status, False] for argvs, status in ((done, 0), (wrong, 2), (bad, 5)) for argv in argvs]
    assert found == expected
    assert not (tmp_path / "tried").exists()


@pytest.mark.slow
def test_without_tensorflow_generate_says_so_and_the_others_work(shell, no_tensorflow, T, tmp_path):
    ran = shell("generate", "-m", T, "a", "--seed", 1, env=no_tensorflow)
    assert (ran.returncode, ran.stdout) == (3, b"")
    assert (tmp_path / "tried").exists()
    line = ran.stderr.decode()
    assert line.count("\n") == 1
    assert line.startswith("error: TensorFlow: cannot be imported (ImportError: libtensorflow.so: not today); ")
    assert "version 2." in line or "it is not installed" in line
    assert "tensorflow >= 2.16 is needed; run: pip install 'tensorflow>=2.16'" in line
    ran = shell("tokenize", "-m", T, "a", env=no_tensorflow)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"64\n", b"")


def seconds(*argv: str) -> float:
    """Processor time of the shortest of some runs: what the machine does beside is no part of it."""
    took = []
    for _ in range(3):
        before = os.times()
        subprocess.run([sys.executable, *argv], check=True, cwd=ROOT, stdout=subprocess.DEVNULL, timeout=120)
        after = os.times()
        took.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return min(took)


@pytest.mark.slow
def test_help_and_light_commands_start_at_once(T):
    bare = seconds("-c", "pass")
    for argv in (["--help"], ["--version"], ["generate", "--help"], ["tokenize", "-m", str(T), "a"]):
        above = seconds("-m", "gpt2ln", *argv) - bare
        assert 0 < above < 0.5, (argv, above)


@pytest.mark.slow
def test_generate_twice_is_the_same_and_quiet(shell, T):
    argv = ("generate", "-q", "-m", T, "a", "--seed", 7, "--nsamples", 2, "--length", 8)
    first, second = (shell(*argv) for _ in range(2))
    assert (first.returncode, first.stderr, second.stderr) == (0, b"", b"")
    assert first.stdout == second.stdout
    assert first.stdout.count(b"---\n") == 1
