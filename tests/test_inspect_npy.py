"""`inspect --npy DIR`: each variable as a file of its own, whole or not there, nowhere but in DIR."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.numpy

from . import bundles, tiny
from .conftest import ROOT
from .refusals import done, refused
from .test_checkpoint import many  # noqa: F401
from .test_inspect import DATA, model, objects  # noqa: F401


def test_every_variable_as_npy(T, tmp_path, cli):
    """np.load without pickle gives the float32 as they are stored, and the table is the one without."""
    ran = cli("inspect", "-m", T, "--npy", tmp_path / "o")
    plain = cli("inspect", "-m", T)
    assert done(ran) == done(plain)
    assert ran.err == f"28 files in {tmp_path}/o\n{plain.err}"
    w = tiny.weights()
    found = sorted(path.relative_to(tmp_path / "o") for path in (tmp_path / "o").rglob("*") if path.is_file())
    assert found == sorted(Path(name.removeprefix("model/") + ".npy") for name in w)
    for name, x in w.items():
        path = tmp_path / "o" / f"{name.removeprefix('model/')}.npy"
        np.testing.assert_array_equal(np.load(path, allow_pickle=False), x, strict=True)


def test_npy_of_other_dtypes(many, tmp_path, cli):  # noqa: F811
    """Scalars, empty ones, float16 to complex128; bfloat16 as float32; strings are refused before a file is made."""
    prefix, w = many
    refused(cli("inspect", "-m", prefix, "--npy", tmp_path / "o"), 2, "--npy cannot take no_strings (string), string")
    assert not (tmp_path / "o").exists()
    chosen = [name for name, x in w.items() if x.dtype.kind not in "SO"]
    found = objects(cli("inspect", "-m", prefix, "--npy", tmp_path / "o", "--json", *chosen, "bfloat16"))
    assert len(found) == len(chosen) + 1
    for name in chosen:
        np.testing.assert_array_equal(np.load(tmp_path / f"o/{name}.npy", allow_pickle=False), w[name], strict=True)
    wide = np.load(tmp_path / "o/bfloat16.npy")
    np.testing.assert_array_equal(wide, np.array([1.5, -2], "f4"), strict=True)


def test_numbers_wider_than_float64(tmp_path, cli):
    """What no float64 holds is null in JSON and Inf in the counts, whole as text and as a file."""
    x = np.array([np.finfo("g").max, 1], "g")
    np.savez(tmp_path / "x.npz", x=x)
    ask = ("inspect", "-m", tmp_path / "x.npz")
    (record,) = objects(cli(*ask, "--values", "--json"))
    assert record["values"] == ([None, 1] if x.itemsize > 8 else x.tolist())
    (record,) = objects(cli(*ask, "--stats", "--json"))
    assert (record["min"], record["inf"]) == (1, int(x.itemsize > 8))
    shown = done(cli(*ask, "--values")).splitlines()[1].split()
    np.testing.assert_array_equal(np.array(shown, "g"), x, strict=True)
    assert cli(*ask, "--npy", tmp_path / "o").status == 0
    np.testing.assert_array_equal(np.load(tmp_path / "o/x.npy"), x, strict=True)


def test_npy_in_the_order_of_this_machine(tmp_path, cli):
    """Of a checkpoint from a big-endian machine, and of columns in an npz."""
    w = tiny.weights()
    assert cli("inspect", "-m", bundles.write(tmp_path / "x", w, ">"), "--npy", tmp_path / "o", "wpe").status == 0
    columns = np.asfortranarray(w["model/wpe"])
    np.savez(tmp_path / "x.npz", columns=columns, turned=columns.astype(">f4"))
    assert cli("inspect", "-m", tmp_path / "x.npz", "--npy", tmp_path / "o").status == 0
    for name in ("wpe", "columns", "turned"):
        x = np.load(tmp_path / f"o/{name}.npy")
        assert (x.dtype.byteorder, x.flags.c_contiguous) == ("=", True)
        np.testing.assert_array_equal(x, w["model/wpe"], strict=True)


def test_several_pieces(tmp_path, cli):
    x = np.random.default_rng(0).integers(0, 99, (3, 700_001)).astype("u1")
    np.savez(tmp_path / "x.npz", x=x, turned=np.asfortranarray(x))
    assert cli("inspect", "-m", tmp_path / "x.npz", "--npy", tmp_path / "o").status == 0
    for name in ("x", "turned"):
        np.testing.assert_array_equal(np.load(tmp_path / f"o/{name}.npy"), x, strict=True)


def test_nothing_is_overwritten(model, tmp_path, cli):  # noqa: F811
    out = tmp_path / "o"
    assert cli("inspect", "-m", model, "--npy", out, "wpe").status == 0
    (out / "wpe.npy").write_text("mine")
    refused(cli("inspect", "-m", model, "--npy", out, "w?e"), 2, f"{out}/wpe.npy: exists; --force overwrites it")
    assert (out / "wpe.npy").read_text() == "mine"
    assert not (out / "wte.npy").exists()  # not even begun
    (out / "wte.npy.part").write_text("of a run that was killed")
    refused(cli("inspect", "-m", model, "--npy", out, "wte"), 2, f"{out}/wte.npy.part: exists; --force overwrites it")
    assert cli("inspect", "-m", model, "--npy", out, "w?e", "--force").status == 0
    np.testing.assert_array_equal(np.load(out / "wpe.npy"), tiny.weights()["model/wpe"])


@pytest.mark.parametrize(
    ("called", "words"),
    [
        (["../x"], "'../x' is no name for a file"),
        (["a/../../x"], "'a/../../x' is no name for a file"),
        (["/etc/x"], "'/etc/x' is no name for a file"),
        (["a//b"], "'a//b' is no name for a file"),
        (["a/./b"], "'a/./b' is no name for a file"),
        (["a/"], "'a/' is no name for a file"),
        (["model/"], "'model/' is no name for a file"),
        (["model//x"], "'model//x' is no name for a file"),
        (["x\0y"], "is no name for a file"),
        (["x" * 300], "is no name for a file"),
        (["模" * 84], "is no name for a file"),
        (["x" * 247], "is no name for a file"),
        (["model/a", "a"], "a and model/a lead to one file"),
        (["a", "a.npy/b"], "a is a file and a folder"),
        ([f"../{i}" for i in range(7)], "'../4' is no name for a file, and 2 more; choose others with a glob"),
    ],
)
def test_names_that_lead_elsewhere(called, words, tmp_path, cli):
    """Refused, all at once, before the folder is made."""
    w = {name: np.ones(1, "f4") for name in called}
    safetensors.numpy.save_file(w, tmp_path / "x.safetensors")
    out = tmp_path / "deep" / "o"
    out.parent.mkdir()
    refused(cli("inspect", "-m", tmp_path / "x.safetensors", "--npy", out), 2, "--npy: ", words)
    assert list(out.parent.iterdir()) == []


def test_odd_names_that_are_names(tmp_path, cli):
    w = {
        name: np.full(1, i, "f4")
        for i, name in enumerate(["模型 x", "...", "a\\b", "-rf", "x*?[1]", "模" * 80, "x" * 246])
    }
    safetensors.numpy.save_file(w, tmp_path / "x.safetensors")
    assert cli("inspect", "-m", tmp_path / "x.safetensors", "--npy", tmp_path / "o ü").status == 0
    for name, x in w.items():
        np.testing.assert_array_equal(np.load(tmp_path / "o ü" / f"{name}.npy"), x)


def test_folders_that_are_none(model, tmp_path, cli):  # noqa: F811
    (tmp_path / "file").write_text("mine")
    ask = ("inspect", "-m", model, "h0/ln_1/g", "--npy")
    refused(cli(*ask, tmp_path / "file"), 2, f"{tmp_path}/file: is a file, expected a folder for --npy")
    refused(cli(*ask, tmp_path / "no" / "o"), 3, f"{tmp_path}/no: no such folder, make it first; it is to hold o")
    refused(cli(*ask, ""), 2, "--npy: empty, expected a folder")
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "h0").write_text("mine")
    refused(cli(*ask, tmp_path / "o"), 7, f"{tmp_path}/o/h0")


def test_damage_writes_nothing(model, tmp_path, cli):  # noqa: F811
    data = bytearray((model / DATA).read_bytes())
    data[-1] ^= 1
    (model / DATA).write_bytes(data)
    refused(cli("inspect", "-m", model, "--npy", tmp_path / "o"), 4, "damaged: model/wte (CRC32C is 0x")
    assert not (tmp_path / "o").exists()
    (model / DATA).unlink()
    refused(
        cli("inspect", "-m", model, "--npy", tmp_path / "o", "wpe"), 3, "no such file", "as does --npy; the list alone"
    )


def test_a_disk_that_fills_up(model, tmp_path, cli, monkeypatch):  # noqa: F811
    """It names the file; what is whole stays, of the other nothing does."""

    def full(tensors, entry, file):
        file.write(b"half")
        if entry.name == "model/wte":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("gpt2ln.commands.variables._write", full)
    out = tmp_path / "o"
    refused(cli("inspect", "-m", model, "--npy", out, "w?e"), 7, f"{out}/wte.npy: No space left on device")
    assert [path.name for path in out.iterdir()] == ["wpe.npy"]


def test_no_room(model, tmp_path, cli, monkeypatch):  # noqa: F811
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    refused(cli("inspect", "-m", model, "--npy", tmp_path / "o"), 7, "no space: 15872 bytes needed, 1000 free; choose")
    assert not (tmp_path / "o").exists()


# --- memory -------------------------------------------------------------------------------------------------------

PEAK = """
import sys, resource
from gpt2ln import commands
assert commands.main(sys.argv[1:]) == 0
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


def peak(*argv) -> int:
    """Bytes at most, of a process of its own."""
    run = subprocess.run([sys.executable, "-c", PEAK, *map(str, argv)], capture_output=True, cwd=ROOT, check=True)
    return 1024 * int(run.stderr.split()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("flags", [["--stats"], ["--npy", "o", "--force"]])
def test_memory_is_that_of_one_tensor(flags, tmp_path):
    """Two of 60 MB: less than 1.2 of one above what a small one takes."""
    big = np.ones((2, 15_000_000), "f4")
    prefix = bundles.write(tmp_path / "big", {"a": big[0], "b": big[1]})
    small = bundles.write(tmp_path / "small", {"a": big[0][:9]})
    flags = [tmp_path / "o" if flag == "o" else flag for flag in flags]
    above = peak("-m", prefix, "inspect", *flags) - peak("-m", small, "inspect", *flags)
    assert -10e6 < above < 1.2 * 60e6
