"""A folder is one run's at a time, files that are no dump's are never touched, and a full disk loses nothing whole."""

import os
import shutil
import subprocess

import pytest

from gpt2ln import folder as module
from gpt2ln.errors import DiskError, NotFound, UsageError
from gpt2ln.folder import Folder, check_folder, held_bytes

from .disks import mounted
from .dumps import TAPS, begin, contents, fill, names, whole
from .interrupts import everywhere

# whose files they are


def test_force_removes_what_a_dump_wrote_and_nothing_else(tmp_path):
    whole(tmp_path / "right")
    whole(tmp_path / "d", limit=50)
    theirs = dict.fromkeys(["a.txt", "shard-1.safetensors", "shard-000000.safetensors", "shard-00000.npz"], b"precious")
    for name, data in theirs.items():
        (tmp_path / "d" / name).write_bytes(data)
    (tmp_path / "d/shard-00077.safetensors.part").write_text("ours")
    whole(tmp_path / "d", force=True)
    after = contents(tmp_path / "d")
    assert {name: after.pop(name) for name in theirs} == theirs
    assert after == contents(tmp_path / "right")


def test_a_run_given_up_without_a_whole_shard_leaves_nothing(tmp_path):
    before = os.listdir("/proc/self/fd")
    folder = begin(tmp_path / "d")
    folder.begin(folder.pending()[0])
    assert len(os.listdir("/proc/self/fd")) == len(before) + 2
    folder.abandon()
    assert names(tmp_path) == []
    assert os.listdir("/proc/self/fd") == before


def test_a_run_given_up_keeps_whole_shards_and_files_that_are_not_ours(tmp_path):
    fill(folder := begin(tmp_path / "d"), groups=1)
    folder.begin(folder.pending()[0])
    (tmp_path / "d/shard-00001.safetensors.bak").write_text("precious")
    folder.abandon()
    kept = ["manifest.json.part", "shard-00000.safetensors", "shard-00001.safetensors.bak"]
    assert names(tmp_path / "d") == kept
    (tmp_path / "e").mkdir()
    (tmp_path / "e/notes.txt").write_text("precious")
    begin(tmp_path / "e").abandon()
    assert names(tmp_path / "e") == ["notes.txt"]


def test_which_folders_are_ours(tmp_path):
    check_folder(tmp_path / "new", resume=False, force=False)
    check_folder(tmp_path / "new", resume=True, force=True)
    with pytest.raises(NotFound, match=f"{tmp_path}/no: no such folder, make it first; it is to hold x"):
        check_folder(tmp_path / "no/x", resume=False, force=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file: exists and is no folder"):
        check_folder(tmp_path / "file", resume=False, force=True)
    (tmp_path / "empty").mkdir()
    check_folder(tmp_path / "empty", resume=False, force=False)
    (tmp_path / "empty/manifest.json.part.new").write_text("")  # killed in its first moment
    check_folder(tmp_path / "empty", resume=True, force=False)
    for resume, force in ((True, False), (False, True), (False, False)):
        with pytest.raises(UsageError, match=r": exists, holds \w+ and is no dump; choose another name"):
            check_folder(tmp_path, resume=resume, force=force)


def test_a_dump_is_not_written_over_in_silence(tmp_path):
    whole(tmp_path / "d")
    with pytest.raises(UsageError, match="exists, holds a whole dump; --force begins anew"):
        check_folder(tmp_path / "d", resume=False, force=False)
    (tmp_path / "d/manifest.json").rename(tmp_path / "d/manifest.json.part")
    with pytest.raises(UsageError, match="an interrupted dump; --resume goes on with it; --force begins anew"):
        check_folder(tmp_path / "d", resume=False, force=False)
    check_folder(tmp_path / "d", resume=True, force=False)
    check_folder(tmp_path / "d", resume=False, force=True)


def test_held_bytes_are_those_of_our_shards(tmp_path):
    whole(tmp_path / "d")
    size = sum(path.stat().st_size for path in (tmp_path / "d").glob("shard*"))
    (tmp_path / "d/shard-00009.safetensors.part").write_bytes(b"1234567")
    (tmp_path / "d/other").write_bytes(b"1234567")
    assert (held_bytes(tmp_path / "d"), held_bytes(tmp_path / "no")) == (size + 7, 0)


# locks and disks


def test_one_writer_at_a_time(tmp_path):
    first = begin(tmp_path / "d")
    fill(first, groups=1)
    before = contents(tmp_path / "d")
    for flags in (dict(resume=True), dict(force=True), {}):
        with pytest.raises(DiskError, match=f"{tmp_path}/d: locked, another process writes it; wait for it to end"):
            begin(tmp_path / "d", **flags)
        assert contents(tmp_path / "d") == before
    fill(first)
    first.finish()
    begin(tmp_path / "d", resume=True).finish()


def test_a_refused_run_lets_go_of_the_lock(tmp_path):
    whole(tmp_path / "d")
    with pytest.raises(UsageError):
        begin(tmp_path / "d", limit=1, resume=True)
    begin(tmp_path / "d", resume=True).finish()


def test_a_disk_that_fills_up_later_keeps_what_is_whole(tmp_path):
    many = dict(lengths=[4] * 30, limit=1)
    with mounted(tmp_path / "disk", "size=64k") as small:
        folder = begin(small / "d", **many)
        with pytest.raises(DiskError, match="No space left on device"):
            fill(folder)
        folder.abandon()
        assert 5 < folder.whole < 16
        assert names(small / "d") == [
            "manifest.json.part",
            *(f"shard-{n:05d}.safetensors" for n in range(folder.whole)),
        ]
        subprocess.run(["mount", "-o", "remount,size=1m", small], check=True)
        fill(again := begin(small / "d", resume=True, **many))
        again.finish()
        whole(tmp_path / "d", **many)
        assert contents(small / "d") == contents(tmp_path / "d")


def test_a_disk_that_may_only_be_read(tmp_path):
    with mounted(tmp_path / "disk", "ro") as read_only, pytest.raises(DiskError, match="Read-only file system"):
        begin(read_only / "d")


def test_ctrl_c_wherever_it_comes_at_the_beginning(tmp_path):
    """A folder that began goes on with --resume; what did not begin is not there."""
    begun = []
    for _ in everywhere(lambda: begun.append(begin(tmp_path / "d")), module):
        if (tmp_path / "d").exists():
            assert names(tmp_path / "d") == ["manifest.json.part"]
            shutil.rmtree(tmp_path / "d")
    begun[0].abandon()
    assert os.listdir(tmp_path) == []


def test_ctrl_c_wherever_it_comes_while_shards_are_written(tmp_path):
    """What has a name is whole and counted, and --resume ends as the same bytes."""
    small, ends = {"lengths": [1, 9], "taps": TAPS[:1], "limit": 1}, set()
    whole(tmp_path / "right", **small)
    right = contents(tmp_path / "right")

    def begun() -> Folder:
        shutil.rmtree(tmp_path / "d", ignore_errors=True)
        return begin(tmp_path / "d", **small)

    def run(folder: Folder) -> None:
        try:
            fill(folder, piece=9)
            folder.finish()
        except BaseException:
            folder.abandon()
            raise

    held = [begun()]
    for _ in everywhere(lambda: run(held[0]), module):
        there = names(tmp_path / "d") if (tmp_path / "d").exists() else []
        assert len(there) == (held[0].whole and held[0].whole + 1)
        assert all((tmp_path / "d" / name).read_bytes() == right[name] for name in there[1:])
        if there and tuple(there) not in ends:
            whole(tmp_path / "d", **small, resume=True)
            assert contents(tmp_path / "d") == right
        ends.add(tuple(there))
        held[0] = begun()
    assert [(len(end), end[:1]) for end in sorted(ends)] == [
        (0, ()), (3, ("manifest.json",)), (2, ("manifest.json.part",)), (3, ("manifest.json.part",)),
    ]  # fmt: skip
