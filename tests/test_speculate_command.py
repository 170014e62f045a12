"""`--speculate` as it is typed: the same text, what is said of it, and what is refused before a weight is read."""

import json
import re
import shutil

import numpy as np
import pytest

import gpt2ln
from gpt2ln.generate import generate
from gpt2ln.library import Model
from gpt2ln.prompt import Prompt
from gpt2ln.settings import Settings
from gpt2ln.speculate import Speculation

from . import tiny as made_up
from .conftest import GOLDEN
from .guessing import GREEDY
from .refusals import done, refused

LOW = ["--temperature", 0.3, "--seed", 3]
TOLD = r"speculation: (\d+) of (\d+) guesses accepted, (\d+\.\d) tokens a pass"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("speculate-command")


@pytest.fixture(scope="module")
def other(folder):
    """A model with T's vocabulary that is not prepared."""
    return made_up.tiny(folder / "other", seed=1)


@pytest.fixture
def demo(cli, engines, warm):
    """`demo("generate", ...)` with its prepared engine."""
    return lambda command, *argv: cli(command, "-m", "demo", "--cache-dir", engines, *argv)


@pytest.fixture
def t(cli, engines, T, warm):
    return lambda command, *argv: cli(command, "-m", T, "--cache-dir", engines, *argv)


def timeless(text):
    records = [json.loads(line) for line in text.splitlines()]
    return [{key: value for key, value in record.items() if key != "timing"} for record in records]


# --- what comes out -----------------------------------------------------------------------------------------------


def test_the_text_is_the_same_and_a_note_counts(demo):
    args = ["My lord, my lord, my", "--length", 60, *LOW]
    plain, guessed = demo("generate", *args), demo("generate", *args, "--speculate", "lookup")
    assert done(plain) == done(guessed)
    assert plain.err.startswith("engine: fast")
    assert guessed.err.startswith(plain.err)
    accepted, guesses, tokens = re.fullmatch(TOLD + "\n", guessed.err.removeprefix(plain.err)).groups()
    assert 0 < int(accepted) < int(guesses)
    assert float(tokens) == round(59 / (59 - int(accepted)), 1)


def test_jsonl_counts_each_sample(demo):
    args = ["My lord, my lord, my", "--length", 40, *LOW, "--nsamples", 3, "--format", "jsonl", "--logprobs", 2]
    plain, guessed = demo("generate", *args), demo("generate", *args, "--batch-size", 2, "--speculate", "lookup")
    assert timeless(plain.out) == timeless(guessed.out)
    assert [record["engine"] for record in timeless(guessed.out)] == ["fast"] * 3
    total = [0, 0]
    for line, before in zip(guessed.out.splitlines(), plain.out.splitlines(), strict=True):
        counts = json.loads(line)["timing"].pop("speculation")
        assert set(counts) == {"guesses", "accepted", "passes"}
        assert counts["passes"] == 39 - counts["accepted"]
        assert "speculation" not in json.loads(before)["timing"]
        total = [total[0] + counts["accepted"], total[1] + counts["guesses"]]
    assert re.search(TOLD, guessed.err).groups()[:2] == tuple(map(str, total))


@pytest.mark.parametrize(("more", "most"), [([], 6), (["--guesses", 1], 1), (["--guesses", 13], 13)])
def test_guesses_are_as_many_as_asked(demo, engines, more, most):
    args = ["my lord, my lord, my", "--length", 30, "--greedy", "--format", "jsonl", "--speculate", "lookup"]
    ran = demo("generate", *args, *more)
    (record,) = [json.loads(line) for line in done(ran).splitlines()]
    model = gpt2ln.load("demo", engine="fast", cache_dir=engines)
    settings = Settings(length=30, sampling=GREEDY)
    prompt = Prompt(tuple(model.encode(args[0])))
    (sample,) = generate(model.engine, model.bpe, [prompt], settings, speculation=Speculation(most))
    counts = {"guesses": sample.guesses, "accepted": sample.accepted, "passes": sample.passes}
    assert record["timing"]["speculation"] == counts
    assert "note: --guesses" not in ran.err


def test_a_text_without_guesses_says_so(demo):
    ran = demo("generate", "x", "--length", 1, "--greedy", "--speculate", "lookup")
    assert ran.err.endswith("\nspeculation: no guesses\n")
    ran = demo("generate", "x", "--length", 2, "--greedy", "--speculate", "lookup")
    assert ran.err.endswith("\nspeculation: no guesses, 1.0 tokens a pass\n")


def test_quiet_is_quiet(demo):
    ran = demo("generate", "my lord, my lord, my", "--length", 9, *LOW, "-q", "--speculate", "lookup")
    assert (ran.status, ran.err) == (0, "")


def test_another_model_guesses(t, other):
    """On its exact engine, since it is not prepared."""
    args = ["abcabc", "--length", 11, *LOW]
    plain, guessed = t("generate", *args), t("generate", *args, "--speculate", other)
    assert done(plain) == done(guessed)
    said = guessed.err.removeprefix(plain.err).splitlines()
    assert said[0].startswith(f"speculation: {other} guesses, on its exact engine; gpt2ln prepare {other} --cache-dir ")
    assert said[0].endswith(" makes a faster one")
    assert re.fullmatch(TOLD, said[1])


@pytest.mark.slow
def test_a_prepared_model_guesses_on_its_fast_engine(cli, engines, other, T, tmp_path):
    both = shutil.copytree(engines, tmp_path / "both")
    assert cli("-m", other, "--cache-dir", both, "prepare").status == 0
    args = ["generate", "-m", T, "--cache-dir", both, "abcabc", "--length", 11, *LOW]
    ran = cli(*args, "--speculate", other)
    assert done(ran) == done(cli(*args))
    assert f"speculation: {other} guesses, on its fast engine\n" in ran.err


def test_the_model_itself_may_guess_and_saves_nothing(t, T, monkeypatch):
    """Nor does it cost the weights a second time."""
    args, opened, begin = ["abcabc", "--length", 11, *LOW], [], Model.__init__
    plain = t("generate", *args)
    monkeypatch.setattr(Model, "__init__", lambda self, *a, **k: opened.append(1) or begin(self, *a, **k))
    ran = t("generate", *args, "--speculate", T)
    assert (done(ran), opened) == (done(plain), [1])
    assert ran.err.startswith(f"note: --speculate {T}: a model that guesses for itself saves no time\n")
    assert ran.err.endswith("speculation: 8 of 8 guesses accepted, 5.0 tokens a pass\n")


def test_interact_speculates_too(demo, monkeypatch):
    import io
    import sys

    outs = []
    for how in ([], ["--speculate", "lookup"]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"My lord, my lord, my\nKING:\n")))
        outs.append(demo("interact", "--length", 40, *LOW, *how))
    plain, guessed = outs
    assert done(plain) == done(guessed)
    assert guessed.err.count("speculation: ") == 2
    assert "speculation: " not in plain.err


def test_guesses_without_speculation_are_noted(cli, T, warm):
    ran = cli("generate", "x", "-m", T, "--length", 1, "--greedy", "--guesses", 3)
    assert (ran.status, ran.err) == (0, "note: --guesses counts with --speculate alone\n")


# --- what is refused ----------------------------------------------------------------------------------------------

ONE_BY_ONE = (
    "error: --speculate: the exact engine computes several tokens at once with other roundings than one by one, which"
    " could change a text, expected --engine fast; run: gpt2ln prepare "
)


@pytest.mark.parametrize("command", ["generate", "interact"])
def test_the_exact_engine_refuses_before_anything_is_read(cli, T, engines, no_weights, command):
    text = ["abc"] if command == "generate" else []
    for where in ([], ["--engine", "auto"], ["--engine", "exact"], ["--engine", "exact", "--cache-dir", engines]):
        line = refused(cli(command, *text, "-m", T, *where, "--speculate", "lookup"), 2)
        assert line.startswith(ONE_BY_ONE + str(T))


def test_the_fast_engine_that_is_not_there_says_so(cli, T, warm):
    refused(cli("generate", "abc", "-m", T, "--engine", "fast", "--speculate", "lookup"), 3, "run: gpt2ln prepare")


def test_another_vocabulary_is_refused(demo, t, T, folder, no_weights):
    line = refused(demo("generate", "abc", "--speculate", GOLDEN / "model"), 2)
    assert line == (
        f"error: --speculate {GOLDEN / 'model'}: another vocabulary, 257 ids for 1024, expected that of demo;"
        " choose a smaller model of its family, or lookup"
    )
    moved = made_up.tiny(folder / "moved")
    ids = json.loads((moved / "encoder.json").read_text())
    ids["a"], ids["b"] = ids["b"], ids["a"]
    (moved / "encoder.json").write_text(json.dumps(ids))
    refused(
        t("generate", "abc", "--speculate", moved), 2, "another vocabulary, id 64 is b'b' for b'a', expected that of"
    )


def test_who_is_not_there_cannot_guess(t, no_weights, tmp_path):
    refused(t("generate", "abc", "--speculate", "nobody"), 3, "model nobody: no such name")
    refused(t("generate", "abc", "--speculate", ""), 2, "--speculate: empty, expected lookup or the name of a model")
    refused(t("generate", "abc", "--speculate", tmp_path), 3, f"{tmp_path}: no checkpoint")


@pytest.mark.parametrize("value", ["0", "-1", "14", "x", ""])
def test_bad_numbers_of_guesses(t, no_weights, value):
    refused(t("generate", "abc", "--speculate", "lookup", "--guesses", value), 2, "--guesses", "generate --help")


def test_memory_for_the_guesser_is_counted(t, other, monkeypatch, no_weights):
    """15,872 bytes of weights each; the guesser's two caches do not fit."""
    from gpt2ln.commands import options

    asked = []
    monkeypatch.setattr(options.Globals, "afford", lambda self, model, *args: asked.append((model.place.folder, *args)))
    with pytest.raises(pytest.fail.Exception):
        t("generate", "abc", "--length", 5, *LOW, "--nsamples", 2, "--batch-size", 2, "--speculate", other)
    assert [args for _, *args in asked] == [[2, 8], [2, 8]]
    assert asked[1][0] == other


def test_a_guesser_that_is_not_finite_is_named(t, folder):
    def nan_gain(w):
        w["model/h1/ln_2/g"][3] = np.nan

    bad = made_up.tiny(folder / "nan", nan_gain)
    line = refused(t("generate", "abc", "--seed", 1, "--speculate", bad), 8)
    assert line.startswith("error: --speculate, in the model that guesses: h1/ln_2/out: NaN or Inf")


def test_an_environment_variable_may_ask(demo, monkeypatch):
    args = ["generate", "my lord, my lord, my", "--length", 20, *LOW]
    plain = demo(*args)
    monkeypatch.setenv("GPT2LN_GENERATE_SPECULATE", "lookup")
    monkeypatch.setenv("GPT2LN_GENERATE_GUESSES", "2")
    ran = demo(*args)
    assert ran.out == plain.out
    assert "speculation: " in ran.err


def test_the_weights_of_the_guesser_are_read_last(t, other, monkeypatch):
    """What does not fit is refused before."""
    monkeypatch.setattr(Model, "exact", property(lambda model: pytest.fail("weights were read")))
    refused(t("generate", "abc", "--length", 40, "--seed", 1, "--speculate", other), 5, "the context takes 17")
