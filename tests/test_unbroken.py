"""Ctrl-C is heard between two calls into TensorFlow: none is lost, and the next call finds all as it should be."""

import os
import signal
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest

import gpt2ln
from gpt2ln import convert, engine, observe
from gpt2ln.commands.signals import Ended, raised
from gpt2ln.spec import HParams
from gpt2ln.unbroken import interrupt, once_more, unbroken


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


def test_one_outside_takes_the_place_of_one_that_waits():
    once_more(KeyboardInterrupt())
    assert type(heard(ctrl_c)) is KeyboardInterrupt
    assert nothing_is_left_over()


def test_sigterm_waits_too_and_keeps_its_status():
    done = []
    assert heard(blocks, lambda: ctrl_c(signal.SIGTERM), lambda: done.append("after it")).status == 143
    assert done == ["after it"]


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
    before = sys.unraisablehook
    assert told == ["a bug"]
    heard(blocks)
    assert sys.unraisablehook is before


# the engine


@pytest.fixture
def tiny_engine(T):
    return gpt2ln.load(T).exact


@pytest.fixture
def interrupted(monkeypatch):
    """`interrupted(owner, name, work)`: it, with Ctrl-C at the beginning of what `owner` has under that name."""

    def call(owner, name: str, work) -> None:
        real, ended = getattr(owner, name), []

        def broken(*given, **more):
            ctrl_c()
            result = real(*given, **more)
            ended.append(name)
            return result

        with monkeypatch.context() as patched:
            patched.setattr(owner, name, broken)
            assert type(heard(work)) is KeyboardInterrupt
        assert ended == [name]

    return call


def test_a_call_into_tensorflow_ends_before(tiny_engine, interrupted):
    right, _ = tiny_engine.prefill([1, 2, 3])
    _, cache = tiny_engine.prefill([1, 2])
    interrupted(tiny_engine, "_prompt", lambda: tiny_engine.prefill([1, 2, 3]))
    interrupted(tiny_engine, "_step", lambda: tiny_engine.step([3], [cache]))
    assert cache.ids == [1, 2, 3]
    again, _ = tiny_engine.prefill([1, 2, 3])
    assert np.array_equal(again, right)


def test_an_array_that_is_taken_over_is_whole(interrupted):
    interrupted(engine.tf.raw_ops, "DeepCopy", lambda: engine.to_tensors([("x", np.ones(3, "f4"))]))


def test_a_part_that_is_converted_is_whole(interrupted):
    (*_, recipe) = convert.recipes(HParams(n_vocab=4, n_ctx=4, n_embd=4, n_head=2, n_layer=1))
    weights = {f"model/{name}": np.ones([4, 4] if name == "wte" else [4], "f4") for name in recipe.variables}
    interrupted(convert, "_converted", lambda: convert.convert(recipe, weights))


def test_texts_side_by_side(interrupted):
    """What is begun ends, and no thread waits for a lock that Ctrl-C has left."""
    done = []
    interrupted(ThreadPoolExecutor, "submit", lambda: list(observe.in_order(done.append, [1])))
    interrupted(Future, "result", lambda: list(observe.in_order(done.append, [2])))
    assert done == [1, 2]
