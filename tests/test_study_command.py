"""`norm-study`: what it prints, keeps, draws and refuses."""

import io
import json
import re

import numpy as np
import pytest
from tqdm import tqdm

from gpt2ln.commands.options import Globals
from gpt2ln.commands.study_tables import _number as number
from gpt2ln.commands.study_tables import as_record, table
from gpt2ln.mistakes import MISTAKES, choose
from gpt2ln.study import Effect, Study

from .refusals import done, refused
from .warm import keep_engines

TEXT = "abc abd the"


@pytest.fixture(autouse=True)
def _warm(monkeypatch):
    keep_engines(monkeypatch)


def made_study(*names: str, **facts) -> Study:
    """Two tokens of one text, noise 1e-6 at each of three norms; no numbers yet."""
    effects = [Effect(mistake, np.zeros(3)) for mistake in choose(",".join(names))]
    var = np.array([[0.02, 4, 5], [0.1, 20, 30]])
    facts = {"squares": 2 * 0.25, "documents": 1, "tokens": 2, "scored": 1, "nats": np.log(8)} | facts
    return Study(("h0/ln_1", "h0/ln_2", "ln_f"), effects, np.full(3, 1e-6), var, **facts)


def parsed(line: str) -> dict:
    return json.loads(line, parse_constant=pytest.fail)


def test_one_run_tells_the_same_in_every_form(T, cli, here):
    """`--json`, `-o` and a figure beside it; and a table."""
    argv = ("norm-study", "-m", T, "--only", "no-ln-f", TEXT)
    ran = cli(*argv, "--json", "-o", "kept.json", "--plot", "drawn.svg")
    assert ran.err == ""
    record = parsed(done(ran))
    assert parsed((here / "kept.json").read_text()) == record
    facts = record["provenance"]
    assert facts["command"] == ["gpt2ln", *map(str, argv), "--json", "-o", "kept.json", "--plot", "drawn.svg"]
    assert {"model", "engine", "tensorflow", "threads", "overflow", "prefix_token", "formulas_version"} <= {*facts}
    assert [len(digest) for digest in facts["documents"]] == [64]
    assert (here / "drawn.svg").read_bytes().startswith(b"<?xml")
    assert [row["variant"] for row in record["variants"]] == ["no-ln-f"]
    printed = done(cli(*argv, "--force", "-o", "kept.json"))
    assert parsed((here / "kept.json").read_text())["variants"] == record["variants"]
    head, first, columns, *lines = printed.splitlines()
    assert head == f"8 tokens of 1 text, perplexity {record['perplexity']:.4g}"
    assert first.startswith("h0/ln_1: variance of its input 0.")
    assert columns.split() == ["variant", "first", "norm", "logits", "KL", "worst", "flips", "ppl", "%", "from"]
    for row, line in zip(record["variants"], lines, strict=True):
        change = 100 * row["perplexity_change"]
        numbers = [row["first_norm"]["max"], row["logits"], row["kl"]["mean"], row["kl"]["worst"]]
        signed = ("+" if change > 0 else "") + number(change)
        assert line.split() == [row["variant"], *map(number, numbers), str(row["flips"]), signed, row["from"]]


def test_a_record_is_the_study():
    found = made_study("eps-1e-6")
    effect = found.effects[0]
    effect.norms[:] = 0.05, 0.2, 0.1
    effect.logits, effect.kl, effect.kl_worst, effect.worst_at = 0.3, 0.01, 0.008, (0, 1)
    effect.flips, effect.nats = 1, np.log(10)
    record = as_record(found)
    assert [record[key] for key in ("documents", "tokens", "scored", "first_norm_rms", "matters")] == [1, 2, 1, 0.5, 10]
    assert record["norms"][1] == {"norm": "h0/ln_2", "var": {"min": 4, "max": 20}, "noise": 1e-6}
    (row,) = record["variants"]
    np.testing.assert_allclose([record["perplexity"], row["perplexity"]], [8, 10], rtol=1e-12)
    np.testing.assert_allclose(row["perplexity_change"], 0.25, rtol=1e-12)
    assert row["first_norm"] == {"max": 0.05, "relative": 0.1}
    assert row["kl"] == {"mean": 0.005, "worst": 0.008, "document": 0, "position": 1}
    assert (row["logits"], row["flips"], row["from"], row["not_finite"]) == (0.3, 1, "h0/ln_1", None)
    assert row["norms"] == [0.05, 0.2, 0.1]
    assert (row["group"], row["what"]) == ("epsilon", "epsilon 1e-6 in place of 1e-5")
    assert table(found) == (
        "2 tokens of 1 text, perplexity 8\n"
        "h0/ln_1: variance of its input 0.02 to 0.1, rms of its output 0.5\n"
        "variant   first norm  logits     KL  worst  flips  ppl %  from\n"
        "eps-1e-6        0.05     0.3  0.005  0.008      1    +25  h0/ln_1\n"
    )


def test_what_is_not_finite_is_said_and_has_no_numbers():
    found = made_study("one-pass", "float16", "rms")
    of_one_pass, of_float16, rms = sorted(
        found.effects, key=lambda e: ("one-pass", "float16", "rms").index(e.mistake.name)
    )
    of_one_pass.norms[:] = 0.5, np.nan, np.inf
    of_one_pass.logits = of_one_pass.kl = of_one_pass.nats = np.nan
    of_float16.logits = np.inf
    rms.nats = 2000.0  # a perplexity past float64
    record = parsed(json.dumps(as_record(found), allow_nan=False))
    rows = {row["variant"]: row for row in record["variants"]}
    nothing = dict.fromkeys(("logits", "kl", "flips", "perplexity", "perplexity_change"))
    assert rows["one-pass"].items() >= (nothing | {"not_finite": "h0/ln_2", "norms": [0.5, None, None]}).items()
    assert rows["one-pass"]["first_norm"] == {"max": 0.5, "relative": 1}
    assert rows["float16"].items() >= (nothing | {"not_finite": "logits", "from": None}).items()
    assert (rows["rms"]["perplexity"], rows["rms"]["perplexity_change"], rows["rms"]["not_finite"]) == (
        None,
        None,
        None,
    )
    lines = table(found).splitlines()
    assert lines[-2:] == ["one-pass: not finite, first at h0/ln_2", "float16: not finite, first at logits"]
    assert [line.split() for line in lines[3:6]] == [
        ["rms", "0", "0", "0", "0", "0", "-", "-"],
        ["one-pass", "0.5", "-", "-", "-", "-", "-", "h0/ln_1"],
        ["float16", "0", "-", "-", "-", "-", "-", "-"],
    ]


def test_one_token_has_no_perplexity(T, cli, monkeypatch):
    """And the bar is full at the end: the exact pass, the float64 one, and one for each mistake."""
    bars = []

    def progress(g, total):
        bars.append(tqdm(total=total, disable=False, file=io.StringIO()))
        return bars[0]

    monkeypatch.setattr(Globals, "progress", progress)
    ran = cli("norm-study", "-m", T, "--ids", "64", "--only", "folded")
    head, _, _, line = done(ran).splitlines()
    assert head == "1 token of 1 text"
    assert line.split()[5:] == ["0", "-", "-"]
    assert (bars[0].n, bars[0].total) == (3, 3)


def test_a_norm_that_gives_nothing_has_no_relative_error():
    found = made_study("rms", squares=0.0)
    assert as_record(found)["variants"][0]["first_norm"] == {"max": 0, "relative": None}


def test_a_line_of_eighty():
    """The widest cells that there are, in a model of a hundred layers."""
    found = made_study(*(mistake.name for mistake in MISTAKES), documents=12345, tokens=99999, squares=1e-9)
    found.norms = ("h0/ln_1", "h47/ln_2", "ln_f")
    for effect in found.effects:
        effect.norms[:], effect.logits = (0, 1.234e-10, 0), 1.234e-10
        effect.kl, effect.kl_worst, effect.flips, effect.nats = 1.234e-10, 1.234e-10, 99999, np.log(8) - 1.234e-9
    assert max(map(len, table(found).splitlines())) <= 80


@pytest.mark.parametrize(
    ("x", "said"),
    [(0, "0"), (None, "-"), (0.00123456, "0.00123"), (0.000999, "9.99e-4"), (-4.5e-5, "-4.50e-5"), (12.345, "12.3"),
     (1234.5, "1234"), (9999.4, "9999"), (9999.6, "1.00e4"), (12345, "1.23e4"), (1e300, "1.00e300"), (999.6, "1000")],
)  # fmt: skip
def test_numbers_of_three_digits(x, said):
    assert number(x) == said


# what is refused


@pytest.mark.parametrize(
    ("argv", "status", "words"),
    [
        (["--only", "epsilon", TEXT], 2, ["--only: 'epsilon'", "there are eps-1e-6, eps-1e-12"]),
        (["--only", "", TEXT], 2, ["--only: ''"]),
        ([], 2, ["norm-study: nothing to read; give a TEXT, --file, --lines, --ids or --jsonl"]),
        ([TEXT, "--ids", "1"], 2, ["TEXT and --ids: give one of them"]),
        ([TEXT, "another"], 2, ["unexpected extra argument"]),
        (["--ids", "260"], 5, ["260"]),
        (["a" * 17], 5, ["text of 17 tokens, the context takes 16; shorten it or pass --overflow truncate|split"]),
        ([TEXT, "-o", "-"], 2, ["norm-study: -o and --plot take a name of a file each; the table goes to stdout"]),
        ([TEXT, "-o", "a.svg", "--plot", "a.svg"], 2, ["take a name of a file each"]),
        ([TEXT, "-o", "no/a.json"], 3, ["no such folder, make it first; it is to hold a.json"]),
        ([TEXT, "--plot", "a.jpg"], 2, ["--plot: 'jpg', expected a name that ends in .png, .pdf or .svg"]),
        ([TEXT, "-o", "there.json"], 2, ["there.json: exists; --force overwrites it"]),
        ([TEXT, "--plot", "there.svg"], 2, ["there.svg: exists; --force overwrites it"]),
        ([TEXT, "-o", "."], 2, ["is a folder, expected the name of a file"]),
    ],
)  # fmt: skip
def test_refused_before_the_weights_are_read(argv, status, words, T, cli, here, no_weights):
    for name in ("there.json", "there.svg"):
        (here / name).write_text("kept")
    refused(cli("norm-study", "-m", T, *argv), status, *words)
    assert sorted(path.name for path in here.iterdir()) == ["there.json", "there.svg"]
    assert (here / "there.json").read_text() == (here / "there.svg").read_text() == "kept"


def test_a_model_that_is_not_finite_itself(broken, cli, here):
    refused(cli("norm-study", "-m", broken, TEXT, "--only", "rms", "-o", "a.json"), 8, "h1/ln_2/out", "expected finite")
    assert list(here.iterdir()) == []


def test_help_says_what_there_is(cli):
    shown = done(cli("norm-study", "--help"))
    for mistake in MISTAKES:
        assert re.search(rf"^  {mistake.name} +{re.escape(mistake.what)}$", shown, re.MULTILINE)
    assert max(map(len, shown.splitlines())) <= 80


def test_sources_and_overflow(T, cli, here):
    """Lines, each a text of its own; a long text in parts."""
    (here / "lines.txt").write_text(f"{TEXT}\nzz\n")
    argv = ("norm-study", "-m", T, "--only", "folded", "--json")
    for source, read in ((["--lines", "lines.txt"], (2, 10, 8)), (["--overflow", "split", "a" * 20], (2, 20, 18))):
        found = parsed(done(cli(*argv, *source)))
        assert (found["documents"], found["tokens"], found["scored"]) == read
        assert len(set(found["provenance"]["documents"])) == 2
