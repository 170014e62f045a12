"""`ln-stats`: its numbers are those of the taps, whatever the text came from, and the same in every format."""

import csv
import io
import json

import numpy as np
import pytest

import gpt2ln
from gpt2ln.observe import ln_stats

from . import proofs
from . import tiny as made_up
from .refusals import done, refused
from .warm import keep_engines

TEXT = "abc abd the"
LINES = ["abc abd the", "the the", "x", "hello, hello", "a b c d", "zz"]
BY = ("layer", "position", "channel")


@pytest.fixture(autouse=True)
def _warm(monkeypatch):
    keep_engines(monkeypatch)


def records(out: str) -> list[dict]:
    return [json.loads(line, parse_constant=pytest.fail) for line in out.splitlines()]


@pytest.fixture
def lines(tmp_path):
    """A file of some of LINES."""

    def write(name: str, texts):
        (tmp_path / name).write_text("".join(text + "\n" for text in texts))
        return tmp_path / name

    return write


def far(w) -> None:
    """edit: position 0 a hundred times as large."""
    w["model/wpe"][0] *= 100


@pytest.fixture(scope="module")
def apart(tmp_path_factory):
    return made_up.tiny(tmp_path_factory.mktemp("models") / "far", far)


def test_golden_statistics(golden, cli):
    """Against what the official source computed on the same ids."""
    ids = " ".join(map(str, golden["ids"][0]))
    found = records(done(cli("ln-stats", "-m", proofs.GOLDEN / "model", "--ids", ids, "--format", "json", "-q")))
    assert [record["norm"] for record in found] == proofs.NORMS
    for record in found:
        norm = record["norm"]
        assert record["count"] == 23
        for leaf in ("mean", "var", "rstd"):
            official = golden[f"f32/{norm}/{leaf}"][0].astype(np.float64)
            slack = 4e-6 * np.abs(official).max()  # that of the taps themselves
            for key in ("mean", "min", "max", "std"):
                right = getattr(official, key)()
                np.testing.assert_allclose(record[leaf][key], right, rtol=0, atol=slack, err_msg=f"{norm} {leaf} {key}")
        out = golden[f"f32/{norm}/out"][0].astype(np.float64)
        np.testing.assert_allclose(record["rms"]["mean"], np.sqrt((out**2).mean(-1)).mean(), rtol=4e-6)
        power = (golden[f"f32/{norm}/norm"][0].astype(np.float64) ** 2).sum(0)
        assert [c["channel"] for c in record["channels"]] == np.argsort(-power)[:3].tolist()
        right = np.sort(power)[::-1][:3] / power.sum()
        np.testing.assert_allclose([c["share"] for c in record["channels"]], right, rtol=8e-6)  # squares: twice that


def flat(record: dict) -> dict:
    out = {}
    for key, value in record.items():
        out |= {f"{key}_{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value}
    return out


@pytest.mark.parametrize("by", BY)
def test_table_json_and_csv_say_the_same(by, T, cli):
    argv = ("ln-stats", "-m", T, TEXT, "-q", "--by", by, "--format")
    table, js, cs = (done(cli(*argv, form)) for form in ("table", "json", "csv"))
    found, rows = records(js), list(csv.DictReader(io.StringIO(cs)))
    for record, row in zip(map(flat, found), rows, strict=True):
        assert list(record) == list(row)
        for key in record.keys() - {"channels", "positions"}:
            said = "" if record[key] is None else str(record[key])
            assert row[key] == said, key
    head, *lines = table.splitlines()
    assert max(map(len, table.splitlines())) <= 120
    assert head.split()[0] == "norm"
    shown = found if by != "position" else [r for r in found if r["position"] in (0, 1)]
    cells = {
        "layer": lambda r: [r["norm"], r["count"], r["mean"]["mean"], *(r["var"][k] for k in ("mean", "median", "max")),
                            r["position_0"]["var"], r["rstd"]["median"], r["rms"]["mean"]],
        "position": lambda r: [r["norm"], r["position"], r["count"], r["mean"]["mean"], r["var"]["mean"]],
        "channel": lambda r: [r["norm"], r["channel"], f"{100 * r['share']:.2f}%", f"{100 * r['often']:.1f}%"],
    }[by]  # fmt: skip
    by_cells = {tuple(line.split()[:2]): line.split() for line in lines}
    for record in shown:
        right = [f"{x:.4g}" if isinstance(x, float) else str(x) for x in cells(record)]
        line = by_cells[tuple(right[:2])] if by != "layer" else lines[found.index(record)].split()
        assert line[: len(right)] == right


def test_channels_and_positions_as_a_person_writes_them(T, cli):
    argv = ("ln-stats", "-m", T, TEXT, "-q", "--format")
    for record, row in zip(
        records(cli(*argv, "json").out), csv.DictReader(io.StringIO(cli(*argv, "csv").out)), strict=True
    ):
        assert row["channels"] == " ".join(f"{c['channel']}:{c['share']:.6g}" for c in record["channels"])
    argv = (*argv[:-1], "--by", "channel", "--format")
    for record, row in zip(
        records(cli(*argv, "json").out), csv.DictReader(io.StringIO(cli(*argv, "csv").out)), strict=True
    ):
        spans = [str(a) if a == b else f"{a}-{b}" for a, b in record["positions"]]
        assert row["positions"] == " ".join(spans)
        assert sum(b - a + 1 for a, b in record["positions"]) == record["massive"]  # one text: one token a position


@pytest.mark.parametrize("by", BY)
def test_a_table_fits_the_terminal(by, T, cli, monkeypatch):
    """Columns go until it fits; those that say most stay, at 60 columns too."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    stay = {"layer": "norm var at 0 rstd top", "position": "norm position var rstd", "channel": "norm channel share"}
    widths = []
    for columns in ("60", "80", "100", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        table = done(cli("ln-stats", "-m", T, TEXT, "-q", "--by", by, "--top-channels", 2)).splitlines()
        assert max(map(len, table)) <= int(columns)
        assert {*stay[by].split()} <= {*table[0].split()}
        widths.append(len(table[0].split()))
    assert widths == sorted(widths)
    assert widths[0] < widths[-1]


def test_a_terminal_narrower_than_the_last_columns(T, cli, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "20")
    table = done(cli("ln-stats", "-m", T, TEXT, "-q", "--top-channels", 8))
    assert table.split("\n")[0].split() == ["norm", "var", "at", "0", "rstd", "top", "channels", "of", "8"]


def test_positions_of_a_table_double(T, cli):
    table = done(cli("ln-stats", "-m", T, "--ids", " ".join(["64"] * 11), "-q", "--by", "position"))
    lines = [line.split() for line in table.splitlines()[1:]]
    assert [line[1] for line in lines if line[0] == "ln_f"] == ["0", "1", "2-3", "4-7", "8-10"]
    assert [line[2] for line in lines if line[0] == "ln_f"] == ["1", "1", "2", "4", "3"]


@pytest.mark.parametrize("k", [0, 1, 8, 99])
def test_any_number_of_channels(k, T, cli):
    argv = ("ln-stats", "-m", T, TEXT, "-q", "--top-channels", k)
    for record in records(done(cli(*argv, "--format", "json"))):
        assert len(record["channels"]) == min(k, 8)
    found = records(done(cli(*argv, "--by", "channel", "--format", "json")))
    assert {record["norm"] for record in found} == ({*proofs.NORMS[:4], "ln_f"} if k else set())
    for form in ("table", "csv"):
        out = done(cli(*argv, "--by", "channel", "--format", form))
        assert out.startswith("norm")
        assert len(out.splitlines()) == 1 + len(found)
        assert len(done(cli(*argv, "--format", form)).splitlines()) == 6


def test_one_token(T, cli):
    """Nothing to set position 0 against: no note, no ratio, no spread."""
    ran = cli("ln-stats", "-m", T, "--ids", "64", "--format", "json")
    assert ran.err == ""
    for record in records(done(ran)):
        assert record["count"] == 1
        assert record["position_0"] == {"var": record["var"]["mean"], "others": None, "ratio": None}
        assert record["var"]["std"] == 0
    assert len(done(cli("ln-stats", "-m", T, "--ids", "64")).splitlines()) == 6


def test_several_texts_are_one_sample(T, lines, cli):
    """Moments of three documents are those of their tokens together, each document from position 0."""
    texts = ["abc", "the the", "x"]
    found = records(done(cli("ln-stats", "-m", T, "--lines", lines("t.txt", texts), "--format", "json")))
    m = gpt2ln.load(T)
    var = np.concatenate([m.observe(text, "h0/ln_1/var")["h0/ln_1/var"] for text in texts])
    assert found[0]["count"] == var.size == sum(len(m.encode(text)) for text in texts)
    np.testing.assert_allclose(found[0]["var"]["mean"], var.mean(dtype=np.float64), rtol=1e-12)  # both float64
    assert found[0]["var"]["max"] == var.max()


def test_sources_agree(T, tmp_path, cli):
    (tmp_path / "t.txt").write_text(TEXT)
    ids = " ".join(map(str, gpt2ln.load(T).encode(TEXT)))
    (tmp_path / "t.jsonl").write_text(json.dumps({"prompt": TEXT}) + "\n")
    sources = [[TEXT], ["-f", tmp_path / "t.txt"], ["--ids", ids], ["--jsonl", tmp_path / "t.jsonl"]]
    assert len({done(cli("ln-stats", "-m", T, *source)) for source in sources}) == 1


def test_a_text_past_the_context(T, cli):
    long = "abcdefgh" * 5
    refused(cli("ln-stats", "-m", T, long), 5, "text of 40 tokens, the context takes 16")
    for way, count, note in (("truncate", 16, "note: 24 tokens past the context were left out"), ("split", 40, "")):
        ran = cli("ln-stats", "-m", T, long, "--overflow", way, "--format", "json")
        assert {record["count"] for record in records(done(ran))} == {count}
        assert note in ran.err


def test_chunks_do_not_show(tmp_path):
    """700 positions, three chunks: rounded otherwise than in one piece, by some units in the last place."""
    m = gpt2ln.load(made_up.tiny(tmp_path / "long", n_ctx=700))
    ids = np.random.default_rng(0).integers(0, 260, 700).tolist()
    stats = ln_stats(m.engine, [ids])
    seen = proofs.watched(m.engine.weights, m.hparams, [ids], graph=True)
    np.testing.assert_array_equal(stats.count, np.ones(700))
    for n, norm in enumerate(stats.norms):
        for s, leaf in enumerate(("mean", "var", "rstd")):
            right = seen[f"{norm}/{leaf}"][0, :, 0].astype(np.float64)
            np.testing.assert_allclose(stats.moments[0, n, s], right, rtol=1e-4, atol=1e-5, err_msg=f"{norm}/{leaf}")


def test_position_0_apart_is_shown_and_said(apart, lines, cli):
    """V49.  The mean says one thing, median, position 0 and the note another."""
    ran = cli("ln-stats", "-m", apart, "--lines", lines("t.txt", LINES), "--format", "json")
    assert "note: position 0 stands apart: its variance is " in ran.err
    first = records(done(ran))[0]
    assert first["position_0"]["var"] > 100 * first["var"]["median"]
    assert first["position_0"]["ratio"] > 100
    assert first["var"]["max"] > first["var"]["mean"] > 10 * first["var"]["median"]
    by_position = records(done(cli("ln-stats", "-m", apart, "--lines", lines("t.txt", LINES), "--by", "position",
                                   "--format", "json", "-q")))  # fmt: skip
    here, *others = (r["var"]["median"] for r in by_position if r["norm"] == "h0/ln_1")
    assert here > 100 * max(others)
    table = cli("ln-stats", "-m", apart, TEXT).out.splitlines()
    assert "at 0" in table[0]
    assert "position 0 stands apart" not in cli("ln-stats", "-m", apart, TEXT, "-q").err


@pytest.mark.parametrize(
    ("edit", "tap"),
    [
        (lambda w: w["model/h1/ln_2/g"].__setitem__(3, np.nan), "h1/ln_2/out"),
        (lambda w: w.__setitem__("model/wte", w["model/wte"] * np.float32(1e21)), "h0/ln_1/var"),
    ],
)
def test_what_is_not_finite_is_named_and_nothing_is_written(edit, tap, tmp_path, cli):
    """V42."""
    folder = made_up.tiny(tmp_path / "m", edit)
    files = ("-o", tmp_path / "run.json", "--html", tmp_path / "run.html")
    refused(cli("ln-stats", "-m", folder, "abc", "-q", *files), 8, f"{tap}: NaN or Inf")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_outputs_past_the_square_root_of_the_range(tmp_path, cli):
    """ln_f/g of 1e22: the output is finite, its square is not in float32."""
    folder = made_up.tiny(tmp_path / "m", lambda w: w["model/ln_f/g"].fill(1e22))
    found = records(done(cli("ln-stats", "-m", folder, "abc", "--format", "json", "-q")))
    np.testing.assert_allclose(found[-1]["rms"]["mean"], 1e22, rtol=1e-3)  # epsilon beside a variance of about 1


def test_bad_input(T, cli):
    refused(cli("ln-stats", "-m", T), 2, "nothing to read", "TEXT, --file, --lines, --ids or --jsonl")
    refused(cli("ln-stats", "-m", T, ""), 5)
    refused(cli("ln-stats", "-m", T, "abc", "--top-channels", "-1"), 2)
    refused(cli("ln-stats", "-m", T, "abc", "--by", "head"), 2, "layer", "position", "channel")
    refused(cli("ln-stats", "-m", T, "a", "b", "c"), 2, "3 texts; put quotes around one, or give --lines", "--merge")
