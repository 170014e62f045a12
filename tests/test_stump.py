"""`NAME.part` and what stands beside it: what is trusted, what is dropped, what a failing disk leaves."""

import hashlib
import json
import os

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2ln import stump as module
from gpt2ln.errors import DiskError
from gpt2ln.stump import Origin, Stump

WHENCE = Origin("http://host/x", '"tag"', "yesterday", 100, "md5")


@pytest.fixture
def part(tmp_path):
    return tmp_path / "x.part"


def beside(part) -> dict:
    return json.loads(part.with_name("x.part.json").read_text())


def begun(part, content: bytes, origin=WHENCE) -> Stump:
    stump = Stump(part)
    stump.begin(origin)
    stump.write(content)
    return stump


def test_what_was_begun_is_taken_up(part):
    begun(part, b"hello ").close()
    assert beside(part) == {"url": "http://host/x", "etag": '"tag"', "last_modified": "yesterday", "total": 100,
                            "content_md5": "md5", "held": 0, "crc32c": 0}  # fmt: skip
    held = []
    with Stump(part, held.append) as stump:
        assert (stump.name, stump.size, stump.origin, held) == ("x", 6, WHENCE, [6])
        stump.write(b"world")
        assert stump.sha256 == hashlib.sha256(b"hello world").hexdigest()
        assert stump.md5 == hashlib.md5(b"hello world").digest()
        assert stump.tail == b"lo world"
        stump.finish()
    assert os.listdir(part.parent) == ["x.part"]
    assert part.read_bytes() == b"hello world"


def test_marks_say_how_much_had_reached_the_disk(part, monkeypatch):
    monkeypatch.setattr(module, "MARK_EVERY", 10)
    with begun(part, b"123456789") as stump:
        assert beside(part)["held"] == 0
        stump.write(b"0")
        assert (beside(part)["held"], beside(part)["crc32c"]) == (10, google_crc32c.value(b"1234567890"))
        stump.write(b"abc")
        assert beside(part)["held"] == 10


@given(
    content=st.binary(min_size=1, max_size=60),
    marked=st.integers(0, 60),
    there=st.integers(0, 60),
    flip=st.integers(0, 59),
    damaged=st.booleans(),
)
def test_a_stump_is_trusted_as_far_as_its_sum(tmp_path_factory, content, marked, there, flip, damaged):
    """Whatever a power cut leaves: shorter than was marked, or with other bytes."""
    part = tmp_path_factory.mktemp("s") / "x.part"
    marked, found = min(marked, len(content)), bytearray(content[:there])
    hit = damaged and flip < min(marked, len(found))
    if hit:
        found[flip] ^= 1
    part.write_bytes(found)
    origin = {"url": "u", "held": marked, "crc32c": google_crc32c.value(content[:marked])}
    part.with_name("x.part.json").write_text(json.dumps(origin))
    taken = not hit and len(found) >= marked
    with Stump(part) as stump:
        assert stump.size == (len(found) if taken else 0)
        assert (stump.origin is not None) == taken
        assert stump.sha256 == hashlib.sha256(found if taken else b"").hexdigest()


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "[" * 100_000, '"x"', "{}", '{"url": 3}', '{"url": "u", "held": "9"}', "\x00",
        '{"url": "u", "held": true}',
        '{"url": "u", "held": -1}', '{"url": "u", "more": 1}', '{"url": "u", "etag": 5}', '{"url": "u", "total": 1.5}',
        '{"url": "u", "crc32c": -5}', '{"url": "u", "content_md5": [1]}', '{"url": "u", "last_modified": {"a": 1}}',
    ],
)  # fmt: skip
def test_what_nobody_wrote_is_not_gone_on_with(part, text):
    part.write_bytes(b"abc")
    part.with_name("x.part.json").write_text(text)
    with Stump(part) as stump:
        assert (stump.size, stump.origin) == (0, None)
    assert os.listdir(part.parent) == []


def test_a_stump_alone_is_taken_up(part):
    part.write_bytes(b"abc")
    with Stump(part) as stump:
        assert (stump.size, stump.origin) == (3, None)
    assert part.read_bytes() == b"abc"


def test_what_stands_beside_nothing_says_nothing(part):
    part.with_name("x.part.json").write_text(json.dumps({"url": "u"}))
    with Stump(part) as stump:
        assert (stump.size, stump.origin) == (0, None)


def test_nothing_is_left_of_what_never_came(part):
    Stump(part).close()
    assert os.listdir(part.parent) == []
    begun(part, b"").close()
    assert os.listdir(part.parent) == []


def test_what_the_listener_raises_leaves_the_file_as_it_was(part):
    def told(count):
        if count == 3:
            raise InterruptedError

    with Stump(part, told) as stump:
        stump.begin(WHENCE)
        stump.write(b"ab")
        with pytest.raises(InterruptedError):
            stump.write(b"xyz")
    assert part.read_bytes() == b"ab"


def test_what_is_no_file_is_a_disk_error(part):
    part.mkdir()
    with pytest.raises(DiskError, match=f"{part}: Is a directory"):
        Stump(part)


def test_no_descriptor_is_left_open(part):
    before = len(os.listdir("/proc/self/fd"))
    begun(part, b"x").close()
    with pytest.raises(InterruptedError):
        Stump(part, lambda _: (_ for _ in ()).throw(InterruptedError()))
    assert len(os.listdir("/proc/self/fd")) == before
