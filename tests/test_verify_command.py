"""`gpt2ln verify`: one line a file, one error line with the status, and nothing written but what --pin asks for."""

import fcntl
import json
import os
import pty
import shutil
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from gpt2ln import published
from gpt2ln.pins import RECORD, read_pins
from gpt2ln.published import AGAIN, DATA, INDEX

from . import tiny
from .conftest import ROOT
from .findings import NAMES, digest, found_bad
from .refusals import done, refused


@pytest.fixture
def model(T, tmp_path) -> Path:
    """T, to be changed."""
    return Path(shutil.copytree(T, tmp_path / "models" / "tiny"))


def objects(ran) -> list[dict]:
    return [json.loads(line) for line in ran.out.splitlines()]


# --- whole --------------------------------------------------------------------------------------------------------


def test_the_table(model, cli):
    """Exactly."""
    ran = cli("verify", "-m", model)
    assert done(ran) == (
        "file                            bytes  state  found\n"
        "hparams.json                       69  ok     fits the index\n"
        "encoder.json                     3329  ok     260 entries\n"
        "vocab.bpe                          30  ok     3 merges\n"
        "checkpoint                         77  ok     -\n"
        "model.ckpt.index                  920  ok     28 variables\n"
        "model.ckpt.data-00000-of-00001  15872  ok     CRC32C of 28 tensors\n"
    )
    assert ran.err == f"{model}: 6 files whole\n"
    assert cli("verify", model, "-q").err == ""


def test_as_json(model, cli):
    *files, summary = objects(cli("verify", model, "--json"))
    assert [list(f) for f in files] == [["file", "state", "bytes", "sha256", "found", "tensors"]] * 6
    assert [f["file"] for f in files] == NAMES
    assert files[0] == {
        "file": "hparams.json", "state": "ok", "bytes": 69, "sha256": digest(model / "hparams.json"),
        "found": "fits the index", "tensors": [],
    }  # fmt: skip
    assert files[-1]["sha256"] is None
    assert summary == {"summary": {"model": str(model), "folder": str(model), "state": "ok", "files": 6}}


def test_fast(model, cli):
    ran = cli("verify", model, "--fast")
    assert done(ran).splitlines()[-1] == "model.ckpt.data-00000-of-00001  15872  unchecked  values not read"
    assert ran.err == f"{model}: 6 files whole, values not read (--fast)\n"


def test_every_name_a_model_has(model, cli):
    right = done(cli("verify", model))
    for name in (f"{model}/", *(model / name for name in ("model.ckpt", INDEX, DATA, "checkpoint"))):
        assert done(cli("verify", name)) == done(cli("verify", "-m", name)) == right
    assert done(cli("verify", "tiny", "--models-dir", model.parent)) == right
    assert done(cli("verify", "-m", "tiny", "tiny", "--models-dir", model.parent)) == right
    shutil.copytree(model, model.parent / "mo dèl [1]*模型")
    assert done(cli("verify", "mo dèl [1]*模型", "--models-dir", model.parent)) == right


def test_the_demo_is_whole(cli):
    assert done(cli("verify", "demo")).count(" ok ") == 6


def test_other_weights(T, tmp_path, cli):
    run = tiny.tiny(tmp_path / "run", prefix="model-500", seed=5)
    for argv in (["-m", T], [T]):
        out = done(cli("verify", *argv, "--checkpoint", run / "model-500"))
        assert f"{run}/model-500.data-00000-of-00001" in out
        assert "\nmodel.ckpt" not in out


def test_a_model_on_the_line_says_more_than_the_environment(model, cli, monkeypatch):
    monkeypatch.setenv("GPT2LN_MODEL_NAME", "nowhere")
    assert done(cli("verify", model))
    monkeypatch.setenv("GPT2LN_VERIFY_MODEL_NAME", "nowhere")
    assert done(cli("verify", model))
    refused(cli("verify"), 3, "nowhere")


# --- not whole ----------------------------------------------------------------------------------------------------


def test_damage_as_text_and_as_json(model, cli):
    raw = bytearray((model / DATA).read_bytes())
    raw[100] ^= 1
    (model / DATA).write_bytes(raw)
    sums = "model/h0/attn/c_attn/w (CRC32C is 0x"
    error = found_bad(
        cli("verify", model), 4, f"{model}: 1 of 6 files damaged: {DATA}: 1 of 28 tensors damaged: {sums}"
    )
    assert error.endswith(f"; {AGAIN}")
    ran = cli("verify", model, "--json")
    found_bad(ran, 4)
    *files, summary = objects(ran)
    (bad,) = files[-1]["tensors"]
    assert bad["name"] == "model/h0/attn/c_attn/w"
    assert f"CRC32C is 0x{bad['crc32c']}, the index says 0x{bad['index']}" in error
    assert summary["summary"]["state"] == "damaged"


def test_five_bad_tensors_are_named_and_the_others_counted(model, cli):
    (model / DATA).write_bytes(bytes(15872))
    error = found_bad(cli("verify", model), 4, "28 of 28 tensors damaged: ", "and 23 more")
    assert error.count("CRC32C is") == 5
    *files, _ = objects(cli("verify", model, "--json"))
    assert len(files[-1]["tensors"]) == 28


def test_statuses_of_several_kinds(model, cli):
    """4 before 7 before 3 before 1."""
    done(cli("verify", model, "--pin"))
    letter = (model / "hparams.json").read_text() + "\n"
    (model / "hparams.json").write_text(letter)
    change = f"{AGAIN}; if the change is meant, remove {RECORD} and pin anew: gpt2ln verify --pin"
    told = found_bad(cli("verify", model), 1, "1 of 6 files different: hparams.json: sha256 is ", ", pinned ")
    assert told.endswith(change)
    (model / "checkpoint").unlink()
    found_bad(cli("verify", model), 3, "1 of 6 files missing: checkpoint: no such file")
    (model / "vocab.bpe").unlink()
    (model / "vocab.bpe").symlink_to("/proc/self/mem")
    told = found_bad(cli("verify", model), 7, "1 of 6 files unreadable: vocab.bpe: Input/output error")
    assert AGAIN not in told
    (model / "encoder.json").write_text("<html>")
    found_bad(cli("verify", model), 4, "1 of 6 files damaged: encoder.json: line 1 column 1: ")


def test_the_name_of_a_released_model(model, cli):
    """A folder of that name that holds something else: all of it sound, none of it published."""
    model.rename(model.with_name("124M"))
    for argv in (["124M"], ["gpt2"], ["-m", "117M"]):
        told = found_bad(
            cli("verify", *argv, "--models-dir", model.parent), 1, "5 of 6 files different: hparams.json: "
        )
        assert "gpt2ln download 124M --force" in told
        assert f"published {published.FILES['124M'][DATA].sha256}" in told


def test_terminal_codes_in_names_are_spelt_out(model, cli):
    """A name from a folder that may be anybody's moves no cursor."""
    (model / "checkpoint").write_text('model_checkpoint_path: "\x1b[2J"')
    (model / INDEX).rename(model / "\x1b[31m.index")
    for name in (DATA,):
        (model / name).rename(model / name.replace("model.ckpt", "\x1b[31m"))
    ran = cli("verify", model)
    assert ran.status == 0, ran
    assert "\x1b" not in ran.out + ran.err


# --- --pin --------------------------------------------------------------------------------------------------------


def test_pin(model, cli):
    """Nothing is written without it; with it, one file."""
    done(cli("verify", model))
    assert sorted(os.listdir(model)) == sorted(NAMES)
    ran = cli("verify", model, "--pin")
    done(ran)
    assert ran.err == f"pinned: {model / RECORD}\n{model}: 6 files whole\n"
    assert sorted(os.listdir(model)) == sorted([*NAMES, RECORD])
    assert {name: pin.sha256 for name, pin in read_pins(model).items()} == {n: digest(model / n) for n in NAMES}
    first = (model / RECORD).read_bytes()
    os.utime(model / DATA, ns=(1, 1))
    assert done(cli("verify", model, "--pin")).count("sha256 as pinned") == 6
    assert read_pins(model)[DATA].mtime_ns == 1
    assert (model / RECORD).read_bytes() != first


def test_what_is_not_whole_is_not_pinned(model, cli):
    (model / DATA).write_bytes(bytes(15872))
    found_bad(cli("verify", model, "--pin"), 4)
    assert RECORD not in os.listdir(model)


def test_where_it_came_from_is_kept(model, cli):
    from gpt2ln.pins import read_source, write_pins

    write_pins(model, {}, model="x", source="a mirror")
    done(cli("verify", model, "--pin"))
    assert read_source(model) == "a mirror"


def test_pin_refused(T, model, tmp_path, cli):
    refused(cli("verify", model, "--pin", "--fast"), 2, "--pin needs the digest of every file")
    run = tiny.tiny(tmp_path / "run")
    refused(cli("verify", "-m", model, "--checkpoint", run / "model.ckpt", "--pin"), 2, f"outside {model}")
    state = f'model_checkpoint_path: "{run}/x"'
    (run / INDEX).rename(run / "x.index")
    (run / DATA).rename(run / DATA.replace("model.ckpt", "x"))
    (model / "checkpoint").write_text(state)
    (model / INDEX).unlink()
    refused(cli("verify", model, "--pin"), 2, f"outside {model}")
    assert RECORD not in os.listdir(model) + os.listdir(run)


# --- refused ------------------------------------------------------------------------------------------------------


def test_refused(model, tmp_path, cli):
    refused(cli("verify", model, "-m", "demo"), 2, f"two models: {model} and -m demo; name one")
    refused(cli("-m", "demo", "verify", model), 2, "two models")
    refused(cli("verify", "nowhere"), 3, "nowhere")
    refused(cli("verify", ""), 2, "model name: empty")
    refused(cli("verify", "774M"), 3, "gpt2ln download 774M")
    refused(cli("verify", model, "--checkpoint", tmp_path / "x"), 3, "no checkpoint there")
    refused(cli("verify", "a", "b"), 2, "unexpected extra argument")
    for name in (INDEX, DATA):
        shutil.copy(model / name, model / name.replace("model.ckpt", "model-1"))
    (model / "checkpoint").unlink()
    refused(cli("verify", model), 2, "2 checkpoints in", "choose with --checkpoint")


def test_what_is_no_checkpoint_is_for_other_commands(tmp_path, cli):
    for name in ("model.safetensors", "x.npz"):
        (tmp_path / name).write_bytes(b"")
        refused(cli("verify", tmp_path / name), 2, "gpt2ln inspect, gpt2ln diff")
    refused(cli("verify", "-m", tmp_path), 2, f"{tmp_path / 'model.safetensors'}: verify takes the official layout")
    refused(cli("verify", tmp_path.name, "--models-dir", tmp_path.parent), 2, "verify takes the official layout")


# --- a process of its own -----------------------------------------------------------------------------------------


def test_no_tensorflow_and_no_numpy(shell, model):
    for argv in (["verify", model], ["verify", model, "--fast", "--json"], ["verify", "--help"], ["models", "--help"]):
        ran = shell(*argv, env={"PYTHONPROFILEIMPORTTIME": "1"})
        assert ran.returncode == 0
        imported = {line.split("|")[-1].strip() for line in ran.stderr.decode().splitlines() if "|" in line}
        assert imported & {"tensorflow", "numpy", "gpt2ln.commands.options"} == {"gpt2ln.commands.options"}


@pytest.mark.parametrize("quiet", [False, True])
def test_a_bar_on_a_terminal_alone(model, quiet):
    """It counts bytes, on stderr, and is gone at the end."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    argv = [sys.executable, "-m", "gpt2ln", "verify", str(model), *["-q"] * quiet]
    ran = subprocess.run(argv, stdout=subprocess.PIPE, stderr=follower, cwd=ROOT, timeout=60)
    os.close(follower)
    shown = os.read(leader, 1 << 16).decode() if not quiet else ""
    os.close(leader)
    assert ran.returncode == 0
    assert b"B/s" not in ran.stdout
    assert ("15.9k" in shown) is not quiet
