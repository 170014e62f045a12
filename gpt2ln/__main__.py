"""The way in: `python -m gpt2ln`, and the console script.

Before anything is imported Ctrl-C is made to end the process without a word, and so it is again when all is done: a
module that is half loaded, or an interpreter that ends, has nothing to keep.  In between it is what `commands` makes
of it.
"""

import os


def run() -> None:
    try:
        import signal

        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else whoever called wants none
            signal.signal(signal.SIGINT, _end)
        from . import commands

        commands.run()
    except KeyboardInterrupt:
        os._exit(130)


def _end(number: int, frame: object) -> None:
    os._exit(128 + number)


if __name__ == "__main__":
    run()
