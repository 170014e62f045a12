"""What signals mean while a command runs: all that ask it to end are one exception, so that files are left alike."""

import contextlib
import signal
from collections.abc import Iterator


class Ended(KeyboardInterrupt):
    """SIGTERM, or the terminal is gone: what was begun ends as after Ctrl-C, and no prompt asks again."""

    def __init__(self, number: int):
        super().__init__()
        self.status = 128 + number


def _end(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_DFL)  # the second ends it at once
    raise Ended(number)


HANDLERS = {"SIGINT": signal.default_int_handler, "SIGTERM": _end, "SIGHUP": _end}


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """Signals are exceptions inside; those that whoever called ignores (nohup, a job in the background) stay so."""
    numbers = {getattr(signal, name): handler for name, handler in HANDLERS.items() if hasattr(signal, name)}
    before = {n: signal.getsignal(n) for n in numbers}
    taken = [n for n, was in before.items() if was not in (signal.SIG_IGN, None)]
    for number in taken:
        signal.signal(number, numbers[number])
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, before[number])
