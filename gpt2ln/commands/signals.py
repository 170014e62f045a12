"""What signals mean while a command runs: all that ask it to end are one exception, so that files are left alike."""

import contextlib
import signal
import sys
from collections.abc import Iterator

from ..unbroken import heard, interrupt


class Ended(KeyboardInterrupt):
    """SIGTERM, or the terminal is gone: what was begun ends as after Ctrl-C, and no prompt asks again."""

    def __init__(self, number: int):
        super().__init__()
        self.status = 128 + number


def _end(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_DFL)  # the second ends it at once
    interrupt(Ended(number))


def _ctrl_c(number: int, frame: object) -> None:
    interrupt(KeyboardInterrupt())


HANDLERS = {"SIGINT": _ctrl_c, "SIGTERM": _end, "SIGHUP": _end}


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """Signals are exceptions inside; those that whoever called ignores (nohup, a job in the background) stay so.

    What Python drops, since it was throwing an object away, comes at the end of the next block that is `unbroken`.
    """
    numbers = {getattr(signal, name): handler for name, handler in HANDLERS.items() if hasattr(signal, name)}
    before, told = {n: signal.getsignal(n) for n in numbers}, sys.unraisablehook
    taken = [n for n, was in before.items() if was not in (signal.SIG_IGN, None)]
    for number in taken:
        signal.signal(number, numbers[number])

    def lost(what) -> None:
        if not isinstance(what.exc_value, KeyboardInterrupt):
            told(what)

    sys.unraisablehook = lost
    try:
        yield
    finally:
        heard()
        sys.unraisablehook = told
        for number in taken:
            signal.signal(number, before[number])


@contextlib.contextmanager
def no_other_error() -> Iterator[None]:
    """An error after a signal is that signal: C code, half through an import, makes something else of it."""
    try:
        yield
    except Exception:
        if (signalled := heard()) is not None:
            raise signalled from None
        raise
