"""A download that is killed, stopped, locked out or runs out of disk: it goes on, and what has a name is whole."""

import contextlib
import fcntl
import hashlib
import json
import os
import pty
import re
import resource
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest

from gpt2ln.disk import sha256

from . import server as serve
from .conftest import ROOT, Ran
from .disks import mounted
from .downloads import DATA, MODEL, NAMES, is_whole, left, no_names
from .refusals import done, refused

BIG = 300_000_000


class Run:
    """`gpt2ln download ...` in a process of its own."""

    def __init__(self, argv, **how):
        command = [sys.executable, "-m", "gpt2ln", *map(str, argv)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, **how)  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        """Leave nothing running, whatever a test has found."""
        self.process.kill()
        self.process.communicate()

    def until(self, true, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not true():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < end
            time.sleep(0.002)

    def end(self) -> Ran:
        out, err = self.process.communicate(timeout=60)
        return Ran(self.process.returncode, out.decode(), err.decode())


def size(path) -> int:
    return path.stat().st_size if path.exists() else 0


@pytest.fixture
def big(server, tmp_path):
    """-> manifest and arguments of a model that is one file of 300 MB, sent slowly enough to be killed."""
    content = b"".join(hashlib.sha512(bytes([n % 251])).digest() * 15625 for n in range(300))
    assert len(content) == BIG
    server.files["/big/weights"] = content
    digest = hashlib.sha256(content).hexdigest()
    path = tmp_path / "big.json"
    path.write_text(json.dumps({"files": {"weights": {"size": BIG, "sha256": digest}}}))
    argv = [
        "download",
        "big",
        "--manifest",
        path,
        "--mirror",
        server.url,
        "--no-prepare",
        "--models-dir",
        tmp_path / "m",
    ]
    return argv, digest


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False])
def test_kill_9_twice_and_the_right_digest(server, big, tmp_path, known):
    argv, digest = big
    if not known:
        argv[3].write_text(json.dumps({"files": {"weights": {"size": BIG}}}))
    folder = tmp_path / "m/big"
    part, server.always = folder / "weights.part", serve.slow(150e6)
    held = []
    for share in (0.3, 0.6):
        with Run(argv) as run:
            run.until(lambda share=share: size(part) > share * BIG)
            run.process.send_signal(signal.SIGKILL)
            assert run.end().status == -signal.SIGKILL
        assert left(folder) == [".gpt2ln.lock", "weights.part", "weights.part.json"]
        held.append(size(part))
    server.always = None
    with Run(argv) as run:
        assert done(run.end()) == ""
    assert server.ranges() == [None, f"bytes={held[0]}-", f"bytes={held[1]}-"]
    assert [headers["If-Range"] for _, headers in server.asked[1:]] == [serve.etag(server.files["/big/weights"])] * 2
    assert sha256(folder / "weights") == digest
    assert left(folder) == ["gpt2ln.json", "weights"]
    assert BIG * 0.3 < held[0] < held[1] < BIG


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(server, big):
    """Peak of a process that fetches 300 MB, against one that fetches 5 kB."""
    argv, _ = big
    code = "import resource, sys; from gpt2ln.commands import main; status = main(sys.argv[1:]); "
    code += "print(status, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"

    def peak(argv) -> int:
        ran = subprocess.run([sys.executable, "-c", code, *map(str, argv)], cwd=ROOT, capture_output=True, text=True)
        status, kilobytes = map(int, ran.stdout.split())
        assert status == 0, ran.stderr
        return kilobytes * 1024

    whole = peak(argv)
    server.files["/big/weights"] = b"x" * 5000
    argv[3].write_text('{"files": {"weights": {"size": 5000}}}')
    small = peak([*argv[:-1], argv[-1].with_name("n")])
    assert -20e6 < whole - small < 20e6


def test_ctrl_c_keeps_what_came(get, server):
    server.next[f"/tiny/{DATA}"] = [serve.stalls(100_000, 30)]
    with Run(get.argv("--timeout", 60)) as run:
        run.until(lambda: size(get.folder / f"{DATA}.part") == 100_000 and len(left(get.folder)) > 6)
        run.until(lambda: all((get.folder / f"{name}.part").exists() for name in NAMES))
        begun = time.monotonic()
        run.process.send_signal(signal.SIGINT)
        ran = run.end()
    assert time.monotonic() - begun < 3
    of = sum(path.stat().st_size for path in MODEL.iterdir())
    kept = of - 401_280 + 100_000
    assert (ran.status, ran.out) == (130, "")
    assert ran.err == f"interrupted: {kept} of {of} bytes are kept in {get.folder}; run it again to go on\n"
    no_names(get.folder)
    assert ".gpt2ln.lock" not in left(get.folder)
    server.asked.clear()
    done(get())
    assert server.ranges() == ["bytes=100000-"]
    is_whole(get.folder)


def test_ctrl_c_before_anything_came(get, server):
    server.always = lambda handler, content: time.sleep(30)
    with Run(get.argv()) as run:
        run.until(lambda: len(server.asked) >= 4)
        run.process.send_signal(signal.SIGINT)
        ran = run.end()
    assert (ran.status, ran.out, ran.err) == (130, "", "interrupted: nothing had come\n")
    assert not get.models.exists()


def test_two_at_once(get, server):
    """The second is told who is at work, and harms nothing."""
    server.next[f"/tiny/{DATA}"] = [serve.slow(200_000)]
    with Run(get.argv()) as first:
        first.until(lambda: size(get.folder / f"{DATA}.part") > 0)
        refused(get(), 7, f"{get.folder}: locked by process {first.process.pid}; wait for it to end")
        refused(get("--force"), 7, f"locked by process {first.process.pid}")
        assert first.end().status == 0
    is_whole(get.folder)
    assert sorted(server.paths()) == sorted(f"/tiny/{name}" for name in NAMES)


@pytest.mark.slow
def test_many_at_once(get, server):
    server.always = serve.slow(1e6)
    with contextlib.ExitStack() as stack:
        runs = [stack.enter_context(Run(get.argv())) for _ in range(6)]
        ran = [run.end() for run in runs]
    assert {r.status for r in ran} <= {0, 7}
    assert 0 in {r.status for r in ran}
    for r in ran:
        assert r.status == 0 or "locked by" in r.err, r
    is_whole(get.folder)


def test_the_lock_of_a_killed_run_is_nobodys(get):
    get.folder.mkdir(parents=True)
    (get.folder / ".gpt2ln.lock").write_text("1")
    done(get())
    is_whole(get.folder)


# the disk


def test_a_small_disk_is_known_before_the_first_request(get, server):
    need = sum(path.stat().st_size for path in MODEL.iterdir())
    with mounted(get.models, "size=128k"):
        refused(get(), 7, f"{get.folder}: no space: {need} bytes needed, ", " free; --models-dir names a folder on")
        assert server.asked == []
        assert left(get.models) == []


def test_what_is_held_is_not_needed_again(get, server):
    """A disk on which half the file and its other half have room, but not the half and the whole."""
    with mounted(get.models, "size=600k"):
        get.folder.mkdir()
        (get.folder / f"{DATA}.part").write_bytes((MODEL / DATA).read_bytes()[:300_000])
        done(get())
        is_whole(get.folder)


def test_a_disk_that_gets_full_on_the_way(get):
    with mounted(get.models, "size=128k"):
        refused(get(sizes=False), 7, f"{get.folder}/{DATA}.part: No space left on device")
        no_names(get.folder)


def test_a_disk_that_may_only_be_read(get, server):
    with mounted(get.models, "ro"):
        refused(get(), 7, f"{get.folder}: Read-only file system")
        assert server.asked == []


def test_a_complete_folder_on_a_disk_that_may_only_be_read(get, server):
    with mounted(get.models, "size=2m"):
        get.by_hand()
        subprocess.run(["mount", "-o", "remount,ro", get.models], check=True)
        assert "already complete" in get().err
        assert server.asked == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_the_right_to_write(get):
    get.models.mkdir(0o500)
    refused(get(), 7, f"{get.folder}: Permission denied")


def test_a_limit_on_the_size_of_files(get):
    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    with Run(get.argv(), preexec_fn=limited) as run:
        refused(run.end(), 7, f"{get.folder}/{DATA}.part: File too large")
    no_names(get.folder)


def test_a_file_where_the_models_should_be(get):
    get.models.write_text("mine")
    refused(get(), 7, f"{get.folder}: ")
    assert get.models.read_text() == "mine"


# the bar


def on_a_terminal(argv) -> str:
    """-> what a process has written to stderr, a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command, said = [sys.executable, "-m", "gpt2ln", *map(str, argv)], b""
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        with contextlib.suppress(OSError):  # what Linux says at the end
            while block := os.read(ours, 4096):
                said += block
    os.close(ours)
    assert process.returncode == 0, said
    return said.decode()


def test_a_bar_on_a_terminal_alone(get, server):
    """-q leaves it out."""
    server.next[f"/tiny/{DATA}"] = [serve.cut(200_000), serve.slow(400_000)]
    said = on_a_terminal(get.argv(retries=1))
    assert "%|" in said
    assert re.search(r"[1-9][\d.]*k/406k \[.*B/s\]", said)
    assert said.splitlines()[-1].endswith(f"tiny: 6 files fetched ({get.folder})")
    assert on_a_terminal([*get.argv(), "--models-dir", get.models / "2", "-q"]) == ""
