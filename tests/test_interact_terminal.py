"""`interact` on a real terminal: editing, history, Ctrl-C at the prompt and in the middle of a text, Ctrl-D."""

import os
import select
import stat
import subprocess
import sys
import time

import pytest

from . import tiny as made_up
from .conftest import ROOT
from .tiny import ID

pty = pytest.importorskip("pty", reason="no pseudo-terminals on this system")
pytest.importorskip("readline", reason="no readline on this system")

ON_TERMINAL = """\
import fcntl, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.default_int_handler)
from gpt2ln.commands import run
run()
"""
ASK, UP, CTRL_A, CTRL_C, CTRL_D = "Model prompt >>> ", "\x1b[A", "\x01", "\x03", "\x04"


class Terminal:
    """A process that has a terminal of its own; what it shows, and a person who types."""

    def __init__(self, argv, env):
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", ON_TERMINAL, *map(str, argv)],
            stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, env=os.environ | env, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def interrupt(self) -> None:
        """Ctrl-C until there is a prompt: one that comes just as reading begins is seen with the next key alone, and
        TensorFlow may swallow one."""
        for _ in range(9):
            self.type(CTRL_C)
            if self._comes(ASK, 3):
                break
        while select.select([self._ours], [], [], 0.3)[0]:
            self.shown += os.read(self._ours, 4096).decode("utf-8", "replace")
        assert ASK in self.shown, f"Ctrl-C does not bring the prompt back: {self.shown!r}"
        self.shown = ""

    def until(self, text: str) -> str:
        """-> what came up to and with `text`."""
        assert self._comes(text, 60), f"no {text!r} in {self.shown!r}"
        before, _, self.shown = self.shown.partition(text)
        return before.replace("\r\n", "\n")

    def _comes(self, text: str, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while text not in self.shown and time.monotonic() < deadline:
            if select.select([self._ours], [], [], 0.1)[0]:
                try:
                    self.shown += os.read(self._ours, 4096).decode("utf-8", "replace")
                except OSError:  # the process has ended
                    break
        return text in self.shown

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.mark.slow
def test_a_session(tmp_path):
    """One process: to start it is what costs."""
    folder = made_up.tiny(tmp_path / "m", made_up.says([ID[b] for b in b"abcabdabcabd!?xy"]), n_embd=16)
    kept = tmp_path / "state" / "gpt2ln" / "history"
    kept.parent.mkdir(parents=True)
    kept.write_text("/set length 2\n")
    env = {"XDG_STATE_HOME": str(tmp_path / "state"), "TERM": "dumb", "INPUTRC": str(tmp_path / "none")}
    argv = ["interact", "-q", "-m", folder, "--greedy", "--engine", "exact", "--length", "15"]
    with Terminal(argv, env) as terminal:
        terminal.until(ASK)
        terminal.type(UP)  # a line of an earlier session
        terminal.until("/set length 2")
        terminal.type("\r")
        terminal.until(ASK)
        terminal.type("zyx")
        terminal.until("zyx")
        terminal.interrupt()  # clears the line
        terminal.type("y" + CTRL_A + CTRL_D + "x\r")  # edited: to the front, what stands there deleted, typed anew
        assert terminal.until(ASK).endswith("\nab\n")
        terminal.type("/set nsam\t1000000\r")
        terminal.until("/set nsamples 1000000")
        terminal.until(ASK)
        terminal.type("x\r")
        terminal.until("---\r\n")
        terminal.interrupt()  # ends the text, and not the loop
        terminal.type("/stats\r")
        terminal.until("ln_f")
        terminal.until(ASK)
        terminal.type(CTRL_D)
        assert terminal.process.wait(30) == 0
    typed = ["/set length 2", "/set length 2", "x", "/set nsamples 1000000", "x", "/stats"]
    assert kept.read_text().splitlines() == typed[1:]
    assert stat.S_IMODE(kept.stat().st_mode) & 0o077 in (0, 0o044)
