"""`doctor`: what it says of a machine, of one that is not well, and of one without TensorFlow."""

import json
import math
import os
import re
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest

from gpt2ln import doctor, processor, runtime
from gpt2ln.doctor import Package, nameless, packages, versions_fit
from gpt2ln.errors import Damaged
from gpt2ln.library import Model
from gpt2ln.proof import Proof

from .conftest import ROOT
from .refusals import done, refused


def rows(text: str, head: str) -> list[list[str]]:
    """Cells of the table that begins so."""
    head, *lines = text[text.index(f"\n{head}") + 1 :].split("\n\n")[0].splitlines()
    edges = [match.start() for match in re.finditer(r"\S+", head)]
    return [[line[a:b].strip() for a, b in zip(edges, [*edges[1:], 999], strict=True)] for line in lines]


def holding(text: str) -> dict[str, str]:
    return {row[0]: row[1] for row in rows(text, "proof ")}


@pytest.fixture
def only(monkeypatch):
    """`only(name=prove, ...)`: these proofs alone are run; `only()` keeps those of the model that was asked for."""
    real = doctor.with_tensorflow

    def choose(**proofs):
        def some(patients, device):
            own = doctor.called(patients.own or patients.demo)
            return list(proofs.items()) or [one for one in real(patients, device) if one[0].startswith(f"{own} ")]

        monkeypatch.setattr(doctor, "without_tensorflow", lambda patients, found: [])
        monkeypatch.setattr(doctor, "with_tensorflow", some)

    return choose


def fails(ran, *words: str) -> str:
    """Exit 1, all of it printed, one line of error."""
    assert ran.status == 1, ran
    assert ran.err.splitlines()[-1].startswith("error: "), ran
    assert [word for word in words if word not in ran.err] == [], ran
    return ran.out


@pytest.fixture(scope="module")
def kept():
    """What one run with every proof has printed, for all who look at it."""
    return {}


def test_every_proof_holds_here(cli, warm, kept):
    ran = cli("doctor", "-m", "demo")
    kept["text"] = done(ran)
    assert ran.err == ""
    held = holding(ran.out)
    assert len(held) == 22
    assert {name for name, holds in held.items() if holds != "yes"} <= {"demo fast engine", "on the GPU"}
    hold = sum(holds == "yes" for holds in held.values())
    assert ran.out.endswith(f"\n\n{hold} hold, 0 fail, {22 - hold} not tried\n")
    assert max(map(len, ran.out.splitlines())) <= 80


def test_what_is_said_of_the_machine(cli, warm, kept):
    text = kept.get("text") or done(cli("doctor", "-m", "demo"))
    said = dict(rows(text, "machine "))
    assert said["cpu"] == processor.name()
    assert said["usable cores"] == said["threads"] == str(len(os.sched_getaffinity(0)))
    assert (said["tf32"], said["device"], said["tensorflow"]) == ("off", "cpu", runtime.tf.__version__)
    assert said["memory"].endswith(" GiB")
    assert text.startswith("package ")
    assert f"numpy           {np.__version__:<6}  >= 1.26" in text
    assert ["demo", "whole"] in [row[:2] for row in rows(text, "model ")]


def test_nobody_is_named(cli, warm, kept):
    text = kept.get("text") or done(cli("doctor", "-m", "demo"))
    for private in (str(ROOT), sys.prefix, os.path.expanduser("~/"), os.getcwd()):
        assert private not in text


def test_json_is_the_same(cli, only):
    only(good=lambda: Proof(True, "0 of 3", 0.0, 0.0), nan=lambda: Proof(False, "nan of it", math.nan, 1e-4))
    record = json.loads(fails(cli("doctor", "--json"), "1 of 2 proofs fail: nan;"), parse_constant=pytest.fail)
    assert list(record) == ["gpt2ln", "packages", "machine", "models", "proofs"]
    assert record["proofs"] == [
        {"proof": "good", "holds": True, "found": "0 of 3", "number": 0.0, "limit": 0.0},
        {"proof": "nan", "holds": False, "found": "nan of it", "number": None, "limit": 1e-4},
    ]
    assert {"name": "numpy", "found": np.__version__, "least": "1.26"} in record["packages"]
    assert record["machine"]["tf32"] is False
    assert record["models"][-1]["name"] == "demo"


def test_a_proof_that_fails_is_named_and_one_that_breaks_too(cli, only):
    def broken():
        raise ZeroDivisionError("in /home/somebody/lib/kernel.cc\nand more")

    def damaged():
        raise Damaged(f"{ROOT}/models/x.index: cut short; " + "word " * 30)

    only(good=lambda: Proof(True, "0 of 3"), broken=broken, damaged=damaged, skipped=lambda: Proof(None, "no GPU"))
    ran = cli("doctor")
    text = fails(ran, "error: 2 of 4 proofs fail: broken, damaged; expected all to hold")
    assert rows(text, "proof ")[1][:3] == ["broken", "NO", "ZeroDivisionError: in kernel.cc"]
    assert holding(text) == {"good": "yes", "broken": "NO", "damaged": "NO", "skipped": "-"}
    assert "\n\ndamaged: models/x.index: cut short; word " in text or "\n\ndamaged: x.index: cut short; word" in text
    assert text.endswith("\n\n1 hold, 2 fail, 1 not tried\n")
    assert max(map(len, text.splitlines())) <= 80
    assert ran.err.splitlines()[0] == "proofs on: golden, demo (another model, too: -m NAME)"
    quiet = cli("doctor", "-q")
    assert (quiet.out, len(quiet.err.splitlines())) == (text, 1)


# a model of one's own


def test_a_model_by_its_path_has_no_name(cli, T, only, warm):
    only()
    ran = cli("doctor", "-m", T)
    assert holding(done(ran)) == {
        "your model = float64": "yes",
        "your model sums": "yes",
        "your model fast engine": "-",
    }
    assert str(T.parent) not in ran.out + ran.err
    assert "28 tensors, 15,872 bytes" in ran.out


def test_only_names_that_everybody_has_are_told(small):
    for name in ("/home/somebody/of-a-customer", "of-a-customer", "/"):
        assert doctor.called(Model(replace(small.place, name=name))) == "your model"
    for name in ("124M", "1558M", "demo"):
        assert doctor.called(Model(replace(small.place, name=name))) == name


def test_a_model_that_is_not_finite(cli, broken, only):
    only()
    text = fails(cli("doctor", "-m", broken), "1 of 3 proofs fail: your model = float64;")
    assert "h1/ln_2/out: NaN or Inf" in text


def test_a_byte_of_the_weights_changed(cli, T, tmp_path, only):
    only()
    folder = shutil.copytree(T, tmp_path / "mine")
    weights = folder / "model.ckpt.data-00000-of-00001"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    text = fails(cli("doctor", "-m", folder), "2 of 3 proofs fail: your model = float64, your model sums;")
    assert "damaged" in text
    assert str(tmp_path) not in text


def test_what_is_no_use_is_refused_first(cli, tmp_path):
    refused(cli("doctor", "-m", tmp_path / "gone"), 3, "gone")
    refused(cli("doctor", "--device", "gpu:7"), 2, "--device gpu:7")
    refused(cli("doctor", "--device", "tpu"), 2, "--device tpu")
    refused(cli("doctor", "--cache-dir", ""), 2, "--cache-dir: empty")
    refused(cli("doctor", "what"), 2, "gpt2ln doctor --help")


# a machine that is not well


def test_without_tensorflow(shell, tmp_path):
    """What needs none is proved all the same; the error says what is missing."""
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow/__init__.py").write_text("raise ImportError('no such symbol in /home/somebody/lib/x.so')")
    ran = shell("doctor", env={"PYTHONPATH": str(tmp_path)})
    text, said = ran.stdout.decode(), ran.stderr.decode()
    assert ran.returncode == 3, said
    assert said.splitlines()[-1].startswith("error: TensorFlow: cannot be imported (ImportError: no such symbol")
    held = holding(text)
    assert held.pop("TensorFlow") == "NO"
    assert set(held.values()) == {"yes"}
    assert len(held) == 4
    assert "\n\nTensorFlow: cannot be imported (ImportError: no such symbol in x.so); version" in text
    assert "somebody" not in text
    (tmp_path / "tensorflow/__init__.py").write_text("")
    said = shell("doctor", env={"PYTHONPATH": str(tmp_path)}).stderr.decode()
    assert "error: TensorFlow: does not work (AttributeError: module 'tensorflow' has no attribute" in said


def test_versions_against_what_is_asked():
    old = [Package("a", "2.9.1", "2.16"), Package("b", None), Package("c", "2.16rc1", "2.16"), Package("d", "0.x")]
    assert [p.fits for p in old] == [False, False, True, True]
    found = versions_fit(old)
    assert (found.holds, found.number, found.limit) == (False, 2, 0)
    assert found.found == "2 of 4 missing or too old: a 2.9.1, expected 2.16; b missing, expected any"
    assert versions_fit(old[2:]).found == "0 of 2 missing or too old"


def test_packages_where_there_is_no_metadata(monkeypatch):
    def gone(name):
        raise doctor.PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "requires", gone)
    assert {p.name for p in packages()} == set(doctor.PACKAGES)
    assert {p.least for p in packages()} == {""}
    monkeypatch.setattr(doctor, "version", lambda name: "2.18" if name == "tensorflow-cpu" else gone(name))
    found = {p.name: p.found for p in packages()}
    assert (found["tensorflow"], found["numpy"]) == ("2.18", None)
    assert found["ai-edge-litert"]  # by its folder


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("No such file: '/home/ann/x/model.ckpt.index'; /a/b/c: bad", "No such file: 'model.ckpt.index'; c: bad"),
        ("/home/ann lee/my models/m.index", "my models/m.index"),
        ("h0/ln_1/g: 3/4, h*/ln_1/x and ../x", "h0/ln_1/g: 3/4, h*/ln_1/x and ../x"),
        (r"C:\Users\ann\f.txt (/usr/lib/q)", "f.txt (q)"),
        ("", ""),
    ],
)
def test_no_folders_are_told(text, left):
    assert nameless(text, ["/", "/home/ann lee/", "", "."]) == left
