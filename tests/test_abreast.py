"""Work abreast: all of it, or an end at the first failure."""

import threading
import time

import pytest

from gpt2ln.abreast import abreast


def run(names, one, jobs=4, on_bytes=lambda count: None):
    return abreast(names, one, jobs=jobs, on_bytes=on_bytes)


@pytest.mark.parametrize("jobs", [1, 3, 16])
def test_all_is_done_with_so_many_at_a_time(jobs):
    busy, most, lock = [0], [0], threading.Lock()

    def one(name, told, wait):
        with lock:
            busy[0] += 1
            most[0] = max(most[0], busy[0])
        wait(0.05)
        with lock:
            busy[0] -= 1
        return name * 2

    names = list("abcdefg")
    assert run(names, one, jobs) == ({name: name * 2 for name in names}, [])
    assert most[0] == min(jobs, len(names))


def test_nothing_to_do():
    assert run([], None) == ({}, [])


def test_the_first_failure_ends_the_others():
    """Those that wait, and those that write."""
    seen = []

    def one(name, told, wait):
        if name == "bad":
            time.sleep(0.05)
            raise KeyError(name)
        try:
            if name == "waits":
                wait(60)
            while name == "writes":
                told(1)
                time.sleep(0.001)
        finally:
            seen.append(name)
        return name

    begun = time.monotonic()
    results, failures = run(["waits", "writes", "bad", "never"], one, jobs=3)
    assert time.monotonic() - begun < 5
    assert (results, [repr(f) for f in failures], sorted(seen)) == ({}, ["KeyError('bad')"], ["waits", "writes"])


def test_failures_come_in_the_order_of_the_names():
    both = threading.Barrier(2)

    def one(name, told, wait):
        both.wait()
        raise ValueError(name)

    _, failures = run(["b", "a"], one, jobs=2)
    assert [str(f) for f in failures] in (["b", "a"], ["b"], ["a"])


def test_bytes_are_told_one_at_a_time():
    total, within = [0], [0]

    def on_bytes(count):
        within[0] += 1
        assert within[0] == 1
        time.sleep(0)  # let another thread in
        total[0] += count
        within[0] -= 1

    def one(name, told, wait):
        for _ in range(1000):
            told(1)

    assert run(list("abcd"), one, on_bytes=on_bytes) == (dict.fromkeys("abcd"), [])
    assert total[0] == 4000
