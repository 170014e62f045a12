"""`inspect --values`, `--stats`: every value, bit for bit, and numbers of them in float64."""

import re

import numpy as np
import pytest

from gpt2ln.runtime import tf

from . import bundles, tiny
from .refusals import done, refused
from .test_checkpoint import many, tiny_save  # noqa: F401
from .test_inspect import LISTED, names, objects

STATS = ["min", "max", "mean", "std", "zeros", "nan", "inf"]
WHERE = ["argmin", "argmax"]


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
        ("bfloat16", "# bfloat16 bfloat16 [2]\n1.5 -2.0\n", [1.5, -2]),
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
    words = ("--values cannot take no_strings (string), string (string), strings (string); choose others",)
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
        assert list(record)[4:] == STATS + WHERE
        want = [x.min(), x.max(), x.mean(), x.std()]
        np.testing.assert_allclose([record[k] for k in STATS[:4]], want, rtol=1e-12, atol=1e-15)  # order of a sum
        assert [record[k] for k in STATS[4:]] == [0, 0, 0]
        norm = "/ln_" in record["name"]
        assert [record[k] for k in WHERE] == ([x.argmin(), x.argmax()] if norm else [None, None])
    text = done(cli("inspect", "-m", T, "--stats", "wpe")).splitlines()
    assert re.split("  +", text[0]) == ["name", "dtype", "shape", "bytes", *STATS, "min at", "max at"]
    x = w["model/wpe"].astype("f8")
    numbers = [f"{v:.6g}" for v in (x.min(), x.max(), x.mean(), x.std())]
    assert text[1].split()[-9:] == [*numbers, "0", "0", "0", "-", "-"]
    x = w["model/ln_f/g"]
    row = done(cli("inspect", "-m", T, "--stats", "ln_f/g")).splitlines()[1].split()
    assert row[-2:] == [str(x.argmin()), str(x.argmax())]


def test_statistics_over_what_is_finite(tmp_path, cli):
    """Counts of zeros (minus zero too), NaN and Inf; where nothing is finite, nothing is said."""
    w = {"odd": np.array([0, -0.0, np.nan, np.inf, -np.inf, 4], "f4"), "none": np.array([np.nan, np.inf], "f4")}
    prefix = bundles.write(tmp_path / "x", w)
    none, odd = objects(cli("inspect", "-m", prefix, "--stats", "--json"))
    assert [odd[k] for k in STATS] == [0, 4, 4 / 3, np.std([0, 0, 4]), 2, 1, 2]
    assert [none[k] for k in STATS] == [None] * 4 + [0, 1, 1]
    row = done(cli("inspect", "-m", prefix, "--stats", "none")).splitlines()[1]
    assert row.split()[-9:] == [*"----", "0", "1", "1", "-", "-"]


def test_statistics_of_other_dtypes(many, cli):  # noqa: F811
    """Whole numbers and bool as numbers; no order in complex numbers, no number in strings: null."""
    prefix, w = many
    for record in objects(cli("inspect", "-m", prefix, "--stats", "--json")):
        x = np.array([1.5, -2], "f4") if record["name"] == "bfloat16" else w.get(record["name"])
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


@pytest.mark.parametrize("size", [(1 << 18) - 1, 1 << 18, (1 << 18) + 1, 3 * (1 << 18) + 5])
def test_statistics_of_several_pieces(size, tmp_path, cli):
    """Joined as if they were one; far from 0, where a sum of squares would lose all digits."""
    x = np.random.default_rng(size).normal(1e4, 1e-2, size).astype("f4")
    x[[1, size // 2, -1]] = np.nan, 0, -np.inf
    prefix = bundles.write(tmp_path / "x", {"x": x})
    (record,) = objects(cli("inspect", "-m", prefix, "--stats", "--json"))
    fine = x[np.isfinite(x)].astype("f8")
    want = [fine.min(), fine.max(), fine.mean(), fine.std(), 1, 1, 1]
    np.testing.assert_allclose([record[k] for k in STATS], want, rtol=1e-12)


def test_values_go_with_no_other_columns(T, cli):
    for flag in ("--stats", "-l"):
        refused(cli("inspect", "-m", T, "--values", flag), 2, f"--values prints values alone; leave out {flag}")


def test_a_name_that_would_colour_the_terminal(tmp_path, cli):
    prefix = bundles.write(tmp_path / "x", {"a\x1b[31m": np.ones(1, "f4")})
    assert done(cli("inspect", "-m", prefix, "--values")) == "# a\\x1b[31m float32 [1]\n1.0\n"
    assert "\x1b" not in done(cli("inspect", "-m", prefix))


def test_a_matrix_has_no_channels(tmp_path, cli):
    """Though it is called as a gain is."""
    prefix = bundles.write(tmp_path / "x", {"ln_f/g": np.eye(2, dtype="f4")})
    (record,) = objects(cli("inspect", "-m", prefix, "--stats", "--json"))
    assert [record[k] for k in ("min", *WHERE)] == [0, None, None]
