"""`inspect --ln`: every norm in one table, from whatever file, and what stands out said below it."""

import json
import re

import numpy as np
import pytest
import safetensors.numpy

from gpt2ln.hf import to_hf

from . import bundles, tiny
from .refusals import done, refused
from .test_checkpoint import OFFICIAL, needs
from .test_inspect import DATA, model, objects  # noqa: F401

NORMS = ["h0/ln_1", "h0/ln_2", "h1/ln_1", "h1/ln_2", "ln_f"]
NUMBERS = ["mean", "std", "min", "argmin", "max", "argmax"]


def vectors(n: int = 8) -> dict[str, np.ndarray]:
    """The norms of two layers; channels 7 and 4 stand out in h1/ln_2, 7 in ln_f."""
    w = {}
    for k, norm in enumerate(NORMS):
        spaced = np.linspace(-1, 1, n)
        w |= {f"model/{norm}/g": 1 + 0.1 * k + 0.01 * spaced, f"model/{norm}/b": 0.5 + 0.1 * spaced}
    w["model/h1/ln_2/g"][[4, 7]] = -3, 6
    w["model/ln_f/b"][7] = 2
    return {name: x.astype("f4") for name, x in w.items()}


@pytest.fixture
def made(tmp_path):
    return bundles.write(tmp_path / "made", vectors())


TABLE = """\
norm     g mean     g std    g min    g max  b mean    b std   b min   b max  g < 0  stand out
h0/ln_1       1  0.006547  0.99 @0  1.01 @7     0.5  0.06547  0.4 @0  0.6 @7      0  -
h0/ln_2     1.1  0.006547  1.09 @0  1.11 @7     0.5  0.06547  0.4 @0  0.6 @7      0  -
h1/ln_1     1.2  0.006547  1.19 @0  1.21 @7     0.5  0.06547  0.4 @0  0.6 @7      0  -
h1/ln_2   1.349     2.252    -3 @4     6 @7     0.5  0.06547  0.4 @0  0.6 @7      1  7 4
ln_f        1.4  0.006547  1.39 @0  1.41 @7   0.675   0.5036  0.4 @0    2 @7      0  7
"""


def test_the_table(made, cli):
    ran = cli("inspect", "-m", made, "--ln")
    assert done(ran) == TABLE
    assert ran.err.splitlines() == [
        "stand out (more than 10 deviations) in so many of 5 norms: 7 (2), 4 (1)",
        "negative gains: h1/ln_2 -3 @4",
    ]
    assert cli("inspect", "-m", made, "--ln", "-q").err == ""


def test_everything_as_json(made, cli):
    w = vectors()
    found = objects(cli("inspect", "-m", made, "--ln", "--json"))
    assert [r["norm"] for r in found] == NORMS
    assert list(found[0]) == ["norm", "g", "b", "stands_out"]
    for r in found:
        for leaf in "gb":
            x = w[f"model/{r['norm']}/{leaf}"].astype("f8")
            told = r[leaf]
            assert list(told) == ["name", "width", *NUMBERS, "negative", "zeros", "nan", "inf", "stands_out"]
            want = [x.mean(), x.std(), x.min(), x.argmin(), x.max(), x.argmax()]
            np.testing.assert_allclose([told[k] for k in NUMBERS], want, rtol=1e-12)
            assert (told["name"], told["width"]) == (f"model/{r['norm']}/{leaf}", 8)
            assert told["negative"] == np.flatnonzero(x < 0).tolist()
            for one in told["stands_out"]:
                x0 = np.abs(x - np.median(x))
                assert one["value"] == x[one["channel"]]
                away = x0[one["channel"]] / (1.4826 * np.median(x0))
                np.testing.assert_allclose(one["deviations"], away, rtol=1e-12)
    assert [r["stands_out"] for r in found] == [[], [], [], [7, 4], [7]]
    assert [[one["channel"] for one in r["b"]["stands_out"]] for r in found] == [[], [], [], [], [7]]


def test_the_real_norms(cli):
    needs(OFFICIAL / "ln.npz")
    ran = cli("inspect", "-m", OFFICIAL / "ln.npz", "--ln")
    rows = done(ran).splitlines()
    assert len(rows) == 26
    assert re.split("  +", rows[8])[:5] == ["h3/ln_2", "0.3065", "0.05262", "-0.0002557 @266", "1.16 @138"]
    assert ran.err.splitlines() == [
        "stand out (more than 10 deviations) in so many of 25 norms: 326 (22), 447 (22), 138 (21), 266 (21), 373 (21), "
        "480 (21), 87 (20), 64 (18), 393 (17), 288 (16), 481 (16), 640 (15), and 67 more",
        "negative gains: h3/ln_2 -0.000255724 @266",
    ]


def test_the_same_from_every_kind_of_file(T, tmp_path, cli):
    """A checkpoint, npz with our names, safetensors with Hugging Face's: the same numbers."""
    want = done(cli("inspect", "-m", T, "--ln"))
    w = tiny.weights()
    np.savez(tmp_path / "x.npz", **{name.removeprefix("model/"): x for name, x in w.items()})
    safetensors.numpy.save_file({to_hf(name): x for name, x in w.items()}, tmp_path / "model.safetensors")
    hf = {"transformer." + to_hf(name): x for name, x in w.items() if "/ln_" in name}
    safetensors.numpy.save_file(hf, tmp_path / "some.safetensors")
    for name in ("x.npz", "model.safetensors", "some.safetensors", "."):
        assert done(cli("inspect", "-m", tmp_path / name, "--ln")) == want


def test_half_precision(tmp_path, cli):
    np.savez(tmp_path / "x.npz", **{"ln_f/g": np.array([1, 2, 4], "f2")})
    (record,) = objects(cli("inspect", "-m", tmp_path / "x.npz", "--ln", "--json"))
    assert (record["g"]["max"], record["b"]) == (4, None)
    row = done(cli("inspect", "-m", tmp_path / "x.npz", "--ln")).splitlines()[1]
    assert row.split() == ["ln_f", "2.333", "1.247", "1", "@0", "4", "@2", "-", "-", "-", "-", "0", "-"]


def test_biases_alone(tmp_path, cli):
    np.savez(tmp_path / "x.npz", **{"ln_f/b": np.array([1, 2, -4], "f4")})
    ran = cli("inspect", "-m", tmp_path / "x.npz", "--ln")
    assert done(ran).splitlines()[1].split() == [
        "ln_f", "-", "-", "-", "-", "-0.3333", "2.625", "-4", "@2", "2", "@1", "-", "-"]  # fmt: skip
    assert "no gains in this file" in ran.err


def test_what_is_not_finite_is_said(tmp_path, cli):
    """Numbers are of the rest; where nothing is left, nothing is said.  JSON stays JSON."""
    w = {"ln_f/g": np.array([1, np.nan, 3, np.inf, -np.inf], "f4"), "ln_f/b": np.full(5, np.nan, "f4")}
    np.savez(tmp_path / "x.npz", **w)
    ran = cli("inspect", "-m", tmp_path / "x.npz", "--ln")
    row = done(ran).splitlines()[1].split()
    assert row[:7] == ["ln_f", "2", "1", "1", "@0", "3", "@2"]
    assert row[7:11] == ["-"] * 4
    assert ran.err.endswith("warning: not finite: ln_f/g (1 NaN, 2 Inf), ln_f/b (5 NaN, 0 Inf)\n")
    (record,) = objects(cli("inspect", "-m", tmp_path / "x.npz", "--ln", "--json"))
    assert record["b"]["mean"] is None
    assert record["b"]["nan"] == 5
    np.savez(tmp_path / "y.npz", **{"ln_f/b": np.array([1, np.inf], "f4")})
    assert cli("inspect", "-m", tmp_path / "y.npz", "--ln").err.endswith("not finite: ln_f/b (0 NaN, 1 Inf)\n")


def test_a_vector_of_equal_values(tmp_path, cli):
    """As a model begins: no deviation is normal, so one more is beyond all; null in JSON."""
    np.savez(tmp_path / "x.npz", **{"ln_f/g": np.array([1, 1, 1, 1, 1.5], "f4"), "ln_f/b": np.zeros(5, "f4")})
    (record,) = objects(cli("inspect", "-m", tmp_path / "x.npz", "--ln", "--json"))
    assert record["g"]["stands_out"] == [{"channel": 4, "value": 1.5, "deviations": None}]
    assert (record["b"]["stands_out"], record["stands_out"]) == ([], [4])


def test_many_channels_are_cut_in_the_table_alone(tmp_path, cli):
    x = np.tile([0.99, 1.0, 1.01], 50)
    x[:14] = np.arange(20, 6, -1)
    x[10:14] *= -1
    np.savez(tmp_path / "x.npz", **{"ln_f/g": x.astype("f4")})
    ran = cli("inspect", "-m", tmp_path / "x.npz", "--ln")
    assert done(ran).splitlines()[1].endswith("0 1 2 3 4 5 +8")
    shown = ", ".join(f"{c} (1)" for c in range(12))
    assert ran.err.splitlines()[0].endswith(f"1 norms: {shown}, and 2 more")
    (record,) = objects(cli("inspect", "-m", tmp_path / "x.npz", "--ln", "--json"))
    assert len(record["stands_out"]) == 14


# --- which norms --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("globs", "found"),
    [
        (["ln_f"], ["ln_f"]),
        (["h1/*"], ["h1/ln_1", "h1/ln_2"]),
        (["model/h?/ln_2"], ["h0/ln_2", "h1/ln_2"]),
        (["**"], NORMS),
        (["h*/ln_1/g", "ln_f/b"], ["h0/ln_1", "h1/ln_1", "ln_f"]),
        (["ln_f,h0/ln_1"], ["h0/ln_1", "ln_f"]),
    ],
)
def test_globs_pick_norms(globs, found, made, tmp_path, cli):
    """By the norm or by a variable of it, in the order of the forward pass; the official names work everywhere."""
    hf = {to_hf(name): x for name, x in vectors().items()}
    safetensors.numpy.save_file(hf, tmp_path / "x.safetensors")
    for path in (made, tmp_path / "x.safetensors"):
        assert [r["norm"] for r in objects(cli("inspect", "-m", path, "--ln", "--json", *globs))] == found
    ran = cli("inspect", "-m", tmp_path / "x.safetensors", "--ln", "--json", "h.1.*.bias")
    assert [r["norm"] for r in objects(ran)] == ["h1/ln_1", "h1/ln_2"]


def test_no_such_norm(made, cli):
    refused(cli("inspect", "-m", made, "--ln", "h9/*"), 2, "no norm matches 'h9/*'", "gpt2ln inspect")
    refused(cli("inspect", "-m", made, "--ln", "ln_g"), 2, "no norm matches 'ln_g'; did you mean ln_f,")


def test_a_file_without_norms(tmp_path, cli):
    np.savez(tmp_path / "x.npz", wte=np.ones((2, 2), "f4"))
    words = (f"{tmp_path}/x.npz: no LayerNorm by its name; expected h0/ln_1/g", "h.0.ln_1.weight", "gpt2ln inspect")
    refused(cli("inspect", "-m", tmp_path / "x.npz", "--ln"), 2, *words)


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--ln", "--values"], "--ln is a table of its own; leave out --values"),
        (["--ln", "--stats", "-l"], "leave out -l and --stats"),
        (["--ln", "--npy", "x"], "leave out --npy"),
        (["--ln", "--sort", "name"], "leave out --sort"),
        (["--plot", "x.png"], "--plot draws gains and biases; it needs --ln"),
        (["--ln", "--plot", "-"], "--plot takes the name of a file"),
        (["--ln", "--plot", ""], "--plot takes the name of a file"),
        (["--ln", "--plot", "x.gif"], "--plot: 'gif', expected a name that ends in .png, .pdf or .svg"),
    ],
)
def test_what_makes_no_sense(flags, words, made, cli):
    refused(cli("inspect", "-m", made, *flags), 2, words)


def test_the_index_alone_has_no_gains(model, cli):  # noqa: F811
    (model / DATA).unlink()
    refused(cli("inspect", "-m", model, "--ln"), 3, f"{model}/{DATA}: no such file", "as does --ln; the list alone")


def test_damage_of_a_norm_and_of_something_else(model, cli):  # noqa: F811
    """Only what is read is checked."""
    data = bytearray((model / DATA).read_bytes())
    data[-1] ^= 1  # in wte
    (model / DATA).write_bytes(data)
    assert cli("inspect", "-m", model, "--ln").status == 0
    (entry,) = objects(cli("inspect", "-m", model, "h1/ln_2/b", "-l", "--json"))
    data[entry["offset"]] ^= 1
    (model / DATA).write_bytes(data)
    refused(cli("inspect", "-m", model, "--ln"), 4, "damaged: model/h1/ln_2/b (CRC32C is 0x")
    assert cli("inspect", "-m", model, "--ln", "h0/*").status == 0


# --- the figure ---------------------------------------------------------------------------------------------------


def test_a_figure_beside_the_table(made, tmp_path, cli):
    plain = cli("inspect", "-m", made, "--ln")
    for suffix, begins in (("png", b"\x89PNG"), ("pdf", b"%PDF-"), ("svg", b"<?xml")):
        path = tmp_path / f"f.{suffix}"
        assert cli("inspect", "-m", made, "--ln", "--plot", path) == plain
        assert path.read_bytes().startswith(begins)
    before = path.read_bytes()
    refused(cli("inspect", "-m", made, "--ln", "--plot", path, "ln_f"), 2, f"{path}: exists; --force overwrites it")
    assert path.read_bytes() == before
    refused(cli("inspect", "-m", tmp_path / "no", "--ln", "--plot", path), 2, "exists")  # before anything is opened
    assert json.loads(done(cli("inspect", "-m", made, "--ln", "--json", "--plot", path, "--force", "ln_f")))
    assert path.read_bytes() != before
    refused(cli("inspect", "-m", made, "--ln", "--plot", tmp_path / "no" / "f.png"), 3, "no such folder")
