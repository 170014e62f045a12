"""`gpt2ln.json`: what was there on the day it was pinned, and who else knows what a file is."""

import json
import os
import shutil
from pathlib import Path

import pytest

from gpt2ln import published
from gpt2ln.errors import Damaged
from gpt2ln.pins import RECORD, Pin, expected, known, official, read_pins, read_source, write_pins
from gpt2ln.provenance import sealed
from gpt2ln.published import DATA, INDEX, File

from . import tiny
from .findings import NAMES, digest, looked, pin_all, states


@pytest.fixture
def model(T, tmp_path) -> Path:
    """T, to be changed."""
    return Path(shutil.copytree(T, tmp_path / "tiny"))


def test_pins_are_what_was_there(model):
    pins = pin_all(model, "a mirror")
    assert list(pins) == NAMES
    assert read_pins(model) == pins
    assert read_source(model) == "a mirror"
    for name, pin in pins.items():
        assert pin == Pin((model / name).stat().st_size, digest(model / name), (model / name).stat().st_mtime_ns)
        assert pin.still(model / name)
    findings = looked(model)
    assert states(findings) == {}
    assert all(f.text.endswith("sha256 as pinned") for f in findings.values())
    os.utime(model / DATA)
    assert not pins[DATA].still(model / DATA)


def test_a_change_after_pinning(model, tmp_path):
    """Other weights, sound in themselves; a letter; a file that went."""
    pins = pin_all(model)
    other = tiny.tiny(tmp_path / "other", seed=7)
    for name in (INDEX, DATA):
        shutil.copy(other / name, model)
    (model / "checkpoint").unlink()
    findings = looked(model)
    assert states(findings) == {"checkpoint": "missing", INDEX: "different", DATA: "different"}
    assert findings[DATA].text == f"sha256 is {digest(model / DATA)}, pinned {pins[DATA].sha256}"


@pytest.mark.parametrize("content", ["", "[]", "{", '{"format": "gpt2ln folder 1", "files": {}}', '{"seal": ""}'])
def test_a_record_that_is_none(model, content):
    """It is a finding like others, and those others are made."""
    (model / RECORD).write_text(content)
    findings = looked(model)
    assert states(findings) == {RECORD: "damaged"}
    assert "gpt2ln verify --pin" in findings[RECORD].text
    assert set(findings) == {RECORD, *NAMES}


def test_a_record_of_another_format(model):
    (model / RECORD).write_text(json.dumps(sealed({"format": "another 1", "source": None, "files": {}})))
    with pytest.raises(Damaged, match="not a record of 'gpt2ln folder 1'"):
        read_pins(model)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/b", "", "a\0b"])
def test_a_pin_is_of_a_file_in_its_folder(model, name):
    write_pins(model, {name: Pin(1, "0", 0)}, model="x", source=None)
    with pytest.raises(Damaged, match="not a record"):
        read_pins(model)


def test_who_knows_what(tmp_path):
    pins = {"x": Pin(1, "a", 0), "vocab.bpe": Pin(2, "b", 0)}
    for name, released in (("124M", "124M"), ("117M", "124M"), ("gpt2-xl", "1558M"), ("mine", None)):
        assert official(tmp_path / name) == released
    assert official(Path(f"{tmp_path}/124M/x/..")) == "124M"
    assert official(Path(f"{tmp_path}/124M/..")) is None
    assert known(tmp_path / "mine" / "x", pins) == {"pinned": File(1, "a")}
    vocabulary = published.FILES["355M"]["vocab.bpe"]
    assert known(tmp_path / "355M" / "vocab.bpe", pins) == {"published": vocabulary, "pinned": File(2, "b")}
    assert known(tmp_path / "mine" / "y", pins) == {}
    assert expected(tmp_path / "mine", pins) == ["x", "vocab.bpe"]
    assert expected(tmp_path / "124M", pins) == [*published.NEEDED, "x"]
