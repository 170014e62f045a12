"""The damaged-checkpoint table: faults that users of such tools have met, and what `verify` and `inspect` say of each.

One row a fault: what is done to a whole folder, exit status and words of `verify`, of `inspect`, of a command that
loads the weights.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gpt2ln.published import DATA, INDEX
from gpt2ln.runtime import tf

from . import tiny
from .findings import found_bad
from .refusals import done, refused

WTE, W = "model/wte", "model/h0/attn/c_attn/w"


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Path:
    """As T, with other weights."""
    return tiny.tiny(tmp_path_factory.mktemp("other") / "m", seed=7)


@pytest.fixture
def model(T, tmp_path) -> Path:
    """T, to be damaged."""
    return Path(shutil.copytree(T, tmp_path / "models" / "tiny"))


def cut(name: str, keep: int) -> Callable:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:keep])


def flip(name: str, at: int) -> Callable:
    def damage(folder: Path) -> None:
        raw = bytearray((folder / name).read_bytes())
        raw[at] ^= 1
        (folder / name).write_bytes(raw)

    return damage


def put(name: str, content: bytes) -> Callable:
    return lambda folder: (folder / name).write_bytes(content)


def gone(name: str) -> Callable:
    return lambda folder: (folder / name).unlink()


def hparams(**changed: object) -> Callable:
    def damage(folder: Path) -> None:
        record = json.loads((folder / "hparams.json").read_text()) | changed
        (folder / "hparams.json").write_text(json.dumps({k: v for k, v in record.items() if v is not None}))

    return damage


def saved(edit: Callable[[dict], object]) -> Callable:
    """The weights, edited, by TensorFlow's saver."""

    def damage(folder: Path) -> None:
        w = tiny.weights()
        tiny.save(folder / "model.ckpt", edit(w) or w)

    return damage


def objects(folder: Path) -> None:
    tf.train.Checkpoint(v=tf.Variable([1.0])).write(str(folder / "model.ckpt"))


XML = b"<?xml version='1.0'?><Error><Code>BlobNotFound</Code></Error>"
SHORT = f"{DATA} has {{}} bytes, the index needs 15872 ({{}} %)"
# damage, of verify: status, words; of inspect: status (None: 0), word; status of a command that loads the weights
TABLE = {
    "V08 data cut to half": (cut(DATA, 7936), 4, SHORT.format(7936, "50.0"), 4, SHORT.format(7936, "50.0"), 4),
    "V08 data cut by 1": (cut(DATA, 15871), 4, SHORT.format(15871, "99.9"), 4, SHORT.format(15871, "99.9"), 4),
    "V08 data cut to 0": (cut(DATA, 0), 4, SHORT.format(0, "0.0"), 4, SHORT.format(0, "0.0"), 4),
    "V08 data deleted": (gone(DATA), 3, f"missing: {DATA}: no such file", None, "", 3),
    "V08 index cut to half": (cut(INDEX, 460), 4, f"{INDEX}: not a checkpoint index", 4, "not a checkpoint index", 4),
    "V08 index emptied": (cut(INDEX, 0), 4, f"{INDEX}: 0 bytes, an index has at least 48", 4, "0 bytes", 4),
    "V08 index flipped": (flip(INDEX, 100), 4, f"{INDEX}: block at byte 0: CRC32C is 0x", 4, "block at byte 0", 4),
    "V08 index deleted": (gone(INDEX), 3, f"{INDEX}: no checkpoint; looked for checkpoint, *.index", 3, "", 3),
    "V09 a bit flipped": (flip(DATA, 100), 4, f"1 of 28 tensors damaged: {W} (CRC32C is 0x", None, "", 4),
    "V09 zeros": (put(DATA, bytes(15872)), 4, "28 of 28 tensors damaged: ", None, "", 4),
    "V12 a variable missing": (
        saved(lambda w: w.pop("model/h1/ln_2/g") is None), 4, "1 of 28 variables missing: model/h1/ln_2/g", None, "", 4
    ),
    "V12 the scope renamed": (
        saved(lambda w: {k.replace("model/", "newslm/"): v for k, v in w.items()}),
        4, "no variable under model/, but newslm/wte: the scope was renamed", None, "", 4,
    ),
    "V12 an object checkpoint": (objects, 4, "an object checkpoint (tf.train.Checkpoint)", None, "", 4),
    "V12 another dtype": (
        saved(lambda w: w.update({WTE: w[WTE].astype("f2")})), 4, "model/wte is float16, expected float32", None, "", 4
    ),
    "V13 n_layer": (hparams(n_layer=1), 4, "hparams.json: n_layer 1, but the checkpoint has h0..h1", None, "", 4),
    "V13 n_ctx": (hparams(n_ctx=17), 4, "hparams.json: n_ctx 17, but model/wpe is [16, 8]", None, "", 4),
    "V13 n_vocab": (hparams(n_vocab=259), 4, "n_vocab 259, but model/wte is [260, 8]", None, "", 4),
    "V13 n_embd": (hparams(n_embd=10), 4, "n_embd 10, but model/wte is [260, 8]", None, "", 4),
    "V13 n_head": (hparams(n_head=3), 4, "n_head 3 does not divide n_embd 8", None, "", 4),
    "V13 a key missing": (hparams(n_head=None), 4, "hparams.json: n_head is missing", None, "", 4),
    "V13 a text": (hparams(n_head="2"), 4, 'n_head is "2", expected a positive whole number', None, "", 4),
    "V13 missing": (gone("hparams.json"), 3, "hparams.json: no such file", None, "", 3),
    "V13 empty": (put("hparams.json", b""), 4, "hparams.json: line 1 column 1: ", None, "", 4),
    "V13 a comma too many": (put("hparams.json", b'{"n_ctx": 1,}'), 4, "hparams.json: line 1 column ", None, "", 4),
    "V17 encoder.json cut": (cut("encoder.json", 1600), 4, "encoder.json: line 1 column ", None, "", 4),
    "V17 encoder.json is a page": (put("encoder.json", XML), 4, "encoder.json: line 1 column 1: ", None, "", 4),
    "V17 a merge less": (cut("vocab.bpe", 22), 4, "vocab.bpe has 2 merges, encoder.json needs 3", None, "", 4),
    "V17 vocab.bpe missing": (gone("vocab.bpe"), 3, "vocab.bpe: no such file", None, "", 3),
    "V01 every file a page": (
        lambda folder: [put(path.name, XML)(folder) for path in folder.iterdir()],
        4, "5 of 6 files damaged: hparams.json: ", 4, "not a checkpoint index", 4,
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", TABLE)
def test_what_is_said(fault, model, cli):
    damage, status, words, inspected, of_inspect, loaded = TABLE[fault]
    damage(model)
    found_bad(cli("verify", model), status, words)
    if inspected is None:
        done(cli("inspect", "-m", model))
    else:
        refused(cli("inspect", "-m", model), inspected, of_inspect)
    refused(cli("generate", "-m", model, "abc", "--length", 1), loaded)


@pytest.mark.parametrize("fault", TABLE)
def test_fast_sees_all_but_damaged_values(fault, model, cli):
    damage, status, words, *_ = TABLE[fault]
    damage(model)
    if fault.startswith("V09"):
        done(cli("verify", model, "--fast"))
    else:
        found_bad(cli("verify", model, "--fast"), status, words)


def lines_of(out: str) -> dict[str, str]:
    return {line.split()[0]: line for line in out.splitlines()[1:]}


def test_bytes_appended(model, cli):
    """V08: the surplus is told; the values are what they were."""
    put(DATA, (model / DATA).read_bytes() + b"surplus")(model)
    told = f"{DATA} has 7 bytes more than the index needs (15872)"
    assert told in done(cli("verify", model))
    ran = cli("inspect", "-m", model)
    assert (done(ran).count("\n"), f"warning: {told}" in ran.err) == (29, True)


def test_what_is_cut_short_is_checked_as_far_as_it_goes(model, cli):
    flip(DATA, 100)(model)
    cut(DATA, 7936)(model)
    found_bad(cli("verify", model), 4, SHORT.format(7936, "50.0") + "; 1 of ", f" tensors damaged: {W} (CRC32C is 0x")


def test_data_of_another_model(model, other, cli):
    """V09: all sums are wrong; with its own index it is another model, and sound; pinned, it is found out."""
    done(cli("verify", model, "--pin"))
    shutil.copy(other / DATA, model)
    found_bad(cli("verify", model), 4, "28 of 28 tensors damaged: ")
    shutil.copy(other / INDEX, model)
    found_bad(cli("verify", model), 1, f"2 of 6 files different: {INDEX}: sha256 is ", ", pinned ")
    (model / "gpt2ln.json").unlink()
    done(cli("verify", model))


def test_every_member_of_the_trio(model, cli):
    """V07"""
    (model / "model.ckpt.meta").write_bytes(b"")
    names = ["model.ckpt", "", INDEX, DATA, "model.ckpt.meta", "checkpoint"]
    assert len({done(cli("inspect", "-m", f"{model}/{name}")) for name in names}) == 1
    assert len({done(cli("verify", f"{model}/{name}")) for name in names}) == 1


def test_a_stale_or_missing_checkpoint_file(model, cli):
    """V10: what it names may have moved; nobody needs it; what is no such file is damage."""
    put("checkpoint", b'model_checkpoint_path: "/gone/model.ckpt"')(model)
    done(cli("verify", model))
    put("checkpoint", XML)(model)
    found_bad(cli("verify", model), 4, "checkpoint: no model_checkpoint_path in it")
    gone("checkpoint")(model)
    assert "checkpoint" not in lines_of(done(cli("verify", model)))
    empty = model / "empty"
    empty.mkdir()
    found_bad(
        cli("verify", empty), 3, f"{empty}: 5 of 5 files missing: ", "no checkpoint; looked for checkpoint, *.index"
    )


def test_other_variables_are_ignored_and_told(model, cli):
    """V12"""
    w = tiny.weights() | {"global_step": np.int64(7), "beta1_power": np.float32(1), "note": np.array(["abc"], object)}
    tiny.save(model / "model.ckpt", w | {"model/ln_f/g/Adam": w["model/ln_f/g"]})
    lines = lines_of(done(cli("verify", model)))
    assert "32 variables; ignored 4 other variables: " in lines[INDEX]
    assert "CRC32C of 32 tensors" in lines[DATA]


def test_hyperparameters_that_are_only_told(model, cli):
    """V13: an unknown key."""
    hparams(dropout=0.1)(model)
    assert "hparams.json: unknown key dropout ignored" in lines_of(done(cli("verify", model)))["hparams.json"]


def test_a_fine_tuned_checkpoint_beside_the_official_one(model, other, cli):
    """V14: two in one folder are a question, not a guess; each answers to its name."""
    for name in (INDEX, DATA):
        shutil.copy(other / name, model / name.replace("model.ckpt", "model-500"))
    gone("checkpoint")(model)
    refused(cli("verify", model), 2, "2 checkpoints in", "model-500, model.ckpt", "choose with --checkpoint")
    flip(DATA.replace("model.ckpt", "model-500"), 100)(model)
    found_bad(cli("verify", model / "model-500"), 4, f"model-500.data-00000-of-00001: 1 of 28 tensors damaged: {W}")
    done(cli("verify", model / "model.ckpt"))
    done(cli("verify", "-m", model / "model-500", "--checkpoint", model / "model.ckpt"))


@pytest.mark.parametrize("edit", [lambda b: b.rstrip(b"\n"), lambda b: b.replace(b"\n", b"\r\n")])
def test_line_ends_are_no_damage(model, edit, cli):
    """V17: without the last newline, and with CRLF."""
    put("vocab.bpe", edit((model / "vocab.bpe").read_bytes()))(model)
    assert "3 merges" in lines_of(done(cli("verify", model)))["vocab.bpe"]


def test_a_vocabulary_that_is_not_the_models(model, cli):
    """V17: both halves go together, but not with hparams.json."""
    encoder = json.loads((model / "encoder.json").read_text())
    put("encoder.json", json.dumps({k: i for k, i in encoder.items() if i != 258} | {"<|endoftext|>": 258}).encode())(
        model
    )
    cut("vocab.bpe", 23)(model)
    found_bad(cli("verify", model), 4, "encoder.json: 259 entries, hparams.json says n_vocab 260")


@pytest.mark.parametrize("size", [0, 7936, 15871])
def test_diff_of_cut_data(T, tmp_path, cli, size):
    """Equal indexes are not equal checkpoints where the data of one is cut short."""
    cut = Path(shutil.copytree(T, tmp_path / "m"))
    os.truncate(cut / DATA, size)
    for pair in ((T, cut), (cut, T)):
        refused(cli("diff", *pair), 4, f"{DATA} has {size} bytes, the index needs 15872")


def test_diff_without_data_says_so(T, tmp_path, cli):
    bare = Path(shutil.copytree(T, tmp_path / "m"))
    (bare / DATA).unlink()
    ran = cli("diff", T, bare)
    assert (ran.status, ran.out) == (0, "")
    assert ran.err.splitlines()[0].endswith("listed from the index alone")
    refused(cli("diff", T, bare, "--values"), 3, DATA, "as does --values")


def test_diff_of_values_holds_every_one_against_its_sum(T, tmp_path, cli):
    """Also where the two indexes say the same."""
    wrong = Path(shutil.copytree(T, tmp_path / "m"))
    with (wrong / DATA).open("r+b") as file:
        file.seek(100)
        file.write(bytes([(T / DATA).read_bytes()[100] ^ 1]))
    assert cli("diff", T, wrong).status == 0  # from the indexes alone
    refused(cli("diff", T, wrong, "--values"), 4, "model/h0/attn/c_attn/w")


def test_surplus_bytes_are_told_everywhere(T, tmp_path, cli):
    longer = Path(shutil.copytree(T, tmp_path / "m"))
    with (longer / DATA).open("ab") as file:
        file.write(b"7 bytes")
    said = f"warning: {DATA} has 7 bytes more than the index needs (15872)"
    for argv in (
        ["inspect", "-m", longer],
        ["verify", longer],
        ["diff", T, longer],
        ["export", "-m", longer, tmp_path / "o"],
    ):
        ran = cli(*argv)
        assert (ran.status, said in ran.err.splitlines()) == (0, True), ran


def test_tokens_in_another_order_are_told(T, tmp_path, cli):
    """V17: it may be meant, but a line may have been moved, and then other ids come out."""
    other = Path(shutil.copytree(T, tmp_path / "m"))
    ids = json.loads((T / "encoder.json").read_text())
    (other / "encoder.json").write_text(json.dumps(ids | {"a": ids["b"], "b": ids["a"]}))
    ran = cli("tokenize", "-m", other, "a")
    assert (ran.status, ran.out) == (0, "65\n")
    assert ran.err == f"warning: {other}/encoder.json: its ids are not in the order of vocab.bpe\n"
    assert "warning: its ids are not in the order of vocab.bpe" in cli("verify", other).err
    assert "order" not in cli("verify", T).err + cli("tokenize", "-m", T, "a").err


def test_a_checkpoint_is_found_beside_the_others(T, tmp_path, cli):
    """V10: the names that the message offers can be typed."""
    several = Path(shutil.copytree(T, tmp_path / "m"))
    (several / "checkpoint").unlink()
    for n in (1, 2):
        for end in (".index", f"{DATA.removeprefix('model.ckpt')}"):
            shutil.copy(T / f"model.ckpt{end}", several / f"model-{n}{end}")
    (several / "model.ckpt.index").unlink()
    refused(cli("inspect", "-m", several), 2, "model-1, model-2; choose with --checkpoint")
    ran = cli("inspect", "-m", several, "--checkpoint", "model-1")
    assert ran.status == 0
    assert ran.err.splitlines()[0] == f"weights: {several}/model-1"


def test_a_converted_folder_is_told_from_an_empty_one(hf, cli):
    refused(cli("generate", "-m", hf, "a"), 3, "encoder.json, vocab.bpe missing", f"gpt2ln import {hf} -o NEW")
