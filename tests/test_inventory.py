"""`models`: what is on this disk, told from names, sizes and index, and nothing that lies there stops it."""

import json
import math
import os
import shutil
import time
from pathlib import Path

import pytest

from gpt2ln import published
from gpt2ln.inventory import Found, take
from gpt2ln.locate import DEMO
from gpt2ln.pins import RECORD
from gpt2ln.published import DATA, INDEX, File
from gpt2ln.spec import RELEASED, HParams

from .findings import digest, pin_all
from .refusals import done, refused


@pytest.fixture
def shelf(tmp_path) -> Path:
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


@pytest.fixture
def model(T, shelf) -> Path:
    """T on the shelf, to be changed."""
    return Path(shutil.copytree(T, shelf / "tiny"))


def on(shelf: Path) -> dict[str, Found]:
    first, _ = take([shelf])
    return {found.name: found for found in first.models}


def said(shelf: Path) -> dict[str, tuple[str, str]]:
    return {name: (found.state, found.text) for name, found in on(shelf).items()}


# --- one model ----------------------------------------------------------------------------------------------------


def test_a_whole_model(model, shelf):
    size = sum(path.stat().st_size for path in model.iterdir())
    assert on(shelf) == {"tiny": Found("tiny", model, "whole", "", size, "no")}


def test_values_are_not_read(model, shelf):
    (model / DATA).write_bytes(bytes(15872))
    assert said(shelf) == {"tiny": ("whole", "")}


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda m: (m / DATA).write_bytes(bytes(7936)), f"{DATA} has 7936 bytes, the index needs 15872 (50.0 %)"),
        (lambda m: (m / DATA).unlink(), f"{DATA}: no such file; model.ckpt.index is there and needs it"),
        (lambda m: (m / INDEX).write_bytes(b""), f"{INDEX}: 0 bytes, an index has at least 48"),
        (lambda m: (m / "vocab.bpe").unlink(), "vocab.bpe missing"),
        (lambda m: [(m / n).unlink() for n in ("vocab.bpe", "hparams.json")], "hparams.json, vocab.bpe missing"),
        (lambda m: (m / "hparams.json").write_text("{"), "hparams.json: line 1 column 2: "),
        (lambda m: (m / RECORD).write_text("{"), f"{RECORD}: not JSON"),
    ],
)
def test_a_damaged_model(model, shelf, damage, text):
    """With the reason, and without the path, which has a column of its own."""
    damage(model)
    ((state, why),) = said(shelf).values()
    kind = "incomplete" if "missing" in text or "no such file" in text else "damaged"
    assert (state, why[: len(text)]) == (kind, text)
    assert str(shelf) not in why.split(";")[0]


def test_a_download_that_was_begun(model, shelf):
    """A stump beside a whole model is no matter."""
    (model / "x.part").touch()
    assert said(shelf) == {"tiny": ("whole", "")}
    begun = ("unfinished", "a download was begun; go on with: gpt2ln download tiny")
    (model / "vocab.bpe").unlink()
    assert said(shelf) == {"tiny": begun}
    (model / INDEX).unlink()
    assert said(shelf) == {"tiny": begun}
    (model / "x.part").unlink()
    assert said(shelf) == {"tiny": ("not a model", "no checkpoint in it")}


def test_pins_say_what_was_verified(model, shelf):
    pin_all(model)
    assert on(shelf)["tiny"].verified == "yes"
    os.utime(model / DATA, ns=(1, 1))
    assert on(shelf)["tiny"].verified == "changed since"
    (model / DATA).write_bytes((model / DATA).read_bytes() + b"x")
    assert said(shelf)["tiny"] == ("different", f"{DATA} has 15873 bytes, pinned 15872")
    (model / "checkpoint").unlink()
    assert said(shelf)["tiny"] == ("incomplete", "checkpoint missing")
    assert on(shelf)["tiny"].verified == "no"


def test_the_name_of_a_released_model(model, shelf, monkeypatch):
    model.rename(shelf / "124M")
    state, text = said(shelf)["124M"]
    assert state == "different"
    assert text.startswith(f"{DATA} has 15872 bytes, published 497759232; encoder.json has 3329 bytes, published ")
    files = {
        name: File(path.stat().st_size, digest(path)) for path in (shelf / "124M").iterdir() if (name := path.name)
    }
    monkeypatch.setitem(published.FILES, "124M", files)
    assert said(shelf)["124M"] == ("whole", "")
    files[DATA] = File(1, sure=False)
    assert said(shelf)["124M"] == ("whole", "")


# --- whatever lies on a shelf -------------------------------------------------------------------------------------


def test_what_is_no_model(model, shelf, T):
    (shelf / "README").write_text("")
    (shelf / ".gitkeep").touch()
    (shelf / ".cache").mkdir()
    (shelf / "empty").mkdir()
    (shelf / "nowhere").symlink_to(shelf / "gone")
    (shelf / "circle").symlink_to(shelf / "circle")
    os.mkfifo(shelf / "pipe")
    (shelf / "linked").symlink_to(T)
    (shelf / "hf").mkdir()
    (shelf / "hf" / "model.safetensors").touch()
    shutil.copytree(T, shelf / "two")
    for name in (INDEX, DATA):
        shutil.copy(T / name, shelf / "two" / name.replace("model.ckpt", "model-1"))
    (shelf / "two" / "checkpoint").unlink()
    shutil.copytree(T, shelf / "piped")
    (shelf / "piped" / "hparams.json").unlink()
    os.mkfifo(shelf / "piped" / "hparams.json")
    shutil.copytree(T, shelf / "failing")
    (shelf / "failing" / "checkpoint").unlink()
    (shelf / "failing" / "checkpoint").symlink_to("/proc/self/mem")
    assert said(shelf) == {
        "circle": ("not a model", "a link to nowhere"),
        "empty": ("not a model", "no checkpoint in it"),
        "failing": ("damaged", "Input/output error"),
        "hf": ("not a model", "safetensors, which inspect, diff and import read"),
        "linked": ("whole", ""),
        "nowhere": ("not a model", "a link to nowhere"),
        "pipe": ("not a model", "neither a file nor a folder"),
        "piped": ("incomplete", "hparams.json missing"),
        "tiny": ("whole", ""),
        "two": ("several", "more than one checkpoint; choose with --checkpoint"),
    }


def test_shelves_that_hold_nothing(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    names = ("gone", "file", "link", "file/under", "x" * 5000)
    assert [shelf.why for shelf in take([tmp_path / name for name in names])] == [
        "no such folder", "a file, not a folder", *["no such folder"] * 3, None
    ]  # fmt: skip


# --- the command --------------------------------------------------------------------------------------------------


def test_the_table(model, shelf, cli):
    pin_all(model)
    (shelf / "empty").mkdir()
    size = sum(path.stat().st_size for path in model.iterdir())
    ran = cli("models", "--models-dir", shelf)
    demo = f"{sum(path.stat().st_size for path in DEMO.iterdir() if path.is_file()):,}"
    wide = max(len(str(path)) for path in (model, DEMO))
    assert done(ran).splitlines() == [
        "name   state        verified  fast      bytes  where",
        f"empty  not a model  no        -             0  {shelf / 'empty'!s:{wide}}  no checkpoint in it",
        f"tiny   whole        yes       -     {size:>9,}  {model}",
        f"demo   whole        no        -     {demo}  {DEMO}",
    ]
    assert ran.err == ""


def test_where_it_was_looked_for(tmp_path, cli, monkeypatch):
    """Every shelf that holds nothing is named; the demo is always there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    (tmp_path / "models").mkdir()
    ran = cli("models")
    assert [line.split()[0] for line in done(ran).splitlines()] == ["name", "demo"]
    share = tmp_path / "share" / "gpt2ln" / "models"
    assert ran.err == f"looked in {tmp_path / 'models'}: nothing there\nlooked in {share}: no such folder\n"
    assert cli("models", "-q").err == ""


def test_as_json(model, shelf, tmp_path, cli):
    tiny, demo = [json.loads(line) for line in done(cli("models", "--json", "--models-dir", shelf)).splitlines()]
    assert tiny == {
        "name": "tiny", "state": "whole", "verified": "no", "bytes": on(shelf)["tiny"].bytes, "path": str(model),
        "shelf": str(shelf), "found": "", "fast": None,
    }  # fmt: skip
    assert demo["name"] == "demo"
    gone, _ = [json.loads(line) for line in done(cli("models", "--json", "--models-dir", tmp_path / "x")).splitlines()]
    assert gone == {"shelf": str(tmp_path / "x"), "found": "no such folder"}


def test_a_damaged_model_is_no_failure(model, shelf, cli):
    (model / DATA).unlink()
    assert "damaged" in done(cli("models", "--models-dir", shelf))


def test_refused(cli):
    refused(cli("models", "extra"), 2, "unexpected extra argument")
    refused(cli("models", "--models-dir", ""), 2, "--models-dir: empty")


def test_twenty_models_take_no_time(model, shelf):
    """Also of the largest: an index of 580 variables, and data that is all holes."""
    from gpt2ln.checkpoint import Entry
    from gpt2ln.official import hparams_text, index_bytes
    from gpt2ln.spec import variables

    big, at, entries = RELEASED["1558M"], 0, []
    for name, shape in sorted(variables(big).items()):
        size = 4 * math.prod(shape)
        entries.append(Entry(name, "float32", shape, 0, at, size, 0))
        at += size
    (model / INDEX).write_bytes(index_bytes(entries))
    (model / "hparams.json").write_text(hparams_text(HParams(**big.as_dict())))
    os.truncate(model / DATA, at)
    for folder in [shelf / f"m{i}" for i in range(19)]:
        folder.mkdir()
        for path in model.iterdir():
            os.link(path, folder / path.name)
    began = time.process_time()
    assert {found.state for found in on(shelf).values()} == {"whole"}
    assert (
        time.process_time() - began < 2
    )  # a tenth of that on an idle machine; were the holes read, it would be minutes


def test_surplus_bytes_are_told(T, tmp_path):
    """Whole, and yet something is odd."""
    shelf = tmp_path / "models"
    shutil.copytree(T, shelf / "tiny")
    with (shelf / "tiny" / DATA).open("ab") as file:
        file.write(b"1234567")
    state, why = said(shelf)["tiny"]
    assert (state, why) == ("whole", f"warning: {DATA} has 7 bytes more than the index needs (15872)")
