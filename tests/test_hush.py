"""File descriptor 2, held back and given back."""

import errno
import os

import pytest

from gpt2ln.hush import stderr_held


@pytest.fixture(autouse=True)
def level(monkeypatch):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)


def _fails():
    with stderr_held():
        os.write(2, b"e")
        raise KeyError


def test_held_and_given_back(capfd, monkeypatch):
    before = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    os.write(2, b"a")
    with stderr_held():
        os.write(2, b"b")
        with stderr_held():
            os.write(2, b"c")
    os.write(2, b"d")
    with pytest.raises(KeyError):
        _fails()
    os.write(2, b"f")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    with stderr_held():
        os.write(2, b"g")
    assert capfd.readouterr().err == "adf"
    if before is not None:
        assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("level", ["0", "2"])
def test_v_shows_it(capfd, monkeypatch, level):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", level)
    with stderr_held():
        os.write(2, b"shown")
    assert capfd.readouterr().err == "shown"


@pytest.mark.parametrize("what", ["dup", "open"])
def test_where_it_cannot_be_held(capfd, monkeypatch, what):
    """No stderr at all, or nowhere to send it: what is done is done all the same."""

    def fails(*_):
        raise OSError(errno.EBADF, "none")

    with monkeypatch.context() as patched:
        patched.setattr(os, what, fails)
        with stderr_held():
            os.write(2, b"shown")
    os.write(2, b"!")
    assert capfd.readouterr().err == "shown!"
