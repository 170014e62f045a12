"""`inspect`: every variable, every value, in an order that people expect, and never a guess."""

import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2ln.checkpoint import Entry
from gpt2ln.commands.inspect import SORTS
from gpt2ln.official import index_bytes
from gpt2ln.spec import RELEASED, variables

from . import bundles, tiny
from .refusals import done, refused
from .test_checkpoint import OFFICIAL, needs

DATA = "model.ckpt.data-00000-of-00001"


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
    needs(OFFICIAL.parent / "facts.json")
    known = json.loads((OFFICIAL.parent / "facts.json").read_text())["variables_124M"]["table"]
    found = objects(cli("inspect", "-m", OFFICIAL, "-l", "--json", "--sort", "offset"))
    assert len(found) == len(known) == 148
    for r, told in zip(found, known, strict=True):
        assert (r["name"], r["shape"], r["offset"]) == (told["name"], told["shape"], told["offset"])
        assert (r["bytes"], int(r["crc32c"], 16)) == (told["size"], told["crc32c"])


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
    assert cli("inspect", "-m", deep, *globs).err.startswith(f"{count} variable{'s' * (count != 1)}, ")


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


@pytest.fixture(scope="module")
def largest(tmp_path_factory) -> Path:
    """The index of 1558M, made from its shapes: no data file."""
    at, entries = 0, []
    shapes = variables(RELEASED["1558M"])
    for name in sorted(shapes):
        size = 4 * int(np.prod(shapes[name]))
        entries.append(Entry(name, "float32", shapes[name], 0, at, size, 7))
        at += size
    folder = tmp_path_factory.mktemp("1558M")
    (folder / "model.ckpt.index").write_bytes(index_bytes(entries))
    return folder


@pytest.mark.parametrize("flags", [[], ["-l"], ["--json"], ["-l", "--json"], ["h?/ln_1/*"], ["--sort", "size"]])
def test_a_list_is_quick(flags, largest, shell):
    """0.12 s where nothing else runs; a busy machine gets more.  No numpy, which alone takes as long."""
    env = {"PYTHONPROFILEIMPORTTIME": "1"}
    started = time.perf_counter()
    ran = shell("inspect", "-m", largest, *flags, env=env)
    took = time.perf_counter() - started
    assert ran.returncode == 0
    assert took < 3
    imported = {line.split("|")[-1].strip() for line in ran.stderr.decode().splitlines() if "|" in line}
    assert "gpt2ln.checkpoint" in imported
    assert imported & {"numpy", "tensorflow", "safetensors", "tqdm", "requests"} == set()
    said = [line for line in ran.stderr.decode().splitlines() if not line.startswith("import time:")]
    assert said[0].endswith("; listed from the index alone")
    totals = {"h?/ln_1/*": "20 variables, 32,000 values, 128,000 bytes"}
    whole = "580 variables, 1,557,611,200 values, 6,230,444,800 bytes"
    assert said[1:] == ([] if "--json" in flags else [totals.get("".join(flags), whole)])
    rows = ran.stdout.decode().splitlines()[("--json" not in flags) :]
    assert len(rows) == (20 if "h?/ln_1/*" in flags else 580)


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


def test_near_names_whatever_the_case(cli, T):
    refused(cli("inspect", "-m", T, "WTE"), 2, "no variable matches 'WTE'; did you mean wte")
