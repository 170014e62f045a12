"""Ctrl-C is heard between two calls into TensorFlow: none is lost, and the next call finds all as it should be."""

import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import gpt2ln
from gpt2ln import observe
from gpt2ln.commands.signals import Ended, raised
from gpt2ln.unbroken import interrupt, unbroken


@pytest.fixture(autouse=True)
def listening():
    """As in a process that nobody told to ignore them."""
    numbers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in numbers.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def ctrl_c(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


def heard(work, *given) -> BaseException | None:
    """What comes out of it, while signals are ours."""
    try:
        with raised():
            work(*given)
    except (KeyboardInterrupt, ValueError) as error:
        return error
    return None


def blocks(*steps) -> None:
    """In one block; a tuple of steps is a block within it."""
    with unbroken():
        for step in steps:
            blocks(*step) if isinstance(step, tuple) else step()


def nothing_is_left_over() -> bool:
    return heard(blocks) is None


def test_it_waits_for_the_outermost_block():
    done = []
    error = heard(blocks, (ctrl_c, lambda: done.append("inside")), lambda: done.append("between"))
    assert type(error) is KeyboardInterrupt
    assert done == ["inside", "between"]
    assert nothing_is_left_over()


def test_outside_it_is_heard_at_once():
    done = []

    def work():
        blocks()
        ctrl_c()
        done.append("not reached")

    assert type(heard(work)) is KeyboardInterrupt
    assert done == []


def test_a_second_one_waits_no_longer_and_is_the_last():
    done = []
    error = heard(blocks, ctrl_c, lambda: done.append("after the first"), ctrl_c, lambda: done.append("not reached"))
    assert type(error) is KeyboardInterrupt
    assert done == ["after the first"]
    assert nothing_is_left_over()


def test_sigterm_keeps_its_status():
    assert heard(blocks, lambda: ctrl_c(signal.SIGTERM)).status == 143


def test_an_error_in_the_block_gives_way():
    error = heard(blocks, ctrl_c, lambda: int("no number"))
    assert type(error) is KeyboardInterrupt
    assert isinstance(error.__context__, ValueError)


def test_another_thread_holds_nothing_back():
    inside, go = threading.Event(), threading.Event()

    def work():
        with unbroken():
            inside.set()
            go.wait(30)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work)
        assert inside.wait(30)
        with pytest.raises(KeyboardInterrupt):
            interrupt(KeyboardInterrupt())
        go.set()


class Leaves:
    """What goes away while Ctrl-C comes."""

    def __init__(self, error: BaseException):
        self._error = error

    def __del__(self):
        raise self._error


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt(), None), (Ended(signal.SIGTERM), 143)])
def test_one_that_python_drops_comes_once_more(capfd, error, status):
    def work():
        Leaves(error)
        blocks()

    again = heard(work)
    assert isinstance(again, KeyboardInterrupt)
    assert getattr(again, "status", None) == status
    assert capfd.readouterr() == ("", "")


def test_what_else_python_drops_is_told_as_ever(monkeypatch):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: told.append(str(what.exc_value)))
    assert heard(Leaves, ValueError("a bug")) is None
    assert told == ["a bug"]


# the engine


@pytest.fixture
def tiny_engine(T):
    return gpt2ln.load(T).exact


def interrupted(function):
    """It, with Ctrl-C in its midst."""

    def call(*given):
        ctrl_c()
        return function(*given)

    return call


def test_a_call_into_tensorflow_ends_before(tiny_engine, monkeypatch):
    right, _ = tiny_engine.prefill([1, 2, 3])
    _, cache = tiny_engine.prefill([1, 2])
    calls = {"_prompt": lambda: tiny_engine.prefill([1, 2, 3]), "_step": lambda: tiny_engine.step([3], [cache])}
    for name, work in calls.items():
        with monkeypatch.context() as patched:
            patched.setattr(tiny_engine, name, interrupted(getattr(tiny_engine, name)))
            assert type(heard(work)) is KeyboardInterrupt
    assert cache.ids == [1, 2, 3]
    again, _ = tiny_engine.prefill([1, 2, 3])
    assert np.array_equal(again, right)


def test_texts_side_by_side(tiny_engine):
    """Ctrl-C is heard while the main thread waits for the others, and the one at work ends."""
    ended = []

    def work(n: int) -> int:
        if n == 1:
            threading.Timer(0.2, ctrl_c).start()
        threading.Event().wait(0.5)
        ended.append(n)
        return n

    assert type(heard(lambda: list(observe.in_order(work, range(100))))) is KeyboardInterrupt
    assert 1 <= len(ended) < 10
