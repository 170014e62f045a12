"""What C++ libraries write to file descriptor 2 unasked, held back."""

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def stderr_held() -> Iterator[None]:
    """Let it pass unseen; `TF_CPP_MIN_LOG_LEVEL` below 3, which `-v` sets, shows it.

    TensorFlow logs before its own log level takes effect, and LiteRT has none.  Why something fails is in the
    exception.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3") != "3":
        yield
        return
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # no stderr at all, or nowhere to send it
            saved = os.dup(2)
            stack.callback(os.close, saved)
            nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            stack.callback(os.close, nowhere)
            stack.callback(os.dup2, saved, 2)
            os.dup2(nowhere, 2)
        yield
