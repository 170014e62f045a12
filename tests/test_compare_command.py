"""`compare` as it is typed: what it prints, its exit statuses, what it warns of, what it refuses."""

import json
from pathlib import Path

import numpy as np
import pytest

from gpt2ln import taps
from gpt2ln.spec import HParams

from . import tiny
from .conftest import Ran
from .dumps import strict
from .ports import lens, saved
from .refusals import done, refused

TEXT = "To be there"


def differing(ran: Ran, *words: str) -> str:
    """-> stdout; the error line holds these words."""
    errors = [line for line in ran.err.splitlines() if line.startswith("error: ")]
    assert (ran.status, len(errors)) == (1, 1), ran
    for word in words:
        assert word in errors[0]
    return ran.out


@pytest.fixture
def a(dump):
    """A dump of every tap in this folder, and its name."""
    done(dump(TEXT, "-t", "**", "-o", "a.npz"))
    return "a.npz"


def edited(name: str, **edits) -> Path:
    """A copy with our names alone, where `h0__out` and so on are changed by a function."""
    with np.load("a.npz") as file:
        arrays = {tap: file[tap] for tap in file.files if tap not in ("meta", "token_bytes", "token_ptr", "doc_ptr")}
    for tap, edit in edits.items():
        arrays[tap.replace("__", "/")] = edit(arrays[tap.replace("__", "/")])
    return saved(Path(name), arrays)


# what it says


def test_equal(cli, T, a):
    ran = cli("compare", a, a, "-m", T)
    assert done(ran) == (
        "A: a.npz: 8 tokens, 55 taps, float32\n"
        "B: a.npz: 8 tokens, 55 taps, float32\n"
        f"rounding is up to 16 times the noise of float32, known from {T.name} in float64\n"
        "55 taps in both: 55 equal\n"
        "most likely next token: the same at 8 of 8\n"
    )
    assert ran.err == ""


def test_rounding_says_the_largest_error(cli, T, a):
    edited("b.npz", h1__out=lambda x: x * np.float32(1 + 2**-22))
    out = done(cli("compare", a, "b.npz", "-m", T))
    assert "55 taps in both: 54 equal, 1 rounding\n" in out
    assert "\nlargest error: h1/out\n  max |d|       " in out
    assert "differs" not in out


def test_the_first_that_differs(cli, T, a):
    """V51: named with all that is known of it; then those that only inherit it."""
    edited("b.npz", h1__mlp__out=lambda x: x * np.float32(1.01))
    out = differing(
        cli("compare", a, "b.npz", "-m", T),
        "error: first difference: h1/mlp/out: 0.0",
        " of the row's RMS at token ",
        " times float32's noise",
    )
    first, table = out.split("\n\n")[1:]
    assert [line.split("  ")[1].strip() for line in first.splitlines()[1:]] == [
        "max |d|", "relative", "noise", "cosine", "float32 steps more: 64", "likely cause",
    ]  # fmt: skip
    assert "of the row's RMS, at token 7 (68 'e'), channel 6" in first
    head, *rows = table.splitlines()
    assert head.split() == ["tap", "verdict", "max", "|d|", "relative", "noise", "cosine", "token", "from"]
    assert [(row.split()[0], row.split()[1], row.split()[-1]) for row in rows] == [
        ("h1/mlp/out", "differs", "here"),
        ("h1/out", "differs", "here"),
    ][: len(rows)]
    everything = differing(cli("compare", a, "b.npz", "-m", T, "--all"))
    assert len(everything.split("\n\n")[2].splitlines()) == 56


def test_fits_80_columns(cli, T, a):
    wide = tiny.tiny(Path("wide"), lambda w: w.update({"model/wte": w["model/wte"] * 3000}))
    done(cli("dump", "-m", wide, TEXT, "-t", "**", "-o", "w.npz"))
    ran = cli("compare", a, "w.npz", "-m", T, "--all")
    out = differing(ran)
    assert "warning: A and B were not made alike: checkpoint" in ran.err
    assert max(map(len, out.splitlines())) <= 80


def test_json(cli, T, a):
    def edit(x):
        x[2, 3] = np.nan
        return x

    edited("b.npz", h0__mlp__fc=edit)
    ran = cli("compare", a, "b.npz", "-m", T, "--json")
    found = strict(differing(ran, "first difference: h0/mlp/fc: NaN or Inf on one side alone (1 of 256 values), first"))
    assert (found["verdict"], found["first"], found["tokens"]) == ("bug", "h0/mlp/fc", None)
    held = {"texts": 1, "tokens": 8, "taps": 55, "dtypes": ["float32"], "left_out": 0}
    assert found["a"] == {"where": "a.npz"} | held
    assert (found["a_off"], found["later_causes"]) == (None, [])
    assert (found["limit"], found["argmax"]) == ({"noise": 16.0}, {"same": 8, "of": 8})
    assert [row["tap"] for row in found["taps"]] == [tap.name for tap in taps.all_taps(HParams(260, 16, 8, 2, 2))]
    row = next(row for row in found["taps"] if row["tap"] == "h0/mlp/fc")
    assert (row["nonfinite_b"], row["unmatched_nonfinite"], row["token"], row["channel"]) == (1, 1, 2, [3])
    assert row["steps"]["0"] == 255
    assert strict(done(cli("compare", a, a, "--json", "--against", "none")))["limit"] == {"rtol": 1e-4, "atol": 0.0}


def test_on_a_terminal_it_says_what_it_is_doing(cli, T, a, monkeypatch):
    """A cause that is not known takes long."""
    edited("b.npz", h0__mlp__fc=lambda x: x * 2)
    words = "h0/mlp/fc differs; looking for the cause"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    for argv, said in ((("b.npz",), True), (("b.npz", "-q"), False), (("a.npz",), False)):
        ran = cli("compare", a, *argv, "-m", T)
        assert (words in ran.err.splitlines()) == said
    monkeypatch.setattr("sys.stderr.isatty", lambda: False)
    assert words not in cli("compare", a, "b.npz", "-m", T).err


def test_tokens(cli, T, dump):
    """V45"""
    for name, prefix in (("a.npz", "none"), ("b.npz", "eot")):
        done(dump("abc", "--prefix-token", prefix, "-t", "h0/out", "-o", name))
    words = "token ids differ at position 0 (64 vs 259); did one side prepend <|endoftext|>?"
    ran = cli("compare", "a.npz", "b.npz", "-m", T)
    assert differing(ran, f"error: {words}").splitlines()[2:4] == ["", words]
    assert "warning: A and B were not made alike: prefix_token none / eot\n" in ran.err
    assert strict(differing(cli("compare", "a.npz", "b.npz", "-m", T, "--json")))["tokens"] == words


def test_several_texts(cli, T, dump):
    Path("t").write_text("To be\nor not\n")
    for name in ("a", "b"):
        done(dump("--lines", "t", "-t", "h*/out,logits", "-o", name))
    out = done(cli("compare", "a", "b", "-m", T))
    assert out.startswith("A: a: 2 texts, 11 tokens, 3 taps, float32\n")
    assert "the same at 11 of 11" in out
    assert "texts that differ" not in out
    first = {"tokens": np.arange(10).reshape(2, 5), "h0/out": np.ones((2, 5, 8), "f4")}
    for rows, said, texts in ((1, "1, of 0 to 1", [1]), (slice(None), "all of them, of 0 to 1", [0, 1])):
        other = first | {"h0/out": first["h0/out"].copy()}
        other["h0/out"][rows, 2] = 2
        for path, arrays in (("p.npz", first), ("q.npz", other)):
            saved(Path(path), arrays)
        argv = ("compare", "p.npz", "q.npz", "--against", "none")
        assert f"\ntexts that differ: {said}\n" in differing(cli(*argv))
        assert strict(differing(cli(*argv, "--json")))["texts"] == texts


# by what it judges


def test_limits(cli, T, a):
    edited("b.npz", h1__out=lambda x: x * np.float32(1.001))
    for limits in (["--rtol", "0.01"], ["--rtol", "0", "--atol", "0.1"]):
        out = done(cli("compare", a, "b.npz", "-m", T, *limits))
        assert "54 equal, 1 rounding" in out
    assert "rounding is up to 0 of a row's RMS (--rtol) and 0.1 (--atol)\n" in out
    assert "0.0001 of a row's RMS (--rtol)\n" in differing(cli("compare", a, "b.npz", "--against", "none"))
    refused(cli("compare", a, "b.npz", "--against", "float64", "--rtol", "1"), 2, "--rtol, --atol: limits are for")
    refused(cli("compare", a, "b.npz", "--rtol", "nan"), 2, "out of range")


def test_the_model_must_be_that_of_A(cli, T, a):
    """Or there is no noise to know; where it is asked for, that is an error."""
    ran = cli("compare", a, a)
    assert "rounding is up to 0.0001 of a row's RMS (--rtol)\n" in done(ran)
    assert "note: demo is not the model of A, so a limit tells rounding from a bug" in ran.err
    refused(cli("compare", a, a, "--against", "float64"), 5, "--against float64: demo is not the model of A; name")
    refused(cli("compare", a, "--backend", "float64"), 5, "--backend float64: demo is not the model of A; name")
    refused(cli("compare", a, a, "-m", "nowhere"), 3, "nowhere")
    plain = edited("b.npz")
    refused(cli("compare", plain, a, "--against", "float64"), 2, "A does not say which model it is of; name it with -m")
    out = done(cli("compare", plain, a, "--against", "float64", "-m", T))
    assert "known from" in out
    assert "(--rtol)" in done(cli("compare", plain, a))


def test_computed_anew(cli, T, a, warm):
    out = done(cli("compare", a, "--backend", "exact", "-m", T))
    assert out.startswith(f"A: {T.name}, computed anew, exact: 8 tokens, 55 taps, float32\nB: a.npz: ")
    assert "55 taps in both: 55 equal" in out
    out = done(cli("compare", a, "--backend", "float64", "-m", T))
    assert f"A: {T.name}, computed anew, float64: 8 tokens, 55 taps, float64" in out
    assert "rounding" in out.split("in both: ")[1]
    edited("b.npz", h0__mlp__gelu=lambda x: x + np.float32(1e-3))
    for backend in ("exact", "float64"):
        differing(cli("compare", "b.npz", "--backend", backend, "-m", T), "first difference: h0/mlp/gelu")


def test_frozen_statistics_cannot_be_computed_anew(cli, T, dump, a):
    done(dump("--ln-from", "a.npz", "-t", "h0/out", "-o", "frozen.npz"))
    words = "frozen.npz: was made with --ln-from, whose statistics it does not hold"
    refused(cli("compare", "frozen.npz", "--backend", "exact", "-m", T), 5, words)


# what it was made of (V41)


def test_settings_that_move_the_digits(cli, T, a):
    """A dump that another machine sealed."""
    from gpt2ln.provenance import sealed

    with np.load(a) as file:
        arrays = {name: file[name] for name in file.files}
    meta = json.loads(str(arrays["meta"])) | {"threads": 64, "tensorflow": "2.0.0", "tf32": True, "cpu": "x" * 99}
    arrays["meta"] = np.array(json.dumps(sealed(meta)))
    ran = cli("compare", a, saved(Path("b.npz"), arrays), "-m", T)
    done(ran)
    (line,) = [line for line in ran.err.splitlines() if line.startswith("warning: ")]
    assert line.startswith("warning: A and B were not made alike: tensorflow ")
    for words in (" / 2.0.0, ", "tf32 False / True, ", "threads ", " / 64, ", "cpu "):
        assert words in line
    assert "onednn" not in line
    assert "x" * 38 not in line


def test_what_was_read_otherwise_than_it_lies_is_said(cli, T, a, small):
    arrays = lens(small.observe(TEXT, "**"))
    ran = cli("compare", a, saved(Path("tl.npz"), arrays), "-m", T)
    out = done(ran)
    assert "B: tl.npz: 8 tokens, 44 taps, float32" in out
    assert "note: B: blocks.*.ln1.hook_scale: 1/x taken as h*/ln_1/rstd\n" in ran.err
    assert "note: B: normalized is before gain and bias: there it agrees with the other side\n" in ran.err
    assert cli("compare", a, "tl.npz", "-m", T, "-q").err == ""


# what is no comparison


def test_arguments(cli, T, a, dump):
    two = "expected two dumps, or one and --backend exact or float64"
    refused(cli("compare", a), 2, two)
    refused(cli("compare", a, a, "--backend", "exact"), 2, two)
    refused(cli("compare", "", a), 2, "a name is empty")
    refused(cli("compare", a, "nowhere.npz"), 3, "nowhere.npz: no such dump")
    done(dump("x", "-o", "x.jsonl"))
    refused(cli("compare", a, "x.jsonl"), 5, "x.jsonl: JSON lines are for reading; compare takes what dump -o FILE.npz")
    refused(cli("compare", a, T), 5, "holds no dump")
    done(dump("-t", "h1/mlp/fc", TEXT, "-o", "c.npz"))
    done(dump("-t", "h1/in", TEXT, "-o", "d.npz"))
    refused(cli("compare", "c.npz", "d.npz"), 5, "no tap is in both: A holds h1/mlp/fc; B holds h1/in")


def test_foreign_ids_that_the_model_lacks(cli, T, here):
    saved(Path("p.npz"), {"tokens": np.array([0, 260]), "h0/out": np.zeros((2, 8), "f4")})
    refused(cli("compare", "p.npz", "p.npz", "-m", T), 5, "260")
    saved(Path("q.npz"), {"h0/out": np.zeros((17, 8), "f4")})
    refused(cli("compare", "q.npz", "q.npz", "-m", T), 5, "17 tokens, expected 1..16")
    saved(Path("r.npz"), {"h0/out": np.zeros((3, 8), "f4")})
    refused(
        cli("compare", "r.npz", "r.npz", "-m", T, "--against", "float64"),
        5,
        "no side holds token ids; save them as tokens",
    )
    done(cli("compare", "r.npz", "r.npz", "-m", T))


def test_no_tensorflow(shell, here):
    """Nor for a difference with all that is said of it."""
    saved(here / "p.npz", {"tokens": np.arange(5), "ln_f/out": np.ones((5, 8), "f4")})
    code = (
        "import sys; from gpt2ln.commands import main; "
        f"status = main(['-m', 'demo', 'compare', {str(here / 'p.npz')!r}, {str(here / 'p.npz')!r}]); "
        "assert 'tensorflow' not in sys.modules; sys.exit(status)"
    )
    import subprocess
    import sys

    from .conftest import ROOT

    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (ran.returncode, "expected [T, " in ran.stderr) == (5, True), ran.stderr
