"""Several pieces of work abreast, that end at once: at the first failure, and at Ctrl-C."""

import queue
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
LEAVE = 1.0  # seconds to stop in; whoever waits for a server longer is left behind, and writes nothing more


class _Stopped(Exception):
    """The others have failed, or the user has had enough."""


def abreast(
    names: Sequence[str],
    one: Callable[[str, Callable[[int], None], Callable[[float], None]], T],
    *,
    jobs: int,
    on_bytes: Callable[[int], object],
) -> tuple[dict[str, T], list[BaseException]]:
    """`one(name, on_bytes, wait)` for each name, in threads -> results by name, failures in order of the names.

    Both functions that `one` gets raise when it is to stop; `on_bytes` is called by one thread at a time.
    """
    todo, ended, stop, in_turn = queue.SimpleQueue(), queue.SimpleQueue(), threading.Event(), threading.Lock()
    for name in names:
        todo.put(name)

    def told(count: int) -> None:
        if stop.is_set():
            raise _Stopped
        with in_turn:
            on_bytes(count)

    def wait(seconds: float) -> None:
        if stop.wait(seconds):
            raise _Stopped

    def work() -> None:
        while not stop.is_set():
            try:
                name = todo.get_nowait()
            except queue.Empty:
                return
            try:
                ended.put((name, one(name, told, wait), None))
            except _Stopped:
                return
            except BaseException as cause:
                ended.put((name, None, cause))
                stop.set()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(jobs, len(names)))]
    results: dict[str, T] = {}
    failures: dict[str, BaseException] = {}
    try:
        for thread in threads:
            thread.start()
        while len(results) < len(names) and not failures:
            name, result, cause = ended.get()
            (results if cause is None else failures)[name] = result if cause is None else cause
    finally:
        stop.set()
        for thread in threads:
            if thread.ident:
                thread.join(LEAVE / len(threads))
    while not ended.empty():
        name, result, cause = ended.get()
        if cause is not None:
            failures[name] = cause
    return results, [failures[name] for name in names if name in failures]
