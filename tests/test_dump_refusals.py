"""What `dump` will not do is said in one line, with its status, and nothing is left behind."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from . import tiny as made_up
from .disks import mounted
from .dumps import contents, here, manifest, names, read_folder, read_lines, read_npz
from .refusals import done, refused


@pytest.mark.parametrize(
    ("argv", "status", "says"),
    [
        ([], 2, "dump: nothing to read; give a TEXT, --file, --lines, --ids or --jsonl"),
        (["a", "--ids", "1"], 2, "TEXT and --ids: give one of them"),
        (["a", "-t", "h13/*"], 2, "no tap matches 'h13/*' (this model has h0..h1)"),
        (["a", "-t", "h0/out,h0/ln_1/scale"], 2, "no tap matches 'h0/ln_1/scale'"),
        (["a", "-t", ""], 2, "no tap is left by ''"),
        (["a", "--layers", "2"], 2, "2 is out of range; this model has 0..1"),
        (["a", "--stop-after", "h*/in"], 2, "'h*/in' is 2 taps"),
        (["a", "-t", "logits", "--stop-after", "h0/in"], 2, "no tap is left by 'logits' with --stop-after h0/in"),
        (["a", "--positions", "x"], 2, "positions 'x': 'x' is none; expected all, last, 5, 0:16 or -4:"),
        (["a", "--positions", "3:"], 5, "positions '3:': no document has any; the longest is 1 tokens"),
        (["a", "--dtype", "int8"], 2, "'int8'"),
        (["a", "--format", "csv"], 2, "'csv'"),
        (["a", "--format", "npz"], 2, "--format npz: give a name with -o; to stdout goes jsonl alone"),
        (["a", "--format", "dir", "-o", "-"], 2, "--format dir: give a name with -o"),
        (["a", "--shard-mb", "0"], 2, "0 is not in the range x>=1"),
        (["a", "--overflow", "slide"], 2, "'slide'"),
        (["", "-o", "x"], 5, "empty prompt, expected at least one token"),
        (["--ids", "260"], 5, "260"),
        (["--ids", "-1"], 5, "-1"),
        (["--ids", "a"], 2, "token id 'a' is not a whole number"),
        (["-f", "gone"], 3, "gone: No such file or directory"),
        (["x" * 17], 5, "text of 17 tokens, the context takes 16; shorten it or pass --overflow truncate|split"),
        (["a", "--ln-from", "gone.npz"], 3, "gone.npz: no such dump"),
        (["a", "--ln-from", "."], 5, ".: is no dump"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_before_the_weights_are_read(dump, no_weights, argv, status, says):
    for dry in ([], ["--dry-run"]):
        refused(dump(*argv, *dry), status, says)
    assert here() == []


@pytest.mark.parametrize(
    ("argv", "status", "says"),
    [
        (["a", "--resume", "-o", "x.npz"], 2, "--resume: only a folder goes on where it stopped, this is npz"),
        (["a", "--resume"], 2, "--resume: only a folder goes on where it stopped, this is jsonl"),
        (["a", "-o", "no/x"], 3, "no: no such folder, make it first; it is to hold x"),
        (["a", "-o", "no/x.npz"], 3, "no: no such folder, make it first; it is to hold x.npz"),
        (["a", "-o", "no/x.jsonl"], 3, "no: no such folder, make it first; it is to hold x.jsonl"),
        (["a", "-o", "/dev/null", "--format", "npz"], 2, "/dev/null: is no plain file"),
        (["a", "-o", "/dev/null", "--format", "dir"], 2, "/dev/null: exists and is no folder"),
    ],
)  # fmt: skip
def test_a_bad_place_is_refused_before_the_weights_are_read(dump, no_weights, argv, status, says):
    refused(dump(*argv), status, says)
    assert here() == []
    assert not Path("/dev/null").is_file()


@pytest.mark.parametrize("output", ["x.npz", "x.jsonl", "x"])
def test_nothing_is_overwritten_without_force(dump, output):
    done(dump("abc", "-o", output))
    before = contents(Path("x")) if output == "x" else Path(output).read_bytes()
    refused(dump("abcd", "-o", output), 2, f"{output}: exists", "--force")
    assert (contents(Path("x")) if output == "x" else Path(output).read_bytes()) == before
    done(dump("abcd", "-o", output, "--force"))
    assert here() == [output]
    after = contents(Path("x")) if output == "x" else Path(output).read_bytes()
    assert after != before


def test_what_an_interrupted_run_left_is_not_overwritten(dump, no_weights):
    Path("x.npz.part").write_text("precious")
    refused(dump("abc", "-o", "x.npz"), 2, "x.npz.part: exists, left by an interrupted run")
    assert Path("x.npz.part").read_text() == "precious"


@pytest.mark.parametrize("flags", [[], ["--force"], ["--resume"]])
def test_a_folder_of_other_things_is_never_written_into(dump, flags):
    Path("x").mkdir()
    Path("x/thesis.tex").write_text("precious")
    refused(dump("abc", "-o", "x", *flags), 2, "x: exists, holds thesis.tex and is no dump; choose another name")
    assert contents(Path("x")) == {"thesis.tex": b"precious"}


def test_links_are_followed_and_stay(dump):
    Path("real").mkdir()
    os.symlink("real", "link")
    os.symlink("real.npz", "link.npz")
    done(dump("abc", "-o", "link"))
    done(dump("abc", "-o", "link.npz"))
    done(dump("abc", "-o", "link.npz", "--force"))
    assert Path("link").is_symlink()
    assert Path("link.npz").is_symlink()
    assert here() == ["link", "link.npz", "real", "real.npz"]
    assert names(Path("real")) == ["manifest.json", "shard-00000.safetensors"]


@pytest.mark.parametrize("output", ["x.npz", "x"])
def test_a_disk_too_small_is_refused_before_anything_is_computed(dump, tmp_path, no_weights, output):
    with mounted(tmp_path / "disk", "size=16k") as disk:
        ran = dump("abcdefgh", "-t", "@all", "-o", disk / output)
        refused(ran, 7, f"{disk}: no space: ", "16384 free; fewer --taps, --positions or --dtype float16 take less")
        assert names(disk) == []


@pytest.mark.parametrize("output", ["x.npz", "x", "x.jsonl"])
def test_a_disk_that_may_only_be_read(dump, tmp_path, output):
    with mounted(tmp_path / "disk", "ro") as disk:
        refused(dump("abc", "-o", disk / output), 7)


@pytest.mark.parametrize("output", ["x.npz", "x", "x.jsonl"])
@pytest.mark.parametrize(("cause", "status"), [(KeyboardInterrupt(), 130), (OSError(28, "No space left"), 7)])
def test_nothing_that_looks_whole_is_left(dump, monkeypatch, output, cause, status):
    """Ctrl-C or a full disk in the second document."""
    from gpt2ln import dump as module
    from gpt2ln import folder

    kind = {"x.npz": module.Npz, "x": folder.Folder, "x.jsonl": module.Lines}[output]
    write = kind.write

    def failing(self, document, *rest):
        if document == 1:
            raise cause
        write(self, document, *rest)

    monkeypatch.setattr(kind, "write", failing)
    Path("texts").write_text("ab\nabc\n")
    ran = dump("--lines", "texts", "-o", output)
    assert ran.status == status, ran
    kept = ["x.jsonl.part"] if (output, status) == ("x.jsonl", 130) else []
    assert here() == ["texts", *kept]


# NaN


@pytest.mark.parametrize("output", ["x.npz", "x", "x.jsonl"])
def test_a_dump_of_nan_is_whole_counted_and_exits_8(cli, broken, tmp_path, monkeypatch, warm, output):
    """V42, V50"""
    monkeypatch.chdir(tmp_path)
    ran = cli("dump", "-m", broken, "--ids", "64 65 66", "-t", "h1/ln_2/*,h1/mlp/fc", "-o", output)
    refused(ran, 8, "h1/ln_2/out: NaN or Inf in the forward pass of 3 tokens, expected finite")
    assert here() == [output]
    counts = {"h1/ln_2/out": 3, "h1/mlp/fc": 96}
    if output == "x.npz":
        said, arrays = read_npz(Path(output))
        np.testing.assert_array_equal(np.isnan(arrays["h1/ln_2/out"]).sum(0), [0, 0, 0, 3, 0, 0, 0, 0])
    elif output == "x":
        said = manifest(Path(output))["shards"][0]
        refused(cli("dump", "-m", broken, "--ids", "64 65 66", "-t", "h1/ln_2/*,h1/mlp/fc", "-o", "x", "--resume"), 8)
    else:
        _, rows, said = read_lines(Path(output).read_text())
        assert [row["taps"]["h1/mlp/fc"] for row in rows] == [[None] * 32] * 3
    assert (said["nonfinite"], said["nonfinite_documents"]) == (counts, [0])


def test_an_infinite_variance_is_named_though_all_that_follows_is_finite(cli, tmp_path):
    """V42"""

    def edit(w):
        w["model/wte"] *= 1e21

    large = made_up.tiny(tmp_path / "m", edit)
    ran = cli("dump", "-m", large, "ab", "-t", "h0/ln_1/*", "-o", tmp_path / "x.npz")
    refused(ran, 8, "h0/ln_1/var: NaN or Inf")
    meta, arrays = read_npz(tmp_path / "x.npz")
    assert meta["nonfinite"] == {"h0/ln_1/var": 2}
    np.testing.assert_array_equal(arrays["h0/ln_1/norm"], 0)


# --ln-from


def test_a_dump_replayed_repeats_itself(dump):
    Path("in.jsonl").write_text('{"id": "a", "prompt": "abc"}\n{"id": ["b"], "prompt": "d"}\n')
    done(dump("--jsonl", "in.jsonl", "--prefix-token", "eot", "-o", "a.npz", "-t", "@ln-stats,logits"))
    first, right = read_npz(Path("a.npz"))
    for output in ("b.npz", "c"):
        done(dump("--ln-from", "a.npz", "-t", "@ln-stats,logits", "-o", output))
    said, again = read_npz(Path("b.npz"))
    assert (said["ln_from"], manifest(Path("c"))["ln_from"]) == (first["seal"], first["seal"])
    assert (said["documents"], said["prefix_token"]) == (first["documents"], "eot")
    for name, x in right.items():
        np.testing.assert_array_equal(again[name], x, err_msg=name)
    np.testing.assert_array_equal(read_folder(Path("c"))["logits"], right["logits"])


def test_statistics_of_a_dump_for_other_texts(dump, cli, tmp_path, warm):
    done(dump("abc", "-o", "a"))
    refused(dump("abcd", "--ln-from", "a"), 5, "a: 1 documents of 3 tokens, the texts are 1 of 4")
    done(dump("xyz", "--ln-from", "a", "-o", "b.npz"))
    np.testing.assert_array_equal(read_npz(Path("b.npz"))[1]["h0/ln_1/mean"], read_folder(Path("a"))["h0/ln_1/mean"])
    other = made_up.tiny(tmp_path / "other", seed=1)
    ran = cli("dump", "-m", other, "--ln-from", "a", "-o", "c.npz")
    done(ran)
    assert "warning: the statistics of a are those of another checkpoint" in ran.err


# generate --dump-to


def test_generated_texts_are_dumped_in_one_clean_pass(cli, dump, T):
    """V48: the dump of prompt and text is, bit for bit, `dump --ids` of the same ids."""
    argv = ["generate", "-m", T, "abc", "--length", 5, "--greedy", "--format", "jsonl"]
    record = json.loads(done(cli(*argv, "--dump-taps", "**", "--dump-to", "x.npz")))
    ids = record["prompt_tokens"] + record["tokens"]
    assert len(ids) == 8
    done(dump("--ids", " ".join(map(str, ids)), "-t", "**", "-o", "y.npz"))
    (_, found), (_, right) = read_npz(Path("x.npz")), read_npz(Path("y.npz"))
    for name, x in right.items():
        np.testing.assert_array_equal(found[name], x, err_msg=name)
    np.testing.assert_array_equal(found["tokens"], ids)
    np.testing.assert_array_equal(found["logits"][2:7].argmax(-1), record["tokens"])
    kept = [x for name, x in found.items() if name.startswith("h") and not name.endswith(("/in", "/probs"))]
    for n, x in enumerate(kept):
        assert not any(x.shape == y.shape and (x == y).all() for y in kept[:n])


def test_each_sample_is_a_document(cli, dump, T):
    argv = ["generate", "-m", T, "ab", "--length", 3, "--seed", 1, "--nsamples", 3, "--format", "jsonl"]
    records = [json.loads(line) for line in done(cli(*argv, "--dump-to", "x")).splitlines()]
    assert manifest(Path("x"))["documents"] == [{"id": None, "tokens": 5}] * 3
    right = [i for record in records for i in record["prompt_tokens"] + record["tokens"]]
    np.testing.assert_array_equal(read_folder(Path("x"))["tokens"], right)


def test_the_token_past_the_context_has_no_activations(cli, dump, T):
    ran = cli("generate", "-m", T, "ab", "--length", 15, "--greedy", "--dump-to", "x.npz")
    done(ran)
    assert "note: token 17 has no position and so no activations" in ran.err
    assert len(read_npz(Path("x.npz"))[1]["tokens"]) == 16


@pytest.mark.parametrize(
    ("argv", "status", "says"),
    [
        (["--dump-taps", "**"], 2, "--dump-taps: give a place with --dump-to"),
        (["--dump-to", "x.npz", "--dump-taps", "h9/in"], 2, "no tap matches 'h9/in'"),
        (["--dump-to", "no/x.npz"], 3, "no such folder"),
        (["--dump-to", "no/x"], 3, "no such folder"),
        (["--dump-to", "old.jsonl"], 2, "old.jsonl: exists"),
        (["--dump-to", "old"], 2, "old: exists"),
        (["--dump-to", "-"], 2, "give a place with --dump-to"),
        (["--dump-to", "x.jsonl", "-o", "x.jsonl"], 2, "x.jsonl: named by --output and by --dump-to"),
        (["--dump-to", "x", "--length", "40", "--overflow", "slide"], 5, "slide past the context of 16"),
    ],
)
def test_a_dump_that_cannot_be_is_refused_before_a_text_is_written(cli, dump, T, no_weights, argv, status, says):
    Path("old.jsonl").write_text("precious")
    Path("old").mkdir()
    Path("old/thesis").write_text("precious")
    refused(cli("generate", "-m", T, "abc", "--seed", 1, *argv), status, says)
    assert here() == ["old", "old.jsonl"]
