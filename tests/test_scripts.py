"""The scripts a user runs: made-up checkpoints, the training script, on small shapes."""

import importlib.util
import json

import numpy as np
import pytest

import gpt2ln
from gpt2ln.spec import HParams

from .conftest import ROOT


@pytest.fixture(autouse=True)
def beside_each_other(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_made_up_checkpoint_is_whole_and_seeded(tmp_path, monkeypatch, capsys):
    make = script("make_checkpoint")
    for out, seed in (("a", "3"), ("b", "3"), ("c", "4")):
        monkeypatch.setattr("sys.argv", ["make", "300,64,32,4,3", str(tmp_path / out), "--seed", seed])
        make.main()
    a, b, c = ((tmp_path / name / "model.ckpt.index").read_bytes() for name in "abc")
    assert a == b != c
    m = gpt2ln.load(tmp_path / "a")
    assert m.hparams == HParams(300, 64, 32, 4, 3)
    assert m.notes == []
    assert m.decode(m.encode("héllo 😨")) == "héllo 😨"
    assert np.isfinite(m.logits("abc")).all()


@pytest.mark.parametrize("name", ["124M", "355M"])
def test_made_up_shapes_have_the_official_vocabulary_size(name):
    make = script("make_checkpoint")
    encoder, merges = make.vocabulary(gpt2ln.spec.RELEASED[name].n_vocab)
    assert (len(encoder), len(merges)) == (50257, 50000)
    assert sorted(encoder.values()) == list(range(50257))
    with pytest.raises(SystemExit, match="n_vocab 256"):
        make.vocabulary(256)


def test_training_learns_and_saves_the_official_layout(tmp_path):
    """A few steps on a text of one sentence: the loss falls, and what is saved is a model like any other."""
    train = script("train_demo")
    hparams = HParams(n_vocab=64, n_ctx=16, n_embd=16, n_head=2, n_layer=2)
    rng = np.random.default_rng(0)
    ids = np.tile(rng.integers(0, 64, 20), 60).astype(np.int32)
    settings = dict(steps=400, batch=4, peak=1e-2, decay=0.1, drop=0.1, seed=0, out=tmp_path)
    loss = train.train(ids[:1000], ids[1000:], hparams=hparams, **settings)
    assert loss < 0.7 * np.log(64)
    bundle = gpt2ln.checkpoint.read_index(tmp_path / "model.ckpt")
    findings = gpt2ln.weights.check(bundle, hparams)
    assert (findings.problems, findings.notes) == ([], [])
    assert json.loads((tmp_path / "hparams.json").read_text()) == hparams.as_dict()


def test_windows_predict_each_token_once():
    train = script("train_demo")
    found = train.windows(np.arange(50), 16)
    assert found.shape == (3, 17)
    np.testing.assert_array_equal(found[:, 1:].ravel(), np.arange(1, 49))
