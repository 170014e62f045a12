"""`download --source hf`: the official files rebuilt from a converted copy, and proven by their published digests."""

import hashlib
import json

import numpy as np
import pytest
from safetensors.numpy import save

from gpt2ln.checkpoint import read_index
from gpt2ln.hf import config, to_hf
from gpt2ln.official import STATE, hparams_text
from gpt2ln.pins import read_pins, read_source
from gpt2ln.published import CONVERTED, FILES, INDEX, NEEDED, Converted, File
from gpt2ln.weights import read_hparams

from . import server as serve
from .downloads import DATA, MODEL, left
from .refusals import done, refused
from .server import serving

COPY = ("config.json", "merges.txt", "model.safetensors", "vocab.json")


def known(content: bytes) -> File:
    return File(len(content), hashlib.sha256(content).hexdigest())


@pytest.fixture(scope="module")
def copy() -> dict[str, bytes]:
    """The made-up model as Hugging Face would have it."""
    bundle = read_index(MODEL / "model.ckpt")
    hparams, _ = read_hparams(MODEL / "hparams.json")
    arrays = {}
    for name, entry in bundle.entries.items():
        x = np.array(bundle.array(entry))
        arrays[to_hf(name)] = x[0] if name.endswith("/w") else x
    return {
        "model.safetensors": save(arrays),
        "config.json": json.dumps(config(hparams, 259)).encode(),
        "vocab.json": (MODEL / "encoder.json").read_bytes(),
        "merges.txt": (MODEL / "vocab.bpe").read_bytes(),
    }


@pytest.fixture
def official() -> dict[str, bytes]:
    files = {name: (MODEL / name).read_bytes() for name in NEEDED}
    hparams, _ = read_hparams(MODEL / "hparams.json")
    return files | {"checkpoint": STATE.encode(), "hparams.json": hparams_text(hparams).encode()}


@pytest.fixture
def get(cli, copy, official, tmp_path, monkeypatch):
    """`download 124M --source hf`, where the made-up model is what is published as 124M."""
    monkeypatch.setitem(FILES, "124M", {name: known(content) for name, content in official.items()})
    pinned = Converted("gpt2", "abc", {name: known(content) for name, content in copy.items()})
    monkeypatch.setitem(CONVERTED, "124M", pinned)
    with serving() as server:
        server.files |= {f"/124M/{name}": content for name, content in copy.items()}

        def call(*more):
            return cli("download", "124M", "--source", "hf", "--mirror", server.url, "--models-dir", tmp_path / "m",
                       "--retries", 0, *more)  # fmt: skip

        call.server, call.folder, call.beside = server, tmp_path / "m/124M", tmp_path / "m/124M.hf"
        yield call


def test_the_official_files_come_out(get, official):
    ran = get()
    assert done(ran) == ""
    assert ran.err.splitlines()[-1] == f"124M: 6 files fetched ({get.folder})"
    assert {name: (get.folder / name).read_bytes() for name in NEEDED} == official
    assert left(get.folder.parent) == ["124M"]
    assert left(get.folder) == sorted([*NEEDED, "gpt2ln.json"])
    assert read_source(get.folder) == f"{get.server.url}/124M"
    assert all(pin.still(get.folder / name) for name, pin in read_pins(get.folder).items())
    get.server.asked.clear()
    assert "already complete" in get().err
    assert get.server.asked == []


def test_the_copy_may_be_kept(get):
    done(get("--keep"))
    assert left(get.beside) == sorted([*COPY, "gpt2ln.json"])


def test_a_copy_of_other_weights_is_no_proof(get, monkeypatch):
    monkeypatch.setitem(FILES["124M"], INDEX, File(FILES["124M"][INDEX].size, "0" * 64))
    refused(get(), 1, "not the published files: ", f"{INDEX}: sha256 ", f"expected {'0' * 64}")
    assert [name for name in left(get.folder) if name in NEEDED] == []


def test_it_goes_on_where_it_stopped(get):
    get.server.next["/124M/model.safetensors"] = [serve.cut(100_000)]
    refused(get(), 6, "model.safetensors: got 100000 of ")
    assert not get.folder.exists()
    get.server.asked.clear()
    done(get())
    assert get.server.ranges("/124M/model.safetensors") == ["bytes=100000-"]


def test_what_is_there_and_wrong_stays(get):
    get.folder.mkdir(parents=True)
    (get.folder / "encoder.json").write_text("mine")
    refused(get(), 2, "encoder.json: 4 bytes, expected 3284; --force")
    assert get.server.asked == []
    assert (get.folder / "encoder.json").read_text() == "mine"
    done(get("--force"))
    assert (get.folder / "encoder.json").stat().st_size == 3284


def test_what_is_there_and_right_stays(get, official):
    get.folder.mkdir(parents=True)
    (get.folder / DATA).write_bytes(official[DATA])
    done(get())
    assert {name: (get.folder / name).read_bytes() for name in NEEDED} == official


def test_dry_run(get):
    out = done(get("--dry-run"))
    assert [line.split()[0] for line in out.splitlines()[1:]] == [f"124M/{name}" for name in CONVERTED["124M"].files]
    assert get.server.asked == []
