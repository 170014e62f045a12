import io
import os
import sys

import numpy as np
import pytest

from gpt2ln.commands import options
from gpt2ln.library import Model

from . import tiny as made_up
from .tiny import ID
from .warm import keep_engines

ASK = "Model prompt >>> "


@pytest.fixture(autouse=True)
def warm(monkeypatch):
    keep_engines(monkeypatch)


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    ids = [ID[b] for b in b"abcabdabcabd!?"] + [259, ID[ord("x")]]
    return made_up.tiny(tmp_path_factory.mktemp("interact") / "words", made_up.says(ids), n_embd=16)


@pytest.fixture
def interact(cli, monkeypatch):
    """Type bytes, as a pipe gives them under a locale that is not UTF-8."""

    def call(typed: bytes, *argv):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed), encoding="latin-1"))
        return cli("interact", *argv)

    return call


def test_each_line_is_continued_as_generate_continues_it(cli, interact, T):
    args = ["-m", T, "--seed", 3, "--length", 7]
    ran = interact("abc\n the\né ü\n- x\n1\n".encode(), *args)
    expected = [cli("generate", *args, "--", text).out for text in ("abc", " the", "é ü", "- x", "1")]
    assert (ran.status, ran.out) == (0, "".join(expected))
    assert ran.err == ASK * 6 + "\n"
    assert len(set(expected)) == 5


def test_several_samples_of_a_line(cli, interact, T):
    args = ["-m", T, "--seed", 3, "--length", 5, "--nsamples", 3]
    ran = interact(b"abc\nabd\n", *args)
    assert ran.out == "".join(cli("generate", text, *args).out for text in ("abc", "abd"))
    assert ran.out.count("\n---\n") == 4


def test_sampling_options_are_those_of_generate(interact, words):
    assert interact(b"x\n", "-m", words, "--greedy", "--length", 15, "--stop", "abd").out == "abc\n"
    assert interact(b"x\n", "-m", words, "--greedy", "--length", 15, "--stop-eot").out == "abcabdabcabd!?\n"
    assert interact(b"x\n", "-m", words, "--top-k", 1, "--seed", 1, "--length", 3).out == "abc\n"


def test_end_of_input_is_the_end(interact, words):
    ran = interact(b"", "-m", words, "--greedy")
    assert (ran.status, ran.out, ran.err) == (0, "", ASK + "\n")


def test_a_last_line_without_a_line_end_counts(interact, words):
    ran = interact(b"x", "-m", words, "--greedy", "--length", 2)
    assert (ran.status, ran.out, ran.err) == (0, "ab\n", ASK * 2 + "\n")


def test_lines_of_windows(interact, T):
    args = ["-m", T, "--seed", 3, "--length", 7]
    assert interact(b"abc\r\nabd\r\n", *args).out == interact(b"abc\nabd\n", *args).out


def test_a_return_within_a_line_is_part_of_it(cli, interact, T):
    args = ["-m", T, "--seed", 3, "--length", 7]
    assert interact(b"ab\rc\n", *args).out == cli("generate", "ab\rc", *args).out


def test_an_empty_line_is_asked_again(interact, words):
    ran = interact(b"\n\r\nx\n", "-m", words, "--greedy", "--length", 2)
    assert (ran.status, ran.out) == (0, "ab\n")
    assert ran.err == (ASK + "Prompt should not be empty!\n") * 2 + ASK * 2 + "\n"


def test_a_line_too_long_says_so_and_the_next_one_runs(interact, words):
    ran = interact(b"x" * 20 + b"\nx\n", "-m", words, "--greedy", "--length", 5)
    assert (ran.status, ran.out) == (0, "abcab\n")
    assert ran.err == (
        f"{ASK}error: prompt 20 tokens + length 5 = 25, the context takes 17;"
        f" shorten the prompt, lower --length or pass --overflow truncate|slide\n{ASK}{ASK}\n"
    )


def test_a_line_that_is_not_utf8_says_so_and_the_next_one_runs(interact, words):
    ran = interact(b"a\xffb\nx\n", "-m", words, "--greedy", "--length", 5)
    assert (ran.status, ran.out) == (0, "abcab\n")
    assert ran.err == f"{ASK}error: prompt is not valid UTF-8 at byte 1 (0xff)\n{ASK}{ASK}\n"


def test_a_length_that_shrinks_is_noted_for_each_line(interact, words):
    ran = interact(b"x" * 12 + b"\nx\n", "-m", words, "--greedy")
    assert (ran.status, ran.out.count("\n")) == (0, 2)
    assert ran.err == f"{ASK}note: --length is 5: prompt 12 tokens, the context takes 17\n{ASK}{ASK}\n"


def test_a_drawn_seed_is_shown_once_and_serves_every_line(cli, interact, T):
    args = ["-m", T, "--length", 7]
    ran = interact(b"abc\nabd\n", *args)
    first, _ = ran.err.split("\n", 1)
    word, seed = first.split()
    assert word == "seed:"
    assert ran.err == f"seed: {seed}\n{ASK * 3}\n"
    assert ran.out == "".join(cli("generate", text, *args, "--seed", seed).out for text in ("abc", "abd"))


def test_the_model_is_loaded_once(interact, tmp_path, monkeypatch):
    from gpt2ln import library

    loads = []
    load = library.load_arrays
    monkeypatch.setattr(library, "load_arrays", lambda *args: loads.append(1) or load(*args))
    ran = interact(b"x\nx\nx\n", "-m", made_up.tiny(tmp_path / "new"), "--greedy", "--length", 2)
    assert (ran.status, loads) == (0, [1])


def test_a_person_types_into_a_terminal(cli, words, monkeypatch):
    typed = iter(["x", "", os.fsdecode(b"\xff"), "x"])

    class Terminal(io.TextIOWrapper):
        def isatty(self):
            return True

    def ask(*prompt):
        assert prompt == ()  # it would go to stdout
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr(sys, "stdin", Terminal(io.BytesIO(b"")))
    monkeypatch.setattr("builtins.input", ask)
    ran = cli("interact", "-m", words, "--greedy", "--length", 2)
    assert (ran.status, ran.out) == (0, "ab\nab\n")
    assert ran.err.count(ASK) == 5


def test_ctrl_c_at_the_prompt_is_130(cli, words, monkeypatch):
    class Pressed(io.TextIOWrapper):
        def readline(self, *_):
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", Pressed(io.BytesIO(b"")))
    ran = cli("interact", "-m", words, "--greedy")
    assert (ran.status, ran.out, ran.err) == (130, "", ASK)


def test_more_memory_than_is_free_is_refused_at_once(interact, T, monkeypatch):
    monkeypatch.setattr(options, "_available", lambda: 10**4)
    monkeypatch.setattr(Model, "engine", property(lambda self: pytest.fail("the weights were asked for")))
    ran = interact(b"abc\n", "-m", T, "--seed", 1)
    assert (ran.status, ran.out) == (5, "")
    assert ran.err.startswith("error: memory: about 0 MB needed for weights and 1 caches of 16 positions")
    assert ran.err.count("\n") == 1


def test_what_is_not_finite_ends_it(interact, tmp_path):
    def nan_gain(w):
        w["model/h1/ln_2/g"][3] = np.nan

    ran = interact(b"abc\nabd\n", "-m", made_up.tiny(tmp_path / "nan", nan_gain), "--seed", 1)
    assert (ran.status, ran.out) == (8, "")
    assert ran.err.startswith(f"{ASK}error: h1/ln_2/out: NaN or Inf in the forward pass of 3 tokens")


@pytest.mark.parametrize(
    ("option", "value"), [("--length", "0"), ("--top-p", "0"), ("--stop", ""), ("--nsamples", "0"), ("--seed", "-1")]
)
def test_bad_values_are_a_usage_error(interact, T, option, value):
    ran = interact(b"abc\n", "-m", T, option, value)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith(f"error: Invalid value for '{option}'")
    assert ran.err.endswith("see: gpt2ln interact --help\n")
    assert ran.err.count("\n") == 1
