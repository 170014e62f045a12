"""`ln-stats`: the numbers are those of the taps, whatever the text came from."""

import csv
import io
import json

import numpy as np
import pytest

import gpt2ln
from gpt2ln.observe import ln_stats

from . import proofs
from . import tiny as made_up

TEXT = "abc abd the"


def records(out):
    return [json.loads(line, parse_constant=lambda c: pytest.fail(c)) for line in out.splitlines()]


def test_golden_statistics(golden, cli):
    """Against what the official source computed on the same ids."""
    ids = " ".join(map(str, golden["ids"][0]))
    r = cli("ln-stats", "-m", proofs.GOLDEN / "model", "--ids", ids, "--format", "json", "-q")
    assert (r.status, r.err) == (0, "")
    found = {record["norm"]: record for record in records(r.out)}
    assert list(found) == proofs.NORMS
    for norm, record in found.items():
        assert record["count"] == 23
        for leaf in ("mean", "var", "rstd"):
            official = golden[f"f32/{norm}/{leaf}"][0].astype(np.float64)
            slack = 4e-6 * np.abs(official).max()
            for key, value in (("mean", official.mean()), ("min", official.min()), ("max", official.max())):
                np.testing.assert_allclose(record[leaf][key], value, rtol=0, atol=slack, err_msg=f"{norm} {leaf} {key}")
            np.testing.assert_allclose(record[leaf]["std"], official.std(), rtol=1e-4, atol=slack)
        out = golden[f"f32/{norm}/out"][0].astype(np.float64)
        np.testing.assert_allclose(record["rms"]["mean"], np.sqrt((out**2).mean(-1)).mean(), rtol=1e-5)
        power = (golden[f"f32/{norm}/norm"][0].astype(np.float64) ** 2).sum(0)
        assert [c["channel"] for c in record["channels"]] == np.argsort(-power)[:3].tolist()
        np.testing.assert_allclose(
            [c["share"] for c in record["channels"]], np.sort(power)[::-1][:3] / power.sum(), rtol=1e-5
        )


def test_table_json_and_csv_say_the_same(T, cli):
    table, js, cs = (cli("ln-stats", "-m", T, TEXT, "--format", form, "-q").out for form in ("table", "json", "csv"))
    rows = list(csv.DictReader(io.StringIO(cs)))
    lines = table.splitlines()
    assert lines[0].split()[:2] == ["norm", "tokens"]
    for record, row, line in zip(records(js), rows, lines[1:], strict=True):
        assert row["norm"] == record["norm"] == line.split()[0]
        assert int(row["count"]) == record["count"] == int(line.split()[1])
        assert float(row["var_mean"]) == record["var"]["mean"]
        assert f"{record['var']['mean']:.4g}" in line
        assert f"{record['channels'][0]['channel']}:{100 * record['channels'][0]['share']:.1f}%" in line
    assert max(map(len, lines)) <= 120


def test_a_narrow_terminal_gets_no_spreads(T, cli, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    for columns, found in (("80", False), ("140", True)):
        monkeypatch.setenv("COLUMNS", columns)
        out = cli("ln-stats", "-m", T, TEXT, "-q").out
        assert ("spread" in out) is found
        assert max(map(len, out.splitlines())) <= int(columns)


def test_several_texts_are_one_sample(T, tmp_path, cli):
    """Moments of three documents are those of their tokens together, each document from position 0."""
    texts = ["abc", "the the", "x"]
    (tmp_path / "t.txt").write_text("\n".join(texts) + "\n")
    found = records(cli("ln-stats", "-m", T, "--lines", tmp_path / "t.txt", "--format", "json").out)
    engine = gpt2ln.load(T).engine
    ids = [gpt2ln.load(T).encode(text) for text in texts]
    var = np.concatenate([np.concatenate([p["h0/ln_1/var"] for p in engine.watch(i, ["h0/ln_1/var"])]) for i in ids])
    assert found[0]["count"] == var.size == sum(map(len, ids))
    np.testing.assert_allclose(found[0]["var"]["mean"], var.mean(dtype=np.float64), rtol=1e-9)
    assert found[0]["var"]["max"] == var.max()


def test_sources_agree(T, tmp_path, cli):
    (tmp_path / "t.txt").write_text(TEXT)
    ids = " ".join(map(str, gpt2ln.load(T).encode(TEXT)))
    (tmp_path / "t.jsonl").write_text(json.dumps({"prompt": TEXT}) + "\n")
    sources = [[TEXT], ["-f", tmp_path / "t.txt"], ["--ids", ids], ["--jsonl", tmp_path / "t.jsonl"]]
    outs = {cli("ln-stats", "-m", T, *source).out for source in sources}
    assert len(outs) == 1


def test_a_text_past_the_context(T, cli):
    long = "abcdefgh" * 5
    r = cli("ln-stats", "-m", T, long)
    assert (r.status, r.out) == (5, "")
    assert "text of 40 tokens, the context takes 16" in r.err
    for way, count in (("truncate", 16), ("split", 40)):
        assert {
            x["count"] for x in records(cli("ln-stats", "-m", T, long, "--overflow", way, "--format", "json").out)
        } == {count}


def test_chunks_do_not_show(tmp_path):
    """A text of several chunks: statistics are those of all its rows."""
    m = gpt2ln.load(made_up.tiny(tmp_path / "long", n_ctx=700))
    ids = np.random.default_rng(0).integers(0, 260, 700).tolist()
    stats = ln_stats(m.engine, [ids])
    seen = proofs.watched(m.engine.weights, m.hparams, [ids], graph=True)
    for norm, s in stats.items():
        assert s.moments["mean"].count == 700
        for leaf in ("mean", "var", "rstd"):
            right = seen[f"{norm}/{leaf}"].astype(np.float64)
            np.testing.assert_allclose(s.moments[leaf].mean, right.mean(), rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(s.moments[leaf].max, right.max(), rtol=1e-4, atol=1e-6)


def test_bad_input(T, tmp_path, cli):
    r = cli("ln-stats", "-m", T)
    assert (r.status, r.out) == (2, "")
    assert r.err.count("\n") == 1
    assert "nothing to read" in r.err
    assert cli("ln-stats", "-m", T, "").status == 5
    assert cli("ln-stats", "-m", T, "abc", "--top-channels", "-1").status == 2
    (tmp_path / "o").write_text("mine")
    r = cli("ln-stats", "-m", T, "abc", "-o", tmp_path / "o")
    assert (r.status, (tmp_path / "o").read_text()) == (2, "mine")
    assert cli("ln-stats", "-m", T, "abc", "-o", tmp_path / "o", "--force").status == 0
    assert (tmp_path / "o").read_text().startswith("norm")


@pytest.mark.parametrize(
    ("edit", "tap"),
    [
        (lambda w: w["model/h1/ln_2/g"].__setitem__(3, np.nan), "h1/ln_2/out"),
        (lambda w: w.__setitem__("model/wte", w["model/wte"] * np.float32(1e21)), "h0/ln_1/var"),
    ],
)
def test_what_is_not_finite_is_named(edit, tap, tmp_path, cli):
    folder = made_up.tiny(tmp_path / "m", edit)
    r = cli("ln-stats", "-m", folder, "abc", "-q")
    assert (r.status, r.out) == (8, "")
    assert r.err.startswith(f"error: {tap}: NaN or Inf")


def test_outputs_past_the_square_root_of_the_range(tmp_path, cli):
    """ln_f/g of 1e22: the output is finite, its square is not in float32."""
    folder = made_up.tiny(tmp_path / "m", lambda w: w["model/ln_f/g"].fill(1e22))
    r = cli("ln-stats", "-m", folder, "abc", "--format", "json", "-q")
    assert (r.status, r.err) == (0, "")
    np.testing.assert_allclose(records(r.out)[-1]["rms"]["mean"], 1e22, rtol=1e-3)


def test_what_truncate_leaves_out_is_said(T, cli):
    r = cli("ln-stats", "-m", T, "abcdefgh" * 5, "--overflow", "truncate")
    assert "note: 24 tokens past the context were left out" in r.err
