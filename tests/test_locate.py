"""Where a name leads: any file of a checkpoint, moved folders, stale `checkpoint` files, odd names, other weights."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2ln.errors import NotFound
from gpt2ln.locate import DEMO, default_shelves, find, missing_files
from gpt2ln.runtime import tf

from . import tiny
from .refusals import done, refused

DATA, INDEX = "model.ckpt.data-00000-of-00001", "model.ckpt.index"


@pytest.fixture
def model(T, tmp_path) -> Path:
    """T, to be changed."""
    return Path(shutil.copytree(T, tmp_path / "tiny"))


@pytest.fixture(scope="module")
def spare(T, tmp_path_factory) -> Path:
    return Path(shutil.copytree(T, tmp_path_factory.mktemp("spare") / "tiny"))


@pytest.fixture
def runs(tmp_path) -> Path:
    """Two fine-tuned checkpoints without vocabulary (V14)."""
    for step in (500, 1000):
        tiny.save(tmp_path_prefix(tmp_path / "run1", f"model-{step}"), tiny.weights(seed=step))
    return tmp_path / "run1"


def tmp_path_prefix(folder: Path, name: str) -> Path:
    folder.mkdir(exist_ok=True)
    return folder / name


def state(path: object) -> str:
    return f'model_checkpoint_path: "{path}"\nall_model_checkpoint_paths: "{path}"\n'


# --- V07: any member of the trio ----------------------------------------------------------------------------------

MEMBERS = ["", "/", "/model.ckpt", f"/{INDEX}", f"/{DATA}", "/model.ckpt.meta", "/checkpoint"]


@pytest.mark.parametrize("member", MEMBERS)
def test_every_member_leads_to_the_same_bytes(model, cli, member):
    (model / "model.ckpt.meta").touch()
    right = done(cli("inspect", "-m", model / "model.ckpt"))
    assert right.count("\n") == 29
    assert done(cli("inspect", "-m", f"{model}{member}")) == right
    place = find(f"{model}{member}", [])
    assert (place.folder, place.prefix) == (model, model / "model.ckpt")
    assert find(str(model), [], Path(f"{model}{member}")).prefix == model / "model.ckpt"


@pytest.mark.parametrize("member", ["/hparams.json", "/model", "/model.ckpt.data", "/model.ckpt.index.bak", "/gone/x"])
def test_what_is_no_member(model, cli, member):
    (model / "model.ckpt.index.bak").touch()
    refused(cli("inspect", "-m", f"{model}{member}"), 3, f"model {model}{member}: no such name, folder or prefix")


def test_the_member_of_a_checkpoint_whose_index_is_gone(model, cli):
    (model / INDEX).unlink()
    refused(cli("inspect", "-m", model / DATA), 3, f"{model / INDEX}: no such file")


def test_the_member_chooses_among_several(runs):
    for step in (500, 1000):
        for end in ("", ".index", ".data-00000-of-00001"):
            assert find(f"{runs}/model-{step}{end}", []).prefix == runs / f"model-{step}"


# --- V10: moved, stale, missing -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        state("/gone/for/ever/model.ckpt"),
        state("C:\\models\\tiny\\model.ckpt"),
        state("C:\\\\models\\\\tiny\\\\model.ckpt"),
        state("/gone/other-prefix"),
        state("../elsewhere/model.ckpt"),
        "model_checkpoint_path: 'model.ckpt'\n",
        '  model_checkpoint_path:"model.ckpt"  \r\nall_model_checkpoint_paths: "x"\r\n',
        state(""),
        state("/"),
        state("."),
        state(".."),
        state("gone/"),
        state("x" * 5000),
        "",
        "\0\1\2\xff",
        "model_checkpoint_path: model.ckpt",
        None,
    ],
)
def test_the_single_index_whatever_the_checkpoint_file_says(model, cli, text):
    if text is None:
        (model / "checkpoint").unlink()
    else:
        (model / "checkpoint").write_text(text, encoding="latin-1", newline="")
    assert find(str(model), []).prefix == model / "model.ckpt"
    assert done(cli("inspect", "-m", model)).count("\n") == 29


@pytest.mark.parametrize(
    "prefix", ["model-2", "/gone/model-2", "C:\\x\\model-2", "C:\\runs\\500", "mod\\303\\250l", 'a\\"b', "modèl"]
)
def test_the_checkpoint_file_chooses_by_base_name(model, prefix):
    """Escapes as TensorFlow writes them are undone."""
    name = {"mod\\303\\250l": "modèl", 'a\\"b': 'a"b'}.get(prefix, prefix.split("/")[-1].split("\\")[-1])
    for other in ("model-1", name):
        shutil.copy(model / INDEX, model / f"{other}.index")
    (model / "checkpoint").write_text(state(prefix), encoding="utf-8")
    assert find(str(model), []).prefix == model / name


def test_a_checkpoint_file_that_names_a_folder(model):
    """A path that ends with `/` has no base name: what is called like the folder itself is another model."""
    shutil.copy(model / INDEX, model.parent / "tiny.index")
    (model / "checkpoint").write_text(state("gone/"))
    assert find(str(model), []).prefix == model / "model.ckpt"


def test_a_checkpoint_file_that_tensorflow_wrote(model):
    """It escapes quotes, and writes an absolute path where it got one."""
    name = 'modèl "2"'
    for other in ("model-1", name):
        shutil.copy(model / INDEX, model / f"{other}.index")
    tf.compat.v1.train.update_checkpoint_state(str(model), str(model / name))
    assert f'{model}/modèl \\"2\\"' in (model / "checkpoint").read_text(encoding="utf-8")
    assert find(str(model), []).prefix == model / name
    moved = model.rename(model.parent / "moved")
    assert find(str(moved), []).prefix == moved / name


def test_a_checkpoint_file_that_points_elsewhere(model, runs):
    """Where the same folder has no such name, but the place it says does."""
    (model / "checkpoint").write_text(state(runs / "model-500"))
    assert find(str(model), []).prefix == runs / "model-500"
    (model / "checkpoint").write_text(state("../run1/model-1000"))
    assert find(str(model), []).prefix == model / "../run1/model-1000"


def test_two_candidates(model, runs, cli):
    text = f"2 checkpoints in {runs}: model-1000, model-500; choose with --checkpoint"
    for argv in (["-m", runs], ["-m", model, "--checkpoint", runs]):
        refused(cli("inspect", *argv), 2, text)


@pytest.mark.parametrize("nested", ["", "/x.index", "/.index"])
def test_a_folder_without_a_checkpoint(tmp_path, cli, nested):
    """Empty, or with folders that only look like one: the absolute path, and what was looked for."""
    empty = tmp_path / "empty"
    Path(f"{empty}{nested}").mkdir(parents=True)
    for argv in (["-m", empty], ["-m", "empty", "--models-dir", tmp_path], ["-m", empty, "--checkpoint", empty]):
        refused(cli("inspect", *argv), 3, f"{empty}: no checkpoint; looked for checkpoint, *.index")


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30), st.booleans())
def test_any_checkpoint_file_at_all(spare, text, inside):
    """One index in the folder: it is found, whatever is written."""
    content = state(text) if inside else text
    (spare / "checkpoint").write_text(content, encoding="utf-8", errors="replace", newline="")
    assert find(str(spare), []).prefix == spare / "model.ckpt"


# --- V11: names, shelves, variables -------------------------------------------------------------------------------


def shelf(T: Path, folder: Path, name: str) -> Path:
    shutil.copytree(T, folder / name)
    return folder


@pytest.mark.parametrize(
    ("alias", "name"),
    [("117M", "124M"), ("gpt2", "124M"), ("345M", "355M"), ("gpt2-medium", "355M"), ("762M", "774M"),
     ("gpt2-large", "774M"), ("1542M", "1558M"), ("1.5B", "1558M"), ("gpt2-xl", "1558M"), ("124M", "124M")],
)  # fmt: skip
def test_aliases(tmp_path, alias, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / INDEX).touch()
    place = find(alias, [tmp_path])
    assert (place.name, place.prefix) == (name, tmp_path / name / "model.ckpt")


def test_the_first_shelf_wins(T, tmp_path):
    one, two = shelf(T, tmp_path / "one", "tiny"), shelf(T, tmp_path / "two", "tiny")
    assert find("tiny", [one, two]).folder == one / "tiny"
    assert find("tiny", [tmp_path / "gone", two]).folder == two / "tiny"


def test_without_a_name(tmp_path):
    """124M where it is on a shelf, else the demo that comes with the program."""
    (tmp_path / "124M").mkdir()
    (tmp_path / "124M" / INDEX).touch()
    assert find(None, [tmp_path]).name == "124M"
    if not (DEMO / "checkpoint").exists():
        pytest.skip("no demo model in the package yet")
    assert find(None, [tmp_path / "gone"]).folder == DEMO


def test_models_dir_flag_then_environment_then_default(T, tmp_path, cli, monkeypatch):
    for where, seed in (("flag", 1), ("env", 2), ("models", 3), ("data/gpt2ln/models", 4)):
        tiny.tiny(tmp_path / where / "some", seed=seed)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    shown = {w: done(cli("inspect", "-m", tmp_path / w / "some", "wpe", "--values"))
             for w in ("flag", "env", "models", "data/gpt2ln/models")}  # fmt: skip
    assert len(set(shown.values())) == 4

    def found(*argv):
        return next(
            w for w, text in shown.items() if text == done(cli("inspect", "-m", "some", "wpe", "--values", *argv))
        )

    assert found() == "models"
    shutil.rmtree(tmp_path / "models")
    assert found() == "data/gpt2ln/models"
    monkeypatch.setenv("GPT2LN_MODELS_DIR", "env")
    assert found() == "env"
    assert found("--models-dir", "flag") == "flag"
    assert found("--models_dir", tmp_path / "flag") == "flag"


@pytest.mark.parametrize("written", ["~/m", "$HOME/m", "${HOME}/m"])
@pytest.mark.parametrize("by", ["flag", "environment"])
def test_home_and_variables_in_quotes(T, tmp_path, cli, monkeypatch, written, by):
    shelf(T, tmp_path / "m", "tiny")
    monkeypatch.setenv("HOME", str(tmp_path))
    if by == "environment":
        monkeypatch.setenv("GPT2LN_MODELS_DIR", written)
    argv = ["--models-dir", written] if by == "flag" else []
    assert done(cli("inspect", "-m", "tiny", *argv)).count("\n") == 29


def test_a_released_model_that_is_not_here(tmp_path, cli):
    """The absolute place, and what fetches it."""
    refused(
        cli("inspect", "-m", "117M", "--models-dir", tmp_path), 3, f"model 124M: not at {tmp_path}/124M;",
        "run: gpt2ln download 124M",
    )  # fmt: skip


def test_a_download_that_is_not_done(tmp_path, cli, monkeypatch):
    """It is no model yet: without a name the demo is taken, and with one the message says how to go on."""
    (tmp_path / "models/124M").mkdir(parents=True)
    (tmp_path / "models/124M/encoder.json.part").write_text("{")
    monkeypatch.chdir(tmp_path)
    refused(cli("inspect", "-m", "124M"), 3, f"{tmp_path}/models/124M", "a download was begun", "gpt2ln download 124M")
    assert "model: demo" in cli("inspect").err


def test_run_in_another_folder(T, tmp_path, cli, monkeypatch):
    """Downloaded in one folder, run in another: the message says where it looked, not `models`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    error = refused(cli("inspect", "-m", "124M"), 3, f"{tmp_path}/models/124M", f"{tmp_path}/data/gpt2ln/models/124M")
    assert error.count(f"not at {tmp_path}/models/124M") == 1


def test_a_file_called_models(tmp_path, cli, monkeypatch):
    (tmp_path / "models").write_text("not a folder")
    monkeypatch.chdir(tmp_path)
    for name in ("124M", "some"):
        refused(
            cli("inspect", "-m", name), 3, f"{tmp_path}/models is a file, not a folder", f"{tmp_path}/models/{name}"
        )


@pytest.mark.parametrize("name", ["some", "a/b", "x" * 300, "y/" * 3000, "~", "-", "con\ttab", "ünknown", "[", "*"])
def test_names_that_lead_nowhere(tmp_path, cli, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    words = ["no such name, folder or prefix", "choose demo, 124M, 355M, 774M, 1558M, or give a path"]
    refused(cli("inspect", f"--model-name={name}"), 3, *words)
    with pytest.raises(NotFound):
        find(name, [tmp_path])


@pytest.mark.parametrize("path", ["gone", "/", ".", "..", "x" * 300, "hparams.json"])
def test_other_weights_that_lead_nowhere(T, tmp_path, cli, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    refused(cli("inspect", "-m", T, "--checkpoint", path), 3, "no checkpoint")


def test_an_empty_name(T, cli):
    """An unset variable in a script: never another model than the one that was meant."""
    refused(cli("inspect", "-m", ""), 2, "model name: empty; choose demo, 124M")


@pytest.mark.parametrize("gone", [["encoder.json"], ["vocab.bpe", "encoder.json"], ["hparams.json", "vocab.bpe"]])
def test_files_beside_the_weights(model, cli, gone):
    """All that are missing, with the absolute path; `inspect` needs none of them."""
    right = done(cli("inspect", "-m", model))
    for name in gone:
        (model / name).unlink()
    assert sorted(missing_files(find(str(model), []))) == sorted(gone)
    refused(cli("generate", "abc", "-m", model), 3, f"{model}: ", *gone, "missing")
    assert done(cli("inspect", "-m", model)) == right


# --- V14: other weights -------------------------------------------------------------------------------------------


def test_vocabulary_from_the_model_weights_from_the_checkpoint(T, runs, cli):
    """stderr names the prefix; the two seeds say different things."""
    place = find(str(T), [], runs / "model-1000")
    assert (place.folder, place.prefix) == (T, runs / "model-1000")
    shown, said = [], []
    for step in (500, 1000):
        prefix = runs / f"model-{step}"
        ran = cli("inspect", "-m", T, "--checkpoint", prefix, "wpe", "--values")
        assert f"weights: {prefix}\n" in ran.err
        assert done(ran) == done(cli("inspect", "-m", prefix, "wpe", "--values"))
        shown.append(ran.out)
        argv = ["abc", "-m", T, "--length", 9, "--seed", 1, "--format", "jsonl"]
        ran = cli("generate", *argv, "--checkpoint", prefix)
        assert f"weights: {prefix}\n" in ran.err
        said.append(json.loads(done(ran))["tokens"])
    said.append(json.loads(done(cli("generate", *argv)))["tokens"])
    shown.append(done(cli("inspect", "-m", T, "wpe", "--values")))
    assert len(set(shown)) == 3
    assert len(set(map(tuple, said))) == 3


def test_a_checkpoint_without_vocabulary_is_no_model(runs, cli):
    words = (f"{runs}: ", "hparams.json, encoder.json, vocab.bpe missing")
    refused(cli("generate", "abc", "-m", runs / "model-500"), 3, *words)
    assert done(cli("inspect", "-m", runs / "model-500")).count("\n") == 29


def test_other_weights_that_do_not_fit_the_model(T, tmp_path, cli):
    other = tiny.tiny(tmp_path / "other", n_layer=3, n_embd=16)
    refused(
        cli("generate", "abc", "-m", T, "--checkpoint", other / "model.ckpt"), 4,
        "n_layer 2, but the checkpoint has h0..h2", "n_embd 8, but model/wte is [260, 16]",
    )  # fmt: skip


# --- V16: names with unusual characters ---------------------------------------------------------------------------

ODD = ["mo dèl 模型", "a[1]b", "x*y", "what?", "{a,b}", "$HOME", "100%", "it's", '"q"', "a.index", "tab\tnew\nline"]
ODD += ["-m", "..."]


@pytest.mark.parametrize("name", ODD)
def test_folders_with_unusual_names(T, tmp_path, cli, name):
    """The same as with a plain name, by path and by name, though TensorFlow's reader takes a path as a pattern."""
    folder = Path(shutil.copytree(T, tmp_path / name))
    right = done(cli("inspect", "-m", T, "--values", "wpe"))
    for path in (folder, f"{folder}/", folder / INDEX, folder / DATA):
        assert done(cli("inspect", "-m", path, "--values", "wpe")) == right
    assert done(cli("inspect", f"--model-name={name}", "--models-dir", tmp_path, "--values", "wpe")) == right
    assert done(cli("inspect", "-m", T, "--checkpoint", folder / "model.ckpt", "--values", "wpe")) == right


def test_generating_from_folders_with_unusual_names(T, tmp_path, cli):
    argv = ["generate", "abc", "--length", 4, "--greedy"]
    right = done(cli(*argv, "-m", T))
    for name in ("mo dèl 模型", "a[1]b", "x*y"):
        assert done(cli(*argv, "-m", shutil.copytree(T, tmp_path / name))) == right


@pytest.mark.parametrize("prefix", ["my model", "a[1]b", "x*y", "modèl", "v1.5", "model.ckpt-1000"])
def test_prefixes_with_unusual_names(tmp_path, cli, prefix):
    folder = tiny.tiny(tmp_path / "plain")
    right = done(cli("inspect", "-m", folder, "--values"))
    for end in (".index", ".data-00000-of-00001"):
        (folder / f"model.ckpt{end}").rename(folder / f"{prefix}{end}")
    assert done(cli("inspect", "-m", folder, "--values")) == right
    assert done(cli("inspect", "-m", folder / prefix, "--values")) == right
    (folder / "checkpoint").write_text(state(prefix), encoding="utf-8")
    assert find(str(folder), []).prefix == folder / prefix


def test_symbolic_links(T, tmp_path, cli):
    """To a folder, to a folder that a shelf holds, to a checkpoint file by file."""
    right = done(cli("inspect", "-m", T, "--values"))
    (tmp_path / "link").symlink_to(T)
    (tmp_path / "files").mkdir()
    for path in T.iterdir():
        (tmp_path / "files" / path.name).symlink_to(path)
    for name in ("link", "link/", "files", "files/model.ckpt"):
        assert done(cli("inspect", "-m", f"{tmp_path}/{name}", "--values")) == right
    assert done(cli("inspect", "-m", "link", "--models-dir", tmp_path, "--values")) == right
    (tmp_path / "broken").symlink_to(tmp_path / "gone")
    refused(cli("inspect", "-m", tmp_path / "broken"), 3, "no such name, folder or prefix")


def test_a_vocabulary_without_weights(T, tmp_path, cli):
    """`tokenize`, `detokenize` and `taps` need no checkpoint in the folder; `inspect` says what is missing."""
    for name in ("encoder.json", "vocab.bpe", "hparams.json"):
        shutil.copy(T / name, tmp_path)
    assert cli("tokenize", "-m", tmp_path, "the").out == "83 257\n"
    assert cli("detokenize", "-m", tmp_path, "83", "257").out == "the"
    assert cli("taps", "-m", tmp_path, "h0/ln_1/mean").status == 0
    r = cli("inspect", "-m", tmp_path)
    assert (r.status, r.out) == (3, "")
    assert "no checkpoint" in r.err


@pytest.mark.parametrize("option", ["--checkpoint", "--models-dir"])
def test_an_empty_path_is_no_default(option, T, cli):
    r = cli("inspect", "-m", T, option, "")
    assert (r.status, r.out, r.err) == (2, "", f"error: {option}: empty, expected a path\n")


def test_a_folder_with_the_old_name_is_found(T, tmp_path):
    shutil.copytree(T, tmp_path / "117M")
    assert find("117M", [tmp_path]).folder == tmp_path / "117M"
    shutil.copytree(T, tmp_path / "124M")
    assert find("117M", [tmp_path]).folder == tmp_path / "124M"


def test_shelves_are_one_for_commands_and_for_python(tmp_path, monkeypatch):
    assert default_shelves(None, {"XDG_DATA_HOME": "/d"}) == [Path("models"), Path("/d/gpt2ln/models")]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_shelves(None, {}) == [Path("models"), tmp_path / ".local/share/gpt2ln/models"]
    assert default_shelves("~/m", {"XDG_DATA_HOME": "/d"}) == [tmp_path / "m"]
