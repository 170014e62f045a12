"""One file from a server that breaks off, falls silent or is busy: what is kept, how often it is asked, and when."""

import hashlib
import json

import pytest

from gpt2ln.published import File

from . import server as serve
from .fetching import BODY, DIGEST, KNOWN, SIZE, SIZE_ONLY, Get


@pytest.fixture
def get(server, tmp_path):
    return Get(server, tmp_path)


# what is broken off


@pytest.mark.parametrize("behave", [serve.cut(7936), serve.no_length_cut(7936)])
@pytest.mark.parametrize("want", [KNOWN, SIZE_ONLY], ids=["known", "size"])
def test_a_short_body_is_gone_on_with_after_a_pause(get, server, behave, want):
    server.next["/m/weights"] = [behave]
    get(want)
    assert server.ranges() == [None, "bytes=7936-"]
    assert get.waits == [0.5]
    get.is_whole()


def test_a_body_that_stays_short_is_kept(get, server):
    server.next["/m/weights"] = [serve.cut(7936), serve.cut(7936), serve.cut(7936)]
    said = get.fails()
    assert said == f"weights: got 7936 of 15872 bytes ({server.url}/m/weights), tried 3 times"
    assert get.part.read_bytes() == BODY[:7936]
    assert json.loads(get.beside.read_text())["total"] == SIZE
    assert get.held == 7936
    assert get.waits == [0.5, 1.0]


@pytest.mark.parametrize("want", [KNOWN, SIZE_ONLY, File()], ids=["known", "size", "nothing"])
@pytest.mark.parametrize("behave", [serve.reset, serve.chunked(7500)], ids=["reset", "chunked"])
def test_what_is_broken_off_is_never_taken_for_all(get, server, want, behave):
    server.always = behave
    get.fails("weights: got 7", "tried 2 times", want=want, retries=1)
    assert 7000 <= get.part.stat().st_size <= 7936
    assert BODY.startswith(get.part.read_bytes())


def test_a_server_that_gives_a_piece_at_a_time(get, server):
    """It keeps its word each time: nothing is counted against it, and nobody waits."""
    get.begun(1000)
    server.always = serve.pieces(2000)
    get(retries=0)
    assert server.ranges() == [f"bytes={at}-" for at in range(1000, SIZE, 2000)]
    assert get.waits == []
    get.is_whole()


def test_pieces_of_nearly_nothing_are_counted(get, server):
    get.begun(1000)
    server.always = serve.pieces(10)
    get.fails("weights: got 1030 of 15872 bytes", "tried 3 times")


def test_compressed_and_cut_short(get, server):
    server.always = serve.closing(lambda body: serve.gzip.compress(body)[:100], Content_Encoding="gzip")
    get.fails("of 15872 bytes", retries=0)


def test_compressed_and_garbled(get, server):
    server.always = serve.closing(lambda body: b"no gzip" * 99, Content_Encoding="gzip")
    get.fails("got 0 of 15872 bytes", retries=0)
    assert not get.part.exists()


def test_a_server_that_falls_silent(get, server):
    server.next["/m/weights"] = [serve.stalls(0, 1.0)] * 2
    said = get.fails(retries=0, timeout=0.2)
    assert said == f"weights: got 0 of 15872 bytes, then nothing in 0.2 s ({server.url}/m/weights)"


def test_more_than_there_is(get, server):
    server.always = serve.closing(lambda body: body + b"more")
    said = get.fails()
    assert said == f"weights: more than 15872 bytes came ({server.url}/m/weights)"
    assert len(server.asked) == 2
    assert not get.part.exists()


# pauses and retries


def test_pauses_double_up_to_half_a_minute(get, server):
    server.always = serve.status(503)
    said = get.fails(retries=8)
    assert said == f"weights: server answered 503 ({server.url}/m/weights), tried 9 times"
    assert get.waits == [0.5, 1, 2, 4, 8, 16, 30, 30]


@pytest.mark.parametrize("code", [408, 425, 429, 500, 502, 503, 504, 599])
def test_what_may_pass_is_tried_again(get, server, code):
    server.next["/m/weights"] = [serve.status(code, b"<html>busy")]
    get()
    assert (len(server.asked), get.waits) == (2, [0.5])
    get.is_whole()


@pytest.mark.parametrize("code", [204, 304, 400, 401, 403, 404, 405, 407, 410, 416, 451])
def test_what_will_not_pass_is_not(get, server, code):
    server.always = serve.status(code)
    assert get.fails() == f"weights: server answered {code} ({server.url}/m/weights)"
    assert (len(server.asked), get.waits) == (1, [])
    assert not get.part.exists()


@pytest.mark.parametrize(
    ("asked", "pause"),
    [
        ("7", 7.0), ("0", 0.5), ("120", 120.0),
        ("Mon, 02 Nov 2020 10:00:42 GMT", 42.0), ("Mon, 02 Nov 2020 09:00:00 GMT", 0.5),
        ("soon", 0.5), ("-3", 0.5), ("Mon, 99 Nov 2020 10:00:42 GMT", 0.5),
    ],
)  # fmt: skip
def test_a_server_may_ask_to_wait(get, server, asked, pause):
    server.next["/m/weights"] = [serve.status(429, Retry_After=asked)]
    get()
    assert get.waits == [pause]


@pytest.mark.parametrize("asked", ["121", "Mon, 02 Nov 2020 10:02:01 GMT"])
def test_but_not_for_long(get, server, asked):
    server.always = serve.status(503, Retry_After=asked)
    said = get.fails()
    assert said == f"weights: server answered 503 ({server.url}/m/weights) and asks to wait 121 s; run it again then"
    assert get.waits == []


def test_a_date_without_the_servers_own_clock_says_nothing(get, server):
    server.next["/m/weights"] = [serve.status(503, Retry_After="Mon, 02 Nov 2020 10:00:42 GMT", Date="")]
    get()
    assert get.waits == [0.5]


def test_tries_that_bring_a_mebibyte_are_not_counted(get, server):
    big = bytes(5 << 20)
    server.files["/m/weights"] = big
    server.next["/m/weights"] = [serve.cut(n << 20) for n in (1, 2, 3, 4)]
    assert get(File(len(big)), retries=0).size == len(big)
    assert len(server.asked) == 5


def test_a_server_that_never_gets_further_is_given_up(get, server):
    """Each try brings two mebibytes, the same ones."""
    big = bytes(5 << 20)
    server.files["/m/weights"] = big
    server.always = serve.closing(lambda body: body[: 2 << 20])
    get.fails("got 2097152 of 5242880 bytes", want=File(len(big)), retries=2)
    assert len(server.asked) == 4


def test_less_and_then_as_much_again_is_no_progress(get, server):
    big = bytes(5 << 20)
    server.files["/m/weights"] = big
    server.next["/m/weights"] = [serve.closing(lambda body, n=n: body[: n << 19]) for n in (4, 1, 4, 1, 4, 1)]
    get.fails("got ", want=File(len(big)), retries=2)
    assert len(server.asked) == 4


def test_what_was_dropped_is_no_progress_either(get, server):
    big = bytes(5 << 20)
    server.files["/m/weights"] = big
    get.part.write_bytes(b"x" * (4 << 20))
    server.next["/m/weights"] = [serve.good] + [serve.cut(n << 20) for n in (1, 2, 3, 4)]
    assert get(File(len(big), hashlib.sha256(big).hexdigest()), retries=0).size == len(big)
    assert server.ranges() == ["bytes=4194304-", None, *(f"bytes={n << 20}-" for n in (1, 2, 3, 4))]


def test_a_length_that_cannot_be_and_all_came(get, server):
    """What the server says does not count against a published digest."""
    server.always = serve.closing(lambda body: body, Content_Length="9" * 30)
    assert get().sha256 == DIGEST
    get.is_whole()
    get.part.unlink()
    get.fails("got 15872 of 15872 bytes", want=SIZE_ONLY, retries=0)


def test_in_chunks_a_length_says_nothing(get, server):
    server.always = serve.chunked(length=3)
    assert get().sha256 == DIGEST
