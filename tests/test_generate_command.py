import base64
import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import gpt2ln
from gpt2ln.commands import options
from gpt2ln.library import Model

from . import tiny as made_up
from .conftest import ROOT
from .tiny import ID
from .warm import keep_engines

WORDS = [ID[b] for b in b"abcabdabcabd!?"] + [259, ID[ord("x")]]
SAID = "abcabdabcabd!?<|endoftext|>"
RULER = "=" * 40 + " SAMPLE {} " + "=" * 40 + "\n"
SCREAM = "😨"


@pytest.fixture(autouse=True)
def warm(monkeypatch):
    keep_engines(monkeypatch)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("generate-command")


@pytest.fixture(scope="module")
def words(folder):
    return made_up.tiny(folder / "words", made_up.says(WORDS), n_embd=16)


@pytest.fixture(scope="module")
def scream(folder):
    ids = [ID[b] for b in SCREAM.encode()]
    return made_up.tiny(folder / "scream", made_up.says(ids * 4), n_embd=16)


@pytest.fixture(scope="module")
def fixed(folder):
    return made_up.tiny(folder / "fixed", made_up.fixed({"a": 0.5, "b": 0.3, "c": 0.15, "d": 0.05}))


@pytest.fixture
def no_weights(monkeypatch):
    """Nobody may ask for the weights, and so for TensorFlow."""

    def asked(self):
        raise AssertionError("the weights were asked for")

    monkeypatch.setattr(Model, "engine", property(asked))


@pytest.fixture
def stdin(monkeypatch):
    """Put bytes on stdin; `stdin(None)` makes reading it a fault."""

    def put(data):
        monkeypatch.setattr(sys, "stdin", None if data is None else io.TextIOWrapper(io.BytesIO(data)))

    return put


def strict(text):
    """JSON lines by a parser that refuses NaN."""

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    assert text.endswith("\n")
    return [json.loads(line, parse_constant=refuse) for line in text.removesuffix("\n").split("\n")]


def timeless(records):
    return [{key: value for key, value in record.items() if key != "timing"} for record in records]


def failed(ran, status):
    """An error is one line, and nothing on stdout."""
    assert (ran.status, ran.out) == (status, ""), ran.err
    line, rest = ran.err.split("\n", 1)
    assert rest == ""
    assert line.startswith("error: ")
    return line


# --- text ---------------------------------------------------------------------------------------------------------


def test_text_is_the_continuation_and_a_line_end(cli, words):
    ran = cli("generate", "x", "-m", words, "--greedy", "--length", 5)
    assert (ran.status, ran.out, ran.err) == (0, "abcab\n", "")


@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
def test_samples_of_text_have_a_line_between_them(cli, words, stream):
    ran = cli("generate", "x", "-m", words, "--greedy", "--length", 3, "--nsamples", 3, stream)
    assert (ran.status, ran.out, ran.err) == (0, "abc\n---\nabc\n---\nabc\n", "")


def test_include_prompt(cli, words):
    args = ["-m", words, "--greedy", "--length", 3, "--include-prompt"]
    assert cli("generate", "x", *args).out == "xabc\n"
    assert cli("generate", "x", *args, "--nsamples", 2, "--batch-size", 2).out == "xabc\n---\nxabc\n"
    assert cli("generate", "--ids", str(ID[ord("x")]), *args).out == "xabc\n"
    assert cli("generate", "x", *args, "--format", "official").out == RULER.format(1) + "xabc\n" + "=" * 80 + "\n"
    (record,) = strict(cli("generate", "x", *args, "--format", "jsonl").out)
    assert (record["prompt"], record["text"]) == ("x", "xabc")


def test_without_a_prompt_it_begins_at_the_beginning_and_fills_the_context(cli, words, stdin):
    stdin(None)
    ran = cli("generate", "-m", words, "--greedy")
    assert (ran.status, ran.out, ran.err) == (0, SAID + "x\n", "")
    ran = cli("generate", "-m", words, "--greedy", "--length", 4, "--include-prompt")
    assert (ran.status, ran.out, ran.err) == (0, "abca\n", "")
    (record,) = strict(cli("generate", "-m", words, "--greedy", "--format", "jsonl").out)
    assert (record["prompt"], record["prompt_tokens"], record["tokens"]) == ("", [259], WORDS)


@pytest.mark.parametrize(
    ("args", "out", "finish"),
    [
        (["--length", 5], "abcab", "length"),
        (["--length", 15, "--stop", "abd"], "abc", "stop"),
        (["--length", 15, "--stop", "zebra", "--stop", "!"], "abcabdabcabd", "stop"),
        (["--length", 15], SAID, "length"),
        (["--length", 15, "--stop-eot"], "abcabdabcabd!?", "eot"),
        (["--length", 15, "--no-stop-eot"], SAID, "length"),
        ([], "abcabdab", "length"),
    ],
)
def test_length_stop_and_end_of_text(cli, words, args, out, finish):
    assert cli("generate", "x", "-m", words, "--temperature", 0, *args).out == out + "\n"
    (record,) = strict(cli("generate", "x", "-m", words, "--temperature", 0, *args, "--format", "jsonl").out)
    assert (record["text"], record["finish"]) == (out, finish)


def test_official_format(cli, words, tmp_path):
    args = ["-m", words, "--greedy", "--length", 3, "--format", "official"]
    ran = cli("generate", "x", *args, "--nsamples", 2)
    assert (ran.status, ran.err) == (0, "")
    assert ran.out == f"{RULER.format(1)}abc\n{RULER.format(2)}abc\n{'=' * 80}\n"
    (tmp_path / "two").write_text("x\ny\n")
    ran = cli("generate", "--lines", tmp_path / "two", *args)
    assert ran.out == f"{RULER.format(1)}abc\n{'=' * 80}\n" * 2
    assert cli("generate", *args, "--nsamples", 2).out == f"{RULER.format(1)}abc\n{RULER.format(2)}abc\n"


# --- streaming ----------------------------------------------------------------------------------------------------


def test_streamed_is_unstreamed_byte_for_byte(cli, scream, T):
    for model, args in [
        (scream, ["--greedy", "--length", 8]),
        (scream, ["--greedy", "--length", 7]),
        (scream, ["--greedy", "--length", 16 - 1, "--stop", SCREAM * 2]),
        (T, ["--seed", 5, "--nsamples", 4, "--length", 15, "--include-prompt", "--stop", "e"]),
    ]:
        streamed, whole = (cli("generate", "x", "-m", model, *args, how) for how in ("--stream", "--no-stream"))
        assert (streamed.status, whole.status) == (0, 0)
        assert streamed.out == whole.out
        assert len(streamed.out) > 1 or "--stop" in args


def test_a_character_of_four_tokens(cli, scream):
    args = ["-m", scream, "--greedy", "--length"]
    assert cli("generate", "x", *args, 8).out == SCREAM * 2 + "\n"
    assert cli("generate", "x", *args, 6).out == SCREAM + "\ufffd\n"


def test_text_comes_piece_by_piece_only_when_streamed(cli, words, monkeypatch):
    from gpt2ln.commands.generate import TextWriter

    pieces = []
    monkeypatch.setattr(TextWriter, "piece", lambda self, sample, piece: pieces.append(piece))
    cli("generate", "x", "-m", words, "--greedy", "--length", 4)
    assert pieces == ["a", "b", "c", "a"]
    for how in (["--no-stream"], ["--batch-size", 2], ["--format", "jsonl"], ["--format", "official"]):
        pieces.clear()
        cli("generate", "x", "-m", words, "--greedy", "--length", 4, *how)
        assert pieces == []


# --- jsonl --------------------------------------------------------------------------------------------------------


def test_a_record_of_jsonl(cli, words):
    args = ["--temperature", 0, "--length", 5, "--top-k", 3, "--top-p", 0.5, "--nucleus", "hf", "--seed", 7]
    args += ["--stop", "zebra", "--overflow", "slide", "--start-index", 2, "--format", "jsonl"]
    ran = cli("generate", "x", "-m", words, *args)
    assert (ran.status, ran.err) == (0, "")
    (record,) = strict(ran.out)
    timing = record.pop("timing")
    assert record == {
        "id": None,
        "index": 2,
        "prompt": "x",
        "text": "abcab",
        "tokens": WORDS[:5],
        "prompt_tokens": [ID[ord("x")]],
        "finish": "length",
        "seed": 7,
        "settings": {
            "temperature": 0.0,
            "top_k": 3,
            "top_p": 0.5,
            "nucleus": "hf",
            "length": 5,
            "stop": ["zebra"],
            "stop_eot": False,
            "overflow": "slide",
            "prefix_token": "none",
        },
        "engine": "exact",
        "model": {"name": record["model"]["name"], "sha256": gpt2ln.load(words).index_sha256},
    }
    assert "words" in record["model"]["name"]
    assert set(timing) == {"load_s", "prefill_s", "tokens_per_s"}
    assert all(0 < seconds < 1e6 for seconds in timing.values())


def test_one_token_has_no_speed(cli, words):
    (record,) = strict(cli("generate", "x", "-m", words, "--greedy", "--length", 1, "--format", "jsonl").out)
    assert record["timing"]["tokens_per_s"] is None


def test_bytes_that_are_no_text_are_kept(cli, scream):
    args = ["-m", scream, "--greedy", "--format", "jsonl", "--length"]
    (record,) = strict(cli("generate", "x", *args, 6).out)
    assert record["text"] == SCREAM + "\ufffd"
    assert base64.b64decode(record["bytes_b64"]) == (SCREAM * 2).encode()[:6]
    for whole in ([8], [2, "--stop", "\ufffd"]):
        (record,) = strict(cli("generate", "x", *args, *whole).out)
        assert "bytes_b64" not in record


def test_logprobs_in_jsonl(cli, fixed):
    args = ["-m", fixed, "--greedy", "--length", 2]
    (record,) = strict(cli("generate", "x", *args, "--logprobs", 4, "--format", "jsonl").out)
    likeliest = [ID[ord(c)] for c in "abcd"]
    for at in record["logprobs"]:
        assert at["id"] == likeliest[0]
        assert [i for i, _ in at["top"]] == likeliest
        np.testing.assert_allclose([p for _, p in at["top"]], np.log([0.5, 0.3, 0.15, 0.05]), rtol=1e-6)
        np.testing.assert_allclose(at["logprob"], np.log(0.5), rtol=1e-6)
    (record,) = strict(cli("generate", "x", *args, "--format", "jsonl").out)
    assert "logprobs" not in record
    ran = cli("generate", "x", *args, "--logprobs", 4)
    assert (ran.out, ran.err) == ("aa\n", "note: --logprobs shows with --format jsonl alone\n")


def test_logprobs_of_an_impossible_token_are_numbers(cli, folder):
    def sharp(w):
        w["model/wte"] *= 1000

    model = made_up.tiny(folder / "sharp", sharp)
    ran = cli("generate", "x", "-m", model, "--greedy", "--length", 1, "--logprobs", 260, "--format", "jsonl")
    (record,) = strict(ran.out)
    assert min(p for _, p in record["logprobs"][0]["top"]) < -800


def test_records_come_in_the_order_of_their_lines_with_their_ids(cli, T, tmp_path):
    lines = [{"id": f"n{n}", "prompt": "a" * (n % 7 + 1)} for n in range(20)]
    lines[3] = {"id": 3, "tokens": [64, 259, 66]}
    lines[4] |= {"seed": 99}
    (tmp_path / "in").write_text("".join(json.dumps(line) + "\n" for line in lines))
    args = ["--jsonl", tmp_path / "in", "-m", T, "--seed", 1, "--length", 3, "--format", "jsonl"]
    ran = cli("generate", *args, "--nsamples", 2, "--batch-size", 3)
    records = strict(ran.out)
    assert [record["id"] for record in records] == [line["id"] for line in lines for _ in range(2)]
    assert [record["index"] for record in records] == [0, 1] * 20
    assert [record["prompt"] for record in records[6:10:2]] == ["a<|endoftext|>c", "a" * 5]
    assert [record["seed"] for record in records[6:10:2]] == [1, 99]
    assert timeless(records) == timeless(strict(cli("generate", *args, "--nsamples", 2).out))


# --- seeds --------------------------------------------------------------------------------------------------------


def test_a_drawn_seed_is_shown_and_gives_the_text_again(cli, T):
    args = ["generate", "abc", "-m", T, "--length", 9, "--format", "jsonl"]
    first, second = cli(*args), cli(*args)
    (record,), (other,) = strict(first.out), strict(second.out)
    assert first.err == f"seed: {record['seed']}\n"
    assert record["seed"] != other["seed"]
    again = cli(*args, "--seed", record["seed"])
    assert (again.err, timeless(strict(again.out))) == ("", timeless([record]))
    quiet = cli(*args, "-q")
    assert (quiet.status, quiet.err) == (0, "")


def test_greedy_draws_no_seed(cli, T):
    for greedy in (["--greedy"], ["--temperature", 0]):
        runs = [cli("generate", "abc", "-m", T, "--format", "jsonl", *greedy) for _ in range(2)]
        assert [ran.err for ran in runs] == ["", ""]
        assert timeless(strict(runs[0].out)) == timeless(strict(runs[1].out))


def test_a_seed_gives_one_text_under_any_batch_range_or_order(cli, T, tmp_path):
    args = ["-m", T, "--seed", 2**64 - 1, "--length", 9]
    four = cli("generate", "abc", *args, "--nsamples", 4).out
    for batch_size in (1, 2, 4):
        assert cli("generate", "abc", *args, "--nsamples", 4, "--batch_size", batch_size).out == four
    texts = [cli("generate", "abc", *args, "--start-index", i).out.removesuffix("\n") for i in range(4)]
    assert four == "\n---\n".join(texts) + "\n"
    assert len(set(texts)) == 4
    two = cli("generate", "abc", *args, "--nsamples", 2).out
    assert two == "\n---\n".join(texts[:2]) + "\n"
    outs = []
    for order in (["abc", "the"], ["the", "abc"]):
        (tmp_path / "two").write_text("".join(line + "\n" for line in order))
        records = timeless(strict(cli("generate", "--lines", tmp_path / "two", *args, "--format", "jsonl").out))
        outs.append(sorted(records, key=lambda record: record["prompt"]))
    assert outs[0] == outs[1]
    assert outs[0][0]["text"] == texts[0]


def test_official_spellings(cli, T):
    args = ["generate", "abc", "--seed", 1, "--length", 5]
    hyphened = cli(*args, "-m", T, "--top-k", 3, "--top-p", 0.9, "--batch-size", 2).out
    official = cli(*args, "--model_name", T, "--top_k", 3, "--top_p", 0.9, "--batch_size", 2).out
    assert hyphened == official
    assert hyphened != cli(*args, "-m", T).out


# --- temperature, top-k, top-p ------------------------------------------------------------------------------------


@pytest.mark.parametrize("greedy", [["--temperature", 0], ["--temperature", "0.0"], ["--greedy"]])
def test_temperature_0_is_the_likeliest(cli, fixed, greedy):
    ran = cli("generate", "x", "-m", fixed, "--length", 1, "--nsamples", 20, *greedy)
    assert ran.out == "\n---\n".join("a" * 20) + "\n"


def test_a_tiny_temperature_is_the_likeliest_and_says_nothing(cli, fixed):
    args = ["-m", fixed, "--length", 5, "--seed", 1]
    for tiny in ("1e-300", "5e-324"):
        ran = cli("generate", "x", *args, "--temperature", tiny)
        assert (ran.status, ran.out, ran.err) == (0, "aaaaa\n", "")


def distinct(cli, fixed, *args):
    ran = cli("generate", "x", "-m", fixed, "--length", 1, "--nsamples", 400, "--seed", 1, *args)
    assert (ran.status, ran.err) == (0, "")
    texts = ran.out.removesuffix("\n").split("\n---\n")
    assert len(texts) == 400
    return "".join(sorted(set(texts)))


@pytest.mark.parametrize(
    ("nucleus", "expected"),
    [
        ([], {0.6: "a", 0.9: "ab", 0.96: "abc", 1: "abcd"}),
        (["--nucleus", "openai"], {0.6: "a", 0.9: "ab", 0.96: "abc", 1: "abcd"}),
        (["--nucleus", "hf"], {0.6: "ab", 0.9: "abc", 0.96: "abcd", 1: "abcd"}),
    ],
    ids=["default", "openai", "hf"],
)
def test_top_p_keeps(cli, fixed, nucleus, expected):
    assert {p: distinct(cli, fixed, "--top_p", p, *nucleus) for p in expected} == expected


def test_top_k_keeps(cli, fixed):
    expected = {0: "abcd", 1: "a", 2: "ab", 260: "abcd", 265: "abcd"}
    assert {k: distinct(cli, fixed, "--top_k", k) for k in expected} == expected


def test_k_first_then_p(cli, fixed):
    """.5 of .8 is .625: over .62, so one token; without the cut at k it would be .5 and under."""
    assert distinct(cli, fixed, "--top_k", 2, "--top_p", 0.7) == "a"
    assert distinct(cli, fixed, "--top_p", 0.62, "--nucleus", "hf") == "ab"
    assert distinct(cli, fixed, "--top_k", 2, "--top_p", 0.62, "--nucleus", "hf") == "a"


# --- options that are refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("--length", ["0", "-1", "1.5", "abc", ""]),
        ("--temperature", ["-1", "-0.001", "nan", "inf", "-inf", "abc", ""]),
        ("--top-k", ["-1", "1.5", "nan"]),
        ("--top-p", ["0", "1.2", "-0.5", "nan", "inf", "x"]),
        ("--nucleus", ["x", ""]),
        ("--seed", ["-1", str(2**64), "1.5", "x"]),
        ("--nsamples", ["0", "-1", "x"]),
        ("--batch-size", ["0", "-1", "x"]),
        ("--start-index", ["-1", str(2**64), "x"]),
        ("--logprobs", ["-1", "x"]),
        ("--format", ["xml", ""]),
        ("--overflow", ["wrap", ""]),
        ("--engine", ["slow", ""]),
        ("--stop", [""]),
        ("--prefix-token", ["bos"]),
        ("--threads", ["0", "x"]),
    ],
)
def test_bad_values_are_a_usage_error(cli, T, no_weights, option, values):
    for value in values:
        line = failed(cli("generate", "x", "-m", T, option, value), 2)
        assert option in line
        assert line.endswith("see: gpt2ln generate --help")


def test_a_refusal_in_full(cli, T, no_weights):
    assert failed(cli("generate", "x", "-m", T, "--top-p", "1.2"), 2) == (
        "error: Invalid value for '--top-p': 1.2 is out of range, expected a number above 0 to 1;"
        " see: gpt2ln generate --help"
    )
    assert failed(cli("generate", "x", "-m", T, "--stop", ""), 2) == (
        "error: Invalid value for '--stop': empty, expected a text to stop at; see: gpt2ln generate --help"
    )
    assert "give one of them" in failed(cli("generate", "x", "--ids", "1", "-m", T), 2)


def test_a_stop_that_is_not_utf8(cli, T, no_weights):
    line = failed(cli("generate", "x", "-m", T, "--stop", os.fsdecode(b"a\xff")), 5)
    assert line == "error: --stop is not valid UTF-8 at byte 1 (0xff)"


# --- what does not fit --------------------------------------------------------------------------------------------


def ids(count):
    return ["--ids", " ".join(str((37 * n) % 256) for n in range(count))]


@pytest.mark.parametrize(("prompt", "length"), [(10, 6), (10, 7), (16, 1)])
def test_what_just_fits_runs(cli, T, prompt, length):
    ran = cli("generate", *ids(prompt), "-m", T, "--length", length, "--greedy", "--format", "jsonl")
    assert (ran.status, ran.err) == (0, "")
    assert len(strict(ran.out)[0]["tokens"]) == length


@pytest.mark.parametrize(("prompt", "length"), [(10, 8), (17, 1), (17, None)])
def test_what_does_not_fit_is_refused_before_the_weights_are_read(cli, T, no_weights, tmp_path, prompt, length):
    args = [] if length is None else ["--length", length]
    out = tmp_path / "out"
    line = failed(cli("generate", *ids(prompt), "-m", T, *args, "--seed", 1, "-o", out), 5)
    assert line == (
        f"error: prompt {prompt} tokens + length {length or 8} = {prompt + (length or 8)}, the context takes 17;"
        " shorten the prompt, lower --length or pass --overflow truncate|slide"
    )
    assert list(tmp_path.iterdir()) == []


def test_tokens_are_counted_not_characters(cli, T):
    ran = cli("generate", " the" * 10, "-m", T, "--length", 7, "--greedy", "--format", "jsonl")
    assert strict(ran.out)[0]["prompt_tokens"] == [258] * 10


def test_a_default_length_shrinks_with_a_note(cli, T):
    ran = cli("generate", *ids(12), "-m", T, "--greedy", "--format", "jsonl")
    assert ran.err == "note: --length is 5: prompt 12 tokens, the context takes 17\n"
    (record,) = strict(ran.out)
    assert (len(record["tokens"]), record["settings"]["length"]) == (5, 5)
    ran = cli("generate", *ids(9), "-m", T, "--greedy", "--format", "jsonl")
    assert (ran.err, len(strict(ran.out)[0]["tokens"])) == ("", 8)


def test_truncate_and_slide_say_so(cli, T):
    args = ["-m", T, "--greedy", "--format", "jsonl", "--overflow"]
    ran = cli("generate", *ids(20), *args, "truncate", "--length", 4)
    assert ran.err == "note: the first 7 of 20 prompt tokens were dropped (--overflow truncate)\n"
    (record,) = strict(ran.out)
    assert (len(record["prompt_tokens"]), record["settings"]["overflow"]) == (13, "truncate")
    ran = cli("generate", *ids(8), *args, "slide", "--length", 20)
    assert ran.err == "note: past 16 tokens each step reads the last 16 alone (--overflow slide)\n"
    (record,) = strict(ran.out)
    assert (len(record["tokens"]), record["settings"]["overflow"]) == (20, "slide")


def test_more_memory_than_is_free_is_refused_before_the_weights_are_read(cli, T, no_weights, monkeypatch):
    monkeypatch.setattr(options, "_available", lambda: 10**4)
    line = failed(cli("generate", "x", "-m", T, "--seed", 1, "--length", 2), 5)
    assert line == (
        "error: memory: about 0 MB needed for weights and 1 caches of 3 positions, 0 MB free;"
        " a smaller --batch-size takes less"
    )


@pytest.mark.parametrize(
    ("args", "caches"),
    [
        ([], 1),
        (["--batch-size", 1000], 1),
        (["--nsamples", 3, "--batch-size", 3], 3),
        (["--nsamples", 3, "--batch-size", 2], 3),
        (["--nsamples", 9], 2),
    ],
)
def test_memory_is_weights_and_the_caches_there_are(cli, T, monkeypatch, args, caches):
    """15,872 bytes of weights; 2 layers x 2 x 8 x 4 bytes for each of 3 positions of a cache."""
    need = 15872 + caches * 2 * 2 * 8 * 3 * 4
    for free, status in [(need, 0), (need - 1, 5)]:
        monkeypatch.setattr(options, "_available", lambda free=free: free)
        assert cli("generate", "x", "-m", T, "--seed", 1, "--length", 2, *args).status == status


def test_memory_on_systems_that_do_not_say(cli, T, monkeypatch):
    monkeypatch.setattr(options, "_available", lambda: None)
    assert cli("generate", "x", "-m", T, "--seed", 1, "--length", 2).status == 0


# --- prompts ------------------------------------------------------------------------------------------------------


def test_a_prompt_from_stdin_is_taken_as_it_is(cli, T, stdin):
    for data, tokens in [(b"a\n\nb", [64, 198, 198, 65]), (b" a \n", [220, 64, 220, 198])]:
        stdin(data)
        ran = cli("generate", "-f", "-", "-m", T, "--greedy", "--length", 1, "--format", "jsonl")
        (record,) = strict(ran.out)
        assert (record["prompt_tokens"], record["prompt"]) == (tokens, data.decode())


def test_an_empty_prompt_is_refused_with_the_way_out(cli, T, stdin, no_weights, tmp_path):
    assert "--prefix-token eot" in failed(cli("generate", "", "-m", T), 5)
    stdin(b"")
    assert "--prefix-token eot" in failed(cli("generate", "-f", "-", "-m", T), 5)
    (tmp_path / "in").write_text('{"prompt": "a"}\n{"prompt": ""}\n')
    assert "line 2" in failed(cli("generate", "--jsonl", tmp_path / "in", "-m", T), 5)


def test_an_empty_prompt_with_a_prefix_starts_from_end_of_text(cli, T):
    (record,) = strict(
        cli("generate", "", "-m", T, "--prefix-token", "eot", "--length", 1, "--greedy", "--format", "jsonl").out
    )
    assert (record["prompt_tokens"], record["settings"]["prefix_token"]) == ([259], "eot")


# --- numbers that are not finite ----------------------------------------------------------------------------------


def nan_gain(w):
    w["model/h1/ln_2/g"][3] = np.nan


def huge_embedding(w):
    w["model/wte"] *= np.float32(1e21)


@pytest.mark.parametrize(("edit", "tap"), [(nan_gain, "h1/ln_2/out"), (huge_embedding, "h0/ln_1/var")])
def test_what_is_not_finite_is_named_and_no_text_printed(cli, folder, tmp_path, edit, tap):
    model = made_up.tiny(folder / edit.__name__, edit)
    for how in ([], ["--no-stream"], ["--format", "jsonl"], ["--format", "official"], ["-o", tmp_path / "out"]):
        line = failed(cli("generate", "abc", "-m", model, "--seed", 1, *how), 8)
        assert line.startswith(f"error: {tap}: NaN or Inf in the forward pass of 3 tokens")
    assert list(tmp_path.iterdir()) == []


# --- files --------------------------------------------------------------------------------------------------------


def test_output_goes_to_a_file(cli, scream, tmp_path):
    out = tmp_path / "out"
    ran = cli("generate", "x", "-m", scream, "--greedy", "--length", 8, "-o", out)
    assert (ran.status, ran.out, ran.err) == (0, "", "")
    assert out.read_bytes() == (SCREAM * 2 + "\n").encode()
    assert list(tmp_path.iterdir()) == [out]


def test_a_file_that_exists_stays_unless_forced(cli, words, tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.write_text("mine")
    args = ["generate", "x", "-m", words, "--greedy", "--length", 3, "-o", out]
    with monkeypatch.context() as closed:
        closed.setattr(Model, "engine", property(lambda self: pytest.fail("the weights were asked for")))
        assert failed(cli(*args), 2) == f"error: {out}: exists; --force overwrites it"
    assert out.read_text() == "mine"
    assert cli(*args, "--force").status == 0
    assert out.read_text() == "abc\n"
    assert list(tmp_path.iterdir()) == [out]


def test_output_to_a_dash_is_stdout(cli, words):
    assert cli("generate", "x", "-m", words, "--greedy", "--length", 3, "-o", "-").out == "abc\n"


# --- Ctrl-C and closed pipes --------------------------------------------------------------------------------------

RUN = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from gpt2ln.commands import run; run()"


@contextlib.contextmanager
def start(*argv):
    """A process in which Ctrl-C works even where the tests themselves run in the background."""
    command = [sys.executable, "-c", RUN, *map(str, argv)]
    pipes = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with subprocess.Popen(command, cwd=ROOT, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()  # nothing, where it has ended


def until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "nothing came in a minute"
        time.sleep(0.05)


def test_ctrl_c_leaves_whole_lines_and_no_file_under_its_name(T, tmp_path):
    out, part = tmp_path / "out.jsonl", tmp_path / "out.jsonl.part"
    args = ["--seed", 1, "--nsamples", 10**7, "--length", 14, "--format", "jsonl", "-o", out]
    with start("generate", "abc", "-m", T, *args) as process:
        until(lambda: part.exists() and part.stat().st_size > 5000)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (130, b"")
    assert stderr.decode() == f"interrupted: what was written is in {part}\n"
    assert list(tmp_path.iterdir()) == [part]
    *whole, last = strict(part.read_text())
    assert {record["finish"] for record in whole} == {"length"}
    assert last["finish"] in ("length", "interrupted")
    assert [record["index"] for record in [*whole, last]] == list(range(len(whole) + 1))


def test_ctrl_c_ends_a_streamed_text_with_a_line_end(T):
    with start("generate", "abc", "-m", T, "--seed", 1, "--length", 10**7, "--overflow", "slide", "-q") as process:
        first = process.stdout.read(50)
        process.send_signal(signal.SIGINT)
        rest, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (130, b"")
    assert (first + rest).endswith(b"\n")


def test_a_closed_pipe_is_silent(T):
    with start("generate", "abc", "-m", T, "--seed", 1, "--nsamples", 10**7, "--length", 5) as process:
        process.stdout.read(10)
        process.stdout.close()
        process.wait(timeout=60)
        assert (process.returncode, process.stderr.read()) == (141, b"")


# --- help ---------------------------------------------------------------------------------------------------------


def test_help_shows_every_option_and_an_example(cli):
    for flag in ("-h", "--help"):
        ran = cli("generate", flag)
        assert (ran.status, ran.err) == (0, "")
        assert re.search(r"Example: gpt2ln -m demo generate \"ROMEO:\" --length 40 --seed 1", ran.out)
        for option in ("--length", "--seed", "--stop", "--overflow", "--nucleus", "--logprobs", "--batch-size"):
            assert option in ran.out
