"""`import`: what is not a GPT-2 as OpenAI has it is refused, all that is wrong at once, and nothing is written."""

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
from safetensors.numpy import load_file, save_file

from .conftest import ROOT
from .refusals import done, refused
from .test_restore import configured, edited


@pytest.fixture
def hf(cli, T, tmp_path, monkeypatch) -> Path:
    """T as `export` writes it."""
    monkeypatch.chdir(tmp_path)
    done(cli("-m", T, "export", "hf"))
    return tmp_path / "hf"


@pytest.fixture
def refuses(cli, hf):
    """`import hf` is refused with these words, and leaves nothing."""

    def call(status: int, *words: str, source="hf") -> str:
        before = sorted(os.listdir())
        line = refused(cli("import", source, "-o", "back"), status, *words)
        assert sorted(os.listdir()) == before
        return line

    return call


# config.json and hparams.json


def test_another_function(refuses, hf):
    configured(hf, activation_function="relu", layer_norm_epsilon=1e-6, n_inner=7, tie_word_embeddings=False)
    line = refuses(4, "config.json: ", "another function than OpenAI's GPT-2")
    for setting in ("activation_function is 'relu'", "layer_norm_epsilon is 1e-06", "n_inner is 7", "tie_word"):
        assert setting in line


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"n_head": 3}, "config.json, 2 in "),
        ({"n_head": "2"}, "n_head is '2', expected a positive whole number"),
        ({"n_embd": None}, "n_embd is None, expected a positive whole number"),
        ({"n_layer": True}, "n_layer is True, expected"),
        ({"vocab_size": 0}, "n_vocab is 0, expected"),
        ({"n_layer": 3}, "n_layer is 3 in "),
        ({"n_positions": 32}, "n_ctx is 32 in "),
    ],
)
def test_numbers_that_do_not_fit(refuses, hf, settings, says):
    configured(hf, **settings)
    refuses(4, says)


def test_all_numbers_that_do_not_fit(refuses, hf):
    (hf / "hparams.json").unlink()
    configured(hf, n_layer=3, n_positions=32, vocab_size=261)
    line = refuses(4, "n_layer is 2 in the weights, 3 in ", "n_ctx is 16 in", "n_vocab is 260 in")
    assert line.count("; ") == 2


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"n_head": ' + b"9" * 5000 + b"}"])
@pytest.mark.parametrize("name", ["config.json", "hparams.json"])
def test_garbage(refuses, hf, name, text):
    (hf / name).write_bytes(text)
    refuses(4, name)


def test_heads_that_do_not_divide(refuses, hf):
    (hf / "hparams.json").unlink()
    configured(hf, n_head=3)
    refuses(4, "n_head 3 does not divide n_embd 8")


# tensors


def test_all_that_is_wrong_at_once(refuses, hf):
    def edit(w):
        del w["h.0.ln_1.weight"], w["ln_f.bias"]
        w |= {"score.weight": np.zeros((2, 8), "f4"), "transformer.wpe.weight": w["wpe.weight"]}
        w["h.1.mlp.c_fc.weight"] = np.ascontiguousarray(w["h.1.mlp.c_fc.weight"].T)
        w["h.1.ln_2.bias"] = w["h.1.ln_2.bias"].astype("f2")

    edited(hf, edit)
    refuses(
        4,
        "model/wpe is there twice; 2 of 28 variables missing: model/h0/ln_1/g, model/ln_f/b; "
        "1 that no GPT-2 has: score.weight; ",
        "h.1.mlp.c_fc.weight is [32, 8], expected [8, 32], stored as Linear does; transpose it",
        "h.1.ln_2.bias is float16, expected float32: a narrower copy has lost the official values",
    )


def test_the_first_five_and_a_count(refuses, hf):
    def half(w):
        for name in w:
            w[name] = w[name].astype("f2")

    edited(hf, half)
    assert refuses(4).endswith("; and 23 more")


def test_another_shape(refuses, hf):
    edited(hf, lambda w: w.__setitem__("h.0.attn.c_attn.bias", np.zeros((1, 24), "f4")))
    line = refuses(4, "h.0.attn.c_attn.bias is [1, 24], expected [24]")
    assert "Linear" not in line


def test_a_head_of_its_own(refuses, hf):
    edited(hf, lambda w: w.__setitem__("lm_head.weight", w["wte.weight"] + 1))
    refuses(4, "lm_head.weight is not wte; OpenAI's GPT-2 has one matrix for both")
    edited(hf, lambda w: w.__setitem__("lm_head.weight", w["wte.weight"].astype("f2")))
    refuses(4, "lm_head.weight is not wte")
    negative = np.float32([-0.0])
    edited(hf, lambda w: (w["wte.weight"].__setitem__((0, 0), 0), w.__setitem__("lm_head.weight", w["wte.weight"])))
    edited(hf, lambda w: w["lm_head.weight"].__setitem__((0, 0), negative[0]))
    refuses(4, "lm_head.weight is not wte")


def test_no_embeddings(refuses, hf):
    edited(hf, lambda w: [w.pop("wte.weight"), w.pop("wpe.weight")])
    refuses(4, "2 of 28 variables missing: model/wte, model/wpe")
    for name in ("config.json", "hparams.json"):
        (hf / name).unlink()
    refuses(2, "n_head cannot be seen")


def test_another_model(refuses, hf):
    for name in ("config.json", "hparams.json"):
        (hf / name).unlink()
    save_file({"model.layers.0.self_attn.q_proj.weight": np.zeros((2, 2), "f4")}, hf / "model.safetensors")
    refuses(2, "n_head cannot be seen")
    shutil.copy(hf / "merges.txt", hf / "vocab.bpe")
    (hf / "config.json").write_text(json.dumps({"n_head": 2, "model_type": "llama"}))
    refuses(4, "model_type is 'llama', expected 'gpt2'")
    (hf / "config.json").write_text(json.dumps({"n_head": 2}))
    refuses(4, "neither a tensor nor a file there says n_vocab, n_ctx, n_embd, n_layer; is it a GPT-2")


def test_a_layer_far_away(refuses, hf):
    """Not millions of names."""
    for name in ("config.json", "hparams.json"):
        (hf / name).unlink()
    (hf / "config.json").write_text(json.dumps({"n_head": 2}))
    edited(hf, lambda w: w.__setitem__("h.99999999.ln_1.weight", np.zeros(8, "f4")))
    refuses(4, "100000000 layers, but 29 tensors")
    edited(hf, lambda w: (w.clear(), w.__setitem__("wte.weight", np.zeros((2, 2), "f4"))))
    edited(hf, lambda w: w.__setitem__(f"model/h{'9' * 5000}/x", np.zeros(8, "f4")))
    refuses(4, "neither a tensor nor a file there says n_ctx, n_layer")


def test_no_values_at_all(refuses, hf):
    (hf / "hparams.json").unlink()
    (hf / "config.json").write_text(json.dumps({"n_head": 2}))
    edited(hf, lambda w: w.__setitem__("wte.weight", w["wte.weight"][:0]))
    refuses(4, "n_vocab is 0 in the weights, expected a positive number")


# vocabulary


def test_half_a_vocabulary(refuses, hf):
    (hf / "merges.txt").unlink()
    refuses(3, "vocab.bpe or merges.txt is missing, the other half of the vocabulary is there")
    (hf / "vocab.json").rename(hf / "merges.txt")
    refuses(3, "encoder.json or vocab.json is missing")


def test_another_vocabulary(refuses, hf):
    ids = json.loads((hf / "vocab.json").read_text())
    (hf / "vocab.json").write_text(json.dumps(dict(list(ids.items())[:-1])))
    refuses(4, "hf: vocabulary: encoder.json: <|endoftext|> has no id")
    (hf / "vocab.json").write_text(json.dumps(ids))
    (hf / "merges.txt").write_text("#version: 0.2\nh e\n")
    refuses(4, "hf: vocabulary: vocab.bpe has 1 merges")


def test_a_vocabulary_of_another_size(refuses, hf):
    edited(hf, lambda w: w.__setitem__("wte.weight", w["wte.weight"][:259].copy()))
    (hf / "hparams.json").unlink()
    configured(hf, vocab_size=259)
    refuses(4, "hf: the vocabulary has 260 entries, the weights have n_vocab 259")


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"[]",
        b"{}",
        b'{"model": null}',
        b'{"model": {"vocab": [], "merges": []}}',
        b"[" * 100_000,
        b'{"model": {"vocab": {"a": "x", "b": 1}, "merges": []}}',
        b'{"model": {"vocab": {}, "merges": [1]}}',
        b'{"model": {"vocab": {}, "merges": [[1]]}}',
        b'{"model": {"vocab": {"\\ud800": 0}, "merges": ["\\ud800 a"]}}',
    ],
)
def test_a_tokenizer_file_that_is_none(refuses, hf, record):
    for name in ("vocab.json", "merges.txt"):
        (hf / name).unlink()
    (hf / "tokenizer.json").write_bytes(record)
    refuses(4, "hf")


# places


def test_what_is_no_source(refuses, hf, T):
    Path("empty").mkdir()
    Path("pickled").mkdir()
    for name in ("pickled/pytorch_model.bin", "w.pt", "w.txt", "w.npz", "w.safetensors"):
        Path(name).write_bytes(b"x")
    refuses(3, "nowhere: no such file or folder", source="nowhere")
    refuses(3, "empty: no model.safetensors", source="empty")
    refuses(2, "model.ckpt.index is there, it has the official layout already", source=T)
    refuses(2, "pytorch_model.bin is a pickle, which can run code; save it as safetensors", source="pickled")
    refuses(2, "w.pt is a pickle", source="w.pt")
    refuses(3, "w.txt: no model.safetensors, and no .safetensors or .npz file itself", source="w.txt")
    refuses(4, "w.npz: no whole npz file", source="w.npz")
    refuses(4, "w.safetensors: no whole safetensors file", source="w.safetensors")
    refuses(2, "IN: empty", source="")


def test_what_is_no_target(cli, hf, T):
    refused(cli("import", hf), 2, "Missing option '-o'")
    refused(cli("import", hf, "-o", ""), 2, "--output: empty")
    refused(cli("import", hf, "-o", "no/back"), 3, "no: no such folder, make it first")
    refused(cli("import", hf, "-o", hf, "--force"), 2, "holds config.json, ", "which would be lost")
    done(cli("import", hf, "-o", "back"))
    Path("back/gpt2ln.json").write_text("{}")
    refused(cli("import", hf, "-o", "back"), 2, "back: exists and holds checkpoint, encoder.json, gpt2ln.json, ")
    done(cli("import", hf, "-o", "back", "--force"))
    assert not Path("back/gpt2ln.json").exists()
    assert sorted(os.listdir()) == ["back", "hf"]


def test_no_room(refuses, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 4_000_000))
    refuses(7, "no space: ", "4000000 free")


def test_a_folder_that_may_not_be_written(cli, hf):
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    Path("shut").mkdir(mode=0o500)
    refused(cli("import", hf, "-o", "shut/back"), 7, "Permission denied")


@pytest.mark.slow
def test_ctrl_c_leaves_nothing(hf):
    slow = "import time, gpt2ln.official as o; add = o.Writer.add; "
    slow += "o.Writer.add = lambda *a: (time.sleep(0.1), add(*a)); import gpt2ln.commands as m; m.run()"
    command = [sys.executable, "-c", slow, "import", "hf", "-o", "back"]
    run = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)})
    deadline = time.time() + 30
    while not Path("back.part/model.ckpt.data-00000-of-00001.part").exists() and time.time() < deadline:
        time.sleep(0.02)
    assert sorted(os.listdir()) == ["back.part", "hf"]
    run.send_signal(signal.SIGINT)
    assert run.wait(30) == 130
    assert os.listdir() == ["hf"]


def test_damage_that_shows_only_when_it_is_read(cli, hf, T):
    """A zip whose sum does not fit: found half way, and nothing stays."""
    done(cli("-m", T, "export", "w.npz"))
    shutil.copy(T / "hparams.json", "hparams.json")
    data = bytearray(Path("w.npz").read_bytes())
    data[data.index(load_file(hf / "model.safetensors")["wte.weight"].tobytes())] ^= 1
    Path("w.npz").write_bytes(data)
    refused(cli("import", "w.npz", "-o", "back"), 4, "w.npz: ", "Bad CRC-32 for file 'model/wte.npy'")
    assert sorted(os.listdir()) == ["hf", "hparams.json", "w.npz"]
