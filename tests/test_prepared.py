"""A prepared engine on disk: where it is looked for, what makes it the one, and what a record has to say."""

import dataclasses
import json
import os
import shutil
from pathlib import Path

import pytest

import gpt2ln
from gpt2ln import prepared
from gpt2ln.convert import recipes
from gpt2ln.distance import Distance
from gpt2ln.errors import NotFound
from gpt2ln.prepared import RECORD, file_names
from gpt2ln.spec import RELEASED

from .conftest import GOLDEN
from .preparing import record_of, state
from .refusals import refused


@pytest.fixture
def folder(kept, T) -> Path:
    """T's engine in it."""
    return gpt2ln.load(T, cache_dir=kept).prepared.folder


def test_ready(kept, folder, T):
    assert state(T, kept) == ("ready", "")
    found = gpt2ln.load(T, cache_dir=kept).prepared
    prepared.check(found)
    assert found.bytes == sum(path.stat().st_size for path in folder.iterdir()) - (folder / RECORD).stat().st_size
    d = found.record["distance"]
    assert found.distance == (
        f"max |d logit| {d['max_abs_dlogit']:.2g}, KL {d['kl']:.2g} nats, greedy 32 of 32 from exact"
    )
    assert 0 < d["max_abs_dlogit"] < 1e-4 * d["largest_logit"]


def test_the_names_of_the_files_are_those_of_the_recipes(folder):
    hparams = RELEASED["1558M"]
    assert file_names(hparams) == {recipe.file for recipe in recipes(hparams)}
    assert set(record_of(folder)["files"]) == set(os.listdir(folder)) - {RECORD}


def test_the_numbers_of_the_record_are_those_of_the_distance(folder):
    assert set(prepared.MEASURED) == {field.name for field in dataclasses.fields(Distance)}
    assert set(record_of(folder)["distance"]) == set(prepared.MEASURED)


def test_beside_the_checkpoint_and_elsewhere(T, folder, tmp_path):
    """The folder for engines comes first; where it has none that is ready, the model's own does."""
    model = Path(shutil.copytree(T, tmp_path / "m"))
    beside = Path(shutil.copytree(folder, model / folder.name))
    found = gpt2ln.load(model, cache_dir=tmp_path / "empty").prepared
    assert (found.state, found.folder) == ("ready", beside)
    assert gpt2ln.load(model, cache_dir=folder.parent).prepared.folder == folder
    (folder / RECORD).unlink()
    assert gpt2ln.load(model, cache_dir=folder.parent).prepared.folder == beside


@pytest.mark.parametrize("end", [".part", ".old"])
def test_what_other_code_has_not_ended_is_none(kept, folder, T, end):
    folder.rename(folder.with_name(folder.name[:-12] + "0" * 12 + end))
    assert state(T, kept)[0] == "none"


def test_the_sum_of_a_file_that_is_read_in_parts(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"123456789")
    for block in (1, 4, 9, 100):
        monkeypatch.setattr(prepared, "BLOCK", block)
        assert prepared.file_crc(tmp_path / "file") == 0xE3069283  # the check value of CRC32C


def test_of_another_checkpoint(kept, T, tmp_path):
    """Other weights, or the same weights cut into other heads: none is there for them."""
    other = Path(shutil.copytree(T, tmp_path / "other"))
    heads = json.loads((other / "hparams.json").read_text()) | {"n_head": 4}
    (other / "hparams.json").write_text(json.dumps(heads))
    expected = (
        f"no prepared engine of this checkpoint in {kept}, {other}; run: gpt2ln prepare {other} --cache-dir {kept}"
    )
    assert state(other, kept) == ("none", expected)


def test_nowhere(T, tmp_path):
    (tmp_path / "file").touch()
    for name, what in {"file": "a file, expected a folder", "gone": "no such folder"}.items():
        path = tmp_path / name
        why = (
            f"no prepared engine of this checkpoint in {path} ({what}), {T}; run: gpt2ln prepare {T} --cache-dir {path}"
        )
        assert state(T, path) == ("none", why)
    assert state(T, tmp_path / ("x" * 5000))[0] == "none"


@pytest.mark.parametrize("name", ["/m/tiny", "124M"])
def test_the_command_to_type(name):
    place = gpt2ln.locate.Place(name, Path("/m/tiny"))
    assert prepared.command(place, None) == f"gpt2ln prepare {name}"
    assert prepared.command(place, Path("a b")) == f"gpt2ln prepare {name} --cache-dir 'a b'"
    named = dataclasses.replace(place, named=Path("/w/ckpt"))
    assert prepared.command(named, None) == f"gpt2ln prepare {name} --checkpoint /w/ckpt"
    named = dataclasses.replace(place, named=Path(name))
    assert prepared.command(named, None) == f"gpt2ln prepare {name}"


def test_every_source_counts(monkeypatch, tmp_path):
    """A change in what makes, runs or measures an engine, or another LiteRT, gives it another name."""
    for source in prepared.SOURCES:
        shutil.copy(Path(prepared.__file__).with_name(source), tmp_path / source)
    monkeypatch.setattr(prepared, "__file__", str(tmp_path / "prepared.py"))
    digests = {prepared.code.__wrapped__()}
    for source in prepared.SOURCES:
        (tmp_path / source).write_text((tmp_path / source).read_text() + "#")
        digests.add(prepared.code.__wrapped__())
    monkeypatch.setattr(prepared, "litert_version", lambda: "9.9")
    digests.add(prepared.code.__wrapped__())
    assert len(digests) == len(prepared.SOURCES) + 2
    assert {"convert.py", "fast.py", "litert.py", "distance.py", "prompt.py", "model.py"} == set(prepared.SOURCES)


def test_the_version_of_litert():
    from importlib.metadata import version

    assert version("ai-edge-litert") == prepared.litert_version()


def test_none_where_one_was_asked_for(kept, T, cli, warm, tmp_path):
    """`auto` without a word, unless a folder for engines was named."""
    argv = ("generate", "Hello", "--length", 8, "--seed", 1)
    plain = cli("-m", T, *argv)
    assert (plain.err, plain.status) == ("", 0)
    ran = cli("-m", T, *argv, "--cache-dir", tmp_path / "gone")
    assert ran.err.startswith(f"note: no prepared engine of this checkpoint in {tmp_path / 'gone'} (no such folder), ")
    assert ran.out == plain.out
    refused(cli("-m", T, *argv, "--engine", "fast"), 3, f"no prepared engine of this checkpoint in {T}; run: gpt2ln ")
    refused(cli("-m", T, *argv, "--cache-dir", ""), 2, "--cache-dir: empty, expected a path")


def test_none_in_the_library():
    with pytest.raises(NotFound, match=r"no prepared engine of this checkpoint in "):
        _ = gpt2ln.load(GOLDEN / "model", engine="fast").engine
