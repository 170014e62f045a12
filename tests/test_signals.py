"""Ctrl-C, SIGTERM and a terminal that is gone, from the first import to the last thread: no traceback, and files that
are whole or have another name."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from gpt2ln import __version__, commands
from gpt2ln.commands import interact
from gpt2ln.commands.output import results
from gpt2ln.commands.signals import Ended, raised
from gpt2ln.errors import BadInput

from .conftest import ROOT

pytestmark = pytest.mark.skipif(os.name != "posix", reason="no signals as POSIX has them")

HEARD = "signal.default_int_handler"  # even where the tests themselves run in the background
WAY_IN = "import atexit, os, signal, sys; signal.signal(signal.SIGINT, {}); from gpt2ln.__main__ import run; {}; run()"
CTRL_C = "os.kill(os.getpid(), signal.SIGINT)"
SAYS_SO = "old = signal.signal; signal.signal = lambda *way: (old(*way), print('!', flush=True))[0]"  # where it listens


def begin(*argv, handler: str = HEARD, first: str = "pass", path: str = "") -> subprocess.Popen:
    env = os.environ | {"PYTHONPATH": f"{path}:{ROOT}", "PYTHONUNBUFFERED": ""}
    return subprocess.Popen(
        [sys.executable, "-c", WAY_IN.format(handler, first), *map(str, argv)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, env=env, text=True,
    )  # fmt: skip


def test_the_console_script_is_the_way_in():
    assert re.search(
        r'^\[project\.scripts\]\ngpt2ln = "gpt2ln\.__main__:run"$', (ROOT / "pyproject.toml").read_text(), re.M
    )


@pytest.mark.parametrize("then", ["pass", "raise KeyboardInterrupt"])
def test_ctrl_c_in_an_import(tmp_path, then):
    """In the first of them, and as one that a handler of somebody else makes an exception of."""
    (tmp_path / "click.py").write_text(f"import os, signal\n{CTRL_C if then == 'pass' else then}\n")
    process = begin("--help", path=tmp_path)
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 130


def test_when_all_is_done_nothing_can_come_between():
    """The interpreter, and TensorFlow in it, is not taken apart; what was written is there."""
    process = begin("--version", first="atexit.register(print, 'taken apart')")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert out == f"gpt2ln, version {__version__}\n"


def test_a_status_is_that_of_the_process_and_no_line_is_lost():
    first = (
        "from gpt2ln import commands as c; say = c._say; c._say = lambda *a: (print('before it failed'), say(*a))[1]"
    )
    process = begin("taps", "-m", "no", first=first)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err.count("\n")) == (3, "before it failed\n", 1)


@pytest.mark.slow
@pytest.mark.parametrize(("argv", "seconds"), [("--help", 0.1), ("taps", 0.2), ("generate a --length 3", 1.2)])
def test_ctrl_c_at_any_moment(argv, seconds):
    """What is done by then is done; at the very end the signal itself may end it, which a shell calls 130 too."""
    for moment in range(4):
        process = begin("-m", "demo", *argv.split(), first=SAYS_SO)
        assert process.stdout.readline() == "!\n"
        time.sleep(moment * seconds / 3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode in (0, 130, -signal.SIGINT), (moment, out, err)
        assert not re.search("Traceback|error|Exception", err), (moment, err)


def ended(number: int, monkeypatch, error: Exception | None = None) -> int:
    """-> status of a command that gets such a signal in its work, or fails."""

    def work(argv):
        if error:
            raise error
        os.kill(os.getpid(), number)

    monkeypatch.setattr(commands, "_invoke", work)
    monkeypatch.setattr(commands, "_buffer_stdout", lambda: None)  # it is what captures here
    with pytest.raises(SystemExit) as end:
        commands.run()
    return end.value.code


@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_is_its_status(name, status, monkeypatch, capfd):
    number = getattr(signal, name)
    before = signal.signal(number, signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL)
    try:
        assert ended(number, monkeypatch) == status
        assert signal.getsignal(number) is (signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL)
        signal.signal(number, signal.SIG_IGN)  # as nohup does
        assert ended(number, monkeypatch) == 0
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)
    assert capfd.readouterr() == ("", "")


def test_a_signal_while_an_error_is_told_is_its_status_too(monkeypatch, capfd):
    monkeypatch.setattr(commands, "_say", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    assert ended(signal.SIGTERM, monkeypatch, BadInput("x")) == 143
    assert capfd.readouterr() == ("", "")


def told_to_end_while_writing(path) -> None:
    with raised(), results(str(path), force=False) as out:
        out.write("a line\n")
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_what_was_written_stays_under_another_name_and_a_second_signal_waits_for_nothing(tmp_path, capfd):
    with pytest.raises(Ended):
        told_to_end_while_writing(tmp_path / "out")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("out.part", "a line\n")]
    assert capfd.readouterr() == ("", f"interrupted: what was written is in {tmp_path / 'out.part'}\n")


def test_a_prompt_asks_again_after_ctrl_c_alone(cli, T, warm, monkeypatch):
    """At a terminal that is gone it would ask for ever."""
    coming = [KeyboardInterrupt(), KeyboardInterrupt(), Ended(signal.SIGHUP)]

    def ask():
        raise coming.pop(0)

    monkeypatch.setattr(interact, "ask", ask)
    monkeypatch.setattr(interact, "on_terminal", lambda: True)
    ran = cli("interact", "-m", T, "-q")
    assert (ran.status, ran.err, coming) == (129, "\n\n", [])


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_stderr_is_no_other_status(unbuffered):
    env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "gpt2ln", "taps", "-m", "no"]
        ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=full, cwd=ROOT, env=env, timeout=60)
    assert (ran.returncode, ran.stdout) == (3, b"")
