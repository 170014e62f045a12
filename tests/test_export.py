"""`export`: what transformers, the safetensors library and numpy read back is the checkpoint, bit for bit."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

import gpt2ln
from gpt2ln.checkpoint import load
from gpt2ln.disk import lock
from gpt2ln.hf import to_hf
from gpt2ln.locate import DEMO
from gpt2ln.spec import variables

from . import bundles
from .conftest import GOLDEN, ROOT
from .memory import large, peak
from .refusals import done, refused

FILES = ["config.json", "hparams.json", "merges.txt", "model.safetensors", "tokenizer_config.json", "vocab.json"]


def stored(folder) -> dict[str, np.ndarray]:
    m = gpt2ln.load(folder)
    return {name: x.copy() for name, x in load(m.bundle, variables(m.hparams))}


def alike(found: dict, right: dict) -> None:
    assert set(found) == set(right)
    for name, x in right.items():
        assert (found[name].dtype, found[name].shape) == (x.dtype, x.shape), name
        np.testing.assert_array_equal(found[name].view(np.uint32), x.view(np.uint32), err_msg=name)


def test_a_folder_as_the_safetensors_library_reads_it(cli, T, here):
    ran = cli("-m", T, "export", "hf")
    assert (done(ran), ran.err) == ("", "wrote hf\n")
    assert sorted(os.listdir("hf")) == FILES
    right = {to_hf(name): x[0] if x.ndim == 3 else x for name, x in stored(T).items()}
    alike(load_file("hf/model.safetensors"), right)
    with safe_open("hf/model.safetensors", "numpy") as file:
        assert file.metadata() == {"format": "pt"}
    assert os.listdir(here) == ["hf"]


def test_what_lies_beside_the_weights(cli, T, here):
    done(cli("-m", T, "export", "hf", "-q"))
    for ours, theirs in [("encoder.json", "vocab.json"), ("vocab.bpe", "merges.txt"), ("hparams.json",) * 2]:
        assert (here / "hf" / theirs).read_bytes() == (T / ours).read_bytes()
    config = json.loads((here / "hf/config.json").read_text())
    sizes = dict(vocab_size=260, n_positions=16, n_ctx=16, n_embd=8, n_head=2, n_layer=2, eos_token_id=259)
    assert sizes.items() <= config.items()
    tokenizer = json.loads((here / "hf/tokenizer_config.json").read_text())
    assert (tokenizer["tokenizer_class"], tokenizer["model_max_length"]) == ("GPT2Tokenizer", 16)


def test_the_end_of_text_need_not_be_the_last_id(cli, T, here):
    folder = shutil.copytree(T, here / "m")
    ids = json.loads((folder / "encoder.json").read_text())
    ids["<|endoftext|>"], ids["!"] = ids["!"], ids["<|endoftext|>"]
    (folder / "encoder.json").write_text(json.dumps(ids))
    done(cli("-m", folder, "export", "hf"))
    config = json.loads((here / "hf/config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"]) == (0, 0)


@pytest.mark.parametrize(("name", "how"), [("w.npz", []), ("w", ["--format", "npz"])])
def test_npz(cli, T, here, name, how):
    """Official names, shapes as stored, the same bytes each time."""
    assert done(cli("-m", T, "export", name, *how)) == ""
    with np.load(name, allow_pickle=False) as file:
        alike(dict(file), stored(T))
    first = (here / name).read_bytes()
    done(cli("-m", T, "export", name, *how, "--force"))
    assert (here / name).read_bytes() == first
    assert os.listdir(here) == [name]


def test_npz_comes_in_pieces_and_without_a_date(cli, T, here, monkeypatch):
    """Where the file of a killed run lies; a link stays one."""
    monkeypatch.setattr("gpt2ln.export.BLOCK", 1000)
    (here / "w.npz.part").write_bytes(b"x" * 100_000)
    (here / "link.npz").symlink_to("w.npz")
    done(cli("-m", T, "export", "link.npz"))
    assert (here / "link.npz").is_symlink()
    assert sorted(os.listdir(here)) == ["link.npz", "w.npz"]
    with np.load("w.npz") as file:
        alike(dict(file), stored(T))
        assert {member.date_time for member in file.zip.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert (here / "w.npz").stat().st_size < 30_000


def test_npz_is_written_by_one_at_a_time(cli, T, here):
    handle = os.open("w.npz.part", os.O_RDWR | os.O_CREAT)
    lock(handle, here)
    refused(cli("-m", T, "export", "w.npz"), 7, "w.npz.part: locked, another process writes it")
    os.close(handle)
    assert os.listdir(here) == ["w.npz.part"]


def test_another_byte_order_and_other_variables(cli, T, here):
    """A big-endian checkpoint gives the same files; an optimizer's slots stay behind."""
    folder = shutil.copytree(T, here / "m")
    bundles.write(folder / "model.ckpt", stored(T) | {"model/wte/Adam": np.zeros(3, "f4")}, ">")
    done(cli("-m", T, "export", "a"))
    ran = cli("-m", folder, "export", "b")
    assert "ignored 1 other variables: model/wte/Adam" in ran.err
    assert (here / "a/model.safetensors").read_bytes() == (here / "b/model.safetensors").read_bytes()


# refusals


def test_nothing_is_overwritten(cli, T, here):
    done(cli("-m", T, "export", "hf"))
    before = (here / "hf/config.json").stat().st_ino
    refused(cli("-m", T, "export", "hf"), 2, "hf: exists and holds config.json", "--force replaces it")
    assert (here / "hf/config.json").stat().st_ino == before
    done(cli("-m", T, "export", "hf", "--force"))
    assert (here / "hf/config.json").stat().st_ino != before
    (here / "hf/thesis.tex").write_text("")
    refused(cli("-m", T, "export", "hf", "--force"), 2, "hf: holds thesis.tex, which would be lost")
    (here / "w.npz").write_text("mine")
    refused(cli("-m", T, "export", "w.npz"), 2, "w.npz: exists; --force overwrites it")
    assert (here / "w.npz").read_text() == "mine"
    assert sorted(os.listdir(here)) == ["hf", "w.npz"]


@pytest.mark.parametrize(
    ("argv", "status", "says"),
    [
        ([""], 2, "OUT: empty"),
        (["no/hf"], 3, "no: no such folder, make it first"),
        (["no/w.npz"], 3, "no: no such folder, make it first"),
        (["w.safetensors"], 2, "--format safetensors writes a folder"),
        (["w.npz", "--format", "safetensors"], 2, "--format safetensors writes a folder"),
        (["folder.npz"], 2, "folder.npz: is a folder, expected the name of a file"),
        (["pipe", "--format", "npz"], 2, "pipe: is no regular file"),
        (["."], 2, "is where you are"),
        ([], 2, "Missing argument 'OUT'"),
        (["a", "b"], 2, "unexpected extra argument"),
    ],
)
def test_where_it_cannot_go(cli, T, here, argv, status, says):
    (here / "folder.npz").mkdir()
    os.mkfifo("pipe")
    refused(cli("-m", T, "export", *argv), status, says)
    assert sorted(os.listdir(here)) == ["folder.npz", "pipe"]
    assert (here / "pipe").is_fifo()


@pytest.mark.parametrize("out", ["hf", "w.npz"])
def test_damaged_weights_are_not_passed_on(cli, T, here, out):
    folder = shutil.copytree(T, here / "m")
    data = bytearray((folder / "model.ckpt.data-00000-of-00001").read_bytes())
    data[100] ^= 1
    (folder / "model.ckpt.data-00000-of-00001").write_bytes(data)
    refused(cli("-m", folder, "export", out), 4, "damaged: model/h0/attn/c_attn/w (CRC32C is ")
    (folder / "model.ckpt.data-00000-of-00001").write_bytes(data[:-1])
    refused(cli("-m", folder, "export", out), 4, "15871 bytes, the index needs 15872")
    (folder / "vocab.bpe").unlink()
    refused(cli("-m", folder, "export", out), 3, "vocab.bpe missing")
    assert os.listdir(here) == ["m"]


@pytest.mark.parametrize("out", ["hf", "w.npz"])
def test_no_room(cli, T, here, out, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 4_000_000))
    refused(cli("-m", T, "export", out), 7, "no space: 4210176 bytes needed, 4000000 free")
    assert os.listdir(here) == []


@pytest.mark.slow
@pytest.mark.parametrize("out", ["hf", "w.npz"])
def test_ctrl_c_leaves_nothing(here, out):
    command = [sys.executable, "-m", "gpt2ln", "-m", str(DEMO), "export", out]
    slow = "import time, gpt2ln.checkpoint as c; r = c.Bundle.release; "
    slow += "c.Bundle.release = lambda *a: (time.sleep(0.1), r(*a)); import gpt2ln.commands as m; m.run()"
    run = subprocess.Popen([sys.executable, "-c", slow, *command[3:]], env=os.environ | {"PYTHONPATH": str(ROOT)})
    deadline = time.time() + 30
    while not list(here.rglob(f"{out}.part")) and time.time() < deadline:
        time.sleep(0.02)
    assert os.listdir(here) == [f"{out}.part"]
    run.send_signal(signal.SIGINT)
    assert run.wait(30) == 130
    assert os.listdir(here) == []


@pytest.mark.slow
@pytest.mark.parametrize("out", ["hf", "w.npz"])
def test_memory_is_less_than_one_variable(T, here, out):
    """Above what a small model takes: what is mapped is given back as it is written."""
    folder, largest = large(here / "large")
    few, many = (peak("-m", model, "export", out, "--force") for model in (T, folder))
    assert abs(many - few) < 0.5 * largest


# transformers


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("folder", [DEMO, GOLDEN / "model"], ids=["demo", "golden"])
def test_transformers_opens_it_and_says_the_same(cli, here, folder):
    """Logits to 2e-5 of the largest, as for other kernels that sum in another order; ids equal."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    done(cli("-m", folder, "export", "hf"))
    ours = gpt2ln.load(folder)
    theirs, loading = transformers.GPT2LMHeadModel.from_pretrained("hf", output_loading_info=True)
    assert not any(loading.values()), loading
    ids = ours.encode("To be, or not to be\n")[: ours.hparams.n_ctx]
    right = ours.logits(ids)
    found = theirs.eval()(torch.tensor([ids])).logits[0].detach().numpy()
    np.testing.assert_allclose(found, right, rtol=0, atol=2e-5 * np.abs(right).max())
    tokenizer = transformers.AutoTokenizer.from_pretrained("hf")
    for text in ("ROMEO:\n  But, soft!  what", "don't  é 漢字 \U0001f389 12 345 $$", " ", "\n\n\n", "a\tb  "):
        assert tokenizer(text)["input_ids"] == ours.encode(text), text
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert (tokenizer.eos_token_id, tokenizer.model_max_length) == (ours.bpe.eot, ours.hparams.n_ctx)
    assert theirs.generation_config.eos_token_id == ours.bpe.eot


@pytest.mark.parametrize("name", ["model.ckpt.index", "model.ckpt.data-00000-of-00001", "vocab.bpe", "checkpoint"])
def test_not_over_the_model_itself(cli, T, here, name):
    model = Path(shutil.copytree(T, here / "m"))
    (here / "link").symlink_to(model / name)
    for out in (model / name, here / "link"):
        refused(cli("-m", model, "export", out, "--format", "npz", "--force"), 2, "is a file of the model itself")
    assert (model / name).read_bytes() == (T / name).read_bytes()
