"""The table of official files against what follows from the shapes, and against the facts it was taken from."""

import json
import re
from hashlib import sha256
from math import prod
from pathlib import Path

import pytest

import gpt2ln
from gpt2ln.checkpoint import Entry
from gpt2ln.hf import from_hf, to_hf
from gpt2ln.official import PREFIX, STATE, hparams_text, index_bytes
from gpt2ln.published import CONVERTED, DATA, FILES, HUGGING_FACE, INDEX, META, MODELS, NEEDED, File
from gpt2ln.spec import RELEASED, variables

from .conftest import ROOT

FACTS = ROOT.parent / "shared" / "facts.json"
PACKAGE = Path(gpt2ln.__file__).parent


@pytest.mark.parametrize("name", RELEASED)
def test_sizes_follow_from_the_shapes(name):
    """Packed float32, and an index whose length no sum can change."""
    shapes = variables(RELEASED[name])
    assert FILES[name][DATA].size == 4 * sum(map(prod, shapes.values()))
    at, entries = 0, []
    for variable in sorted(shapes):
        size = 4 * prod(shapes[variable])
        entries.append(Entry(variable, "float32", shapes[variable], 0, at, size, 1))
        at += size
    assert FILES[name][INDEX].size == len(index_bytes(entries))


@pytest.mark.parametrize("name", RELEASED)
def test_the_small_files_are_those_we_write(name):
    for file, text in (("hparams.json", hparams_text(RELEASED[name])), ("checkpoint", STATE)):
        assert FILES[name][file].size == len(text)
        assert FILES[name][file].sha256 == sha256(text.encode()).hexdigest()
    assert f"{PREFIX}.index" == INDEX


def test_every_model_has_every_file():
    for files in FILES.values():
        assert set(files) == {*NEEDED, META}
    assert NEEDED[-1] == INDEX
    assert list(FILES) == list(RELEASED)


def test_what_is_sure_of_124M_is_known_to_the_last_byte():
    for file in (*FILES["124M"].values(), *CONVERTED["124M"].files.values()):
        assert file.size
        assert re.fullmatch("[0-9a-f]{64}", file.sha256)


def test_the_copy_of_2019_is_taken_too():
    file = FILES["124M"]["hparams.json"]
    assert file.size_fits(90)
    assert file.size_fits(89)
    assert not file.size_fits(91)
    assert len(file.digests) == 2
    text = hparams_text(RELEASED["124M"]).rstrip("\n").encode()
    assert (len(text), sha256(text).hexdigest()) == file.others[0]
    assert File().size_fits(7)
    assert File().digests == ()


def test_hosts_are_named_in_one_place():
    """But for nothing: whoever wants to know whom this program calls reads one file."""
    found = {path.name for path in PACKAGE.rglob("*.py") if re.search(r"https?://[a-z0-9]+\.", path.read_text())}
    assert found == {"published.py"}
    assert MODELS.startswith("https://")
    assert HUGGING_FACE.startswith("https://")


@pytest.mark.skipif(not FACTS.is_file(), reason="shared/facts.json is not here")
def test_the_facts_say_the_same():
    facts = json.loads(FACTS.read_text())
    assert facts["urls"]["models"] == f"{MODELS}/{{model}}/{{file}}"
    for name, model in facts["models"].items():
        assert model["hparams"] == RELEASED[name].as_dict()
        for file, known in model["files"].items():
            ours = FILES[name][file]
            assert (ours.size, ours.sha256) == (known["size"], known["sha256"]), (name, file)
            for other in [known["older_variant"]] if "older_variant" in known else []:
                assert ours.others == ((other["size"], other["sha256"]),)
    hf = facts["hf_conversion_124M"]
    for file in ("model.safetensors", "config.json"):
        ours = CONVERTED["124M"].files[file]
        assert (ours.size, ours.sha256) == (hf[file]["size"], hf[file]["sha256"])
    assert CONVERTED["124M"].revision == hf["model.safetensors"]["revision"]


@pytest.mark.skipif(not FACTS.is_file(), reason="shared/facts.json is not here")
def test_the_size_of_the_converted_copy_is_that_of_its_tensors():
    """Variables, masks of n_ctx x n_ctx, and a header: the names are those that we map."""
    hparams = RELEASED["124M"]
    names = [to_hf(name) for name in variables(hparams)]
    assert all(from_hf(name) for name in names)
    masks = hparams.n_layer * 4 * hparams.n_ctx**2
    header = CONVERTED["124M"].files["model.safetensors"].size - FILES["124M"][DATA].size - masks
    assert 10_000 < header < 20_000
