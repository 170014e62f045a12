"""Ctrl-C is heard between two calls into TensorFlow: none is lost, and the next call finds all as it should be."""

import contextlib
import os
import signal
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest

import gpt2ln
from gpt2ln import commands, convert, engine, observe
from gpt2ln.commands.signals import raised
from gpt2ln.spec import HParams
from gpt2ln.unbroken import heard as taken
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
    """What goes away when something comes: Ctrl-C, or an error."""

    def __init__(self, comes):
        self._comes = comes

    def __del__(self):
        self._comes()


def lost(number: int) -> None:
    Leaves(lambda: ctrl_c(number))
    blocks()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, None), (signal.SIGTERM, 143)])
def test_one_that_python_drops_comes_with_the_next_block(capfd, number, status):
    error = heard(lost, number)
    assert isinstance(error, KeyboardInterrupt)
    assert getattr(error, "status", None) == status
    assert capfd.readouterr() == ("", "")


def test_whoever_goes_on_takes_it():
    def work():
        with contextlib.suppress(KeyboardInterrupt):
            ctrl_c()
        assert type(taken()) is KeyboardInterrupt
        blocks()

    assert heard(work) is None


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_error_that_was_made_of_it_is_it(cli, monkeypatch, number, status):
    """As where it falls into the import of a library in C."""

    def invoke(argv):
        with contextlib.suppress(KeyboardInterrupt):
            ctrl_c(number)
        raise ImportError("initialization failed")

    monkeypatch.setattr(commands, "_invoke", invoke)
    with raised():
        ran = cli("--help")
    assert (ran.status, ran.out, ran.err) == (status, "", "")


def test_what_else_python_drops_is_told_as_ever(monkeypatch):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: told.append(str(what.exc_value)))
    assert heard(Leaves, lambda: int("a bug")) is None
    before = sys.unraisablehook
    assert "a bug" in told[0]
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
