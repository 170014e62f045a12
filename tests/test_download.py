"""`download` and its folder: what is there stays, what is wrong is said, and nothing is asked for in vain."""

import hashlib
import json
import os
import re
import shutil

import pytest

from gpt2ln.disk import sha256
from gpt2ln.pins import read_pins
from gpt2ln.published import FILES, NEEDED, File

from . import server as serve
from .downloads import DATA, INDEX, MODEL, NAMES, WHOLE, is_whole, left
from .refusals import done, refused


def untouched(folder) -> dict:
    """What writing to it would change."""
    found = {path.name: path.stat() for path in folder.iterdir()}
    return {name: (one.st_ino, one.st_size, one.st_mtime_ns) for name, one in found.items()}


# what is there


def test_complete_is_complete(get, server):
    done(get())
    before = untouched(get.folder)
    server.asked.clear()
    ran = get()
    assert (done(ran), ran.err) == ("", f"tiny: already complete ({get.folder})\n")
    assert server.asked == []
    assert untouched(get.folder) == before


@pytest.mark.parametrize("digests", [True, False])
def test_files_fetched_by_hand_are_taken_and_pinned(get, server, digests):
    get.by_hand()
    done(get(digests=digests))
    assert server.asked == []
    assert left(get.folder) == WHOLE
    pins = read_pins(get.folder)
    assert {name: pin.sha256 for name, pin in pins.items()} == {name: sha256(MODEL / name) for name in NAMES}
    assert all(pin.still(get.folder / name) for name, pin in pins.items())


def test_what_came_is_pinned_with_where_it_came_from(get, server):
    done(get())
    record = json.loads((get.folder / "gpt2ln.json").read_text())
    assert (record["model"], record["source"]) == ("tiny", f"{server.url}/tiny")
    assert sorted(record["files"]) == NAMES
    assert all(pin.still(get.folder / name) for name, pin in read_pins(get.folder).items())


def test_what_is_published_counts_more_than_what_is_pinned(get, server):
    done(get())
    refused(get(**{"vocab.bpe": {"sha256": "ab" * 32}}), 2, "vocab.bpe: sha256 ", f", expected {'ab' * 32}; --force")


def test_pins_of_other_files_stay(get, server):
    server.files["/tiny/more"] = b"more"
    done(get(more={"size": 4}))
    (get.folder / "checkpoint").unlink()
    done(get())
    assert sorted(read_pins(get.folder)) == sorted([*NAMES, "more"])


def test_where_nothing_is_published_the_first_one_counts(get, server):
    done(get(digests=False))
    content = (MODEL / "vocab.bpe").read_bytes().replace(b"0.2", b"0.3")
    (get.folder / "vocab.bpe").write_bytes(content)
    first = sha256(MODEL / "vocab.bpe")
    refused(get(digests=False), 2, f"vocab.bpe: sha256 {sha256(get.folder / 'vocab.bpe')}, expected {first}; --force")
    server.files["/tiny/vocab.bpe"] = content
    refused(get("--force", digests=False), 6, f"vocab.bpe: got sha256 {sha256(get.folder / 'vocab.bpe')}")
    server.put(MODEL, "tiny")
    done(get("--force", digests=False))
    is_whole(get.folder)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"mine", "encoder.json: 4 bytes, expected 3284"),
        (b"x" * 3284, f"encoder.json: sha256 {hashlib.sha256(b'x' * 3284).hexdigest()}, expected "),
    ],
)
def test_what_is_not_ours_is_not_replaced_unasked(get, server, content, words):
    get.by_hand("encoder.json")
    (get.folder / "encoder.json").write_bytes(content)
    (get.folder / "notes.txt").write_text("mine")
    refused(get(), 2, get.folder, words, "--force fetches and replaces it")
    assert server.asked == []
    assert left(get.folder) == ["encoder.json", "notes.txt"]
    server.next["/tiny/encoder.json"] = [serve.status(404)]
    refused(get("--force"), 6, "encoder.json: server answered 404")
    assert (get.folder / "encoder.json").read_bytes() == content
    done(get("--force"))
    assert left(get.folder) == sorted([*WHOLE, "notes.txt"])


def test_all_that_is_wrong_is_said_at_once(get):
    get.by_hand()
    for name in ("encoder.json", "hparams.json"):
        (get.folder / name).write_bytes(b"")
    refused(get(), 2, "encoder.json: 0 bytes, expected 3284; hparams.json: 0 bytes, expected 70; --force")


@pytest.mark.parametrize(("known", "fetched"), [(False, [DATA, INDEX]), ([INDEX], [DATA])])
def test_damage_that_no_digest_tells_is_found(get, server, known, fetched):
    get.by_hand()
    content = bytearray((MODEL / DATA).read_bytes())
    content[100] ^= 1
    (get.folder / DATA).write_bytes(content)
    refused(get(digests=known), 2, f"{DATA}: 1 of ", "tensors damaged", "--force")
    assert server.asked == []
    done(get("--force", digests=known))
    is_whole(get.folder)
    assert sorted(server.paths()) == [f"/tiny/{name}" for name in fetched]


@pytest.mark.parametrize("what", ["folder", "pipe", "link"])
def test_what_is_no_file(get, what):
    get.folder.mkdir(parents=True)
    path = get.folder / "encoder.json"
    {"folder": path.mkdir, "pipe": lambda: os.mkfifo(path), "link": lambda: path.symlink_to("nowhere")}[what]()
    said = "a link to nowhere, which is not there" if what == "link" else "no regular file"
    refused(get(), 2, f"encoder.json: {said}")
    if what == "folder":
        refused(get("--force"), 7, f"{path}: Is a directory")
    else:
        done(get("--force"))
        is_whole(get.folder)


def test_a_link_to_a_right_file_is_one(get, tmp_path):
    get.folder.mkdir(parents=True)
    shutil.copy(MODEL / DATA, tmp_path / "elsewhere")
    (get.folder / DATA).symlink_to(tmp_path / "elsewhere")
    done(get())
    assert (get.folder / DATA).is_symlink()
    is_whole(get.folder)


def test_a_folder_elsewhere(get, tmp_path):
    (tmp_path / "disk").mkdir()
    get.models.mkdir()
    get.folder.symlink_to(tmp_path / "disk")
    done(get())
    is_whole(tmp_path / "disk")


def test_a_record_that_was_changed(get):
    done(get())
    record = get.folder / "gpt2ln.json"
    record.write_text(record.read_text().replace('"tiny"', '"other"'))
    refused(get(), 4, record, "was changed after it was sealed")


# without a request


def test_offline(get, server):
    refused(get("--offline"), 3, f"{get.folder}/{DATA}, ", "missing; without --offline they are fetched")
    assert not get.models.exists()
    get.by_hand()
    ran = get("--offline")
    assert (done(ran), ran.err) == ("", f"tiny: already complete ({get.folder})\n")
    (get.folder / "checkpoint").write_text("x")
    refused(get("--offline"), 4, f"{get.folder}/checkpoint: 1 bytes, expected 77; without --offline, --force")
    assert server.asked == []


def test_dry_run(get, server):
    get.by_hand("encoder.json", "checkpoint", "vocab.bpe")
    (get.folder / "checkpoint").write_text("x")
    (get.folder / f"{DATA}.part").write_bytes(b"12345")
    before = untouched(get.folder)
    rows = [re.split(r"  +", line) for line in done(get("--dry-run", sizes=[DATA])).splitlines()]
    url = f"{server.url}/tiny"
    assert rows == [
        ["file", "bytes", "state", "url"],
        [f"tiny/{DATA}", "401280", "5 bytes held", f"{url}/{DATA}"],
        ["tiny/encoder.json", "-", "whole", f"{url}/encoder.json"],
        ["tiny/vocab.bpe", "-", "whole", f"{url}/vocab.bpe"],
        ["tiny/hparams.json", "-", "missing", f"{url}/hparams.json"],
        ["tiny/checkpoint", "-", "wrong", f"{url}/checkpoint"],
        [f"tiny/{INDEX}", "-", "missing", f"{url}/{INDEX}"],
    ]
    assert server.asked == []
    assert untouched(get.folder) == before


def told(ran) -> str:
    """-> the error line of a run that has printed a table first."""
    assert ran.out.splitlines()[0].split() == ["file", "bytes", "state", "found"]
    (line,) = ran.err.splitlines()
    return line


def test_verify_only(get, server):
    refused(get("--verify-only"), 3, get.folder, "no such folder; run: gpt2ln download tiny")
    get.by_hand()
    ran = get("--verify-only")
    assert (sorted(line.split()[0] for line in done(ran).splitlines()[1:]), ran.err) == (NAMES, "tiny: 6 files whole\n")
    assert left(get.folder) == NAMES
    before = (get.folder / "checkpoint").read_bytes()
    (get.folder / "checkpoint").write_bytes(before + b" ")
    ran = get("--verify-only")  # sound, but the manifest knows better
    assert (ran.status, "different: checkpoint: 78 bytes, expected 77" in told(ran)) == (1, True)
    (get.folder / "hparams.json").write_text("{}")
    ran = get("--verify-only")
    assert (ran.status, "damaged: hparams.json: n_vocab is missing" in told(ran)) == (4, True)
    assert server.asked == []


# sizes that nobody is sure of


def test_what_only_follows_from_shapes_is_told_and_not_refused(cli, server, tmp_path, monkeypatch):
    files = {name: File((MODEL / name).stat().st_size, sure=name == DATA) for name in NEEDED}
    files[INDEX] = File(9999, sure=False)
    files["hparams.json"] = File(91, "0" * 64, sure=False)
    monkeypatch.setitem(FILES, "774M", files)
    server.put(MODEL, "774M")
    argv = ("download", "774M", "--mirror", server.url, "--models-dir", tmp_path)
    ran = cli(*argv)
    assert done(ran) == ""
    size, digest = (MODEL / INDEX).stat().st_size, sha256(MODEL / "hparams.json")
    for note in (
        f"warning: hparams.json: sha256 {digest}, expected {'0' * 64} by its shape; none is published",
        f"warning: {INDEX}: {size} bytes, expected 9999 by its shape; none is published",
    ):
        assert note in ran.err.splitlines()
    assert "already complete" in cli(*argv).err
    assert "already complete" in cli("download", "762M", *argv[2:]).err
    assert cli(*argv, "-q").err == ""


def test_keep_goes_with_a_copy_alone(get):
    refused(get("--keep"), 2, "--keep: goes with --source hf")
