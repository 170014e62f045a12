"""What the tests of one file over HTTP share: a file, and `Get`, which fetches it from a server that misbehaves."""

import hashlib
import json

import pytest

from gpt2ln.errors import NetworkError
from gpt2ln.fetch import Fetched, Limits, fetch
from gpt2ln.published import File

from .server import Server, etag

BODY = bytes(range(256)) * 62  # 15,872 bytes, as the data of the made-up checkpoint
SIZE = len(BODY)
DIGEST = hashlib.sha256(BODY).hexdigest()
KNOWN = File(SIZE, DIGEST)
SIZE_ONLY = File(SIZE)


class Get:
    """`get(want)` fetches /m/weights; waits: the pauses it has made; held: what on_bytes adds up to."""

    def __init__(self, server: Server, folder):
        server.files["/m/weights"] = BODY
        self.server, self.folder, self.waits, self.held = server, folder, [], 0
        self.part, self.beside = folder / "weights.part", folder / "weights.part.json"

    def __call__(self, want=KNOWN, retries=2, urls=None, timeout=5.0, name="weights") -> Fetched:
        urls = [f"{self.server.url}/m/{name}"] if urls is None else urls
        part, limits = self.folder / f"{name}.part", Limits(timeout, retries)
        return fetch(urls, part, want, limits, on_bytes=self.told, wait=self.waits.append)

    def told(self, count: int) -> None:
        self.held += count

    def fails(self, *words, error=NetworkError, **how) -> str:
        """-> the message, which has these words in it."""
        with pytest.raises(error) as caught:
            self(**how)
        for word in words:
            assert str(word) in str(caught.value), caught.value
        return str(caught.value)

    def is_whole(self) -> None:
        assert self.part.read_bytes() == BODY
        assert not self.beside.exists()
        assert self.held == SIZE

    def begun(self, held: int, **more) -> None:
        """What a killed run has left."""
        self.part.write_bytes(BODY[:held])
        origin = {"url": f"{self.server.url}/m/weights", "etag": etag(BODY), "total": SIZE} | more
        self.beside.write_text(json.dumps(origin))
