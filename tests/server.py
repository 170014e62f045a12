"""An HTTP server on loopback that does what it is told to do wrong, and remembers what it was asked.

`server.files[path]` is what is there.  `server.next[path]` are behaviours, one a request; after them it behaves.
"""

import contextlib
import gzip
import hashlib
import re
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread

DATE = "Mon, 02 Nov 2020 10:00:00 GMT"
XML = b'<?xml version="1.0"?><Error><Code>NoSuchBucket</Code></Error>'
Behaviour = Callable[["Handler", bytes], None]


def etag(content: bytes) -> str:
    return f'"{hashlib.md5(content).hexdigest()[:16]}"'


@dataclass
class Server:
    files: dict[str, bytes] = field(default_factory=dict)
    next: dict[str, list[Behaviour]] = field(default_factory=dict)
    always: Behaviour | None = None  # in place of good behaviour
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    url: str = ""
    lock: Lock = field(default_factory=Lock)

    def put(self, folder: Path, at: str) -> None:
        """The files of a folder, under /at/."""
        self.files |= {f"/{at}/{path.name}": path.read_bytes() for path in folder.iterdir() if path.is_file()}

    def paths(self) -> list[str]:
        return [path for path, _ in self.asked]

    def ranges(self, path: str | None = None) -> list[str | None]:
        """The Range headers, of one path or of all."""
        return [headers.get("Range") for p, headers in self.asked if path in (None, p)]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 0

    def do_GET(self) -> None:
        told: Server = self.server.told
        path = self.path.partition("?")[0]
        with told.lock:
            told.asked.append((self.path, dict(self.headers)))
            waiting = told.next.get(path)
            behave = waiting.pop(0) if waiting else told.always or good
        content = told.files.get(path)
        if content is None and behave is good:
            behave = status(404, b'<?xml version="1.0"?><Error><Code>BlobNotFound</Code></Error>')
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            behave(self, content or b"")

    def log_message(self, *_) -> None:
        pass

    def begin(self, code: int, headers: Mapping[str, object]) -> None:
        self.send_response_only(code)
        for name, value in ({"Date": DATE} | dict(headers)).items():
            self.send_header(name, str(value))
        self.end_headers()

    def range(self, content: bytes) -> int | None:
        """Where the asked range begins; None where the whole is to be sent."""
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if not match or self.headers.get("If-Range", etag(content)) not in (etag(content), DATE):
            return None
        return int(match[1])


def send(handler: Handler, content: bytes, *, upto: int | None = None, pace: float = 0.0, **more) -> None:
    """What a good server sends; upto: but it hangs up after as many bytes of the file; pace: bytes a second."""
    first = handler.range(content)
    head = {"ETag": etag(content), "Last-Modified": DATE} | {k.replace("_", "-"): v for k, v in more.items()}
    head = {name: value for name, value in head.items() if value is not None}
    if first is not None and first >= len(content):
        handler.begin(416, {"Content-Range": f"bytes */{len(content)}", "Content-Length": 0})
        return
    body = content[first or 0 :]
    if first is not None:
        head["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
    handler.begin(200 if first is None else 206, {"Content-Length": len(body)} | head)
    body = body if upto is None else body[: max(0, upto - (first or 0))]
    step = 1 << 16 if pace else max(1, len(body))
    for at in range(0, len(body), step):
        handler.wfile.write(memoryview(body)[at : at + step])
        if pace:
            time.sleep(step / pace)
    if upto is not None:
        handler.close_connection = True


def good(handler: Handler, content: bytes) -> None:
    send(handler, content)


def with_headers(**more) -> Behaviour:
    """Good, with these headers besides, `_` for `-`; None takes one away."""
    return lambda handler, content: send(handler, content, **more)


def cut(upto: int, **more) -> Behaviour:
    """Hang up after so many bytes of the file."""
    return lambda handler, content: send(handler, content, upto=upto, **more)


def slow(pace: float) -> Behaviour:
    return lambda handler, content: send(handler, content, pace=pace)


def status(code: int, body: bytes = b"", **more) -> Behaviour:
    def behave(handler, content):
        headers = {k.replace("_", "-"): v for k, v in more.items()}
        handler.begin(code, {"Content-Length": len(body)} | headers)
        handler.wfile.write(body)

    return behave


def page(body: bytes = XML, length: bool = True) -> Behaviour:
    """Status 200, and no file."""
    return status(200, body) if length else closing(lambda content: body)


def closing(change: Callable[[bytes], bytes], **more) -> Behaviour:
    """No length: the end is where the connection ends."""

    def behave(handler, content):
        handler.begin(200, {"Connection": "close"} | {k.replace("_", "-"): v for k, v in more.items()})
        handler.wfile.write(change(content))
        handler.close_connection = True

    return behave


no_length = closing(lambda content: content)


def no_length_cut(upto: int) -> Behaviour:
    return closing(lambda content: content[:upto])


def chunked(upto: int | None = None, length: int | None = None) -> Behaviour:
    """In chunks, without a length, or with one that says nothing; upto: it hangs up within one."""

    def behave(handler, content):
        handler.begin(200, {"Transfer-Encoding": "chunked"} | ({} if length is None else {"Content-Length": length}))
        for at in range(0, len(content), 1000):
            piece = content[at : at + 1000]
            if upto is not None and at + len(piece) > upto:
                handler.wfile.write(b"%x\r\n" % len(piece) + piece[: upto - at])
                handler.close_connection = True
                return
            handler.wfile.write(b"%x\r\n" % len(piece) + piece + b"\r\n")
        handler.wfile.write(b"0\r\n\r\n")

    return behave


def compressed(code: int = 200) -> Behaviour:
    """gzip though nobody asked for it."""

    def behave(handler, content):
        body = gzip.compress(content)
        headers = {"Content-Encoding": "gzip", "Content-Length": len(body), "ETag": etag(content)}
        if handler.headers.get("Range") and code == 206:
            headers["Content-Range"] = f"bytes {handler.range(content)}-{len(content) - 1}/{len(content)}"
            handler.begin(206, headers)
        else:
            handler.begin(200, headers)
        handler.wfile.write(body)

    return behave


def ignores_range(handler: Handler, content: bytes) -> None:
    status(200, content)(handler, content)


def part(first: int, last: int, total: object, body: Callable[[bytes], bytes], **more) -> Behaviour:
    """A 206 that says this, whatever it was asked for."""

    def behave(handler, content):
        headers = {"Content-Range": f"bytes {first}-{last}/{total}"} | {k.replace("_", "-"): v for k, v in more.items()}
        sent = body(content)
        handler.begin(206, {"Content-Length": len(sent)} | headers)
        handler.wfile.write(sent)

    return behave


def pieces(size: int) -> Behaviour:
    """Of what is asked for the first bytes alone, and says so: what a server may do."""

    def behave(handler, content):
        first = handler.range(content) or 0
        last = min(first + size, len(content)) - 1
        part(first, last, len(content), lambda body: body[first : last + 1])(handler, content)

    return behave


def redirect(to: str, code: int = 302) -> Behaviour:
    return status(code, Location=to)


def reset(handler: Handler, content: bytes) -> None:
    """Half, then the connection is torn down."""
    handler.begin(200, {"Content-Length": len(content), "ETag": etag(content)})
    handler.wfile.write(content[: len(content) // 2])
    time.sleep(0.05)
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()
    handler.close_connection = True


def stalls(upto: int, seconds: float) -> Behaviour:
    """Some bytes, then nothing for as long."""

    def behave(handler, content):
        handler.begin(200, {"Content-Length": len(content), "ETag": etag(content)})
        handler.wfile.write(content[:upto])
        time.sleep(seconds)
        handler.close_connection = True

    return behave


def garbage(handler: Handler, content: bytes) -> None:
    """No HTTP at all."""
    handler.wfile.write(b"\x00\xff hello\r\n\r\n")
    handler.close_connection = True


def hangs_up(handler: Handler, content: bytes) -> None:
    handler.close_connection = True


@contextlib.contextmanager
def serving(handler: type = Handler) -> Iterator[Server]:
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    http.daemon_threads, http.block_on_close = True, False
    http.handle_error = lambda *_: None  # a client that goes away is no news
    http.told = Server(url=f"http://127.0.0.1:{http.server_port}")
    thread = Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield http.told
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
