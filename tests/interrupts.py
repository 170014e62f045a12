"""Ctrl-C at every place: what an interrupt leaves must not depend on the moment it comes."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

MOST = 5000  # a run that never gets to its end is not what was meant


def everywhere(action: Callable[[], object], *modules) -> Iterator[int]:
    """Run `action` again and again, with KeyboardInterrupt before the 1st, 2nd, ... bytecode of these modules, until
    one run gets through.  Yields after each interrupted one: look at what it has left, and take it away."""
    files = {str(Path(module.__file__)) for module in modules}
    for n in range(1, MOST):
        if not _interrupted(action, files, n):
            return
        yield n
    raise AssertionError(f"not through after {MOST} interrupts")


def _interrupted(action: Callable[[], object], files: set[str], n: int) -> bool:
    left = n

    def trace(frame, event, _):
        nonlocal left
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and left:
            left -= 1
            if not left:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False
