"""A prepared engine that is not as it was made: never another text, but the same one from `exact`, or a refusal."""

import os
import shutil
import sys
from pathlib import Path

import pytest

import gpt2ln
from gpt2ln import litert, prepared
from gpt2ln.errors import Damaged
from gpt2ln.prepared import RECORD

from .preparing import edit, record_of, state, unseal
from .refusals import done, refused

LITERT = prepared.litert_version()


@pytest.fixture
def folder(kept, T) -> Path:
    """T's engine in it."""
    return gpt2ln.load(T, cache_dir=kept).prepared.folder


def cut(folder):
    with (folder / "h1.tflite").open("r+b") as file:
        file.truncate(100)


def instead(folder, name="h1.tflite"):
    (folder / name).unlink()
    (folder / name).mkdir()


def several(folder):
    for name in ("attend.tflite", "h0.qkv.tflite", "h0.tflite", "h1.qkv.tflite", "h1.tflite", "logits.tflite"):
        (folder / name).unlink()


def old(folder, **versions):
    """As another version would have made it."""
    edit(folder, versions=record_of(folder)["versions"] | versions)
    folder.rename(folder.with_name(folder.name[:-12] + "0" * 12))


def replaced(folder):
    shutil.rmtree(folder)
    folder.write_text("mine")


HERE = f"gpt2ln {gpt2ln.__version__} with LiteRT {LITERT}"
WRONG = {  # damage -> state, why after the folder
    "a file cut short": (cut, "damaged", ": h1.tflite has 100 bytes, expected "),
    "a file missing": (lambda f: (f / "h1.tflite").unlink(), "damaged", ": h1.tflite missing; "),
    "six missing": (several, "damaged", "h1.tflite missing, and 1 more; "),
    "a folder for a file": (instead, "damaged", ": h1.tflite missing; "),
    "a folder for the record": (lambda f: instead(f, RECORD), "damaged", f"/{RECORD}: no file; "),
    "no record": (lambda f: (f / RECORD).unlink(), "damaged", f"/{RECORD}: missing; "),
    "an empty folder": (lambda f: [path.unlink() for path in f.iterdir()], "damaged", f"/{RECORD}: missing; "),
    "a file for the folder": (replaced, "damaged", ": no folder, expected that of an engine; remove it and "),
    "no JSON": (lambda f: (f / RECORD).write_text("{"), "damaged", f"/{RECORD}: not JSON (Expecting property name"),
    "no UTF-8": (lambda f: (f / RECORD).write_bytes(b"\xff"), "damaged", f"/{RECORD}: not JSON ("),
    "no object": (lambda f: (f / RECORD).write_text("[]"), "damaged", f"/{RECORD}: JSON, but no object; "),
    "edited": (lambda f: edit(f, seal=False, cpu="x"), "damaged", f"/{RECORD}: was changed after it was sealed; "),
    "unsealed": (lambda f: unseal(f), "damaged", ": not the record of this engine; "),
    "another format": (lambda f: edit(f, format="gpt2ln engine 2"), "damaged", ": not the record of this engine; "),
    "another index": (lambda f: edit(f, index_sha256="0"), "damaged", ": not the record of this engine; "),
    "other heads": (lambda f: edit(f, hparams={}), "damaged", ": not the record of this engine; "),
    "other code": (lambda f: edit(f, code="0" * 64), "damaged", ": not the record of this engine; "),
    "no distance": (lambda f: edit(f, distance=None), "damaged", ": not the record of this engine; "),
    "a distance in words": (
        lambda f: edit(f, distance=record_of(f)["distance"] | {"kl": "0"}),
        "damaged",
        ": not the record of this engine; ",
    ),
    "no files": (lambda f: edit(f, files={}), "damaged", ": not the record of this engine; "),
    "files of no size": (
        lambda f: edit(f, files={name: {"crc32c": 1} for name in record_of(f)["files"]}),
        "damaged",
        ": not the record of this engine; ",
    ),
    "files in a list": (lambda f: edit(f, files=[1]), "damaged", ": not the record of this engine; "),
    "a processor that is none": (lambda f: edit(f, cpu=1), "damaged", ": not the record of this engine; "),
    "another LiteRT": (
        lambda f: old(f, **{"ai-edge-litert": "1.0"}),
        "stale",
        f": made by gpt2ln {gpt2ln.__version__} with LiteRT 1.0, expected {HERE}; ",
    ),
    "another gpt2ln": (
        lambda f: old(f, gpt2ln="0.0.1"),
        "stale",
        f": made by gpt2ln 0.0.1 with LiteRT {LITERT}, expected {HERE}; ",
    ),
    "other sources": (old, "stale", f": made by other code of {HERE}, expected {HERE}; "),
    "another version, no record": (
        lambda f: [old(f), (f.with_name(f.name[:-12] + "0" * 12) / RECORD).unlink()],
        "stale",
        f": made by another version, expected {HERE}; ",
    ),
}


@pytest.fixture(params=[*WRONG, "a bit that flipped", "two files that changed"])
def wrong(request, folder):
    """-> state, words of the reason, exit status of a refusal"""
    if request.param in WRONG:
        damage, kind, words = WRONG[request.param]
        damage(folder)
        return kind, words, {"damaged": 4, "stale": 3}[kind]
    names = ["h1.tflite"] if "bit" in request.param else ["attend.tflite", "h1.tflite"]
    for name in names:
        content = bytearray((folder / name).read_bytes())
        content[-20] ^= 1
        (folder / name).write_bytes(content)
    return "ready", f": {', '.join(names)} changed since the engine was prepared; ", 4


def test_wrong(wrong, kept, folder, T, cli, warm):
    """Never another text: `auto` says why and runs exact, `fast` refuses; `prepare` puts it right."""
    kind, words, status = wrong
    run = f"run: gpt2ln prepare {T} --cache-dir {kept}"
    argv = ("-m", T, "generate", "Hello", "--length", 8, "--seed", 1, "--cache-dir", kept)
    found, why = state(T, kept)
    assert found == kind
    if kind != "ready":
        assert words in why
        assert str(folder)[:-12] in why
        assert why.endswith(run)
    line = refused(cli(*argv, "--engine", "fast"), status, words, run)
    assert line.endswith(run)
    right, ran = cli(*argv, "--engine", "exact"), cli(*argv)
    assert done(ran) == done(right)
    assert ran.err == f"warning: the prepared engine is not used: {line.removeprefix('error: ')}\n"


@pytest.mark.parametrize("damage", ["a file cut short", "no record", "edited", "an empty folder", "another gpt2ln"])
def test_prepare_puts_it_right(damage, kept, folder, T, cli, converted):
    WRONG[damage][0](folder)
    ran = cli("prepare", T, "--cache-dir", kept)
    assert f"{folder}: " in done(ran)
    assert ran.err == ""
    assert state(T, kept) == ("ready", "")
    assert [name for name in os.listdir(kept) if name.startswith(folder.name[:-12])] == [folder.name]


def test_prepare_finds_what_flipped(kept, folder, T, cli, converted):
    content = bytearray((folder / "h1.tflite").read_bytes())
    content[-20] ^= 1
    (folder / "h1.tflite").write_bytes(content)
    before = folder.stat().st_ino
    assert cli("prepare", T, "--cache-dir", kept).err == ""
    assert folder.stat().st_ino != before
    prepared.check(gpt2ln.load(T, cache_dir=kept).prepared)


@pytest.mark.parametrize("damage", ["a folder for a file", "a file for the folder"])
def test_what_prepare_does_not_remove(damage, kept, folder, T, cli):
    WRONG[damage][0](folder)
    if folder.is_dir():
        words = f"{folder}: holds h1.tflite, expected files of an engine alone; remove the folder"
    else:
        words = f"{folder}: is a file, expected the name of a new folder"
    refused(cli("prepare", T, "--cache-dir", kept), 2, words)
    assert folder.exists()


def test_litert_that_is_not_installed(kept, folder, T, cli, warm, monkeypatch):
    monkeypatch.setitem(sys.modules, "ai_edge_litert", None)
    install = f"LiteRT, which runs it, is not installed; run: pip install '{litert.SUPPORTED.replace(' ', '')}'"
    argv = ("-m", T, "generate", "Hello", "--length", 8, "--seed", 1, "--cache-dir", kept)
    refused(cli(*argv, "--engine", "fast"), 3, install)
    ran = cli(*argv)
    assert install in ran.err
    assert done(ran) == done(cli(*argv, "--engine", "exact"))
    for name in ("ai_edge_litert.interpreter",):
        monkeypatch.setitem(sys.modules, name, None)
    refused(cli("prepare", T, "--cache-dir", kept), 3, "LiteRT: cannot be imported", install[-30:])


def test_the_library_says_the_same(kept, folder, T):
    cut(folder)
    with pytest.raises(Damaged, match=r"h1.tflite has 100 bytes"):
        _ = gpt2ln.load(T, engine="fast", cache_dir=kept).engine


def test_what_cannot_be_read(kept, folder, T, monkeypatch):
    """What the system says goes with the name of the file."""

    def fails(path):
        raise OSError(5, "Input/output error", str(path))

    monkeypatch.setattr(prepared, "_size", fails)
    found, why = state(T, kept)
    assert (found, why.partition(": ")[2]) == (
        "damaged",
        f"Input/output error; run: gpt2ln prepare {T} --cache-dir {kept}",
    )
