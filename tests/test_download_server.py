"""`download` from a server that misbehaves: the folder is complete or it has no names, and one line says why."""

import hashlib
import json
import os
import shutil

import pytest

from gpt2ln.disk import sha256

from . import server as serve
from .downloads import DATA, INDEX, MODEL, NAMES, is_whole, left, no_names
from .refusals import done, refused

FIT = "what came does not fit and was dropped, run it again"


# whole


@pytest.mark.parametrize("digests", [True, False])
@pytest.mark.parametrize("sizes", [True, False])
@pytest.mark.parametrize("jobs", [1, 4])
def test_a_folder_comes_whole(get, server, digests, sizes, jobs):
    ran = get("--jobs", jobs, digests=digests, sizes=sizes)
    assert done(ran) == ""
    assert ran.err == f"tiny: 6 files fetched ({get.folder})\n"
    is_whole(get.folder)
    assert sorted(server.paths()) == [f"/tiny/{name}" for name in NAMES]


@pytest.mark.parametrize(
    "behave", [serve.no_length, serve.chunked(), serve.compressed(), serve.ignores_range], ids=range(4)
)
def test_odd_ways_to_send_it(get, server, behave):
    server.always = behave
    done(get())
    is_whole(get.folder)


def test_through_redirects(get, server):
    for name in NAMES:
        server.files[f"/far/{name}"] = server.files.pop(f"/tiny/{name}")
        server.next[f"/tiny/{name}"] = [serve.redirect(f"/far/{name}", 307)]
    done(get())
    is_whole(get.folder)


# V01: an error page


@pytest.mark.parametrize("digests", [True, False])
def test_no_such_file(get, server, digests):
    server.files.clear()
    line = refused(get("--jobs", 1, digests=digests), 6)
    url = f"{server.url}/tiny"
    assert line == f"error: vocab.bpe: server answered 404 ({url}/vocab.bpe)"
    assert not get.folder.parent.exists()


def test_one_file_is_not_there(get, server):
    del server.files["/tiny/encoder.json"]
    refused(get(), 6, f"encoder.json: server answered 404 ({server.url}/tiny/encoder.json)")
    no_names(get.folder)


@pytest.mark.parametrize("what", [{}, {"digests": False}, {"digests": False, "sizes": False}], ids=str)
def test_a_page_in_place_of_every_file(get, server, what):
    server.always = serve.page()
    refused(get(**what), 6, "got an XML page (NoSuchBucket), not ", server.url)
    assert not get.folder.parent.exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_page_in_place_of_one_file(get, server, name):
    server.next[f"/tiny/{name}"] = [serve.page()] * 3
    refused(get(digests=False, sizes=False), 6, f"{name}: got an XML page (NoSuchBucket), not ")
    no_names(get.folder)
    server.next.clear()
    done(get(digests=False, sizes=False))
    is_whole(get.folder)


# V02: broken off


@pytest.mark.parametrize("behave", [serve.cut(200_640), serve.no_length_cut(200_640)], ids=["length", "none"])
def test_broken_off_and_gone_on_with(get, server, behave):
    server.next[f"/tiny/{DATA}"] = [behave]
    line = refused(get(), 6, f"{DATA}: got 200640 of 401280 bytes ({server.url}/tiny/{DATA})")
    assert line.endswith("bytes are kept, run it again to go on")
    no_names(get.folder)
    assert (get.folder / f"{DATA}.part").read_bytes() == (MODEL / DATA).read_bytes()[:200_640]
    server.asked.clear()
    done(get())
    is_whole(get.folder)
    assert server.ranges(f"/tiny/{DATA}") == ["bytes=200640-"]


def test_an_older_good_file_is_not_touched(get, server):
    get.folder.mkdir(parents=True)
    shutil.copy(MODEL / "encoder.json", get.folder)
    before = (get.folder / "encoder.json").stat()
    server.next[f"/tiny/{DATA}"] = [serve.cut(5)]
    refused(get(), 6, "got 5 of 401280 bytes")
    done(get())
    is_whole(get.folder)
    after = (get.folder / "encoder.json").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert "/tiny/encoder.json" not in server.paths()


# V03: ranges


def stump(get, held: int | None) -> None:
    get.folder.mkdir(parents=True)
    (get.folder / f"{DATA}.part").write_bytes((MODEL / DATA).read_bytes()[:held])


def test_the_whole_in_place_of_the_rest(get, server):
    stump(get, 5000)
    server.next[f"/tiny/{DATA}"] = [serve.ignores_range]
    done(get())
    is_whole(get.folder)
    assert server.ranges(f"/tiny/{DATA}") == ["bytes=5000-"]


def test_a_whole_stump_and_no_digest_to_know_it_by(get, server):
    stump(get, None)
    done(get(digests=False))
    is_whole(get.folder)
    assert server.ranges(f"/tiny/{DATA}") == ["bytes=401280-"]


def test_a_range_that_is_not_satisfied_and_all_is_not_held(get, server):
    stump(get, 5000)
    server.next[f"/tiny/{DATA}"] = [serve.status(416, Content_Range="bytes */401280")]
    done(get())
    is_whole(get.folder)
    assert server.ranges(f"/tiny/{DATA}") == ["bytes=5000-", None]


# what no digest tells


def test_damage_that_keeps_the_size_is_found_by_the_sums_and_dropped(get, server):
    content = bytearray((MODEL / DATA).read_bytes())
    content[200_000] ^= 1
    server.files[f"/tiny/{DATA}"] = bytes(content)
    line = refused(get(digests=False), 6, f"{DATA}: 1 of ", "CRC32C is 0x", FIT)
    assert "model/" in line
    assert left(get.folder) == sorted(f"{name}.part" for name in NAMES if name not in (DATA, INDEX))
    server.put(MODEL, "tiny")
    server.asked.clear()
    done(get(digests=False))
    is_whole(get.folder)
    assert {f"/tiny/{DATA}", f"/tiny/{INDEX}"} <= set(server.paths())


def test_damage_where_the_index_is_known(get, server):
    """Then the data alone is to blame."""
    server.files[f"/tiny/{DATA}"] = bytes(401280)
    refused(get(digests=[INDEX]), 6, DATA, FIT)
    assert f"{INDEX}.part" in left(get.folder)
    assert f"{DATA}.part" not in left(get.folder)


def test_hyperparameters_of_another_model(get, server):
    other = json.loads((MODEL / "hparams.json").read_text())
    server.files["/tiny/hparams.json"] = json.dumps(other | {"n_layer": other["n_layer"] + 1}).encode()
    refused(get(digests=False, sizes=False), 6, "n_layer", FIT)
    no_names(get.folder)


@pytest.mark.parametrize("name", ["encoder.json", "hparams.json"])
def test_json_cut_short_where_no_size_is_known(get, server, name):
    server.files[f"/tiny/{name}"] = server.files[f"/tiny/{name}"][:-5]
    refused(get(digests=False, sizes=False), 6, name, FIT)
    no_names(get.folder)
    assert f"{name}.part" not in left(get.folder)


@pytest.mark.parametrize("name", [DATA, "encoder.json"])
def test_another_file_of_the_same_size(get, server, name):
    """Where a digest is known, it and the digest found are said."""
    content = server.files[f"/tiny/{name}"]
    server.files[f"/tiny/{name}"] = content[:-5] + bytes(5)
    refused(get(), 6, f"{name}: got sha256 ", f", expected {sha256(MODEL / name)} ({server.url}/tiny/{name})")
    no_names(get.folder)


# busy, away


def test_busy_and_then_not(get, server):
    server.next[f"/tiny/{DATA}"] = [serve.status(503)]
    server.next["/tiny/checkpoint"] = [serve.status(429, Retry_After="0")]
    done(get(retries=1))
    is_whole(get.folder)


def test_a_server_that_asks_for_an_hour(get, server):
    server.always = serve.status(429, Retry_After="3600")
    refused(get(retries=5), 6, "server answered 429", "asks to wait 3600 s")


def test_nobody_listens(cli, tmp_path):
    ran = cli("download", "124M", "--mirror", "http://127.0.0.1:9/x", "--models-dir", tmp_path / "m", "--retries", 0)
    refused(ran, 6, "no connection to 127.0.0.1:9 (Connection refused); try --mirror URL; ", f"{DATA}, encoder.json,",
            f"fetched otherwise go into {tmp_path}/m/124M")  # fmt: skip
    assert not (tmp_path / "m").exists()


def test_digests_of_files_that_do_not_fit_each_other(get, server):
    """Whoever made the manifest has to mend it."""
    other = json.loads((MODEL / "hparams.json").read_text())
    content = json.dumps(other | {"n_layer": other["n_layer"] + 1}).encode()
    server.files["/tiny/hparams.json"] = content
    known = {"hparams.json": {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}}
    refused(get(**known), 4, "n_layer", "so say the digests of the manifest")
    no_names(get.folder)


def test_what_was_there_before_does_not_fit(get, server):
    """Then it is not what came that is dropped."""
    get.by_hand("checkpoint")
    other = json.loads((MODEL / "hparams.json").read_text())
    mine = json.dumps(other | {"n_layer": other["n_layer"] + 1})
    (get.folder / "hparams.json").write_text(mine)
    line = refused(get(digests=False, sizes=False), 2, "hparams.json: n_layer")
    assert line.endswith("--force fetches and replaces what was there before")
    assert (get.folder / "hparams.json").read_text() == mine
    assert f"{DATA}.part" in left(get.folder)
    done(get("--force", digests=False, sizes=False))
    is_whole(get.folder)
    assert "/tiny/checkpoint" not in server.paths()


@pytest.mark.parametrize("name", [f"{DATA}.part", "vocab.bpe.part", ".gpt2ln.lock"])
def test_links_lead_nowhere(get, tmp_path, name):
    """What lies under a name of ours and is a link would be written wherever it points."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    get.folder.mkdir(parents=True)
    (get.folder / name).symlink_to(victim)
    refused(get(), 7, f"{get.folder / name}: a link, expected a file of our own; remove it")
    assert victim.read_text() == "mine"
    assert (get.folder / name).is_symlink()


@pytest.mark.parametrize("name", ["vocab.bpe.part", ".gpt2ln.lock"])
def test_pipes_are_not_written_to(get, name):
    get.folder.mkdir(parents=True)
    os.mkfifo(get.folder / name)
    refused(get(), 7, f"{get.folder / name}: a device or pipe, expected a file of our own; remove it")
