"""Which models `download` takes, which options, which manifests: refused before a request is sent or a folder made."""

from urllib.parse import quote

import pytest

from gpt2ln import published
from gpt2ln.published import FILES, META, NEEDED, File
from gpt2ln.wanted import listed, official, read_manifest

from .downloads import MODEL, is_whole, left, manifest
from .refusals import done, refused
from .server import serving


@pytest.fixture
def server():
    with serving() as it:
        yield it


# which models


@pytest.mark.parametrize("name", ["744M", "", "../x", "124m", "models", ".", "/"])
def test_unknown_names(cli, tmp_path, name):
    ran = cli("download", name, "--models-dir", tmp_path / "m")
    refused(ran, 2, f"unknown model {name!r}; choose 124M, 355M, 774M, 1558M")
    assert left(tmp_path) == []


def test_the_demo_is_built_in(cli, tmp_path):
    refused(cli("download", "demo", "--models-dir", tmp_path), 2, "demo is built in, there is nothing to fetch")
    refused(cli("download", "demo", "--manifest", manifest(tmp_path / "m.json")), 2, "none that is built in")


def test_no_name(cli):
    line = refused(cli("download"), 2)
    assert line == "error: no model named; choose 124M (0.5 GB), 355M (1.4 GB), 774M (3.1 GB), 1558M (6.2 GB)"


@pytest.mark.parametrize(
    ("argv", "notes", "models"),
    [
        (["117M"], ["117M is now called 124M"], ["124M"]),
        (["345M", "gpt2-xl", "355M"], ["345M is now called 355M", "gpt2-xl is now called 1558M"], ["355M", "1558M"]),
        (["-m", "774M"], [], ["774M"]),
    ],
)
def test_older_names_and_several(cli, tmp_path, argv, notes, models):
    ran = cli("download", "--dry-run", "--models-dir", tmp_path / "m", *argv)
    assert [line.split("/")[0] for line in done(ran).splitlines()[1:]] == [name for name in models for _ in NEEDED]
    assert ran.err.splitlines() == [f"model: {note}" for note in notes]
    assert left(tmp_path) == []


def test_one_place_names_the_hosts(cli, tmp_path):
    out = done(cli("download", "124M", "--dry-run", "--meta", "--models-dir", tmp_path))
    rows = [line.split() for line in out.splitlines()]
    assert rows[0] == ["file", "bytes", "state", "url"]
    expected = {
        (f"124M/{n}", str(FILES["124M"][n].size), "missing", f"{published.MODELS}/124M/{n}") for n in FILES["124M"]
    }
    assert {tuple(row) for row in rows[1:]} == expected
    out = done(cli("download", "124M", "--dry-run", "--source", "hf", "--models-dir", tmp_path))
    assert "/openai-community/gpt2/resolve/607a30d783dfa663caf39e06633721c8d4cfcd7e/model.safetensors" in out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--mirror", "ftp://host/x"], "--mirror 'ftp://host/x': expected http:// or https://"),
        (["--mirror", "host/x"], "expected http:// or https://, a host and a folder"),
        (["--mirror", ""], "expected http:// or https://"),
        (["--mirror", "http://"], "expected http:// or https://"),
        (["--mirror", "http://host:99999/"], "--mirror: not a URL"),
        (["--mirror", "http://[::1/"], "--mirror: not a URL"),
        (["--mirror", "http://me:hidden@ho st/"], "--mirror 'http://ho st/'"),
        (["--offline", "--dry-run"], "pass one of them"),
        (["--source", "hf", "--meta"], "--source hf: goes without --meta"),
        (["--source", "hf", "--manifest", "x"], "--source hf: goes without --manifest"),
        (["--source", "else"], "'else' is not one of 'openai', 'hf'"),
        (["--jobs", "0"], "0 is not in the range"),
        (["--retries", "-1"], "-1 is not in the range"),
        (["--timeout", "0"], "0 is out of range"),
        (["--timeout", "nan"], "nan is out of range"),
        (["--models-dir", ""], "--models-dir: empty"),
    ],
)
def test_options_that_cannot_be(cli, argv, words):
    line = refused(cli("download", "124M", *argv), 2, words)
    assert "hidden" not in line


def test_of_hugging_faces_copies_one_is_pinned(cli):
    refused(cli("download", "355M", "--source", "hf"), 2, "no revision of 355M is pinned; choose 124M")


# manifests


@pytest.mark.parametrize("name", ["..", ".", "a/b", "a\\b", "", "a\nb", "demo", "x" * 300])
def test_a_model_is_a_folder_and_no_path(cli, tmp_path, name):
    path = manifest(tmp_path / "m.json")
    refused(cli("download", name, "--manifest", path, "--models-dir", tmp_path), 2, "expected the name of a folder")


@pytest.mark.parametrize("name", ["-x", "a b", "ü", "100%", "#1", ".hidden", "x?y"])
def test_any_other_name_is_one(cli, server, tmp_path, name):
    quoted = quote(name, safe="")
    server.put(MODEL, quoted)
    path = manifest(tmp_path / "m.json")
    done(cli("download", "--manifest", path, "--mirror", server.url, "--models-dir", tmp_path / "m", "--", name))
    is_whole(tmp_path / "m" / name)
    assert {p.split("/")[1] for p in server.paths()} == {quoted}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected {"), ("[]", "expected {"), ("{}", "expected {"), ('{"files": 3}', "expected {"),
        ('{"files": {}}', "lists no file"), ('{"files": {"x": 3}}', "expected {"), ("[" * 100_000, "not JSON"),
        ('{"files": {"../x": {}}}', "'../x' is no name of a file to fetch"),
        ('{"files": {"gpt2ln.json": {}}}', "'gpt2ln.json' is no name"), ('{"files": {"x.part": {}}}', "is no name"),
        ('{"files": {".gpt2ln.lock": {}}}', "is no name"), ('{"files": {"": {}}}', "is no name"),
        ('{"files": {"x": {"size": -1}}}', "x: size is -1, expected bytes"),
        ('{"files": {"x": {"size": true}}}', "x: size is True"), ('{"files": {"x": {"size": 1e3}}}', "size is 1000.0"),
        ('{"files": {"x": {"sha256": "ab"}}}', "x: sha256 is 'ab', expected 64 hexadecimal digits"),
        ('{"files": {"x": {"sha1": "ab"}, "y": {"size": "9"}}}', "x: unknown key 'sha1', y: size is '9'"),
        ("\xff", "not JSON"),
    ],
)  # fmt: skip
def test_a_manifest_that_is_none(cli, tmp_path, text, words):
    path = tmp_path / "m.json"
    path.write_text(text, encoding="latin-1")
    refused(cli("download", "x", "--manifest", path, "--models-dir", tmp_path), 4, path, words)
    assert left(tmp_path) == ["m.json"]


def test_digests_in_capitals_are_digests(tmp_path):
    (tmp_path / "m.json").write_text('{"files": {"x": {"sha256": "%s"}}}' % ("AB" * 32))
    assert read_manifest(tmp_path / "m.json") == {"x": File(None, "ab" * 32)}


def test_indexes_get_their_names_last(tmp_path):
    files = {name: File() for name in ("a.index", "z", *reversed(NEEDED), "b")}
    order = list(listed("m", tmp_path, [], files).files)
    assert order == [*NEEDED[:-1], "z", "b", NEEDED[-1], "a.index"]
    assert list(official("124M", tmp_path, meta=True).files) == [*NEEDED[:-1], META, NEEDED[-1]]


def test_a_manifest_that_is_not_there(cli, tmp_path):
    refused(cli("download", "x", "--manifest", tmp_path / "no.json"), 3, "no such file; it is to be the manifest")
    refused(cli("download", "x", "--manifest", tmp_path), 3, "Is a directory; it is to be the manifest")
