"""One file from a server that sends another: digests, pages in its place, mirrors, no server at all, secrets."""

import base64
import hashlib

import pytest

from gpt2ln.disk import sha256
from gpt2ln.published import File
from gpt2ln.request import Unreachable

from . import server as serve
from .fetching import BODY, DIGEST, KNOWN, SIZE, SIZE_ONLY, Get


@pytest.fixture
def get(server, tmp_path):
    return Get(server, tmp_path)


# digests


def test_a_wrong_digest_is_fetched_once_more(get, server):
    server.next["/m/weights"] = [serve.closing(lambda body: b"x" + body[1:])]
    get()
    assert (len(server.asked), get.waits) == (2, [])
    get.is_whole()


def test_a_digest_that_stays_wrong(get, server):
    server.files["/m/weights"] = wrong = b"x" + BODY[1:]
    found = hashlib.sha256(wrong).hexdigest()
    said = get.fails()
    assert said == f"weights: got sha256 {found}, expected {DIGEST} ({server.url}/m/weights)"
    assert len(server.asked) == 2
    assert not get.part.exists()


def test_a_stump_of_wrong_bytes_and_a_server_of_wrong_bytes(get, server):
    """The stump may have been at fault, then once more."""
    get.part.write_bytes(b"x" * 5000)
    server.files["/m/weights"] = b"x" + BODY[1:]
    get.fails("got sha256")
    assert server.ranges() == ["bytes=5000-", None, None]


def test_a_whole_stump_of_wrong_bytes(get, server):
    get.part.write_bytes(b"x" * SIZE)
    get()
    get.is_whole()


def test_other_true_copies_are_taken(get, server):
    server.files["/m/weights"] = other = BODY + b"\n"
    want = File(SIZE, DIGEST, others=((len(other), hashlib.sha256(other).hexdigest()),))
    assert get(want).size == SIZE + 1
    server.files["/m/weights"] = BODY
    get.part.unlink()
    assert get(want).size == SIZE


def md5(content: bytes) -> str:
    return base64.b64encode(hashlib.md5(content).digest()).decode()


@pytest.mark.parametrize("header", ["Content_MD5", "x_ms_blob_content_md5"])
def test_the_servers_own_digest_is_checked_where_no_other_is_known(get, server, header):
    server.always = serve.with_headers(**{header: md5(BODY)})
    assert get(SIZE_ONLY).md5_checked
    server.always = serve.with_headers(**{header: md5(b"other")})
    get.part.unlink()
    said = get.fails(want=SIZE_ONLY)
    found, theirs = hashlib.md5(BODY).hexdigest(), hashlib.md5(b"other").hexdigest()
    assert said == f"weights: got MD5 {found}, the server says {theirs} ({server.url}/m/weights)"
    assert not get.part.exists()
    assert get(KNOWN).sha256 == DIGEST  # a published digest says more


def test_the_digest_of_a_compressed_body_is_not_that_of_the_file(get, server):
    packed = serve.gzip.compress(BODY)
    server.always = serve.status(200, packed, Content_Encoding="gzip", Content_MD5=md5(packed))
    assert not get(SIZE_ONLY).md5_checked
    get.is_whole()


def test_the_digest_of_the_whole_is_remembered(get, server):
    """With a part, Content-MD5 is the one of the part."""
    server.next["/m/weights"] = [serve.cut(5000, Content_MD5=md5(b"other"))]
    server.always = serve.with_headers(Content_MD5=md5(BODY[5000:]))
    assert not get(SIZE_ONLY).md5_checked
    get.part.unlink()
    server.next["/m/weights"] = [serve.cut(5000)]
    server.always = serve.with_headers(x_ms_blob_content_md5=md5(BODY))
    assert get(SIZE_ONLY).md5_checked


@pytest.mark.parametrize("value", ["no base64!", "QUJD", "\xff"])
def test_a_digest_that_is_none_is_left_out(get, server, value):
    server.always = serve.with_headers(Content_MD5=value)
    assert not get(SIZE_ONLY).md5_checked


def test_where_nobody_is_sure_a_mismatch_is_told(get, server):
    found = get(File(9, "0" * 64, sure=False))
    assert found.sha256 == DIGEST
    assert found.notes == (
        f"weights: sha256 {DIGEST}, expected {'0' * 64} by its shape; none is published",
        "weights: 15872 bytes, expected 9 by its shape; none is published",
    )


# first bytes


@pytest.mark.parametrize(
    ("name", "body", "said"),
    [
        ("encoder.json", serve.XML, "an XML page (NoSuchBucket), not JSON"),
        ("encoder.json", b"\n <ERROR><Code>X</Code>", "an XML page (X), not JSON"),
        ("vocab.bpe", b"\xef\xbb\xbf<!DocType html>", "an HTML page, not a list of merges"),
        ("merges.txt", b"<HTML><body>", "an HTML page, not a list of merges"),
        ("checkpoint", b"hello", "b'hello', not the state of a checkpoint"),
        ("encoder.json", b"[1]", "b'[1]', not JSON"),
        ("model.ckpt.index", serve.XML, "an XML page (NoSuchBucket), not a checkpoint index"),
        ("model.ckpt.data-00000-of-00001", b"<html>", "an HTML page, not weights"),
    ],
)
@pytest.mark.parametrize("length", [True, False])
def test_a_page_is_no_file(get, server, tmp_path, name, body, said, length):
    server.always = serve.page(body, length)
    assert get.fails(name=name, want=File()) == f"{name}: got {said} ({server.url}/m/{name})"
    assert len(server.asked) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_page_does_not_cost_what_is_held(get, server):
    """A portal that wants a login first."""
    get.begun(5000)
    server.always = serve.page(b"<html>log in")
    get.fails("an HTML page")
    assert get.part.read_bytes() == BODY[:5000]


def test_nothing_does_not_cost_what_is_held(get, server):
    get.begun(5000)
    server.always = serve.page(b"", length=False)
    get.fails("got 5000 of 15872 bytes", retries=0)
    assert get.part.read_bytes() == BODY[:5000]


def test_an_index_without_its_end(get, server):
    server.files["/m/x.index"] = BODY
    said = get.fails(name="x.index", want=SIZE_ONLY)
    end = BODY[-8:].hex()
    assert said == f"x.index: got an index that ends with {end}, expected 57fb808b247547db ({server.url}/m/x.index)"


def test_a_wrong_length_is_refused_before_the_body(get, server):
    server.files["/m/weights"] = BODY[:-1]
    assert get.fails() == f"weights: server has 15871 bytes ({server.url}/m/weights), expected 15872"
    assert len(server.asked) == 1
    assert not get.part.exists()


# mirrors


def test_the_next_mirror_is_asked_at_once(get, server):
    get(urls=[f"{server.url}/a/weights", f"{server.url}/m/weights"])
    assert server.paths() == ["/a/weights", "/m/weights"]
    assert get.waits == []
    get.is_whole()


def test_the_next_mirror_goes_on(get, server):
    server.files["/a/weights"] = BODY
    server.next["/a/weights"] = [serve.cut(5000)]
    get(urls=[f"{server.url}/a/weights", f"{server.url}/m/weights"], retries=0)
    assert server.ranges() == [None, "bytes=5000-"]
    get.is_whole()


def test_all_mirrors_are_named(get, server):
    said = get.fails(urls=[f"{server.url}/a/weights", f"{server.url}/b/weights"])
    url = server.url
    assert said == f"weights: server answered 404 ({url}/a/weights); server answered 404 ({url}/b/weights)"


# no server


def test_nobody_listens(get):
    said = get.fails(urls=["http://127.0.0.1:9/m/weights"], error=Unreachable, retries=1)
    assert said == "weights: no connection to 127.0.0.1:9 (Connection refused), tried 2 times"


def test_no_such_host(get):
    get.fails("weights: no connection to nowhere.invalid (", urls=["http://nowhere.invalid/x"], error=Unreachable,
          retries=0)  # fmt: skip


def test_no_answer_in_time(get, server):
    server.always = lambda handler, content: serve.time.sleep(1.0)
    said = get.fails(error=Unreachable, retries=1, timeout=0.2)
    assert said == f"weights: no answer from {server.url.removeprefix('http://')} in 0.2 s, tried 2 times"


@pytest.mark.parametrize("behave", [serve.garbage, serve.hangs_up])
def test_no_http(get, server, behave):
    server.always = behave
    get.fails(f"weights: no connection to {server.url.removeprefix('http://')} (", error=Unreachable, retries=0)


def test_redirects_without_end(get, server):
    server.always = serve.redirect("/m/weights")
    assert get.fails() == f"weights: redirected more than 30 times ({server.url}/m/weights)"


def test_the_host_that_was_asked_in_the_end_is_named(get, server):
    server.always = serve.redirect("http://me:hidden@127.0.0.1:9/?hidden")
    said = get.fails(error=Unreachable, retries=0)
    assert said == "weights: no connection to 127.0.0.1:9 (Connection refused)"


@pytest.mark.parametrize("to", ["ftp://127.0.0.1/x", "file:///etc/passwd", "http://", "http://[::1"])
def test_redirects_to_nowhere(get, server, to):
    server.always = serve.redirect(to)
    get.fails("weights: ", server.url)


def test_certificates_that_nobody_trusts(get, server, monkeypatch, tmp_path):
    """Plain HTTP where TLS is expected; and a bundle that is not there."""
    https = server.url.replace("http", "https") + "/m/weights"
    get.fails("weights: TLS: ", "REQUESTS_CA_BUNDLE names a file of certificates to trust", urls=[https])
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "none.pem"))
    get.fails("weights: Could not find a suitable TLS CA certificate bundle", urls=[https])


# secrets


def test_no_password_and_no_signature_is_shown_or_kept(get, server):
    url = server.url.replace("//", "//me:hidden@") + "/m/weights?sig=hidden"
    server.next["/m/weights"] = [serve.cut(5000)] * 3
    assert "hidden" not in get.fails(urls=[url], retries=0)
    assert "hidden" not in get.beside.read_text()
    assert "hidden" not in get(urls=[url]).url
    assert server.paths() == ["/m/weights?sig=hidden"] * 4
    assert {headers["Authorization"] for _, headers in server.asked} == {"Basic bWU6aGlkZGVu"}
    assert sha256(get.part) == DIGEST
