"""`score` as typed: sources, tables, JSON lines, and every refusal with its status."""

import io
import json
import math
import subprocess
import sys

import numpy as np
import pytest

import gpt2ln
from gpt2ln.commands import options

from . import tiny as made_up
from .conftest import ROOT
from .refusals import done, refused


@pytest.fixture(autouse=True)
def _warm(warm):
    """Engines are kept."""


@pytest.fixture(scope="module")
def flat(tmp_path_factory):
    return made_up.tiny(tmp_path_factory.mktemp("flat") / "m", made_up.zeros)


def read(out: str) -> list[dict]:
    return [json.loads(line, parse_constant=pytest.fail) for line in out.splitlines()]


def test_every_token_and_all_of_them(cli, flat):
    """V54."""
    assert done(cli("score", "-m", flat, "abc", "--per-token")) == (
        "i  id    logprob  rank   entropy  context  text\n"
        "1  65  -5.560682    66  5.560682        1  'b'\n"
        "2  66  -5.560682    67  5.560682        2  'c'\n"
        "\n"
        "tokens  bytes  words       nats  bits a byte  token ppl  word ppl\n"
        "     2      2      1  11.121363      8.02237        260     67600\n"
        "\n"
        "window 16, stride 8, prefix token none\n"
    )
    table = done(cli("score", "-m", flat, "abc", "--prefix-token", "eot"))
    assert table.split("\n")[1].split()[:4] == ["3", "3", "1", "16.682045"]
    assert table.endswith("prefix token eot\n")


def test_json_lines(cli, T):
    ran = cli("score", "-m", T, "the é\n", "--per-token", "--format", "jsonl", "--top", 2, "-q")
    *tokens, last = read(done(ran))
    found = gpt2ln.load(T).score("the é\n", top=2)
    assert [t["text"] for t in tokens] == ["he", " ", "\\xc3", "\\xa9", "\n"]
    assert [list(t) for t in tokens] == [["doc", "i", "id", "text", "logprob", "rank", "entropy", "context", "top"]] * 5
    for n, t in enumerate(tokens):
        assert (t["doc"], t["i"], t["context"], t["id"]) == (0, n + 1, n + 1, found.ids[n])
        assert (t["logprob"], t["rank"], t["entropy"]) == (found.logprobs[n], found.ranks[n], found.entropies[n])
        assert [x["id"] for x in t["top"]] == found.top_ids[n].tolist()
        assert [x["logprob"] for x in t["top"]] == found.top_logprobs[n].tolist()
    model = gpt2ln.load(T)
    assert last["summary"] == {
        "documents": 1, "tokens": 5, "bytes": 6, "words": 2, "nats": found.nats,
        "bits_a_byte": found.totals.bits_a_byte, "token_perplexity": found.totals.token_perplexity,
        "word_perplexity": found.totals.word_perplexity, "window": 16, "stride": 8, "prefix_token": "none",
        "engine": "exact", "model": {"name": str(T), "sha256": model.index_sha256},
    }  # fmt: skip
    assert done(cli("score", "-m", T, "the é\n", "--format", "json")) == ran.out.splitlines(keepends=True)[-1]


def test_the_likeliest_in_a_table(cli, flat):
    row = done(cli("score", "-m", flat, "a\n", "--per-token", "--top", 2)).splitlines()[1]
    assert row.split("  ")[-3:] == ["'\\n'", "'!' -5.561", "'\"' -5.561"]
    head = done(cli("score", "-m", flat, "a\n", "--per-token", "--top", 2)).splitlines()[0]
    assert head.split()[-2:] == ["text", "likeliest"]
    ran = cli("score", "-m", flat, "ab", "--top", 2)
    assert ran.err == "note: --top shows with --per-token alone\n"
    assert "likeliest" not in done(ran)


def test_several_documents(cli, T, here):
    """A summary of each, and one of all: sums, not means of means."""
    rows = [{"id": "x", "prompt": "abc"}, {"prompt": "the the the"}, {"id": [7], "tokens": [1, 2]}]
    (here / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = read(done(cli("score", "-m", T, "--jsonl", "d.jsonl", "--format", "jsonl", "--per-token")))
    kinds = ["token" if "i" in line else next(iter(line)) for line in lines]
    assert kinds == ["token"] * 2 + ["document"] + ["token"] * 3 + ["document"] + ["token", "document", "summary"]
    assert [(line.get("doc"), line.get("doc_id")) for line in lines[:4]] == [(0, "x")] * 2 + [(None, None), (1, None)]
    documents = [line["document"] for line in lines if "document" in line]
    assert [(d["doc"], d.get("doc_id"), d["tokens"]) for d in documents] == [(0, "x", 2), (1, None, 3), (2, [7], 1)]
    all_of_it = lines[-1]["summary"]
    assert (all_of_it["documents"], all_of_it["tokens"]) == (3, 6)
    assert all_of_it["nats"] == pytest.approx(sum(d["nats"] for d in documents))
    assert all_of_it["token_perplexity"] == pytest.approx(math.exp(all_of_it["nats"] / 6))
    table = done(cli("score", "-m", T, "--jsonl", "d.jsonl", "--per-token")).split("\n")
    assert [line.split()[0] for line in table[:7]] == ["doc", "x", "x", "1", "1", "1", "[7]"]
    assert [line.split()[0] for line in table[8:13]] == ["doc", "x", "1", "[7]", "all"]
    assert table[12].split()[1] == "6"
    (here / "two").write_text("abc\nabd\n")
    lines = read(done(cli("score", "-m", T, "--lines", "two", "--format", "jsonl")))
    assert [next(iter(line)) for line in lines] == ["document", "document", "summary"]


def test_what_has_nothing_to_score_ends_no_run(cli, T, here):
    """Blank lines between paragraphs: a record without numbers, a note, and totals of all the others."""
    (here / "lines").write_text("abc\n\nx\nthe the\n\n")
    (here / "two").write_text("abc\nthe the\n")
    ran = cli("score", "-m", T, "--lines", "lines", "--format", "jsonl", "--per-token")
    lines = read(done(ran))
    assert ran.err == "note: nothing to score in 3 of 5 texts (documents 1, 2, 4); totals leave them out\n"
    assert [line["doc"] for line in lines if "i" in line] == [0, 0, 3, 3]
    documents = [line["document"] for line in lines if "document" in line]
    assert [(d["doc"], d["tokens"]) for d in documents] == [(0, 2), (1, 0), (2, 0), (3, 2), (4, 0)]
    empty = {"bytes": 0, "words": 0, "nats": None, "bits_a_byte": None, "token_perplexity": None}
    assert documents[1] == {"doc": 1, "tokens": 0, **empty, "word_perplexity": None}
    assert lines[-1] == read(done(cli("score", "-m", T, "--lines", "two", "--format", "jsonl")))[-1]
    table = done(cli("score", "-m", T, "--lines", "lines")).splitlines()
    assert table[2].split() == ["1", "0", "0", "0", "-", "-", "-", "-"]
    assert table[6].split()[:2] == ["all", "4"]


def test_an_empty_text_keeps_its_id_and_a_prefix_gives_one_token_a_context(cli, T, here):
    (here / "d.jsonl").write_text('{"id": "x", "prompt": ""}\n{"prompt": "a"}\n{"tokens": []}\n')
    ran = cli("score", "-m", T, "--jsonl", "d.jsonl", "--format", "jsonl", "--prefix-token", "eot")
    first, second, third, last = read(done(ran))
    assert (first["document"]["doc_id"], first["document"]["nats"]) == ("x", None)
    assert [line["document"]["tokens"] for line in (first, second, third)] == [0, 1, 0]
    assert (last["summary"]["documents"], last["summary"]["tokens"]) == (1, 1)
    assert ran.err == "note: nothing to score in 2 of 3 texts (documents 0, 2); totals leave them out\n"
    assert cli("score", "-m", T, "--jsonl", "d.jsonl", "--prefix-token", "eot", "-q").err == ""


def test_a_name_of_any_length_stays_in_its_column(cli, T, here):
    (here / "d.jsonl").write_text(
        json.dumps({"id": "n" * 5000, "prompt": "ab"}) + '\n{"id": "\\u001b[2J", "prompt": "ab"}\n'
    )
    table = done(cli("score", "-m", T, "--jsonl", "d.jsonl"))
    assert max(map(len, table.splitlines())) <= 90
    assert "\x1b" not in table


def test_sources_agree(cli, T, here, monkeypatch):
    text = "abc\n\nthe\n"
    (here / "t.txt").write_text(text)
    ids = gpt2ln.load(T).encode(text)
    (here / "t.jsonl").write_text(json.dumps({"prompt": text}) + "\n")
    sources = [[text], ["-f", "t.txt"], ["--ids", " ".join(map(str, ids))], ["--jsonl", "t.jsonl"]]
    outs = {done(cli("score", "-m", T, *source, "--per-token")) for source in sources}
    assert len(outs) == 1
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert {done(cli("score", "-m", T, "-f", "-", "--per-token"))} == outs


def test_windows(cli, flat):
    """V55: 40 tokens through a context of 16, each once; the summary says how."""
    ids = " ".join(["7"] * 40)
    for window, stride in ((16, 1), (16, 16), (3, 2)):
        argv = ("--window", window, "--stride", stride, "--format", "jsonl", "--per-token")
        *tokens, last = read(done(cli("score", "-m", flat, "--ids", ids, *argv)))
        assert [t["i"] for t in tokens] == list(range(1, 40))
        assert {t["context"] for t in tokens[window:]} == set(range(window - stride + 1, window + 1))
        assert last["summary"]["token_perplexity"] == pytest.approx(260, abs=1e-3)
        assert (last["summary"]["window"], last["summary"]["stride"]) == (window, stride)
        assert (last["summary"]["tokens"], last["summary"]["prefix_token"]) == (39, "none")


def test_no_word_and_no_perplexity_is_null(cli, T, here):
    summary = read(done(cli("score", "-m", T, "a  ", "--format", "jsonl")))[-1]["summary"]
    assert (summary["words"], summary["word_perplexity"]) == (0, None)
    assert done(cli("score", "-m", T, "a  ")).split("\n")[1].split()[-1] == "-"

    def loud(w):
        w["model/wte"][5] *= np.float32(1e6)
        w["model/ln_f/g"] *= np.float32(1e3)

    folder = made_up.tiny(here / "loud", loud)
    summary = read(done(cli("score", "-m", folder, "abcdefghi", "--format", "jsonl")))[-1]["summary"]
    assert summary["nats"] > 1e6
    assert summary["token_perplexity"] is None
    assert done(cli("score", "-m", folder, "abcdefghi")).split("\n")[1].split()[-2:] == ["inf", "inf"]


def test_into_a_file(cli, T, here):
    printed = done(cli("score", "-m", T, "abc", "--per-token"))
    assert done(cli("score", "-m", T, "abc", "--per-token", "-o", "s.txt")) == ""
    assert (here / "s.txt").read_text() == printed
    refused(cli("score", "-m", T, "abc", "-o", "s.txt"), 2, "s.txt: exists; --force overwrites it")
    assert done(cli("score", "-m", T, "abd", "-o", "s.txt", "--force")) == ""
    assert (here / "s.txt").read_text() != printed


@pytest.mark.usefixtures("no_weights")
def test_refusals_before_any_weight_is_read(cli, T, here):
    (here / "d.jsonl").write_text('{"prompt": ""}\n{"prompt": "a"}\n{"tokens": [3]}\n')
    (here / "e.jsonl").write_text('{"prompt": ""}\n{"tokens": []}\n')
    (here / "s.txt").write_text("")
    nothing = "nothing to score: the first token has no context"
    for argv, status, said in (
        ([], 2, "score: nothing to read; give a TEXT, --file, --lines, --ids or --jsonl"),
        (["a"], 5, f"{nothing}; --prefix-token eot gives it one"),
        (["--jsonl", "d.jsonl"], 5, f"{nothing} (documents 0, 1, 2); --prefix-token eot gives it one"),
        (["--jsonl", "e.jsonl"], 5, "nothing to score: the text is empty (documents 0, 1)"),
        (["--lines", "e.jsonl", "--ids", ""], 2, "--lines and --ids: give one of them"),
        (["-f", "s.txt"], 5, "s.txt: empty prompt"),
        (["--lines", "s.txt"], 5, "s.txt: empty, expected one text a line"),
        (["", "--prefix-token", "eot"], 5, "nothing to score: no token comes after the prefix"),
        ([""], 5, "prompt: empty prompt"),
        (["--ids", "1 260"], 5, "token id 260 outside 0..259 (item 2)"),
        (["abc", "--window", 17], 2, "window 17, expected 1 to 16, the context"),
        (["abc", "--window", 4, "--stride", 5], 2, "stride 5, expected 1 to 4, the window"),
        (["abc", "--window", 0], 2, "'--window'"),
        (["abc", "--top", -1], 2, "'--top'"),
        (["abc", "--format", "csv"], 2, "'table', 'jsonl', 'json'"),
        (["abc", "--lines", "x"], 2, "TEXT and --lines: give one of them"),
        (["abc", "def"], 2, "unexpected extra argument"),
        (["-f", "none"], 3, "none: No such file or directory"),
        (["abc", "-o", "s.txt"], 2, "s.txt: exists"),
        (["abc", "-o", "no/s.txt"], 3, "no: no such folder"),
    ):
        refused(cli("score", "-m", T, *argv), status, said)


def test_a_refusal_does_not_wait_for_tensorflow(T):
    code = (
        "import sys; from gpt2ln.commands import main; status = main(sys.argv[1:]);"
        " sys.exit(status + 100 * ('tensorflow' in sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code, "score", "-m", T, "a"], capture_output=True, cwd=ROOT, text=True)
    assert (ran.returncode, ran.stdout) == (5, "")
    assert ran.stderr.startswith("error: nothing to score: the first token has no context")


def test_more_memory_than_is_free(cli, T, monkeypatch):
    """Weights and caches are 16,640 bytes, logits of two texts, twice, 12,480 more."""
    monkeypatch.setattr(options, "_available", lambda: 20_000)
    said = "memory: about 0 MB needed for weights and 2 caches of 3 positions, and activations, 0 MB free"
    refused(cli("score", "-m", T, "abc"), 5, said)
    monkeypatch.setattr(options, "_available", lambda: 30_000)
    done(cli("score", "-m", T, "abc"))


@pytest.mark.parametrize(
    ("edit", "tap", "argv"),
    [
        (lambda w: w["model/h1/ln_2/g"].__setitem__(3, np.nan), "h1/ln_2/out", ["--per-token", "--format", "jsonl"]),
        (lambda w: w.__setitem__("model/wte", w["model/wte"] * np.float32(1e21)), "h0/ln_1/var", ["-o", "out"]),
    ],
)
def test_what_is_not_finite_is_named_and_nothing_is_written(edit, tap, argv, here, cli):
    """V42."""
    folder = made_up.tiny(here / "m", edit)
    refused(cli("score", "-m", folder, "abc", *argv), 8, f"{tap}: NaN or Inf")
    assert [path.name for path in here.iterdir()] == ["m"]
