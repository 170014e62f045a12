"""`diff`: names, shapes and sums of any two files of weights, told apart without their data where that can be."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from gpt2ln.spec import variables

from . import bundles, tiny
from .conftest import ROOT, Ran
from .refusals import done, refused
from .test_export import stored
from .test_hf import TINY


def equal(ran: Ran, count: int = 28) -> None:
    assert (ran.status, ran.out) == (0, ""), ran
    assert ran.err.splitlines()[-1] == f"{count} variables, all equal"


def differing(ran: Ran, of: int = 28) -> dict[str, str]:
    """-> name: how, from the table; the error names the first five."""
    assert ran.status == 1, ran
    head, *rows = ran.out.split("\n\n")[0].splitlines()
    assert head.split()[:2] == ["variable", "how"]
    found = dict(row.split(maxsplit=1) for row in rows)
    errors = [line for line in ran.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert errors[0].startswith(f"error: {len(found)} of {of} variables differ: {next(iter(found))}: ")
    assert errors[0].count(": ") == 2 + min(5, len(found))
    return found


def edit_hf(hf: Path, edit, name: str = "model.safetensors") -> Path:
    w = load_file(hf / "model.safetensors")
    edit(w)
    save_file({k: np.ascontiguousarray(v) for k, v in w.items()}, hf / name, {"format": "pt"})
    return hf / name


# from the indexes


def test_a_checkpoint_with_itself(cli, T):
    for other in (T, T / "model.ckpt", T / "model.ckpt.index", T / "checkpoint"):
        equal(cli("diff", T, other))
    equal(cli("diff", "demo", "demo"), 76)


def test_two_fine_tuned_ones_in_one_folder(cli, here):
    """What was trained on is listed, from the indexes alone: the data may be gone."""
    run = here / "run1"

    def edit(w):
        w["model/h1/mlp/c_fc/w"] += 1
        w["model/ln_f/b"] += 1
        w["model/wte"][3] = 0

    tiny.tiny(run, prefix="model-500")
    tiny.tiny(run, edit, prefix="model-1000")
    for path in run.glob("*.data-*"):
        path.unlink()
    found = differing(cli("diff", run / "model-500", run / "model-1000"))
    assert found == dict.fromkeys(["model/wte", "model/h1/mlp/c_fc/w", "model/ln_f/b"], "values")
    error = cli("diff", run / "model-500", run / "model-1000").err.splitlines()[-1]
    assert error == (
        "error: 3 of 28 variables differ: model/wte: values, model/h1/mlp/c_fc/w: values, model/ln_f/b: values;"
        " --values tells how far"
    )
    equal(cli("diff", run / "model-500", run / "model-500"))
    refused(
        cli("diff", run / "model-500", run / "model-1000", "--values"), 3, "model-500.data-00000-of-00001", "no such"
    )


def test_it_takes_milliseconds_and_no_numpy(T, here):
    tiny.tiny(here / "other", seed=7)
    code = "import sys, gpt2ln.commands as m; m.main(sys.argv[1:]); assert 'numpy' not in sys.modules, 'numpy'"
    command = [sys.executable, "-c", code, "diff", str(T), str(here / "other")]
    run = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "28 of 28 variables differ" in run.stderr


def test_names_shapes_and_dtypes(cli, T, here):
    """In the order of the forward pass, whatever the order of the files."""

    def edit(w):
        del w["model/h0/ln_1/g"]
        w["model/wpe"] = w["model/wpe"][:5]
        w["model/h1/attn/c_attn/b"] = w["model/h1/attn/c_attn/b"].astype("f8")
        w["global_step"] = np.int64(3)
        w["model/h10/x"] = np.zeros(2, "f4")

    other = tiny.tiny(here / "other", edit)
    right = {
        "model/wpe": "shape [16, 8] / [5, 8]",
        "model/h0/ln_1/g": "only in A",
        "model/h1/attn/c_attn/b": "dtype float32 / float64",
        "model/h10/x": "only in B",
        "global_step": "only in B",
    }
    found = differing(cli("diff", T, other), 30)
    assert list(found.items()) == list(right.items())
    found = differing(cli("diff", other, T), 30)
    assert found["model/h0/ln_1/g"] == "only in B"
    assert found["model/wpe"] == "shape [5, 8] / [16, 8]"


def test_only_an_axis_of_length_1_is_left_out(cli, here):
    np.savez("a.npz", **{"x/w": np.zeros((3, 4, 5), "f4"), "y/w": np.zeros((1, 4, 5), "f4"), "z/b": np.zeros((1, 4))})
    np.savez("b.npz", **{"x/w": np.zeros((4, 5), "f4"), "y/w": np.zeros((4, 5), "f4"), "z/b": np.zeros(4)})
    right = {"x/w": "shape [3, 4, 5] / [4, 5]", "z/b": "shape [1, 4] / [4]"}
    assert differing(cli("diff", "a.npz", "b.npz"), 3) == right
    np.savez("c.npz", **{"y/w": np.zeros((5, 4), "f2")})
    np.savez("d.npz", **{"y/w": np.zeros((4, 5), "f4")})
    assert differing(cli("diff", "c.npz", "d.npz", "--values"), 1) == {"y/w": "shape [5, 4] / [4, 5]"}


def test_json_lists_what_is_equal_too(cli, T, here):
    other = tiny.tiny(here / "other", lambda w: w["model/wpe"].fill(0))
    rows = [json.loads(line) for line in cli("diff", T, other, "--json").out.splitlines()]
    assert [row["name"] for row in rows] == list(variables_in_order())
    assert [row for row in rows if not row["equal"]] == [{"name": "model/wpe", "equal": False, "how": "values"}]
    assert rows[0] == {"name": "model/wte", "equal": True, "how": None}
    assert len(done(cli("diff", T, T, "--json")).splitlines()) == 28


def variables_in_order() -> list[str]:
    names = [name for name in variables(TINY) if not name.startswith(tuple(f"model/h{i}/" for i in range(2, 12)))]
    return sorted(names, key=lambda n: (n != "model/wte", n != "model/wpe", "ln_f" in n, n))


# transposed


def turned(w):
    for name in w:
        if name.endswith("/attn/c_proj/w"):
            w[name] = np.ascontiguousarray(w[name].transpose(0, 2, 1))


def test_square_matrices_that_lie_transposed(cli, T, here):
    other = tiny.tiny(here / "other", turned)
    ran = cli("diff", T, other)
    right = {f"model/h{i}/attn/c_proj/w": "equal after transpose" for i in (0, 1)}
    assert differing(ran) == right
    assert "model/h0/attn/c_proj/w: equal after transpose" in ran.err
    assert "--values tells" not in ran.err
    (other / "model.ckpt.data-00000-of-00001").unlink()
    assert differing(cli("diff", T, other)) == dict.fromkeys(right, "values")


def test_a_transposed_one_and_another_change(cli, T, here):
    """Then the data is read with --values alone."""

    def edit(w):
        turned(w)
        w["model/h1/attn/c_proj/w"][0, 0, 0] += 1
        w["model/wpe"] += 1

    other = tiny.tiny(here / "other", edit)
    names = ["model/wpe", "model/h0/attn/c_proj/w", "model/h1/attn/c_proj/w"]
    assert differing(cli("diff", T, other)) == dict.fromkeys(names, "values")
    found = differing(cli("diff", T, other, "--values"))
    assert [found[name].split("  ")[0] for name in names] == ["values", "equal after transpose", "values"]


def test_a_port_made_of_linear_layers(cli, T, hf):
    """[out, in] throughout, square or not."""

    def edit(w):
        for name in w:
            if ".c_" in name and name.endswith("weight"):
                w[name] = w[name].T

    found = differing(cli("diff", T, edit_hf(hf, edit, "linear.safetensors")))
    assert found == {name: "equal after transpose" for name in variables_in_order() if name.endswith("/w")}


def test_a_reversed_shape_is_no_transpose_of_other_values(cli, T, hf):
    def edit(w):
        w["h.0.mlp.c_fc.weight"] = w["h.0.mlp.c_fc.weight"].T + 1

    found = differing(cli("diff", T, edit_hf(hf, edit)))
    assert found == {"model/h0/mlp/c_fc/w": "shape [1, 8, 32] / [32, 8]"}


# other kinds of file


def test_whatever_the_kind_of_file(cli, T, hf, here):
    done(cli("-m", T, "export", "w.npz"))
    np.savez_compressed("odd.npz", **{k: np.asfortranarray(v.astype(">f4")) for k, v in stored(T).items()})
    bundles.write(here / "big" / "model.ckpt", stored(T), ">")
    np.savez("hf.npz", **load_file(hf / "model.safetensors"))
    files = [T, "hf", "hf/model.safetensors", "w.npz", "odd.npz", "hf.npz", "big/model.ckpt"]
    for a in files[:3]:
        for b in files:
            equal(cli("diff", a, b))
            equal(cli("diff", b, a))
    other = tiny.tiny(here / "other", lambda w: w["model/h0/ln_1/b"].__setitem__(5, -0.0))
    for a in files:
        assert differing(cli("diff", a, other)) == {"model/h0/ln_1/b": "values"}


def test_masks_and_the_second_copy_of_wte_are_no_variables(cli, T, hf):
    def tied(w):
        w |= {"lm_head.weight": w["wte.weight"], "h.0.attn.bias": np.ones((1, 1, 4, 4), "f4")}

    path = edit_hf(hf, tied, "tied.safetensors")
    ran = cli("diff", T, path)
    equal(ran)
    assert f"note: {path}: 1 masks and lm_head.weight, which is wte left out" in ran.err

    def own(w):
        w["lm_head.weight"] = w["wte.weight"] + 1

    path = edit_hf(hf, own, "own.safetensors")
    assert differing(cli("diff", T, path), 29) == {"lm_head.weight": "is not wte in B"}
    assert differing(cli("diff", path, T), 29) == {"lm_head.weight": "is not wte in A"}
    assert differing(cli("diff", path, path), 29) == {"lm_head.weight": "is not wte in A and B"}


def test_one_variable_under_two_names(cli, T, hf):
    path = edit_hf(hf, lambda w: w.__setitem__("transformer.wpe.weight", w["wpe.weight"]))
    refused(cli("diff", T, path), 4, "model/wpe twice, with and without transformer. in front")


def test_other_dtypes(cli, shell, T, hf, here):
    """float16 is another dtype; what numpy lacks is not compared, and that is said."""

    def half(w):
        for name in w:
            w[name] = w[name].astype("f2")

    found = differing(cli("diff", T, edit_hf(hf, half, "half.safetensors")))
    assert set(found.values()) == {"dtype float32 / float16"}
    header = {"wte.weight": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}
    header["lm_head.weight"] = {"dtype": "BF16", "shape": [2], "data_offsets": [4, 8]}
    text = json.dumps(header).encode()
    Path("b.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    ran = shell("diff", here / "b.safetensors", here / "b.safetensors", "--values")  # here TensorFlow has brought it
    ran = Ran(ran.returncode, ran.stdout.decode(), ran.stderr.decode())
    assert differing(ran, 1) == {"model/wte": "bfloat16, not compared"}
    assert "lm_head.weight (bfloat16, not compared) left out" in ran.err
    np.savez("s.npz", x=np.array(["a", "b"]), y=np.array([1 + 2j], "c16"), z=np.array([True]))
    assert differing(cli("diff", "s.npz", "s.npz", "--values"), 3) == {"x": "<U1, not compared"}


def test_slices_are_not_compared(cli, here):
    from .test_checkpoint import tiny_save

    w = tiny.weights()
    tiny_save(here / "s", {"a@0": w["model/wpe"][:8], "b": w["model/wte"]}, {"a@0": "16 8 0,8:0,8"})
    assert differing(cli("diff", "s", "s"), 2) == {"a": "stored in slices, not compared"}


# refusals


def test_damaged_data_is_found_when_it_is_read(cli, T, hf, here):
    folder = shutil.copytree(T, here / "m")
    data = bytearray((folder / "model.ckpt.data-00000-of-00001").read_bytes())
    data[100] ^= 1
    (folder / "model.ckpt.data-00000-of-00001").write_bytes(data)
    equal(cli("diff", T, folder))
    other = tiny.tiny(here / "other", lambda w: w["model/h0/attn/c_attn/w"].fill(1))
    refused(cli("diff", folder, other, "--values"), 4, "damaged: model/h0/attn/c_attn/w (CRC32C is ", "fetch")
    (folder / "model.ckpt.data-00000-of-00001").write_bytes(data[:-1])
    refused(cli("diff", other, folder, "--values"), 4, "15871 bytes, the index needs 15872")
    (hf / "model.safetensors").write_bytes((hf / "model.safetensors").read_bytes()[:-1])
    refused(cli("diff", T, hf), 4, "no whole safetensors file")


def test_arguments(cli, T, here):
    refused(cli("diff", T), 2, "Missing argument 'B'")
    refused(cli("diff"), 2, "Missing argument 'A'")
    refused(cli("diff", T, T, T), 2, "unexpected extra argument")
    refused(cli("diff", T, "nowhere"), 3, "model nowhere: no such name, folder or prefix")
    refused(cli("diff", "", T), 2, "model name: empty")
    Path("x.npz").write_bytes(b"PK")
    refused(cli("diff", T, "x.npz"), 4, "x.npz: no whole npz file")
