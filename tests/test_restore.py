"""`import`: the official files come back byte for byte, or nothing is written and all that is wrong is named."""

import json
import os
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import gpt2ln
from gpt2ln import published
from gpt2ln.disk import sha256
from gpt2ln.locate import DEMO
from gpt2ln.published import DATA, INDEX, NEEDED, File
from gpt2ln.restore import restore
from gpt2ln.spec import RELEASED, HParams

from . import tiny
from .conftest import GOLDEN
from .memory import large, peak
from .refusals import done, refused
from .vocabulary import official_files


def same_files(a: Path, b: Path, names=NEEDED) -> None:
    for name in names:
        assert (a / name).read_bytes() == (b / name).read_bytes(), name


def edited(hf: Path, edit) -> None:
    w = load_file(hf / "model.safetensors")
    edit(w)
    save_file(w, hf / "model.safetensors", {"format": "pt"})


def configured(hf: Path, **settings) -> None:
    path = hf / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


# the way back


@pytest.mark.parametrize("folder", [DEMO, GOLDEN / "model"], ids=["demo", "golden"])
def test_there_and_back(cli, here, folder):
    done(cli("-m", folder, "export", "hf"))
    ran = cli("import", "hf", "-o", "back")
    assert (done(ran), ran.err) == ("", "wrote back\n")
    assert sorted(os.listdir("back")) == sorted(NEEDED)
    same_files(here / "back", folder)
    assert sorted(os.listdir(here)) == ["back", "hf"]


def test_eleven_layers_and_npz(cli, here):
    """h10 stands between h1 and h2; bits that are no ordinary numbers pass through."""

    def edit(w):
        w["model/h10/ln_1/g"][:4] = np.float32([np.nan, -0.0, -np.inf, 1e-45])
        w["model/h2/ln_1/g"].view(np.uint32)[0] = 0x7F800001  # a NaN that signals

    T = tiny.tiny(here / "T", edit, n_layer=11)
    for out in ("hf", "w.npz"):
        done(cli("-m", T, "export", out))
    shutil.copy(T / "hparams.json", here)
    for source, names in (("hf", NEEDED), ("w.npz", (DATA, INDEX, "checkpoint", "hparams.json"))):
        done(cli("import", source, "-o", "back", "--force"))
        same_files(here / "back", T, names)


def test_hparams_are_passed_on_as_they_lie(hf, T):
    """Their bytes, where there are any; else as they are published."""
    odd = b'{"n_head": 2, "n_layer": 2,\r\n "n_vocab": 260, "n_ctx": 16, "n_embd": 8, "comment": 1}'
    (hf / "hparams.json").write_bytes(odd)
    assert restore(hf, Path("a")).notes == ("hparams.json: unknown key comment ignored",)
    assert Path("a/hparams.json").read_bytes() == odd
    (hf / "hparams.json").unlink()
    restore(hf, Path("b"))
    lines = ["{", '  "n_vocab": 260,', '  "n_ctx": 16,', '  "n_embd": 8,', '  "n_head": 2,', '  "n_layer": 2', "}", ""]
    assert Path("b/hparams.json").read_text() == "\n".join(lines)
    same_files(Path("b"), T, [name for name in NEEDED if name != "hparams.json"])


def test_a_prefix_masks_and_the_second_copy(cli, hf, T):
    """As older versions of transformers wrote it."""

    def edit(w):
        old = {f"transformer.{name}": w.pop(name) for name in list(w)}
        w |= old | {f"transformer.h.{i}.attn.bias": np.tri(16, dtype=bool)[None, None] for i in (0, 1)}
        w |= {"transformer.h.0.attn.masked_bias": np.array(-1e4, "f4"), "lm_head.weight": old["transformer.wte.weight"]}

    edited(hf, edit)
    ran = cli("import", hf, "-o", "back")
    assert "note: left out: 3 masks and lm_head.weight, which is wte\n" in ran.err
    done(ran)
    same_files(Path("back"), T)


def sharded(hf: Path) -> None:
    w = load_file(hf / "model.safetensors")
    (hf / "model.safetensors").unlink()
    names, place = sorted(w), {}
    for i, (a, b) in enumerate(pairwise([0, 9, 20, len(names)]), start=1):
        file = f"model-{i:05d}-of-00003.safetensors"
        save_file({name: w[name] for name in names[a:b]}, hf / file)
        place |= dict.fromkeys(names[a:b], file)
    (hf / "model.safetensors.index.json").write_text(json.dumps({"weight_map": place}))


def test_several_files(cli, hf, T):
    sharded(hf)
    for source in (hf, hf / "model.safetensors.index.json"):
        done(cli("import", source, "-o", "back", "--force"))
        same_files(Path("back"), T)
    (hf / "model-00002-of-00003.safetensors").unlink()
    refused(cli("import", hf, "-o", "again"), 3, "model-00002-of-00003.safetensors missing")


def test_one_tokenizer_file(cli, hf, T):
    """What transformers 5 saves: merges as pairs, tokens in any order."""
    ids = json.loads((hf / "vocab.json").read_text())
    merges = [line.split() for line in (hf / "merges.txt").read_text(encoding="utf-8").splitlines()[1:]]
    for listed in (merges, [" ".join(pair) for pair in merges]):
        record = {"model": {"type": "BPE", "vocab": dict(reversed(ids.items())), "merges": listed}}
        (hf / "tokenizer.json").write_text(json.dumps(record))
        (hf / "vocab.json").unlink(missing_ok=True)
        done(cli("import", hf, "-o", "back", "--force"))
        same_files(Path("back"), T)


@pytest.mark.parametrize("ours", [False, True])
def test_two_vocabulary_files_come_first(cli, hf, T, ours):
    """Under either's names, whatever else lies there."""
    (hf / "tokenizer.json").write_text("garbage")
    if ours:
        (hf / "vocab.json").rename(hf / "encoder.json")
        (hf / "merges.txt").rename(hf / "vocab.bpe")
    done(cli("import", hf, "-o", "back"))
    same_files(Path("back"), T)


def test_the_official_vocabulary_from_one_tokenizer_file(tmp_path):
    """Byte for byte as published."""
    from gpt2ln.restore import _from_tokenizer

    ids = json.loads((official_files() / "encoder.json").read_bytes())
    merges = (official_files() / "vocab.bpe").read_text(encoding="utf-8").split("\n")[1:-1]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"model": {"vocab": ids, "merges": [m.split() for m in merges]}}), encoding="utf-8")
    for name, content in _from_tokenizer(path).items():
        assert content == (official_files() / name).read_bytes(), name


def test_the_proof_is_the_published_sha256(cli, hf, T, monkeypatch):
    """As if T were a released model: it is, it is not, and nothing is known."""
    monkeypatch.setitem(RELEASED, "124M", HParams(260, 16, 8, 2, 2))
    ran = cli("import", hf, "-o", "a")
    assert ran.err == "data and index are not those that OpenAI published\nwrote a\n"
    files = {name: File(1, sha256(T / name)) for name in (DATA, INDEX)}
    monkeypatch.setitem(published.FILES, "124M", files)
    ran = cli("import", hf, "-o", "b")
    assert ran.err == "data and index are OpenAI's, by their published sha256\nwrote b\n"
    monkeypatch.setitem(published.FILES, "124M", files | {DATA: File(1, "0" * 64)})
    assert restore(hf, Path("c")).published is False
    monkeypatch.setitem(published.FILES, "124M", {name: File(1) for name in (DATA, INDEX)})
    assert restore(hf, Path("d")).published is None


# weights alone


@pytest.fixture
def alone(hf) -> Path:
    """The weights without anything beside them."""
    (Path("alone")).mkdir()
    return shutil.copy(hf / "model.safetensors", "alone/w.safetensors")


def test_heads_cannot_be_seen(cli, alone, T):
    refused(cli("import", alone, "-o", "back"), 2, "n_head cannot be seen in weights", "give --n-head")
    ran = cli("import", alone, "-o", "back", "--n-head", "2")
    done(ran)
    assert "note: no vocabulary in it; put encoder.json and vocab.bpe there" in ran.err
    same_files(Path("back"), T, (DATA, INDEX, "checkpoint"))
    assert json.loads(Path("back/hparams.json").read_text()) == json.loads((T / "hparams.json").read_text())
    refused(cli("import", alone, "-o", "c", "--n-head", "3"), 4, "n_head 3 does not divide n_embd 8")
    refused(cli("import", alone, "-o", "c", "--n-head", "0"), 2, "0 is not in the range")


def test_heads_of_a_released_model(cli, alone, monkeypatch):
    monkeypatch.setitem(RELEASED, "355M", HParams(260, 16, 8, 4, 2))
    ran = cli("import", alone, "-o", "back")
    done(ran)
    assert "note: n_head is 4, as in the official model of these shapes; weights do not show it" in ran.err
    assert json.loads(Path("back/hparams.json").read_text())["n_head"] == 4


def test_what_is_imported_can_be_used(cli, alone, T):
    done(cli("import", alone, "-o", "back", "--n-head", "2"))
    here, there = gpt2ln.load(T, checkpoint="back/model.ckpt"), gpt2ln.load(T)
    assert here.index_sha256 == there.index_sha256


# transformers itself


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_transformers_saves(cli, here):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    done(cli("export", "hf", "-m", "demo"))
    transformers.GPT2LMHeadModel.from_pretrained("hf").save_pretrained("saved")
    transformers.AutoTokenizer.from_pretrained("hf").save_pretrained("saved")
    done(cli("import", "saved", "-o", "back"))
    same_files(here / "back", DEMO)


@pytest.mark.slow
def test_memory_is_one_variable(cli, here, T):
    """At most 1.2 of the largest, above what a small model takes; the second copy of `wte` is read on its own."""
    folder, largest = large(here / "large")
    used = {}
    for name, model in (("few", T), ("many", folder)):
        done(cli("-m", model, "export", name))
        edited(here / name, lambda w: w.__setitem__("lm_head.weight", w["wte.weight"]))
        used[name] = peak("import", name, "-o", f"{name}-back")
    assert 0.5 * largest < used["many"] - used["few"] < 1.2 * largest
