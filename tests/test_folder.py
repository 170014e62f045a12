"""A dump as a folder: sealed, and resumed after any shard to the same bytes."""

import json
import os
import shutil

import numpy as np
import pytest

from gpt2ln.disk import let_go, sha256
from gpt2ln.errors import Damaged, UsageError
from gpt2ln.provenance import seal

from .dumps import (
    LENGTHS,
    LIMIT,
    STATED,
    begin,
    contents,
    equal,
    expected,
    fill,
    manifest,
    names,
    read_folder,
    whole,
)


@pytest.fixture
def right(tmp_path) -> dict[str, bytes]:
    """Files of a run that nothing interrupted."""
    whole(tmp_path / "right")
    return contents(tmp_path / "right")


# what it holds


@pytest.mark.parametrize("positions", ["all", "last", "1:3"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_shards_hold_the_rows(tmp_path, positions, dtype):
    folder = whole(tmp_path / "d", positions=positions, dtype=dtype)
    found = read_folder(tmp_path / "d")
    np.testing.assert_array_equal(found.pop("tokens"), range(sum(LENGTHS)))
    equal({name: found[name] for name in expected(folder.plan)}, expected(folder.plan))


def test_the_manifest_says_what_lies_where_under_its_seal(tmp_path):
    whole(tmp_path / "d")
    said = manifest(tmp_path / "d")
    assert next(iter(said)) == "format"
    assert {key: said[key] for key in STATED} == STATED
    assert said["seal"] == seal(said)
    assert [key for key in said if key != "seal" and seal(said | {key: 0}) == said["seal"]] == []
    assert said["shard_bytes"] == LIMIT
    assert [entry["documents"] for entry in said["shards"]] == [[0, 2], [2, 3], [3, 5], [5, 6]]
    assert [entry["rows"] for entry in said["shards"]] == [4, 7, 4, 5]
    assert names(tmp_path / "d") == ["manifest.json", *(entry["file"] for entry in said["shards"])]
    for entry in said["shards"]:
        path = tmp_path / "d" / entry["file"]
        assert (entry["bytes"], entry["sha256"]) == (path.stat().st_size, sha256(path))
        assert (entry["nonfinite"], entry["nonfinite_documents"]) == ({}, [])


def test_until_it_is_whole_it_has_neither_name_nor_seal(tmp_path):
    folder = begin(tmp_path / "d")
    fill(folder, groups=2)
    assert names(tmp_path / "d") == ["manifest.json.part", "shard-00000.safetensors", "shard-00001.safetensors"]
    said = json.loads((tmp_path / "d/manifest.json.part").read_text())
    assert "seal" not in said
    assert len(said["shards"]) == 2
    folder.abandon()


def test_what_is_not_finite_is_counted_by_shard_and_in_all(tmp_path):
    folder = begin(tmp_path / "d")
    for group in folder.pending():
        folder.begin(group)
        for n in group:
            x = np.full((LENGTHS[n], 8), np.nan if n in (1, 5) else 1)
            folder.write(n, 0, {"h0/out": x}, n not in (1, 5))
        folder.end(group)
    folder.finish()
    assert (folder.bad(), folder.nonfinite()) == ([1, 5], {"h0/out": 8 * (1 + 5)})
    counts = [(entry["nonfinite"], entry["nonfinite_documents"]) for entry in manifest(tmp_path / "d")["shards"]]
    assert counts == [({"h0/out": 8}, [1]), ({}, []), ({}, []), ({"h0/out": 40}, [5])]
    again = begin(tmp_path / "d", resume=True)
    assert (again.bad(), again.nonfinite(), again.pending()) == ([1, 5], {"h0/out": 48}, [])
    again.finish()


@pytest.mark.parametrize(
    "text", ["\ud800", os.fsdecode(b"\xff"), "é😨", {"b": [1, None, {"": 1.5}]}, ["a"], 2**70, True, None]
)
def test_ids_and_words_of_every_kind_are_sealed_as_they_are(tmp_path, text):
    whole(tmp_path / "d", stated=STATED | {"command": [text], "id": text})
    said = manifest(tmp_path / "d")
    assert (said["command"], said["id"], said["seal"]) == ([text], text, seal(said))
    begin(tmp_path / "d", stated=STATED | {"id": text}, resume=True).finish()


# resume


@pytest.mark.parametrize("groups", range(5))
def test_resumed_after_any_shard_it_is_the_same_bytes(tmp_path, right, groups):
    folder = begin(tmp_path / "d")
    fill(folder, groups=groups)
    let_go(folder._held)  # as kill -9 does
    (tmp_path / "d/shard-00004.safetensors.part").write_bytes(b"half")
    again = begin(tmp_path / "d", resume=True, stated=STATED | {"command": ["gpt2ln", "--resume"]})
    assert again.state == f"{groups} of 4 shards are whole"
    assert [len(group) for group in again.pending()] == [2, 1, 2, 1][groups:]
    fill(again)
    again.finish()
    (tmp_path / "d/shard-00004.safetensors.part").unlink()
    assert contents(tmp_path / "d") == right


def test_resume_begins_where_nothing_is(tmp_path, right):
    whole(tmp_path / "d", resume=True)
    assert contents(tmp_path / "d") == right


@pytest.mark.parametrize("left", ["manifest.json", "manifest.json.part", "both"])
def test_resume_of_a_whole_folder_writes_nothing(tmp_path, right, left):
    whole(tmp_path / "d")
    if left != "manifest.json":
        shutil.copy(tmp_path / "d/manifest.json", tmp_path / "d/manifest.json.part")
    if left == "manifest.json.part":
        (tmp_path / "d/manifest.json").unlink()
    again = begin(tmp_path / "d", resume=True)
    assert (again.complete, again.pending()) == (True, [])
    again.finish()
    assert contents(tmp_path / "d") == right


@pytest.mark.parametrize("n", range(4))
def test_a_missing_shard_is_written_again(tmp_path, right, n):
    whole(tmp_path / "d")
    (tmp_path / f"d/shard-0000{n}.safetensors").unlink()
    again = begin(tmp_path / "d", resume=True)
    assert [path for path in names(tmp_path / "d") if "manifest" in path] == ["manifest.json.part"]
    fill(again)
    again.finish()
    assert contents(tmp_path / "d") == right


def flip(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize("damage", [flip, lambda data: data[:-1], lambda data: b"", lambda data: data + b"\0"])
@pytest.mark.parametrize("begun", [False, True])
def test_a_damaged_shard_is_named_and_stays(tmp_path, damage, begun):
    path = tmp_path / "d/shard-00001.safetensors"
    whole(tmp_path / "d")
    if begun:
        (tmp_path / "d/manifest.json").rename(tmp_path / "d/manifest.json.part")
    path.write_bytes(damage(path.read_bytes()))
    before = contents(tmp_path / "d")
    with pytest.raises(Damaged, match=r"shard-00001\.safetensors: sha256 .*; remove it, and --resume writes it again"):
        begin(tmp_path / "d", resume=True)
    assert contents(tmp_path / "d") == before
    path.unlink()
    fill(again := begin(tmp_path / "d", resume=True))
    again.finish()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "gpt2ln dump 1", "seal": "0"}'])
def test_a_damaged_manifest_is_named(tmp_path, text):
    whole(tmp_path / "d")
    (tmp_path / "d/manifest.json").write_text(text)
    with pytest.raises(Damaged, match=r"manifest\.json: .*; --force begins anew"):
        begin(tmp_path / "d", resume=True)


CHANGES = (
    lambda entry: None,
    lambda entry: entry["file"],
    lambda entry: {"file": entry["file"]},
    lambda entry: entry | {"documents": [0, 1]},
)


@pytest.mark.parametrize("change", CHANGES)
def test_a_manifest_without_a_seal_that_no_dump_wrote_is_named(tmp_path, change):
    whole(tmp_path / "d")
    said = manifest(tmp_path / "d")
    (tmp_path / "d/manifest.json").unlink()
    edited = {**said, "shards": [*said["shards"][:1], change(said["shards"][1])]}
    del edited["seal"]
    (tmp_path / "d/manifest.json.part").write_text(json.dumps(edited))
    with pytest.raises(Damaged, match=r"manifest\.json\.part: lists shards as no dump does; --force begins anew"):
        begin(tmp_path / "d", resume=True)


def test_a_manifest_of_another_format_is_refused(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d/manifest.json").write_text('{"format": "other"}')
    with pytest.raises(UsageError, match="format 'other', expected 'gpt2ln dump 1'; --force begins anew"):
        begin(tmp_path / "d", resume=True)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"limit": 401}, "shard_bytes (shard_bytes was 400, is 401)"),
        ({"dtype": "float16"}, 'dtype (dtype was "float32", is "float16")'),
        ({"positions": "last"}, 'positions (positions was "all", is "last")'),
        ({"stated": STATED | {"threads": 1}}, "threads (threads was 2, is 1)"),
        ({"stated": STATED | {"new": 1}}, "new (new was null, is 1)"),
        ({"lengths": LENGTHS[:-1]}, "documents, documents_sha256 (documents was ["),
        ({"stated": STATED | {"model": {"index_sha256": "1" * 64}}}, "model (model was {"),
    ],
)
def test_other_settings_are_refused_by_name(tmp_path, changes, says):
    fill(folder := begin(tmp_path / "d"), groups=1)
    let_go(folder._held)
    before = contents(tmp_path / "d")
    with pytest.raises(UsageError) as caught:
        begin(tmp_path / "d", resume=True, **changes)
    assert f"was begun with other settings: {says}" in str(caught.value)
    assert "repeat them with --resume, or --force begins anew" in str(caught.value)
    assert contents(tmp_path / "d") == before


def test_given_up_between_two_steps_no_part_of_a_shard_stays(tmp_path):
    """Ctrl-C after a shard was opened and before the folder knows of it."""
    folder = begin(tmp_path / "d")
    fill(folder, groups=1)
    (tmp_path / "d/shard-00001.safetensors.part").write_bytes(b"begun")
    folder.abandon()
    assert names(tmp_path / "d") == ["manifest.json.part", "shard-00000.safetensors"]
