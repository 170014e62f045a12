"""Work that Ctrl-C does not cut through.

An exception out of the blue in TensorFlow's own Python leaves its tables half made, so that the next call fails, or is
lost in a callback, so that the work goes on.  Ours end between two calls: at a tensor, a token, a chunk of a text.
"""

import threading

_depth = 0  # blocks that the main thread, which alone hears signals, is in
_waiting: BaseException | None = None


class unbroken:
    """What a signal raises waits until the outermost block ends; a second one waits no longer.

    In another thread than the main one it changes nothing.
    """

    def __enter__(self) -> None:
        global _depth
        self._counts = threading.current_thread() is threading.main_thread()
        _depth += self._counts

    def __exit__(self, *_) -> None:
        global _depth, _waiting
        if not self._counts:
            return
        _depth -= 1
        if not _depth and _waiting is not None:
            waiting, _waiting = _waiting, None
            raise waiting


def once_more(error: BaseException) -> None:
    """What was raised and lost: it comes when the next block ends."""
    global _waiting
    _waiting = error


def interrupt(error: BaseException) -> None:
    """For the handler of a signal: raise, or wait."""
    global _waiting
    if _depth and _waiting is None:
        _waiting = error
        return
    _waiting = None
    raise error
