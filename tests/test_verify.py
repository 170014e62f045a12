"""`verify`: each file against all that is known of it, and no finding that keeps another from being made."""

import json
import os
import shutil
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest

from gpt2ln import published
from gpt2ln.checkpoint import Entry
from gpt2ln.finding import STATES, Finding, worst
from gpt2ln.locate import Place, find
from gpt2ln.official import index_bytes
from gpt2ln.pins import RECORD, Pin, write_pins
from gpt2ln.published import DATA, INDEX, File
from gpt2ln.spec import RELEASED, HParams, variables
from gpt2ln.verify import data_bytes, verify

from . import bundles, tiny
from .conftest import ROOT
from .findings import NAMES, digest, looked, pin_all, states
from .vocabulary import official_files, with_official_vocabulary

TINY = HParams(n_vocab=260, n_ctx=16, n_embd=8, n_head=2, n_layer=2)


@pytest.fixture
def model(T, tmp_path) -> Path:
    """T, to be changed."""
    return Path(shutil.copytree(T, tmp_path / "tiny"))


# --- whole --------------------------------------------------------------------------------------------------------


def test_a_whole_folder(model):
    """Every file, in this order, with its size; the digest of the data only where it is asked for."""
    findings = looked(model)
    assert list(findings) == NAMES
    assert states(findings) == {}
    assert {name: f.size for name, f in findings.items()} == {name: (model / name).stat().st_size for name in NAMES}
    assert {name: f.sha256 for name, f in findings.items()} == {n: digest(model / n) for n in NAMES[:-1]} | {DATA: None}
    assert {name: f.text for name, f in findings.items()} == {
        "hparams.json": "fits the index", "encoder.json": "260 entries", "vocab.bpe": "3 merges", "checkpoint": "",
        INDEX: "28 variables", DATA: "CRC32C of 28 tensors",
    }  # fmt: skip
    assert looked(model, digests=True)[DATA].sha256 == digest(model / DATA)


def test_fast_reads_no_values(model):
    (model / DATA).write_bytes(bytes((model / DATA).stat().st_size))
    findings = looked(model, fast=True)
    assert states(findings) == {DATA: "unchecked"}
    assert findings[DATA].text == "values not read"
    assert states(looked(model)) == {DATA: "damaged"}


def test_what_is_read_is_counted(model):
    counted = []
    looked(model, on_bytes=counted.append)
    assert sum(counted) == data_bytes(Place("tiny", model)) == 15872


def test_what_fails_while_it_reads_is_not_swallowed(model):
    with pytest.raises(ZeroDivisionError):
        looked(model, on_bytes=lambda count: 1 // 0)


def test_the_worst_decides():
    for i, state in enumerate(STATES):
        assert worst([Finding("a", better, "") for better in STATES[: i + 1]]) == state
        assert worst([Finding("a", state, ""), Finding("b", "ok", "")]) == state


def test_no_finding_keeps_another_from_being_made(model):
    """Five faults in five files: five findings."""
    (model / INDEX).write_bytes(b"<html>")
    (model / "encoder.json").write_text("{")
    (model / "vocab.bpe").write_text("#version: 0.2\na\n")
    (model / "hparams.json").unlink()
    (model / DATA).unlink()
    findings = looked(model)
    assert states(findings) == {
        "hparams.json": "missing", "encoder.json": "damaged", "vocab.bpe": "damaged", INDEX: "damaged", DATA: "missing"
    }  # fmt: skip
    assert findings["encoder.json"].text.startswith("line 1 column 2: ")
    assert findings["vocab.bpe"].text == "line 2 has 1 words, a merge has 2"


def test_data_without_its_index(model):
    (model / INDEX).unlink()
    findings = looked(model, digests=True)
    assert states(findings) == {INDEX: "missing", DATA: "unchecked"}
    assert findings[INDEX].text == "no checkpoint; looked for checkpoint, *.index"
    assert (findings[DATA].text, findings[DATA].sha256) == ("nothing to hold it against", None)
    write_pins(model, {DATA: Pin(1, digest(model / DATA), 0)}, model="x", source=None)
    finding = looked(model)[DATA]
    assert (finding.state, finding.text) == ("ok", "sha256 as pinned")


def test_data_files_are_those_of_the_index_or_those_that_are_there(model):
    stray = "model.ckpt.data-00001-of-00002"
    shutil.copy(model / DATA, model / stray)
    assert list(looked(model)) == NAMES
    (model / INDEX).unlink()
    (model / DATA).unlink()
    assert list(looked(model)) == [*NAMES[:-1], stray]


def test_an_empty_folder(tmp_path):
    findings = looked(tmp_path)
    assert states(findings) == dict.fromkeys(["hparams.json", "encoder.json", "vocab.bpe", INDEX, DATA], "missing")


# --- not a file ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*NAMES, RECORD])
def test_what_is_no_file_is_not_waited_for(model, name):
    """A pipe would never end, a folder cannot be read."""
    if name == RECORD:
        pin_all(model)
    (model / name).unlink()
    os.mkfifo(model / name)
    found = looked(model)
    if name in NAMES:
        gone = name == INDEX  # no file of that name is a checkpoint
        assert found[name].state == "damaged", found
        assert found[name].text == "a device or pipe, expected a file"
        assert gone or set(states(found)) == {name}
    (model / name).unlink()
    (model / name).mkdir()
    found = looked(model)
    if name in NAMES:
        assert (found[name].state, found[name].text) == ("damaged", "a folder, expected a file")


@pytest.mark.parametrize("name", NAMES)
def test_a_link(model, tmp_path, name):
    """One that leads somewhere is what is there; one to nowhere is missing."""
    (model / name).rename(tmp_path / "there")
    (model / name).symlink_to(tmp_path / "there")
    assert states(looked(model)) == {}
    (tmp_path / "there").unlink()
    findings = looked(model)
    if name == "checkpoint":  # nobody needs it
        assert states(findings) == {}
        return
    assert findings[name].state == "missing"
    assert name == INDEX or findings[name].text == f"a link to {tmp_path / 'there'}, which is not there"


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="no file here that gives an input/output error")
@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_cannot_be_read(model, name):
    """/proc/self/mem is a regular file whose first byte gives the error of a failing disk."""
    (model / name).unlink()
    (model / name).symlink_to("/proc/self/mem")
    finding = looked(model)[name]
    if name == DATA:  # of no size at all, which is said first; its reading fails as well
        assert finding.state == "unreadable"
    assert (finding.state, finding.text) == ("unreadable", "Input/output error")


# --- what is published --------------------------------------------------------------------------------------------


@pytest.fixture
def released(model, monkeypatch) -> Path:
    """T, as if it were a released model."""
    files = {name: File((model / name).stat().st_size, digest(model / name)) for name in NAMES}
    monkeypatch.setitem(published.FILES, "tiny", files)
    monkeypatch.setitem(RELEASED, "tiny", TINY)
    return model


def test_as_published(released):
    findings = looked(released)
    assert states(findings) == {}
    assert all(f.text.endswith("sha256 as published") for f in findings.values())
    assert findings[DATA].sha256 == digest(released / DATA)
    fast = looked(released, fast=True)[DATA]
    assert (fast.state, fast.text) == ("unchecked", "values not read; size as published")


def test_sound_but_not_the_published_bytes(released):
    """V09: both digests; nothing else is wrong with it."""
    right = digest(released / "hparams.json")
    (released / "hparams.json").write_text((released / "hparams.json").read_text() + " ")
    findings = looked(released)
    assert states(findings) == {"hparams.json": "different"}
    assert findings["hparams.json"].text == f"sha256 is {digest(released / 'hparams.json')}, published {right}"


def test_every_needed_file_is_missed_under_a_released_name(released):
    (released / "checkpoint").unlink()
    findings = looked(released)
    assert states(findings) == {"checkpoint": "missing"}
    assert findings["checkpoint"].text == "no such file"


def test_n_head_shows_nowhere_but_in_what_is_published(released):
    hparams = json.loads((released / "hparams.json").read_text())
    (released / "hparams.json").write_text(json.dumps(hparams | {"n_head": 4}))
    finding = looked(released)["hparams.json"]
    assert finding.state == "different"
    assert finding.text.startswith("n_head 4, published 2; sha256 is ")


def test_where_the_digest_is_not_sure_a_mismatch_is_only_told(released, monkeypatch):
    wrong = {name: replace(file, sha256="0" * 64, size=1, sure=False) for name, file in published.FILES["tiny"].items()}
    monkeypatch.setitem(published.FILES, "tiny", wrong)
    findings = looked(released)
    assert states(findings) == {}
    told = f"note: sha256 is {digest(released / INDEX)}, published {'0' * 64} (not sure)"
    assert findings[INDEX].text == f"28 variables; {told}"


def test_another_true_copy_is_as_good(released, monkeypatch):
    """As the 89 bytes of an old hparams.json."""
    right = published.FILES["tiny"]["hparams.json"]
    other = File(1, "0" * 64, others=((right.size, right.sha256),))
    monkeypatch.setitem(published.FILES["tiny"], "hparams.json", other)
    assert states(looked(released)) == {}
    monkeypatch.setitem(published.FILES["tiny"], "hparams.json", replace(other, others=()))
    assert states(looked(released)) == {"hparams.json": "different"}


def test_only_a_size_is_published(released, monkeypatch):
    for size, state in ((15872, {}), (15873, {DATA: "different"})):
        monkeypatch.setitem(published.FILES["tiny"], DATA, File(size))
        findings = looked(released)
        assert states(findings) == state
    assert findings[DATA].text == "15872 bytes, published 15873"
    assert findings[DATA].sha256 is None


def test_an_index_that_is_published_under_another_name(released, tmp_path, monkeypatch):
    mine = Path(shutil.copytree(released, tmp_path / "mine"))
    monkeypatch.setattr("gpt2ln.verify.INDEXES", {digest(mine / INDEX): "tiny"})
    assert looked(mine)[INDEX].text == "28 variables; the index of the published tiny"
    assert looked(released)[INDEX].text == "28 variables; sha256 as published"


def test_the_published_vocabulary_is_not_built(tmp_path, T, monkeypatch):
    """Its digests say what it is; any other is built, to be counted."""
    released = with_official_vocabulary(T, tmp_path / "m")
    monkeypatch.setattr("gpt2ln.verify.Bpe", lambda *paths: pytest.fail("built"))
    assert looked(released)["vocab.bpe"].text == "50000 merges"
    with (released / "vocab.bpe").open("ab") as file:
        file.write(b"\n")  # the same merges, another file
    with pytest.raises(pytest.fail.Exception, match="built"):
        looked(released)


def test_contradictions_without_the_data(T, tmp_path):
    folder = Path(shutil.copytree(T, tmp_path / "m"))
    (folder / DATA).unlink()
    hparams = folder / "hparams.json"
    hparams.write_text(hparams.read_text().replace('"n_ctx": 16', '"n_ctx": 17'))
    found = looked(folder)
    assert states(found) == {DATA: "missing", "hparams.json": "damaged"}
    assert found["hparams.json"].text == "n_ctx 17, but model/wpe is [16, 8]"


def test_the_real_files_of_the_124m(tmp_path):
    """All but the data, which is not here; of hparams.json the older copy."""
    files = ROOT.parent / "shared" / "official-124M"
    if not files.is_dir():
        pytest.skip("shared/official-124M is not here: it holds the real index")
    folder = tmp_path / "124M"
    folder.mkdir()
    for name in ("hparams.json", "checkpoint", INDEX):
        shutil.copy(files / name, folder)
    for name in ("encoder.json", "vocab.bpe"):
        shutil.copy(official_files() / name, folder)
    findings = looked(folder)
    assert states(findings) == {DATA: "missing"}
    assert [findings[name].text for name in NAMES[:-1]] == [
        "fits the index; sha256 as published",
        "50257 entries; sha256 as published", "50000 merges; sha256 as published",
        "sha256 as published", "148 variables; sha256 as published",
    ]  # fmt: skip
    with (folder / DATA).open("wb") as file:
        file.truncate(497759232)
    assert states(looked(folder, fast=True)) == {DATA: "unchecked"}


def test_weights_elsewhere(T, tmp_path):
    """Vocabulary from the model, weights from the prefix: named in full, and held against what is pinned there."""
    run = tiny.tiny(tmp_path / "run", prefix="model-500")
    place = find(str(T), [], run / "model-500")
    findings = {f.file: f for f in verify(place)}
    data = f"{run}/model-500.data-00000-of-00001"
    assert list(findings) == [*NAMES[:4], f"{run}/model-500.index", data]
    assert states(findings) == {}
    write_pins(run, {Path(data).name: Pin(15872, "0" * 64, 0)}, model="x", source=None)
    assert states({f.file: f for f in verify(place)}) == {data: "different"}


def test_a_big_endian_checkpoint(model):
    bundles.write(model / "model.ckpt", tiny.weights(), ">")
    assert states(looked(model)) == {}


def test_another_number_of_heads_is_told_where_it_stands(tmp_path):
    """The shapes of 124M with 24 heads, under a name of its own: no problem, and yet a warning, of hparams.json."""
    folder = tmp_path / "mine"
    folder.mkdir()
    hparams = replace(RELEASED["124M"], n_head=24)
    (folder / "hparams.json").write_text(json.dumps(hparams.as_dict()))
    at, entries = 0, []
    for name, shape in sorted(variables(hparams).items()):
        entries.append(Entry(name, "float32", shape, 0, at, 4 * prod(shape), 1))
        at += entries[-1].size
    (folder / INDEX).write_bytes(index_bytes(entries))
    found = looked(folder, fast=True)
    assert found["hparams.json"].text == "fits the index; warning: n_head 24, the official 124M has 12"
    assert found[INDEX].text == "148 variables"
