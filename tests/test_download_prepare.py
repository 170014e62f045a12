"""`download` makes the fast engine at its end, and whatever stops that is a note: the download is whole."""

import shutil
import signal

import pytest

import gpt2ln
from gpt2ln import prepare
from gpt2ln.errors import Different
from gpt2ln.prepared import check

from .downloads import is_whole, left
from .refusals import done
from .test_download_kill import Run


def fast(folder) -> list[str]:
    return [name for name in left(folder) if name.startswith("fast-")]


@pytest.mark.slow
def test_by_default_and_once(get, monkeypatch):
    monkeypatch.delenv("GPT2LN_DOWNLOAD_PREPARE")
    ran = get()
    found = gpt2ln.load(get.folder).prepared
    check(found)
    notes = ran.err.splitlines()
    assert done(ran) == ""
    assert notes == [
        f"tiny: 6 files fetched ({get.folder})",
        f"tiny: prepared, {found.distance} ({found.folder})",
    ]
    assert fast(get.folder) == [found.folder.name]
    inode = found.folder.stat().st_ino
    assert "already complete" in done(get("--verify-only")) + get().err
    assert found.folder.stat().st_ino == inode
    assert get("-q").err == ""


def test_into_the_folder_for_engines(get, monkeypatch, engines):
    """Where it is prepared already, with a word."""
    ran = get("--prepare", "--cache-dir", engines)
    assert done(ran) == ""
    assert ran.err.splitlines()[-1].startswith("tiny: already prepared, max |d logit| ")
    is_whole(get.folder)


@pytest.mark.parametrize("what", ["--dry-run", "--offline", "--verify-only", "--no-prepare"])
def test_not_without_a_download(get, what):
    get.by_hand()
    done(get("--prepare", what) if what != "--no-prepare" else get(what))
    assert fast(get.folder) == []


def raises(cause):
    def fails(*_, **__):
        raise cause

    return fails


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (Different("logits differ; not kept"), "logits differ; not kept"),
        (ValueError("odd"), "odd; it is made by: gpt2ln prepare {folder}"),
        (MemoryError("no"), "no; it is made by: gpt2ln prepare {folder}"),
        (OSError(28, "No space left"), "[Errno 28] No space left; it is made by: gpt2ln prepare {folder}"),
    ],
)
def test_what_stops_it_is_a_note(get, monkeypatch, cause, words):
    monkeypatch.setattr(prepare, "_make", raises(cause))
    ran = get("--prepare")
    note = "warning: tiny is fetched and whole, without a fast engine: " + words.format(folder=get.folder)
    assert (done(ran), ran.err.splitlines()[-1]) == ("", note)
    is_whole(get.folder)


def test_what_is_no_gpt2(cli, server, tmp_path):
    """A manifest may list anything."""
    server.files["/big/weights"] = b"x" * 5000
    (tmp_path / "big.json").write_text('{"files": {"weights": {"size": 5000}}}')
    argv = ("--manifest", tmp_path / "big.json", "--mirror", server.url, "--models-dir", tmp_path)
    ran = cli("download", "big", *argv, "--prepare")
    assert done(ran) == ""
    note = f"warning: big is fetched and whole, without a fast engine: {tmp_path}/big: hparams.json, "
    assert ran.err.splitlines()[-1].startswith(note)


def test_ctrl_c_there(get, monkeypatch):
    monkeypatch.setattr(prepare, "_make", raises(KeyboardInterrupt()))
    ran = get("--prepare")
    said = f"interrupted: tiny is fetched and whole; its fast engine is made by: gpt2ln prepare {get.folder}"
    assert (ran.status, ran.out, ran.err.splitlines()[-1]) == (130, "", said)
    is_whole(get.folder)


@pytest.mark.slow
def test_ctrl_c_in_a_process_of_its_own(get):
    for _ in range(3):  # one that falls into a callback of TensorFlow is lost, and the work goes on
        with Run(get.argv("--prepare")) as run:
            run.until(lambda: any(name.endswith(".part") and name.startswith("fast") for name in left(get.folder)))
            run.process.send_signal(signal.SIGINT)
            ran = run.end()
        if ran.status:
            break
        for engine in get.folder.glob("fast-*"):
            shutil.rmtree(engine)
    assert (ran.status, ran.out) == (130, "")
    assert "interrupted: tiny is fetched and whole; " in ran.err
    is_whole(get.folder)
