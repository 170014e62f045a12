"""A folder at one stroke: whole or not there, and nothing in it is lost that was not written here."""

import os
import shutil
from pathlib import Path

import pytest

from gpt2ln import disk, whole
from gpt2ln.disk import lock
from gpt2ln.errors import DiskError, NotFound, UsageError
from gpt2ln.whole import whole_file, whole_folder

from .interrupts import everywhere


def filled(folder: Path, text: str = "new", **how) -> None:
    with whole_folder(folder, ["a", "b"], **how) as part:
        for name in ("a", "b"):
            (part / name).write_text(text)


def held(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


NEW, OLD = dict.fromkeys("ab", "new"), {"a": "old"}


@pytest.fixture
def old(tmp_path) -> Path:
    (tmp_path / "f").mkdir()
    (tmp_path / "f/a").write_text("old")
    return tmp_path / "f"


@pytest.mark.parametrize("there", [False, True])
def test_a_new_or_empty_folder(tmp_path, there):
    if there:
        (tmp_path / "f").mkdir()
    filled(tmp_path / "f")
    assert held(tmp_path / "f") == NEW
    assert os.listdir(tmp_path) == ["f"]


def test_another_is_replaced_with_force_alone(old):
    with pytest.raises(UsageError, match=r"f: exists and holds a; --force replaces it"):
        filled(old)
    assert held(old) == OLD
    filled(old, force=True)
    assert held(old) == NEW
    assert os.listdir(old.parent) == ["f"]


@pytest.mark.parametrize("kind", ["file", "folder", "folder of our name"])
def test_what_is_not_ours_is_never_lost(old, kind):
    name = "b" if kind == "folder of our name" else "mine"
    (old / name).write_text("") if kind == "file" else (old / name).mkdir()
    with pytest.raises(UsageError, match=f"f: holds {name}, which would be lost"):
        filled(old, force=True)
    assert (old / "a").read_text() == "old"
    assert (old / name).exists()


def test_what_a_killed_run_has_left_is_cleared(tmp_path):
    left = tmp_path / "f.part"
    left.mkdir()
    for name in ("a", "b.part", "b.new"):
        (left / name).write_text("half")
    filled(tmp_path / "f")
    assert held(tmp_path / "f") == NEW
    (tmp_path / "g.part").mkdir()
    (tmp_path / "g.part/thesis").write_text("")
    with pytest.raises(UsageError, match=r"g\.part: holds thesis, which would be lost; move it away"):
        filled(tmp_path / "g")
    (tmp_path / "g.part/thesis").rename(tmp_path / "thesis")
    filled(tmp_path / "g")  # nothing holds the lock


@pytest.mark.parametrize("end", [KeyboardInterrupt, OSError, UsageError])
def test_nothing_stays_of_what_fails(old, end):
    def half():
        with whole_folder(old, ["a", "b"], force=True) as part:
            (part / "b").write_text("half")
            raise end

    with pytest.raises(end):
        half()
    assert held(old) == OLD
    assert os.listdir(old.parent) == ["f"]


def test_the_old_one_comes_back_where_the_new_one_cannot_take_its_place(old):
    def lost():
        with whole_folder(old, ["a"], force=True) as part:
            part.rmdir()

    with pytest.raises(DiskError, match="f: No such file"):
        lost()
    assert held(old) == OLD
    assert os.listdir(old.parent) == ["f"]


def test_one_writer_at_a_time(old):
    with whole_folder(old, ["a"], force=True) as part:
        (part / "a").write_text("first")
        with pytest.raises(DiskError, match="locked, another process writes it"):
            filled(old, force=True)
    assert held(old) == {"a": "first"}
    handle = os.open(old, os.O_RDONLY)
    lock(handle, old)  # nobody holds it any more
    os.close(handle)


def test_a_link_stays_one(old):
    link = old.parent / "link"
    link.symlink_to(old)
    filled(link, force=True)
    assert link.is_symlink()
    assert held(old) == NEW


def test_where_no_folder_can_be(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    for name, kind, says in [
        ("file", UsageError, "file: is a file, expected the name of a new folder"),
        ("no/f", NotFound, "no: no such folder, make it first; it is to hold f"),
        (".", UsageError, "is where you are"),
        ("/", UsageError, "is where you are"),
        ("file/f", NotFound, "no such folder"),
    ]:
        with pytest.raises(kind, match=says):
            filled(Path(name))
    assert os.listdir(tmp_path) == ["file"]


def test_the_third_name_is_taken(old):
    (old.parent / "f.old").mkdir()
    with pytest.raises(UsageError, match=r"f\.old: is in the way"):
        filled(old, force=True)
    assert held(old) == OLD
    assert sorted(os.listdir(old.parent)) == ["f", "f.old"]


# Ctrl-C at every place


def test_ctrl_c_wherever_it_comes_leaves_nothing(tmp_path):
    for _ in everywhere(lambda: filled(tmp_path / "f"), whole, disk):
        left = os.listdir(tmp_path)
        assert left == [] or (left == ["f"] and held(tmp_path / "f") == NEW)
        shutil.rmtree(tmp_path / "f", ignore_errors=True)
    assert held(tmp_path / "f") == NEW


def test_ctrl_c_wherever_it_comes_leaves_the_old_one_or_the_new_one(old):
    for _ in everywhere(lambda: filled(old, force=True), whole, disk):
        assert os.listdir(old.parent) == ["f"]
        assert held(old) in (OLD, NEW)
        shutil.rmtree(old)
        old.mkdir()
        (old / "a").write_text("old")
    assert held(old) == NEW


def test_ctrl_c_wherever_it_comes_and_a_file(tmp_path):
    def write():
        with whole_file(tmp_path / "f") as file:
            file.write(b"new")

    for _ in everywhere(write, whole, disk):
        assert os.listdir(tmp_path) in ([], ["f"])
        (tmp_path / "f").unlink(missing_ok=True)
    assert (tmp_path / "f").read_bytes() == b"new"
    (tmp_path / "f.part").write_bytes(b"what a killed run has left")
    write()
    assert (tmp_path / "f").read_bytes() == b"new"


def test_ctrl_c_while_another_writes(tmp_path):
    with whole_folder(tmp_path / "f", ["a"]) as part, whole_file(tmp_path / "g"):
        for begin in (lambda: filled(tmp_path / "f"), lambda: one(tmp_path / "g")):
            for _ in everywhere(lambda begin=begin: refused(begin), whole, disk):
                assert sorted(os.listdir(tmp_path)) == ["f.part", "g.part"]
        (part / "a").write_text("first")
    assert held(tmp_path / "f") == {"a": "first"}


def one(path: Path) -> None:
    with whole_file(path):
        raise AssertionError("two at once")


def refused(begin) -> None:
    with pytest.raises(DiskError, match="locked"):
        begin()
