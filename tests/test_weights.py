"""Is it a GPT-2, do its five numbers fit: every contradiction with both sides, all at once, none repaired."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import gpt2ln
from gpt2ln.checkpoint import Bundle, Entry, read_index
from gpt2ln.commands import options
from gpt2ln.errors import Damaged, NotFound
from gpt2ln.runtime import tf
from gpt2ln.spec import HPARAM_NAMES, RELEASED, HParams, variables
from gpt2ln.weights import MOST, check, read_hparams, shown_by

from . import bundles, tiny
from .refusals import done, refused
from .test_checkpoint import OFFICIAL, needs

ONE = ("generate", "abc", "--length", 1)
TINY = HParams(n_vocab=260, n_ctx=16, n_embd=8, n_head=2, n_layer=2)


def entries_of(hparams: HParams) -> dict[str, Entry]:
    """What an index of such a model holds."""
    entries, at = {}, 0
    for name, shape in sorted(variables(hparams).items()):
        size = 4 * int(np.prod(shape))
        entries[name] = Entry(name, "float32", shape, 0, at, size, 0)
        at += size
    return entries


def judged(tmp_path, entries: dict[str, Entry], hparams: HParams, size: int | None = None):
    """`check` of these entries over a data file that is all holes."""
    bundle = Bundle(tmp_path / "x", 1, "<", entries)
    needed = max((e.offset + e.size for e in entries.values()), default=0)
    with bundle.shard_path().open("wb") as file:
        file.truncate(needed if size is None else size)
    return check(bundle, hparams)


@pytest.fixture
def model(T, tmp_path) -> Path:
    """T, to be changed."""
    return Path(shutil.copytree(T, tmp_path / "tiny"))


def rewrite(folder: Path, **change) -> None:
    path = folder / "hparams.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


# --- golden -------------------------------------------------------------------------------------------------------


def test_the_official_124M():
    """Its index and its hyperparameters fit: nothing to say but that the data is not there."""
    needs(OFFICIAL / "model.ckpt.index", OFFICIAL / "hparams.json")
    hparams, notes = read_hparams(OFFICIAL / "hparams.json")
    assert (hparams, notes) == (RELEASED["124M"], [])
    bundle = read_index(OFFICIAL / "model.ckpt")
    assert shown_by(bundle.entries) == {"n_layer": 12, "n_vocab": 50257, "n_embd": 768, "n_ctx": 1024}
    with pytest.raises(NotFound, match=r"model.ckpt.data-00000-of-00001: no such file"):
        check(bundle, hparams)


@pytest.mark.parametrize("name", RELEASED)
def test_the_released_models(tmp_path, name):
    """Number of variables and of values as published; no problem, no note."""
    hparams = RELEASED[name]
    entries = entries_of(hparams)
    values = {"124M": 124439808, "355M": 354823168, "774M": 774030080, "1558M": 1557611200}[name]
    assert (len(entries), sum(e.size for e in entries.values())) == (12 * hparams.n_layer + 4, 4 * values)
    findings = judged(tmp_path, entries, hparams)
    assert (findings.problems, findings.notes, findings.extra) == ([], [], [])


def test_the_made_up_checkpoint(T):
    assert read_hparams(T / "hparams.json") == (TINY, [])
    assert shown_by(read_index(T / "model.ckpt").entries) == {k: v for k, v in TINY.as_dict().items() if k != "n_head"}
    model = gpt2ln.load(T)
    assert (model.hparams, model.notes) == (TINY, [])


@given(st.builds(HParams, st.integers(1, 99), st.integers(1, 99), st.integers(1, 9), st.just(1), st.integers(1, 12)))
def test_shapes_show_all_but_the_heads(hparams):
    assert shown_by(entries_of(hparams)) | {"n_head": 1} == hparams.as_dict()


NEXT = "; each file is looked at by: gpt2ln verify"


# --- V13: hparams.json --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"n_layer": 1}, "n_layer 1, but the checkpoint has h0..h1"),
        ({"n_layer": 3}, "n_layer 3, but the checkpoint has h0..h1"),
        ({"n_layer": 4096}, "n_layer 4096, but the checkpoint has h0..h1"),
        ({"n_ctx": 15}, "n_ctx 15, but model/wpe is [16, 8]"),
        ({"n_ctx": 17}, "n_ctx 17, but model/wpe is [16, 8]"),
        ({"n_vocab": 259}, "n_vocab 259, but model/wte is [260, 8]"),
        ({"n_vocab": 261}, "n_vocab 261, but model/wte is [260, 8]"),
        ({"n_embd": 10}, "n_embd 10, but model/wte is [260, 8]"),
        ({"n_head": 3}, "n_head 3 does not divide n_embd 8"),
        ({"n_head": 16}, "n_head 16 does not divide n_embd 8"),
    ],
)
def test_a_number_that_does_not_fit(model, cli, change, text):
    """Both numbers, and nothing else: one wrong number is one problem."""
    rewrite(model, **change)
    error = refused(cli(*ONE, "-m", model), 4)
    assert error == f"error: {model}/model.ckpt: {text}{NEXT} {model}"
    with pytest.raises(Damaged, match=re.escape(text)):
        gpt2ln.load(model)
    assert done(cli("inspect", "-m", model)).count("\n") == 29  # without hparams.json


@pytest.mark.parametrize(
    ("key", "value", "most"), [("n_layer", 4097, 4096), ("n_layer", 10**12, 4096), ("n_ctx", 2**31, 2**31 - 1)]
)
def test_a_number_that_no_model_has(model, cli, key, value, most):
    """A list of so many names would never end."""
    rewrite(model, **{key: value})
    for argv in (ONE, ["taps"], ["tokenize", "a"]):
        refused(cli(*argv, "-m", model), 4, f"hparams.json: {key} is {value}, expected at most {most}")


def test_a_pipe_in_place_of_a_file(model, cli):
    """It would never end."""
    for name, argv in (
        ("hparams.json", ["taps"]),
        ("encoder.json", ["tokenize", "a"]),
        ("vocab.bpe", ["tokenize", "a"]),
    ):
        (model / name).rename(model / "kept")
        os.mkfifo(model / name)
        refused(cli(*argv, "-m", model), 4, f"{model / name}: a device or pipe, expected a file")
        (model / "kept").replace(model / name)


@pytest.mark.parametrize("argv", [ONE, ["taps"], ["tokenize", "a"], ["ln-stats", "abc"], ["inspect"]])
def test_the_next_command_is_named(T, tmp_path, cli, argv):
    """For a released model what fetches it, for others what looks at each file."""
    for name, command in (("124M", "gpt2ln download 124M --force"), ("mine", f"gpt2ln verify {tmp_path}/mine")):
        folder = tmp_path / name
        shutil.copytree(T, folder)
        for damaged in ("encoder.json", "model.ckpt.index", "hparams.json"):
            (folder / damaged).write_bytes((T / damaged).read_bytes()[:40])
        refused(cli(*argv, "-m", folder), 4, command)


def test_taps_are_not_listed_of_contradictions(model, cli):
    rewrite(model, n_layer=1)
    refused(cli("taps", "-m", model), 4, "n_layer 1, but the checkpoint has h0..h1", "gpt2ln verify")
    (model / "model.ckpt.index").unlink()
    done(cli("taps", "-m", model))  # no weights are needed


def test_several_numbers_at_once(model, cli):
    rewrite(model, n_layer=1, n_ctx=17, n_vocab=1, n_head=3)
    words = ["n_layer 1,", "n_ctx 17,", "n_vocab 1,", "n_head 3 does not divide n_embd 8"]
    assert refused(cli(*ONE, "-m", model), 4, *words).count(";") == 4


def test_another_number_of_heads_that_divides(model, cli):
    """It cannot be seen in the shapes: no problem, and no warning for a model that was never released."""
    rewrite(model, n_head=4)
    ran = cli(*ONE, "-m", model, "--greedy")
    assert done(ran)
    assert "n_head" not in ran.err


@pytest.mark.parametrize(("name", "n_head"), [("355M", 32), ("355M", 8), ("124M", 16), ("1558M", 20), ("774M", 1)])
def test_an_official_shape_with_another_number_of_heads(tmp_path, name, n_head):
    hparams = replace(RELEASED[name], n_head=n_head)
    findings = judged(tmp_path, entries_of(hparams), hparams)
    assert findings.problems == []
    assert findings.notes == [f"warning: n_head {n_head}, the official {name} has {RELEASED[name].n_head}"]


def test_an_official_shape_with_heads_that_do_not_divide(tmp_path):
    hparams = replace(RELEASED["355M"], n_head=24)
    findings = judged(tmp_path, entries_of(hparams), hparams)
    assert findings.problems == ["n_head 24 does not divide n_embd 1024"]
    assert findings.notes == ["warning: n_head 24, the official 355M has 16"]


def test_the_warning_about_heads_reaches_the_user(T, tmp_path, cli):
    """124M in its official shape, all holes; only its opening is tried."""
    folder, hparams = tmp_path / "124M", replace(RELEASED["124M"], n_head=6)
    shutil.copytree(T, folder)
    entries = entries_of(hparams)
    (folder / "model.ckpt.index").write_bytes(bundles.index(list(entries.values())))
    os.truncate(folder / "model.ckpt.data-00000-of-00001", 497759232)
    rewrite(folder, **hparams.as_dict())
    assert gpt2ln.load(folder).notes == ["warning: n_head 6, the official 124M has 12"]
    ran = cli(*ONE, "-m", folder)
    assert "warning: n_head 6, the official 124M has 12" in ran.err.splitlines()
    refused(ran, 4, "encoder.json has 260 entries, hparams.json says n_vocab 50257")


GOOD = '{"n_vocab": 260, "n_ctx": 16, "n_embd": 8, "n_head": 2, "n_layer": 2}'
NUMBER = "expected a positive whole number"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["hparams.json: line 1 column 1: Expecting value"]),
        ("   \n ", ["line 2 column 2"]),
        (GOOD.replace("}", ",}"), ["line 1 column"]),
        ('{\n "n_vocab": 260,\n "n_ctx": 16 "n_embd": 8}', ["line 3 column 14", "','"]),
        (GOOD[:30], ["line 1 column"]),
        ("<html><body>404</body></html>", ["line 1 column 1"]),
        (b"\xff\xfe{}", ["not UTF-8 at byte 0"]),
        (b'{"n_vocab": 260, "\xe9": 1}', ["not UTF-8 at byte 18"]),
        (b"\xef\xbb\xbf" + GOOD.encode(), ["line 1 column 1", "BOM"]),
        ("[]", ["a list, expected an object with n_vocab, n_ctx, n_embd, n_head, n_layer"]),
        ("3", ["a int, expected an object"]),
        ("null", ["a NoneType, expected an object"]),
        ("NaN", ["a float, expected an object"]),
        ("{}", [f"{name} is missing" for name in HPARAM_NAMES]),
        (GOOD.replace('"n_head": 2, ', ""), ["n_head is missing"]),
        (GOOD.replace("260", "0"), ["n_vocab is 0", NUMBER]),
        (GOOD.replace("260", "-260"), ["n_vocab is -260", NUMBER]),
        (GOOD.replace("260", "260.0"), ["n_vocab is 260.0", NUMBER]),
        (GOOD.replace("260", "true"), ["n_vocab is true", NUMBER]),
        (GOOD.replace("260", '"260"'), ['n_vocab is "260"', NUMBER]),
        (GOOD.replace("260", "null"), ["n_vocab is null", NUMBER]),
        (GOOD.replace("260", "[260]"), ["n_vocab is [260]", NUMBER]),
        (GOOD.replace("260", "NaN"), ["n_vocab is NaN", NUMBER]),
        (GOOD.replace("260", "1e999"), ["n_vocab is Infinity", NUMBER]),
        (GOOD.replace("260", "9" * 5000), ["4300"]),
        (GOOD.replace("260", "[" * 100000), ["recursion"]),
        (GOOD.replace("}", ', "n_head": 4}'), ["n_head given more than once"]),
        ('{"n_vocab": 0, "n_ctx": 1.5, "n_embd": null}',
         ["n_head is missing", "n_layer is missing", "n_vocab is 0", "n_ctx is 1.5", "n_embd is null"]),
        (json.dumps(dict.fromkeys(HPARAM_NAMES, 0)), [f"{n} is 0, {NUMBER}" for n in HPARAM_NAMES]),
    ],
)  # fmt: skip
def test_hparams_of_every_bad_kind(model, cli, text, words):
    """Exit 4 with the place and what is wrong, all of it; `inspect` works without."""
    (model / "hparams.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(cli(*ONE, "-m", model), 4, f"{model}/hparams.json: ", *words)
    assert done(cli("inspect", "-m", model)).count("\n") == 29


def test_hparams_missing(model, cli):
    (model / "hparams.json").unlink()
    refused(cli(*ONE, "-m", model), 3, f"{model}: hparams.json missing")
    with pytest.raises(NotFound, match=r"hparams.json: no such file; it holds n_vocab, n_ctx"):
        read_hparams(model / "hparams.json")
    assert done(cli("inspect", "-m", model)).count("\n") == 29


def test_an_unknown_key_is_a_note(model, cli):
    right = done(cli(*ONE, "-m", model, "--greedy"))
    rewrite(model, n_inner=None, res_dropout=0.1)
    ran = cli(*ONE, "-m", model, "--greedy")
    assert done(ran) == right
    for key in ("n_inner", "res_dropout"):
        assert f"note: hparams.json: unknown key {key} ignored\n" in ran.err


@example(2**31 - 1)
@example(2**31)
@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5), st.lists, max_leaves=4)
)
def test_only_positive_whole_numbers(tmp_path_factory, value):
    path = tmp_path_factory.getbasetemp() / "hparams.json"
    path.write_text(json.dumps(TINY.as_dict() | {"n_head": value}))
    if type(value) is int and 0 < value <= MOST["n_head"]:
        assert read_hparams(path) == (replace(TINY, n_head=value), [])
    else:
        with pytest.raises(Damaged, match="n_head is "):
            read_hparams(path)


# --- V12: names ---------------------------------------------------------------------------------------------------


def extras(w) -> None:
    w["global_step"], w["beta1_power"] = np.int64(7), np.float32(0.9)
    w["model/ln_f/g/Adam"], w["note"] = np.zeros(8, "f4"), np.array(b"saved by hand")


def test_other_variables_are_ignored_and_said(T, tmp_path, cli):
    """Four, of which one is a string: the text is the same, `inspect` lists them with their dtypes."""
    folder = tiny.tiny(tmp_path / "x", extras)
    ran = cli(*ONE, "-m", folder, "--greedy")
    assert done(ran) == done(cli(*ONE, "-m", T, "--greedy"))
    assert "note: ignored 4 other variables: beta1_power, global_step, model/ln_f/g/Adam, note\n" in ran.err
    listed = {r["name"]: r["dtype"] for r in map(json.loads, done(cli("inspect", "-m", folder, "--json")).splitlines())}
    assert len(listed) == 32
    found = [listed[k] for k in ("global_step", "beta1_power", "model/ln_f/g/Adam", "note")]
    assert found == ["int64", "float32", "float32", "string"]
    done(cli("inspect", "-m", folder, "--stats"))  # the sum of a string is not that of its bytes


def test_missing_variables(tmp_path, cli):
    folder = tiny.tiny(tmp_path / "x", lambda w: w.pop("model/h1/ln_2/g"))
    error = refused(cli(*ONE, "-m", folder), 4)
    assert error == f"error: {folder}/model.ckpt: 1 of 28 variables missing: model/h1/ln_2/g{NEXT} {folder}"
    assert done(cli("inspect", "-m", folder)).count("\n") == 28


def test_many_missing_variables(tmp_path):
    """The first five, then a count."""
    entries = {k: e for k, e in entries_of(TINY).items() if not k.startswith("model/h0/")}
    (problem,) = judged(tmp_path, entries, TINY).problems
    assert problem.startswith("12 of 28 variables missing: model/h0/ln_1/g, ")
    assert problem.endswith(", and 7 more")
    assert problem.count("model/h0/") == 5


@pytest.mark.parametrize("gone", ["model/wte", "model/wpe", "model/ln_f/b"])
def test_one_of_the_ends_is_missing(tmp_path, gone):
    entries = {k: e for k, e in entries_of(TINY).items() if k != gone}
    assert judged(tmp_path, entries, TINY).problems == [f"1 of 28 variables missing: {gone}"]


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        ({"shape": (8, 24)}, "model/h0/attn/c_attn/w is [8, 24], expected [1, 8, 24]"),
        ({"shape": (1, 24, 8)}, "model/h0/attn/c_attn/w is [1, 24, 8], expected [1, 8, 24]"),
        ({"dtype": "float16"}, "model/h0/attn/c_attn/w is float16, expected float32"),
        ({"dtype": "bfloat16"}, "model/h0/attn/c_attn/w is bfloat16, expected float32"),
        ({"sliced": True}, "model/h0/attn/c_attn/w is stored in slices (a partitioned variable), expected whole"),
    ],
)
def test_a_variable_of_another_kind(tmp_path, edit, text):
    entries = entries_of(TINY)
    name = "model/h0/attn/c_attn/w"
    entries[name] = replace(entries[name], **edit)
    assert judged(tmp_path, entries, TINY).problems == [text]


def test_wte_and_wpe_of_different_widths(tmp_path):
    """wte is believed, and the other is named with what it is."""
    entries = entries_of(TINY)
    entries["model/wpe"] = replace(entries["model/wpe"], shape=(16, 10))
    assert judged(tmp_path, entries, TINY).problems == ["model/wpe is [16, 10], expected [16, 8]"]


def test_all_problems_of_a_folder_at_once(tmp_path):
    entries = entries_of(TINY)
    del entries["model/h1/ln_2/g"]
    entries["model/ln_f/b"] = replace(entries["model/ln_f/b"], shape=(9,))
    entries["model/h1/mlp/c_fc/b"] = replace(entries["model/h1/mlp/c_fc/b"], dtype="float64")
    findings = judged(tmp_path, entries, replace(TINY, n_head=3, n_ctx=17), size=7936)
    assert findings.problems == [
        "n_ctx 17, but model/wpe is [16, 8]",
        "n_head 3 does not divide n_embd 8",
        "1 of 28 variables missing: model/h1/ln_2/g",
        "model/h1/mlp/c_fc/b is float64, expected float32",
        "model/ln_f/b is [9], expected [8]",
        "x.data-00000-of-00001 has 7936 bytes, the index needs 15872 (50.0 %)",
    ]


def test_the_first_five_problems_then_a_count(model, cli):
    """As a user sees them."""
    rewrite(model, n_layer=1, n_ctx=17, n_vocab=1, n_embd=10, n_head=3)
    os.truncate(model / "model.ckpt.data-00000-of-00001", 1)
    error = refused(cli(*ONE, "-m", model), 4, "n_head 3 does not divide n_embd 10", "; and 1 more")
    assert "the index needs" not in error


@pytest.mark.parametrize("where", ["index", "hparams"])
def test_no_end_of_layers(tmp_path, where):
    """A number of layers that no file can hold is refused before its names are listed."""
    hparams = TINY
    entries = entries_of(TINY)
    if where == "index":
        entries["model/h999999999999/x"] = Entry("model/h999999999999/x", "float32", (), 0, 0, 4, 0)
    else:
        entries = {k: e for k, e in entries.items() if "/h" not in k}
        hparams = replace(TINY, n_layer=10**12)
    problems = judged(tmp_path, entries, hparams).problems
    assert problems[-1] == f"{10**12} layers, but the checkpoint has {len(entries)} variables"


@pytest.mark.parametrize(
    ("scope", "text"),
    [("newslm/", "no variable under model/, but newslm/wte: the scope was renamed; expected model/wte"),
     ("a/model/", "no variable under model/, but a/model/wte: the scope was renamed"),
     ("", "no variable under model/, but wte: the scope was renamed"),
     ("MODEL/", "no variable under model/, but MODEL/wte: the scope was renamed")],
)  # fmt: skip
def test_a_renamed_scope(tmp_path, cli, scope, text):
    def rename(w):
        for name in list(w):
            w[name.replace("model/", scope, 1)] = w.pop(name)

    folder = tiny.tiny(tmp_path / "x", rename)
    refused(cli(*ONE, "-m", folder), 4, f"{folder}/model.ckpt: {text}")
    assert done(cli("inspect", "-m", folder)).count("\n") == 29


def test_an_object_checkpoint(model, cli):
    """Of `tf.train.Checkpoint`, whatever its names: which kind it is, and how to save it instead."""
    module = tf.Module()
    module.wte = tf.Variable([[1.0]])
    for names in ({"model": module}, {"other": module}):
        for path in model.glob("model.ckpt*"):
            path.unlink()
        tf.train.Checkpoint(**names).write(str(model / "model.ckpt"))
        words = (
            "an object checkpoint (tf.train.Checkpoint)",
            "expected name-based variables such as model/wte",
            "SaveV2",
        )
        refused(cli(*ONE, "-m", model), 4, *words)
        shown = done(cli("inspect", "-m", model))
        assert "wte/.ATTRIBUTES/VARIABLE_VALUE" in shown
        assert "_CHECKPOINTABLE_OBJECT_GRAPH" in shown


def test_something_else_entirely(model, cli):
    tiny.save(model / "model.ckpt", {"conv/kernel": np.zeros(3, "f4"), "step": np.int64(1)})
    refused(cli(*ONE, "-m", model), 4, "not a GPT-2: none of its 2 variables is under model/ (first: conv/kernel)")


# --- V18: memory and devices --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "text"),
    [("gpu:9", "this machine has 0 GPUs that TensorFlow sees; choose cpu"), ("tpu", "expected cpu or gpu:N"),
     ("gpu:x", "expected cpu or gpu:N"), ("cuda:0", "expected cpu or gpu:N")],
)  # fmt: skip
def test_a_device_that_is_not_there(T, cli, device, text):
    if device == "gpu:9" and tf.config.list_physical_devices("GPU"):
        text = "GPUs that TensorFlow sees; choose cpu"
    refused(cli(*ONE, "-m", T, "--device", device), 2, f"--device {device}: ", text)


def test_more_memory_than_is_free(T, cli, monkeypatch):
    """Need, free and the smaller setting: 15,872 bytes of weights, 128 a position of each sequence."""
    assert gpt2ln.load(T).bytes_needed(20000, 4) == 15872 + 20000 * 4 * 128
    monkeypatch.setattr(options, "_available", lambda: 10**6)
    ran = cli(*ONE, "-m", T, "--seed", 1, "--nsamples", 20000, "--batch-size", 20000)
    refused(ran, 5, "about 10 MB needed", "20000 caches of 4 positions, 1 MB free; a smaller --batch-size takes less")


def test_just_enough_memory(T, cli, monkeypatch):
    need = 15872 + 2 * 4 * 128
    argv = (*ONE, "-m", T, "--greedy", "--nsamples", 2, "--batch-size", 2)
    monkeypatch.setattr(options, "_available", lambda: need - 1)
    refused(cli(*argv), 5, "MB needed")
    monkeypatch.setattr(options, "_available", lambda: need)
    ran = cli(*argv, "-v")
    assert done(ran)
    assert "memory: about 0 MB for weights and 2 caches of 4 positions\n" in ran.err


MEASURED = "import resource, subprocess, sys\nran = subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL)\n"
MEASURED += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)\nsys.exit(ran.returncode)"


def peak(folder: Path) -> int:
    """Bytes at most held by a process that generates one token."""
    argv = [sys.executable, "-m", "gpt2ln", "generate", "--ids", "64", "--length", "1", "--greedy", "-m", str(folder)]
    ran = subprocess.run(
        [sys.executable, "-c", MEASURED, *argv], capture_output=True, text=True, timeout=120, check=True
    )
    return int(ran.stderr.splitlines()[-1]) * 1024


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs ru_maxrss in kB, as on Linux")
def test_weights_are_held_once(T, tmp_path):
    """Peak memory over that of T: the weights once, at most 1.3 times."""
    folder = Path(shutil.copytree(T, tmp_path / "large"))
    hparams = replace(TINY, n_embd=1024, n_head=8, n_layer=8)
    bundles.write(folder / "model.ckpt", {k: np.zeros(shape, "f4") for k, shape in variables(hparams).items()})
    rewrite(folder, **hparams.as_dict())
    size = (folder / "model.ckpt.data-00000-of-00001").stat().st_size
    assert size > 400e6
    assert 0.9 * size < peak(folder) - peak(T) < 1.3 * size
