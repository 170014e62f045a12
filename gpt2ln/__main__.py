"""The way in: `python -m gpt2ln`, and the console script.

Before anything is imported Ctrl-C is made to end the process without a word: a module that is half loaded has nothing
to keep.  From then on it is what `commands` makes of it.  When all is done the process ends there and then: taking
TensorFlow apart would last half a second, and its threads and destructors have nothing to add.
"""

import os
import sys


def run() -> None:
    try:
        import signal

        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else whoever called wants none
            signal.signal(signal.SIGINT, _end)
        from . import commands

        commands.run()
    except KeyboardInterrupt:
        os._exit(130)
    except SystemExit as end:
        _end_now(end.code)


def _end_now(status: int) -> None:
    """With what was written written, so far as anybody still reads it; `commands` has said what became of it."""
    import contextlib

    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _end(number: int, frame: object) -> None:
    os._exit(128 + number)


if __name__ == "__main__":
    run()
