"""`dump` and `generate --dump-to` as typed: formats, sizes, choices, and every refusal with its status."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

import gpt2ln
from gpt2ln.commands import options

from . import tiny as made_up
from .dumps import here, manifest, read_folder, read_lines, read_npz
from .refusals import done, refused

# formats


def test_the_name_says_the_format_and_all_hold_the_same(dump):
    for output in ("x.npz", "x.jsonl", "x"):
        assert done(dump("abc", "-o", output)) == ""
    printed = done(dump("abc"))
    assert here() == ["x", "x.jsonl", "x.npz"]
    meta, arrays = read_npz(Path("x.npz"))
    folder = read_folder(Path("x"))
    _, rows, _ = read_lines(Path("x.jsonl").read_text())
    assert read_lines(printed)[1:] == read_lines(Path("x.jsonl").read_text())[1:]
    for name in meta["taps"]:
        np.testing.assert_array_equal(folder[name], arrays[name])
        np.testing.assert_array_equal(np.array([[row["taps"][name]] for row in rows], "f4"), arrays[name])
    norms = ("h0/ln_1", "h0/ln_2", "h1/ln_1", "h1/ln_2", "ln_f")
    assert list(meta["taps"]) == [f"{norm}/{leaf}" for norm in norms for leaf in ("mean", "var", "rstd")]


@pytest.mark.parametrize(("form", "output"), [("dir", "x.npz"), ("npz", "x"), ("jsonl", "x"), ("jsonl", "x.npz")])
def test_the_format_asked_for_is_the_one_written(dump, form, output):
    done(dump("abc", "--format", form, "-o", output))
    if form == "dir":
        assert len(manifest(Path(output))["shards"]) == 1
    elif form == "npz":
        assert len(read_npz(Path(output))[1]["tokens"]) == 3
    else:
        assert len(read_lines(Path(output).read_text())[1]) == 3


def test_every_dump_says_what_it_was_made_from(dump, T):
    done(dump("abc", "-o", "x.npz", "--positions", "last", "-t", "h0/mid"))
    meta, _ = read_npz(Path("x.npz"))
    assert meta["command"] == [
        "gpt2ln",
        "dump",
        "-m",
        str(T),
        "abc",
        "-o",
        "x.npz",
        "--positions",
        "last",
        "-t",
        "h0/mid",
    ]
    assert meta["model"]["hparams"] == {"n_vocab": 260, "n_ctx": 16, "n_embd": 8, "n_head": 2, "n_layer": 2}
    assert set(meta["tokenizer_sha256"]) == {"encoder.json", "vocab.bpe"}
    assert (meta["engine"], meta["dtype"], meta["positions"]) == ("exact", "float32", "last")
    assert (meta["prefix_token"], meta["overflow"], meta["ln_from"]) == ("none", "error", None)
    assert {"gpt2ln", "tensorflow", "threads", "formulas_version", "chunk"} <= set(meta)
    assert meta["taps"] == {"h0/mid": {"shape": [8], "what": "in + attn/out"}}


@pytest.mark.parametrize("id", [{"a": [1]}, ["x"], "é😨", "\ud800", 7, None, True, 1.5, ""])
def test_ids_of_documents_come_back_as_they_were(dump, id):
    Path("in.jsonl").write_text(json.dumps({"id": id, "prompt": "ab"}) + "\n")
    done(dump("--jsonl", "in.jsonl", "-o", "x.npz"))
    done(dump("--jsonl", "in.jsonl", "-o", "x"))
    assert read_npz(Path("x.npz"))[0]["documents"] == [{"id": id, "tokens": 2}] == manifest(Path("x"))["documents"]
    rows = read_lines(done(dump("--jsonl", "in.jsonl")))[1]
    assert [row.get("doc_id") for row in rows] == [id, id]


def test_a_name_that_is_no_utf8_is_a_name(dump):
    name = os.fsdecode(b"\xff")
    done(dump("abc", "-o", name))
    done(dump("abc", "-o", name, "--resume"))
    done(dump("abc", "-o", "é 😨.npz"))
    assert read_npz(Path("é 😨.npz"))[0]["command"][-1] == "é 😨.npz"
    assert manifest(Path(name))["command"][-1] == name


# sizes


@pytest.mark.parametrize("positions", ["all", "1:"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_dry_run_is_exact_and_writes_nothing(dump, positions, dtype):
    Path("texts").write_text("a\nabcdefg\nabc\n")
    argv = ["--lines", "texts", "-t", "@all", "--positions", positions, "--dtype", dtype, "-o", "x"]
    said = dict(line.rsplit(None, 1) for line in done(dump(*argv, "--dry-run")).splitlines()[1:])
    assert here() == ["texts"]
    done(dump(*argv))
    found, shards = read_folder(Path("x")), list(Path("x").glob("shard-*"))
    taps = [x for name, x in found.items() if name != "tokens"]
    rows = {"all": 11, "1:": 8}[positions]
    assert {key: int(value) for key, value in said.items()} == {
        "documents": 3, "tokens": 11, "rows": rows, "taps": 55, "bytes a row": sum(x[0].nbytes for x in taps),
        "bytes of all rows": sum(x.nbytes for x in taps), "shards": 1,
        "bytes of all shards": sum(path.stat().st_size for path in shards),
    }  # fmt: skip


def test_a_dry_run_needs_no_tensorflow(shell, T):
    env = {"PYTHONPATH": str(T), "GPT2LN_QUIET": "1"}
    (T / "tensorflow.py").write_text("raise ImportError('stub')")
    ran = shell("dump", "-m", T, "abc", "--dry-run", env=env)
    (T / "tensorflow.py").unlink()
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert [b"bytes", b"of", b"all", b"rows", b"180"] in map(bytes.split, ran.stdout.splitlines())


def test_bytes_of_one_norm_are_those_of_its_width(cli, tmp_path):
    wide = made_up.tiny(tmp_path / "wide", n_layer=4, n_embd=256, n_head=4, n_ctx=64)
    (tmp_path / "texts").write_text("a" * 50 + "\n" + "b" * 20 + "\n")
    ran = cli("dump", "-m", wide, "--lines", tmp_path / "texts", "-t", "h3/ln_2/*", "--dry-run")
    assert f"bytes of all rows {70 * (3 * 4 + 2 * 4 * 256)}".split() in map(str.split, done(ran).splitlines())


def test_one_tap_is_one_array(dump):
    done(dump("abc", "-t", "h1/ln_2/*", "-o", "x.npz"))
    _, arrays = read_npz(Path("x.npz"))
    assert [name for name in arrays if "/" in name] == [f"h1/ln_2/{x}" for x in ("mean", "var", "rstd", "norm", "out")]


# choices


def test_layers_positions_and_the_end(dump):
    def kept(*argv):
        done(dump("abcd", "-o", "x.npz", "--force", *argv))
        _, arrays = read_npz(Path("x.npz"))
        return [name for name in arrays if "/" in name], arrays

    assert kept("-t", "@resid", "--layers", "-1")[0] == ["h1/in", "h1/mid", "h1/out"]
    assert kept("-t", "@resid", "--stop-after", "h1/in")[0] == ["h0/in", "h0/mid", "h0/out", "h1/in"]
    assert kept("-t", "h0/in,h0/in")[0] == ["h0/in"]
    np.testing.assert_array_equal(kept("-t", "h0/in", "--positions", "0,-1")[1]["rows"], [0, 3])
    np.testing.assert_array_equal(kept("-t", "h0/in", "--positions", "-2:")[1]["rows"], [2, 3])


def test_the_pass_ends_where_it_is_told_to(cli, broken, tmp_path, warm):
    """NaN in later weights does not matter, since they are not used."""
    ran = cli("dump", "-m", broken, "abc", "-t", "**", "--stop-after", "h1/ln_2/norm", "-o", tmp_path / "x.npz")
    assert done(ran) == ""
    ran = cli("dump", "-m", broken, "abc", "-t", "**", "--stop-after", "h1/ln_2/out", "-o", tmp_path / "y.npz")
    refused(ran, 8, "h1/ln_2/out")


@pytest.mark.parametrize(("overflow", "tokens"), [("truncate", [16, 2]), ("split", [16, 16, 3, 2])])
def test_a_text_past_the_context(dump, overflow, tokens):
    Path("in.jsonl").write_text(json.dumps({"id": 5, "prompt": "x" * 35}) + '\n{"prompt": "ab"}\n')
    refused(dump("--jsonl", "in.jsonl", "-o", "x.npz"), 5, "text of 35 tokens (document 0, id 5), the context takes 16")
    assert here() == ["in.jsonl"]
    ran = dump("--jsonl", "in.jsonl", "-o", "x.npz", "--overflow", overflow)
    done(ran)
    assert ("note: 19 tokens past the context were left out" in ran.err) == (overflow == "truncate")
    meta, arrays = read_npz(Path("x.npz"))
    assert [document["tokens"] for document in meta["documents"]] == tokens
    assert [document["id"] for document in meta["documents"]] == [5] * (len(tokens) - 1) + [None]
    np.testing.assert_array_equal(np.diff(arrays["doc_ptr"]), tokens)
    assert meta["overflow"] == overflow


def test_nothing_is_added_unless_asked(dump):
    """V45: three rows against four; ids, bytes and the rule are in the dump."""
    for rule, ids, spelt in (("none", [64, 65, 66], b"abc"), ("eot", [259, 64, 65, 66], b"<|endoftext|>abc")):
        done(dump("abc", "--prefix-token", rule, "-o", f"{rule}.npz"))
        meta, arrays = read_npz(Path(f"{rule}.npz"))
        np.testing.assert_array_equal(arrays["tokens"], ids)
        assert arrays["token_bytes"].tobytes() == spelt
        assert meta["prefix_token"] == rule
        assert len(arrays["h0/ln_1/mean"]) == len(ids)


def test_float16_says_what_it_cannot_hold(dump):
    ran = dump("abc", "-t", "h0/attn/scores", "--dtype", "float16", "-o", "x.npz")
    done(ran)
    assert "warning: h0/attn/scores: 6 values are past float16 and became Inf" in ran.err
    assert read_npz(Path("x.npz"))[0]["nonfinite"] == {"h0/attn/scores": 6}


def test_activations_that_do_not_fit_are_refused(dump, T, no_weights, monkeypatch):
    """What is held at a time: two texts' rows of every tap, and a copy."""
    need = gpt2ln.load(T).bytes_needed(2, 3) + 2 * 2 * 3 * 4 * 260
    monkeypatch.setattr(options, "_available", lambda: need - 1)
    refused(dump("abc", "-t", "logits"), 5, "and activations", "fewer --taps take less")
