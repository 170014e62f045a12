"""Where `download` asks: mirrors, proxies, the environment, and what of an address is never shown."""

import json

import pytest

from . import server as serve
from .downloads import DATA, MODEL, is_whole, manifest
from .refusals import done, refused
from .server import Handler, serving


@pytest.fixture
def server():
    with serving() as it:
        it.put(MODEL, "tiny")
        yield it


def test_mirrors_in_turn(cli, server, tmp_path):
    path = manifest(tmp_path / "m.json")
    urls = ["http://127.0.0.1:9", f"{server.url}/empty/", server.url]
    mirrors = [word for url in urls for word in ("--mirror", url)]
    done(cli("download", "tiny", "--manifest", path, *mirrors, "--models-dir", tmp_path, "--retries", 0))
    is_whole(tmp_path / "tiny")
    assert json.loads((tmp_path / "tiny/gpt2ln.json").read_text())["source"] == f"{server.url}/tiny"


def test_mirrors_from_the_environment(shell, server, tmp_path):
    path = manifest(tmp_path / "m.json")
    env = {"GPT2LN_DOWNLOAD_MIRROR": f"{server.url}/empty {server.url}", "GPT2LN_MODELS_DIR": str(tmp_path)}
    ran = shell("download", "tiny", "--manifest", path, env=env)
    assert (ran.returncode, ran.stdout) == (0, b""), ran.stderr
    is_whole(tmp_path / "tiny")


# proxies


class Proxy(Handler):
    """Fetches nothing, has everything: whatever host it is asked for."""

    def do_GET(self):
        self.path = self.path.removeprefix("http://far.invalid")
        super().do_GET()


def test_through_a_proxy(cli, tmp_path, monkeypatch):
    path = manifest(tmp_path / "m.json")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with serving(Proxy) as proxy:
        proxy.put(MODEL, "tiny")
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        argv = ("download", "tiny", "--manifest", path, "--mirror", "http://far.invalid", "--retries", 0)
        done(cli(*argv, "--models-dir", tmp_path / "a"))
        is_whole(tmp_path / "a/tiny")
        assert len(proxy.asked) == 6
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
        refused(cli(*argv, "--models-dir", tmp_path / "b"), 6, "no connection to far.invalid through the proxy that")
        assert not (tmp_path / "b").exists()


def test_a_proxy_that_is_none(cli, tmp_path, monkeypatch):
    path = manifest(tmp_path / "m.json")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    argv = ("download", "tiny", "--manifest", path, "--mirror", "http://far.invalid", "--retries", 0)
    for url in ("nonsense://x:y", "http://", "socks5://127.0.0.1:9", "http://[::1"):
        monkeypatch.setenv("HTTP_PROXY", url)
        refused(cli(*argv, "--models-dir", tmp_path / "b"), 6)


def test_no_secret_is_shown_or_kept(cli, server, tmp_path):
    path = manifest(tmp_path / "m.json")
    url = server.url.replace("//", "//me:hidden@") + "/?sig=hidden"
    argv = ("download", "tiny", "--manifest", path, "--mirror", url, "--models-dir", tmp_path, "--retries", 0)
    server.next[f"/tiny/{DATA}"] = [serve.status(403)]
    ran = cli(*argv)
    refused(ran, 6, "server answered 403")
    assert "hidden" not in ran.err
    assert "hidden" not in cli(*argv, "--dry-run").out
    done(cli(*argv))
    assert "hidden" not in (tmp_path / "tiny/gpt2ln.json").read_text()
    assert all(path.endswith("?sig=hidden") for path in server.paths())
