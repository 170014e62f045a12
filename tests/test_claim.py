"""A folder for one process alone, whoever goes and whoever comes."""

import contextlib
import fcntl
import os

import pytest

from gpt2ln import claim as module
from gpt2ln import disk
from gpt2ln.claim import LOCK, claim
from gpt2ln.errors import DiskError

from .interrupts import everywhere


def test_one_at_a_time(tmp_path):
    folder = tmp_path / "a/b"
    with claim(folder):
        assert (folder / LOCK).read_text() == str(os.getpid())
        with (
            pytest.raises(DiskError, match=f"{folder}: locked by process {os.getpid()}; wait for it to end"),
            claim(folder),
        ):
            pass
        (folder / LOCK).write_text("")
        with pytest.raises(DiskError, match="locked by another process; wait for it to end"), claim(folder):
            pass
    assert os.listdir(tmp_path) == []
    with claim(folder):
        pass


def test_only_what_was_made_and_is_empty_is_removed(tmp_path):
    (tmp_path / "mine").mkdir()
    with claim(tmp_path / "mine/a/b"):
        (tmp_path / "mine/a/x").touch()
    assert sorted(os.listdir(tmp_path / "mine/a")) == ["x"]
    with claim(tmp_path / "mine"):
        pass
    assert (tmp_path / "mine").is_dir()


def test_a_lock_on_a_file_that_is_gone_is_none(tmp_path, monkeypatch):
    """Another process ends, and removes its file, after ours was opened and before it was locked."""
    real, calls = fcntl.flock, []

    def flock(handle, operation):
        calls.append(operation)
        if len(calls) == 1:
            (tmp_path / LOCK).unlink()
        if len(calls) == 2:
            (tmp_path / LOCK).unlink()
            (tmp_path / LOCK).touch()
        real(handle, operation)

    monkeypatch.setattr(module.fcntl, "flock", flock)
    before = len(os.listdir("/proc/self/fd"))
    with claim(tmp_path):
        assert len(calls) == 3
        with pytest.raises(DiskError, match="locked by process"), claim(tmp_path):
            pass
        assert len(os.listdir("/proc/self/fd")) == before + 1
    assert len(os.listdir("/proc/self/fd")) == before


def test_ctrl_c_wherever_it_comes_leaves_nothing(tmp_path):
    def work() -> None:
        with claim(tmp_path / "a/b"):
            pass

    for _ in everywhere(work, module, disk):
        assert os.listdir(tmp_path) == []
    assert os.listdir(tmp_path) == []


def test_ctrl_c_wherever_it_comes_while_another_works(tmp_path):
    """It keeps its lock, and the folder too."""

    def work() -> None:
        with contextlib.suppress(DiskError), claim(tmp_path / "a"):
            pass

    with claim(tmp_path / "a"):
        for _ in everywhere(work, module, disk):
            assert os.listdir(tmp_path / "a") == [LOCK]
        with pytest.raises(DiskError, match="locked by process"), claim(tmp_path / "a"):
            pass
