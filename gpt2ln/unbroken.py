"""Work that Ctrl-C does not cut through.

An exception out of the blue in TensorFlow's own Python leaves its tables half made, so that the next call fails, or is
lost in a callback, so that the work goes on.  Ours end between two calls: at a tensor, a token, a chunk of a text.
"""

import threading

_depth = 0  # blocks that the main thread, which alone hears signals, is in
_pending: BaseException | None = None  # what a signal raised, until somebody has heard it


class unbroken:
    """What a signal raises waits until the outermost block ends; a second one waits no longer.

    One that was raised before and lost comes then, too.  In another thread than the main one it changes nothing.
    """

    def __enter__(self) -> None:
        global _depth
        self._counts = threading.current_thread() is threading.main_thread()
        _depth += self._counts

    def __exit__(self, *_) -> None:
        global _depth
        _depth -= self._counts
        if self._counts and not _depth and _pending is not None:
            raise _pending


def interrupt(error: BaseException) -> None:
    """For the handler of a signal: raise, or wait."""
    global _pending
    first, _pending = _pending is None, error
    if not (_depth and first):
        raise error


def heard() -> BaseException | None:
    """What a signal raised, if it did; whoever ends or goes on because of it takes it."""
    global _pending
    taken, _pending = _pending, None
    return taken
