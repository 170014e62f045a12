"""`inspect`: every variable, every value, in an order that people expect, and never a guess."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2ln.checkpoint import Entry
from gpt2ln.commands.inspect import SORTS
from gpt2ln.runtime import tf

from . import bundles, tiny
from .refusals import done, refused
from .test_checkpoint import OFFICIAL, many, needs, tiny_save  # noqa: F401

DATA = "model.ckpt.data-00000-of-00001"
STATS = ["min", "max", "mean", "std", "zeros", "nan", "inf"]


@pytest.fixture
def model(T, tmp_path) -> Path:
    """T, to be changed."""
    return Path(shutil.copytree(T, tmp_path / "tiny"))


@pytest.fixture(scope="module")
def deep(tmp_path_factory) -> Path:
    """T with 12 layers."""
    return tiny.tiny(tmp_path_factory.mktemp("deep") / "tiny12", n_layer=12)


def objects(ran) -> list[dict]:
    return [json.loads(line) for line in done(ran).splitlines()]


def names(ran) -> list[str]:
    return [record["name"] for record in objects(ran)]


# --- golden -------------------------------------------------------------------------------------------------------

BLOCK = [
    ("attn/c_attn/b", "[24]", 96), ("attn/c_attn/w", "[1, 8, 24]", 768), ("attn/c_proj/b", "[8]", 32),
    ("attn/c_proj/w", "[1, 8, 8]", 256), ("ln_1/b", "[8]", 32), ("ln_1/g", "[8]", 32), ("ln_2/b", "[8]", 32),
    ("ln_2/g", "[8]", 32), ("mlp/c_fc/b", "[32]", 128), ("mlp/c_fc/w", "[1, 8, 32]", 1024),
    ("mlp/c_proj/b", "[8]", 32), ("mlp/c_proj/w", "[1, 32, 8]", 1024),
]  # fmt: skip
ENDS = [("ln_f/b", "[8]", 32), ("ln_f/g", "[8]", 32), ("wpe", "[16, 8]", 512), ("wte", "[260, 8]", 8320)]
LISTED = [(f"model/h{i}/{name}", *rest) for i in (0, 1) for name, *rest in BLOCK]
LISTED += [(f"model/{name}", *rest) for name, *rest in ENDS]


def test_the_list(T, cli):
    """Exactly: names, dtypes, shapes as stored, bytes; the totals on stderr."""
    ran = cli("inspect", "-m", T)
    head = "name                    dtype    shape       bytes\n"
    rows = [f"{name:22}  float32  {shape:10}  {size:5}\n" for name, shape, size in LISTED]
    assert done(ran) == head + "".join(rows)
    assert ran.err == "28 variables, 3,968 values, 15,872 bytes\n"
    assert cli("inspect", "-m", T, "-q").err == ""


def test_the_list_as_json(T, cli):
    assert objects(cli("inspect", "-m", T, "--json")) == [
        {"name": name, "dtype": "float32", "shape": json.loads(shape), "bytes": size} for name, shape, size in LISTED
    ]


def test_the_long_list(T, cli):
    """Offsets without gaps, the shard, the sum as the index has it."""
    records = objects(cli("inspect", "-m", T, "-l", "--json"))
    assert list(records[0]) == ["name", "dtype", "shape", "offset", "shard", "crc32c", "bytes"]
    offsets = np.cumsum([0] + [size for *_, size in LISTED])
    assert [r["offset"] for r in records] == offsets[:-1].tolist()
    assert {r["shard"] for r in records} == {0}
    w = tiny.weights()
    sums = {name: f"{bundles.google_crc32c.value(x.tobytes()):08x}" for name, x in w.items()}
    assert {r["name"]: r["crc32c"] for r in records} == sums
    table = done(cli("inspect", "-m", T, "--long")).splitlines()
    assert table[0].split() == list(records[0])
    assert table[-1].split()[-3:] == ["0", sums["model/wte"], "8320"]


def test_the_official_124M(cli):
    """From the real index alone, which is said."""
    needs(OFFICIAL / "model.ckpt.index")
    ran = cli("inspect", "-m", OFFICIAL)
    lines = done(ran).splitlines()
    assert len(lines) == 149
    assert lines[-1].split() == ["model/wte", "float32", "[50257,", "768]", "154389504"]
    assert ran.err.splitlines()[-1] == "148 variables, 124,439,808 values, 497,759,232 bytes"
    assert "model.ckpt.data-00000-of-00001: no such file" in ran.err
    (record,) = objects(cli("inspect", "-m", OFFICIAL, "ln_f/g", "-l", "--json"))
    assert record == {"name": "model/ln_f/g", "dtype": "float32", "shape": [768], "offset": 340220928, "shard": 0,
                      "crc32c": "937c765a", "bytes": 3072}  # fmt: skip


# --- V15: order ---------------------------------------------------------------------------------------------------


def test_natural_order(deep, cli):
    """h2 before h10; within a layer and at the ends as in the index."""
    found = names(cli("inspect", "-m", deep, "--json"))
    want = [f"model/h{i}/{name}" for i in range(12) for name, *_ in BLOCK] + [f"model/{name}" for name, *_ in ENDS]
    assert found == want
    assert [line.split()[0] for line in done(cli("inspect", "-m", deep)).splitlines()[1:]] == want


def test_other_orders(deep, cli):
    by_offset = objects(cli("inspect", "-m", deep, "--json", "-l", "--sort", "offset"))
    assert [r["name"] for r in by_offset] == sorted(r["name"] for r in by_offset)
    assert [r["offset"] for r in by_offset] == sorted(r["offset"] for r in by_offset)
    by_size = [r["bytes"] for r in objects(cli("inspect", "-m", deep, "--json", "--sort", "size"))]
    assert by_size == sorted(by_size, reverse=True)
    assert by_size[0] == 8320
    refused(cli("inspect", "-m", deep, "--sort", "colour"), 2, "'colour' is not one of 'name', 'size', 'offset'")


@given(st.lists(st.text(), min_size=2, max_size=5), st.permutations(range(12)))
def test_any_names_have_an_order(found, numbers):
    """Names that begin with digits, hold odd digits or nothing at all can be compared."""
    entries = [Entry(name, "float32", (), 0, 0, 4, 0) for name in found]
    assert sorted(e.name for e in sorted(entries, key=SORTS["name"])) == sorted(found)
    layers = [Entry(f"h{n}/x", "float32", (), 0, 0, 4, 0) for n in numbers]
    assert [e.name for e in sorted(layers, key=SORTS["name"])] == [f"h{n}/x" for n in range(12)]


# --- V15: globs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("globs", "count", "first"),
    [
        (["wpe"], 1, "model/wpe"),
        (["model/wpe"], 1, "model/wpe"),
        (["*"], 2, "model/wpe"),
        (["model/*"], 2, "model/wpe"),
        (["h10/*"], 0, "h10/*"),
        (["h10/*/*"], 4, "model/h10/ln_1/b"),
        (["h10/**"], 12, "model/h10/attn/c_attn/b"),
        (["**"], 148, "model/h0/attn/c_attn/b"),
        (["h*/ln_?/g"], 24, "model/h0/ln_1/g"),
        (["h1/ln_1/g", "h?/ln_1/g"], 10, "model/h0/ln_1/g"),
        (["h{9..11}/ln_1/{g,b}"], 6, "model/h9/ln_1/b"),
        (["model/wpe,model/wte"], 2, "model/wpe"),
        (["wpe,model/ln_f/*"], 3, "model/ln_f/b"),
    ],
)
def test_globs(deep, cli, globs, count, first):
    """`*` does not cross `/`; with or without `model/`; a name twice is one row; natural order whatever was asked."""
    ran = cli("inspect", "-m", deep, "--json", *globs)
    if not count:
        refused(ran, 2, f"no variable matches {first!r}")
        return
    found = names(ran)
    assert (len(found), found[0]) == (count, first)
    assert cli("inspect", "-m", deep, *globs).err.startswith(f"{count} variables, ")


@pytest.mark.parametrize(
    ("globs", "words"),
    [
        (["h99/*"], ["no variable matches 'h99/*'", "gpt2ln inspect"]),
        (["model/h99/**"], ["no variable matches 'model/h99/**'"]),
        (["ln_f/G"], ["'ln_f/G'", "did you mean", "ln_f/g"]),
        (["wpe", "nope"], ["'nope'"]),
        (["wpe,nope"], ["'nope'"]),
        ([""], ["no variable matches ''"]),
        (["h0/*/w"], ["'h0/*/w'"]),
        (["[w]te"], ["'[w]te'"]),
        (["("], ["'('"]),
    ],
)
def test_no_match(T, cli, globs, words):
    """V15: exit 2 and near names, also when another glob does match."""
    refused(cli("inspect", "-m", T, *globs), 2, *words)


def test_a_scope_is_no_wildcard(tmp_path, cli):
    """`model/*` is not `*`: what lies outside of `model/` does not match."""

    def add(w):
        w["global_step"], w["model/step"] = np.int64(7), np.int64(8)

    folder = tiny.tiny(tmp_path / "x", add)
    assert names(cli("inspect", "-m", folder, "--json", "model/*")) == ["model/step", "model/wpe", "model/wte"]
    assert names(cli("inspect", "-m", folder, "--json", "*step")) == ["global_step", "model/step"]
    refused(cli("inspect", "-m", folder, "model/global_step"), 2, "no variable matches 'model/global_step'")


# --- V15: values --------------------------------------------------------------------------------------------------


def numbers(text: str) -> np.ndarray:
    return np.array([line.split() for line in text.splitlines() if not line.startswith("#")], "f4")


def test_values_are_whole(T, cli):
    """No `...`, the last axis a line, and the same float32 comes back bit for bit."""
    text = done(cli("inspect", "--values", "wpe", "-m", T))
    assert text.startswith("# model/wpe float32 [16, 8]\n")
    assert text.count("\n") == 17
    w = tiny.weights()
    for name in ("model/wpe", "model/wte", "model/h1/ln_2/g", "model/h0/mlp/c_fc/w"):
        text = done(cli("inspect", "--values", name, "-m", T))
        assert "..." not in text
        np.testing.assert_array_equal(numbers(text).reshape(w[name].shape), w[name], strict=True)
        (record,) = objects(cli("inspect", "--values", "--json", name, "-m", T))
        assert list(record) == ["name", "dtype", "shape", "bytes", "values"]
        np.testing.assert_array_equal(np.array(record["values"], "f4").reshape(record["shape"]), w[name], strict=True)


def test_all_values_at_once(T, cli):
    text = done(cli("inspect", "--values", "-m", T))
    heads = re.findall(r"^# (\S+) float32 (.*)$", text, re.MULTILINE)
    assert heads == [(name, shape) for name, shape, _ in LISTED]
    assert sum(len(line.split()) for line in text.splitlines() if not line.startswith("#")) == 3968


HARD = np.array([0, -0.0, 1e-45, -1.1754944e-38, 3.4028235e38, 16777217, 0.1, 1 / 3, 1e16, 123456.79], "f4")


def test_hard_numbers_come_back(tmp_path, cli):
    """The smallest, the largest, minus zero, and those that need nine digits; NaN and Inf as words, as null in JSON."""
    odd = np.array([np.nan, np.inf, -np.inf, 2], "f4")
    bits = np.random.default_rng(1).integers(0, 0x7F800000, 3000, "u4").view("f4")
    prefix = bundles.write(tmp_path / "x", {"hard": HARD, "odd": odd, "bits": bits})
    for name, x in (("hard", HARD), ("bits", bits)):
        np.testing.assert_array_equal(
            numbers(done(cli("inspect", "-m", prefix, "--values", name)))[0].view("u4"), x.view("u4"), strict=True
        )
        (record,) = objects(cli("inspect", "-m", prefix, "--values", "--json", name))
        np.testing.assert_array_equal(np.array(record["values"], "f4").view("u4"), x.view("u4"), strict=True)
    assert done(cli("inspect", "-m", prefix, "--values", "odd")) == "# odd float32 [4]\nnan inf -inf 2.0\n"
    (record,) = objects(cli("inspect", "-m", prefix, "--values", "--json", "odd"))
    assert record["values"] == [None, None, None, 2.0]


def test_values_of_a_big_endian_checkpoint(T, tmp_path, cli):
    prefix = bundles.write(tmp_path / "big", tiny.weights(), ">")
    for argv in (["--values"], ["--stats"], []):
        assert done(cli("inspect", "-m", prefix, *argv)) == done(cli("inspect", "-m", T, *argv))


@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        ("bool", "# bool bool [2]\nTrue False\n", [True, False]),
        ("complex64", "# complex64 complex64 [2]\n(1+2j) (-0-3j)\n", [[1, 2], [0, -3]]),
        ("complex128", "# complex128 complex128 [1]\n1e+300j\n", [[0, 1e300]]),
        ("scalar", "# scalar int64 []\n-7\n", [-7]),
        ("empty", "# empty float32 [0, 3]\n", []),
        ("flat", "# flat float32 [3, 0]\n", []),
    ],
)
def test_values_of_other_dtypes(many, cli, name, text, values):  # noqa: F811
    assert done(cli("inspect", "-m", many[0], "--values", name)) == text
    (record,) = objects(cli("inspect", "-m", many[0], "--values", "--json", name))
    assert record["values"] == values


def test_whole_numbers_stay_whole(tmp_path, cli):
    """2^62 + 1 is no float."""
    tiny_save(tmp_path / "x", {"n": tf.constant([2**62 + 1, -1], tf.int64)})
    assert done(cli("inspect", "-m", tmp_path / "x", "--values")) == "# n int64 [2]\n4611686018427387905 -1\n"
    (record,) = objects(cli("inspect", "-m", tmp_path / "x", "--values", "--json"))
    assert record["values"] == [4611686018427387905, -1]


def test_what_cannot_be_printed_is_refused_before_the_first_value(many, cli):  # noqa: F811
    words = ("--values cannot print bfloat16 (bfloat16), no_strings (string), string (string), strings (string);",)
    for form in ([], ["--json"]):
        refused(cli("inspect", "-m", many[0], "--values", *form), 2, *words)


def test_slices(tmp_path, cli):
    """Listed once with the whole shape; its values are not guessed."""
    x = tf.reshape(tf.range(8.0), (4, 2))
    tiny_save(tmp_path / "p", {"v@0": x[:2], "v@1": x[2:], "a": x}, {"v@0": "4 2 0,2:-", "v@1": "4 2 2,2:-"})
    assert names(cli("inspect", "-m", tmp_path / "p", "--json")) == ["a", "v"]
    refused(cli("inspect", "-m", tmp_path / "p", "--values"), 2, "v (stored in slices)")
    a, v = objects(cli("inspect", "-m", tmp_path / "p", "--json", "--stats"))
    assert (a["max"], v["shape"], v["max"]) == (7.0, [4, 2], None)


# --- V15: statistics ----------------------------------------------------------------------------------------------


def test_statistics(T, cli):
    """Of every variable, in float64, as numpy has them."""
    w = tiny.weights()
    records = objects(cli("inspect", "-m", T, "--stats", "--json"))
    assert len(records) == 28
    for record in records:
        x = w[record["name"]].astype("f8")
        assert list(record)[4:] == STATS
        want = [x.min(), x.max(), x.mean(), x.std()]
        np.testing.assert_allclose([record[k] for k in STATS[:4]], want, rtol=1e-12, atol=1e-15)  # order of a sum
        assert [record[k] for k in STATS[4:]] == [0, 0, 0]
    text = done(cli("inspect", "-m", T, "--stats", "wpe")).splitlines()
    assert text[0].split() == ["name", "dtype", "shape", "bytes", *STATS]
    x = w["model/wpe"].astype("f8")
    assert text[1].split()[-7:] == [*(f"{v:.6g}" for v in (x.min(), x.max(), x.mean(), x.std())), "0", "0", "0"]


def test_statistics_over_what_is_finite(tmp_path, cli):
    """Counts of zeros (minus zero too), NaN and Inf; where nothing is finite, nothing is said."""
    w = {"odd": np.array([0, -0.0, np.nan, np.inf, -np.inf, 4], "f4"), "none": np.array([np.nan, np.inf], "f4")}
    prefix = bundles.write(tmp_path / "x", w)
    none, odd = objects(cli("inspect", "-m", prefix, "--stats", "--json"))
    assert [odd[k] for k in STATS] == [0, 4, 4 / 3, np.std([0, 0, 4]), 2, 1, 2]
    assert [none[k] for k in STATS] == [None] * 4 + [0, 1, 1]
    row = done(cli("inspect", "-m", prefix, "--stats", "none")).splitlines()[1]
    assert row.split()[-7:] == [*"----", "0", "1", "1"]


def test_statistics_of_other_dtypes(many, cli):  # noqa: F811
    """Whole numbers and bool as numbers; no order in complex numbers, no number in strings: null."""
    prefix, w = many
    for record in objects(cli("inspect", "-m", prefix, "--stats", "--json")):
        x = w.get(record["name"])
        if x is None or x.dtype.kind in "cSO":
            assert [record[k] for k in STATS] == [None] * 7
        elif not x.size:
            assert [record[k] for k in STATS] == [None] * 4 + [0, 0, 0]
        else:
            want = [float(x.min()), float(x.max()), x.astype("f8").mean(), x.astype("f8").std(), (x == 0).sum(), 0, 0]
            np.testing.assert_allclose([record[k] for k in STATS], want, rtol=1e-12)


def test_statistics_that_no_float_holds(tmp_path, cli):
    """float64 whose squares overflow: null, no warning, valid JSON."""
    tiny_save(tmp_path / "x", {"v": tf.constant([1e300, -1e300], tf.float64)})
    ran = cli("inspect", "-m", tmp_path / "x", "--stats", "--json")
    (record,) = objects(ran)
    assert [record[k] for k in STATS] == [-1e300, 1e300, 0, None, 0, 0, 0]
    assert ran.err == ""


# --- V08 and the index alone --------------------------------------------------------------------------------------


def test_from_the_index_alone(model, cli):
    """Without the data the list is what the index says, and stderr says that the data is not there."""
    right = done(cli("inspect", "-m", model))
    (model / DATA).unlink()
    ran = cli("inspect", "-m", model)
    assert done(ran) == right
    assert f"{DATA}: no such file" in ran.err
    for argv in (["--stats"], ["--values"], ["--values", "wpe"]):
        refused(cli("inspect", "-m", model, *argv), 3, f"{model}/{DATA}: no such file")


def test_only_what_is_asked_for_is_read(model, cli):
    """A damaged variable is no matter for the list, nor for the values of another."""
    data = bytearray((model / DATA).read_bytes())
    data[-1] ^= 1
    (model / DATA).write_bytes(data)
    assert done(cli("inspect", "-m", model)).count("\n") == 29
    assert done(cli("inspect", "-m", model, "--values", "wpe")).count("\n") == 17
    refused(cli("inspect", "-m", model, "--values", "wte"), 4, "damaged: model/wte (CRC32C is 0x")


def test_no_tensorflow(shell, T):
    """In a process of its own, where nothing else has imported it: the same bytes."""
    ran = shell("inspect", "-m", T, "--json", "wpe", env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert ran.returncode == 0
    assert json.loads(ran.stdout) == {"name": "model/wpe", "dtype": "float32", "shape": [16, 8], "bytes": 512}
    imported = {line.split("|")[-1].strip() for line in ran.stderr.decode().splitlines() if "|" in line}
    assert "gpt2ln.checkpoint" in imported
    assert "tensorflow" not in imported


@pytest.mark.parametrize("part", ["h{0..99}/ln_1/g", "{h0,h77}/ln_1/g"])
def test_each_choice_in_braces_must_match(part, T, cli):
    r = cli("inspect", "-m", T, part)
    assert (r.status, r.out) == (2, "")
    assert "no variable matches 'h" in r.err
