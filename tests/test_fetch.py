"""One file from a good server, and from one that knows ranges badly: what is asked, and what is taken."""

import pytest

from gpt2ln.fetch import Fetched
from gpt2ln.published import File

from . import server as serve
from .fetching import BODY, DIGEST, KNOWN, SIZE, SIZE_ONLY, Get
from .server import etag


@pytest.fixture
def get(server, tmp_path):
    return Get(server, tmp_path)


# good servers


@pytest.mark.parametrize("want", [KNOWN, SIZE_ONLY, File(None, DIGEST), File()], ids=str)
@pytest.mark.parametrize("behave", [serve.good, serve.no_length, serve.chunked(), serve.compressed()])
def test_a_file_comes_whole(get, server, want, behave):
    server.next["/m/weights"] = [behave]
    assert get(want) == Fetched(SIZE, DIGEST, False, f"{server.url}/m/weights")
    get.is_whole()
    ((_, headers),) = server.asked
    assert headers["Accept-Encoding"] == "identity"
    assert headers["User-Agent"].startswith("gpt2ln/")
    assert "Range" not in headers
    assert get.waits == []


def test_redirects_are_followed(get, server):
    server.next["/m/weights"] = [serve.redirect("/other")]
    server.files["/other"] = BODY
    assert get().url == f"{server.url}/m/weights"
    get.is_whole()


def test_an_empty_file_is_a_file(get, server):
    server.files["/m/weights"] = b""
    assert get(File(0)).size == 0
    assert get.part.read_bytes() == b""


# resuming


def test_it_goes_on_where_it_stopped(get, server):
    get.begun(5000)
    assert get().sha256 == DIGEST
    get.is_whole()
    ((_, headers),) = server.asked
    assert (headers["Range"], headers["If-Range"]) == ("bytes=5000-", etag(BODY))


@pytest.mark.parametrize(
    ("more", "asked"),
    [
        ({"etag": 'W/"weak"', "last_modified": serve.DATE}, serve.DATE),
        ({"etag": 'W/"weak"'}, None),
        ({"etag": None, "last_modified": serve.DATE}, serve.DATE),
        ({"etag": None}, None),
    ],
)
def test_only_what_stands_for_the_same_bytes_is_a_condition(get, server, more, asked):
    get.begun(5000, **more)
    get()
    assert server.ranges() == ["bytes=5000-"]
    assert server.asked[0][1].get("If-Range") == asked
    get.is_whole()


def test_a_stump_of_nobody_knows_what_is_gone_on_with(get, server):
    get.part.write_bytes(BODY[:5000])
    get()
    assert server.ranges() == ["bytes=5000-"]
    assert "If-Range" not in server.asked[0][1]
    get.is_whole()


def test_a_changed_file_comes_anew(get, server):
    get.begun(5000, etag='"older"')
    get.part.write_bytes(b"x" * 5000)
    get()
    assert server.ranges() == ["bytes=5000-"]
    get.is_whole()


def test_another_file_behind_the_same_url_is_noticed_even_without_its_condition(get, server):
    get.begun(5000, etag='"older"')
    server.next["/m/weights"] = [serve.part(5000, SIZE - 1, SIZE, lambda body: body[5000:], ETag='"newer"')]
    get(SIZE_ONLY)
    assert server.ranges() == ["bytes=5000-", None]
    get.is_whole()


def test_on_another_mirror_it_goes_on_only_where_a_digest_will_tell(get, server):
    get.begun(5000, url="http://elsewhere/m/weights")
    get()
    assert server.ranges() == ["bytes=5000-"]
    assert "If-Range" not in server.asked[0][1]
    get.is_whole()


def test_on_another_mirror_without_a_digest_it_begins_anew(get, server):
    get.begun(5000, url="http://elsewhere/m/weights")
    get(SIZE_ONLY)
    assert server.ranges() == [None]
    get.is_whole()


def test_a_server_that_ignores_ranges_sends_the_whole(get, server):
    get.begun(5000)
    server.next["/m/weights"] = [serve.ignores_range]
    get()
    assert server.ranges() == ["bytes=5000-"]
    get.is_whole()


def test_all_held_and_known_needs_no_request(get, server):
    get.begun(SIZE)
    assert get() == Fetched(SIZE, DIGEST, False, f"{server.url}/m/weights")
    assert server.asked == []
    get.is_whole()


def test_a_stump_alone_of_a_file_of_unknown_size_is_all_only_where_a_416_says_so(get, server):
    get.part.write_bytes(BODY[:5000])
    server.next["/m/weights"] = [serve.status(416, Content_Range="bytes */9000")]
    get(File())
    assert server.ranges() == ["bytes=5000-", None]
    get.is_whole()


def test_a_compressed_part_is_of_no_use(get, server):
    """Nobody knows of what it is a part."""
    get.part.write_bytes(BODY[:5000])
    server.next["/m/weights"] = [serve.part(5000, 5099, 5100, lambda body: bytes(100), Content_Encoding="gzip")]
    get(File())
    assert (server.ranges(), get.waits) == (["bytes=5000-", None], [])
    get.is_whole()


@pytest.mark.parametrize("behave", [serve.good, serve.status(416)], ids=["with its size", "bare"])
def test_all_held_is_what_a_416_says(get, server, behave):
    get.begun(SIZE)
    server.always = behave
    get(SIZE_ONLY)
    assert server.ranges() == [f"bytes={SIZE}-"]
    get.is_whole()


@pytest.mark.parametrize(
    "behave",
    [
        serve.status(416, Content_Range="bytes */9000"),
        serve.status(416, Content_Range="bytes */99999999"),
        serve.part(4000, SIZE - 1, SIZE, lambda body: body[4000:]),
        serve.part(6000, SIZE - 1, SIZE, lambda body: body[6000:]),
        serve.part(0, SIZE - 1, SIZE, lambda body: body),
        serve.part(5000, 4999, SIZE, lambda body: b""),
        serve.part(5000, SIZE - 1, "*", lambda body: body[5000:]),
        serve.part(5000, SIZE, SIZE + 1, lambda body: body[5000:] + b"x"),
        serve.part(5000, SIZE, SIZE, lambda body: body[5000:]),
        serve.status(206, BODY[5000:]),
        serve.status(206, BODY[5000:], Content_Range="pages 5-9/10"),
        serve.compressed(206),
    ],
    ids=range(12),
)
@pytest.mark.parametrize("want", [KNOWN, SIZE_ONLY], ids=["known", "size"])
def test_a_wrong_part_is_not_taken_and_the_whole_comes(get, server, behave, want):
    get.begun(5000)
    server.next["/m/weights"] = [behave]
    get(want)
    assert server.ranges() == ["bytes=5000-", None]
    assert get.waits == []
    get.is_whole()


@pytest.mark.parametrize(
    "behave",
    [
        serve.status(416, Content_Range="bytes */9000"),
        serve.part(5000, SIZE, SIZE + 1, lambda body: body[5000:] + b"x"),
    ],
    ids=range(2),
)
@pytest.mark.parametrize(("want", "marked"), [(SIZE_ONLY, True), (SIZE_ONLY, False), (File(), True)], ids=str)
def test_a_wrong_part_where_little_is_known(get, server, behave, want, marked):
    get.begun(5000)
    if not marked:
        get.beside.unlink()
    server.next["/m/weights"] = [behave]
    get(want)
    assert server.ranges() == ["bytes=5000-", None]
    assert get.waits == []
    get.is_whole()


@pytest.mark.parametrize("want", [KNOWN, SIZE_ONLY, File()], ids=["known", "size", "nothing"])
def test_a_part_that_brings_less_is_gone_on_with(get, server, want):
    get.begun(5000)
    server.next["/m/weights"] = [serve.part(5000, 5999, SIZE, lambda body: body[5000:6000])]
    get(want)
    assert server.ranges() == ["bytes=5000-", "bytes=6000-"]
    get.is_whole()


def test_a_part_nobody_asked_for_is_refused(get, server):
    server.always = serve.part(0, SIZE - 1, SIZE, lambda body: body)
    get.fails(f"weights: server answered 206 ({server.url}/m/weights)")
    assert len(server.asked) == 1
    assert not get.part.exists()


def test_a_stump_that_is_too_long_is_dropped(get, server):
    get.part.write_bytes(BODY + b"more")
    get()
    assert server.ranges() == [None]
    get.is_whole()


def test_a_stump_of_the_right_size_and_wrong_bytes_is_dropped(get, server):
    """aria2 gives a file its size first."""
    get.part.write_bytes(BODY[:5000] + bytes(SIZE - 5000))
    get()
    assert server.ranges() == [f"bytes={SIZE}-", None]
    get.is_whole()
