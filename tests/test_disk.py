"""Small files at one stroke, and room asked for before anything is written."""

import os
import shutil
import threading
from pathlib import Path

import pytest

from gpt2ln.disk import check_room, replace
from gpt2ln.errors import DiskError


def test_a_small_file_is_the_old_or_the_new_one(tmp_path):
    """A reader beside a writer never sees a part of either."""
    path, texts = tmp_path / "f", [b"a" * 100_000, b"b" * 200_000]
    replace(path, texts[0])
    seen, over = set(), threading.Event()

    def look():
        while not over.is_set():
            seen.add(path.read_bytes())

    reader = threading.Thread(target=look)
    reader.start()
    for n in range(40):
        replace(path, texts[n % 2])
    over.set()
    reader.join()
    assert seen <= set(texts)
    assert path.read_bytes() == texts[1]
    assert os.listdir(tmp_path) == ["f"]


def test_a_failed_replacement_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "f"
    replace(path, b"old")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(DiskError, match=rf"{path}: No space left on device"):
        replace(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]


def test_a_replacement_needs_its_folder(tmp_path):
    with pytest.raises(DiskError, match="none/f: No such file or directory"):
        replace(tmp_path / "none" / "f", b"")


def test_room_is_that_of_the_nearest_folder_there_is(tmp_path, monkeypatch):
    asked = []

    def usage(folder):
        asked.append(Path(folder))
        return shutil._ntuple_diskusage(10, 6, 4)

    monkeypatch.setattr("shutil.disk_usage", usage)
    check_room(tmp_path / "a" / "b", 4)
    with pytest.raises(DiskError) as refused:
        check_room(tmp_path / "a" / "b", 5)
    assert str(refused.value) == f"{tmp_path}: no space: 5 bytes needed, 4 free"
    with pytest.raises(DiskError, match="5 bytes needed, 4 free; fewer taps"):
        check_room(tmp_path, 5, "fewer taps")
    assert asked == [tmp_path] * 3


def test_there_is_some_room(tmp_path):
    check_room(tmp_path, 1)
    with pytest.raises(DiskError, match="no space"):
        check_room(tmp_path, 1 << 60)
