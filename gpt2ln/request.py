"""One request and its answer: what the libraries raise, in the user's words, and whether another try is worth it."""

import re
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from .errors import NetworkError

if TYPE_CHECKING:
    from requests import RequestException, Response, Session

BLOCK = 1 << 16
PATIENCE = 120  # seconds a server may ask to wait


class Unreachable(NetworkError):
    """No server was reached at all: another way may be open."""


class Failed(Exception):
    """This URL does not give the file.  error: what the user sees in the end."""

    def __init__(self, message: str, error: type[NetworkError] = NetworkError):
        super().__init__(message)
        self.error = error


class Again(Failed):
    """It may, later.  pause: seconds, where the server says.  kept: it gave what it promised, and that was not all."""

    def __init__(
        self, message: str, error: type[NetworkError] = NetworkError, pause: float = 0.0, *, kept: bool = False
    ):
        super().__init__(message, error)
        self.pause, self.kept = pause, kept


class Broken(Exception):
    """The body ended before its end.  The text says how, where there is more to say than that."""


def shown(url: str) -> str:
    """A URL without what may be secret in it: user, password and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{host(url)}{parts.path}"


def host(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]


def answer_to(url: str, session: "Session", headers: Mapping[str, str], timeout: float) -> "Response":
    """What comes back, up to its body.  Again where the server may be there later, Failed where nothing helps."""
    import requests
    from urllib3.exceptions import HTTPError

    try:
        return session.get(url, headers=headers, timeout=timeout, stream=True)
    except requests.TooManyRedirects:
        raise Failed(f"redirected more than {session.max_redirects} times ({shown(url)})") from None
    except requests.exceptions.SSLError as cause:
        trust = "REQUESTS_CA_BUNDLE names a file of certificates to trust"
        raise Failed(f"TLS: {_root(cause)} ({shown(url)}); {trust}") from None
    except requests.exceptions.ProxyError as cause:
        through = "through the proxy that HTTPS_PROXY, HTTP_PROXY or ALL_PROXY names"
        raise Again(f"no connection to {_asked(cause, url)} {through} ({_root(cause)})", Unreachable) from None
    except requests.Timeout as cause:
        raise Again(f"no answer from {_asked(cause, url)} in {timeout:g} s", Unreachable) from None
    except requests.ConnectionError as cause:
        raise Again(f"no connection to {_asked(cause, url)} ({_root(cause)})", Unreachable) from None
    except (requests.RequestException, HTTPError, OSError, ValueError) as cause:  # OSError: no such CA bundle
        raise Failed(f"{_root(cause)} ({shown(url)})") from None


def _asked(cause: "RequestException", url: str) -> str:
    """The host that was asked in the end, which after a redirect is another."""
    return host(url if cause.request is None else cause.request.url)


def blocks(answer: "Response", timeout: float) -> Iterator[bytes]:
    """The body as it comes: none of it is held back, to be lost when it breaks off.  Broken where it does."""
    from urllib3.exceptions import HTTPError, ReadTimeoutError

    raw, unpack = answer.raw, encoded(answer)
    try:
        if unpack or not hasattr(raw, "read1"):
            yield from raw.stream(BLOCK, decode_content=unpack)
        else:
            while block := raw.read1(BLOCK, decode_content=False):
                yield block
    except ReadTimeoutError:
        raise Broken(f"then nothing in {timeout:g} s") from None
    except (HTTPError, OSError) as cause:
        raise Broken("" if "IncompleteRead" in str(cause) else _root(cause)) from None


def _root(cause: BaseException) -> str:
    """What the system said, beneath the layers of the libraries."""
    while (inner := cause.__cause__ or cause.__context__) is not None:
        cause = inner
    text = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
    return re.sub(r"^\[[^]]*\] | \(_ssl\.c:\d+\)", "", text)


def encoded(answer: "Response") -> bool:
    """Whether the body is compressed, though nobody asked for that."""
    return answer.headers.get("Content-Encoding", "identity").lower() != "identity"


def whole_length(answer: "Response") -> int | None:
    """Bytes of the file that a 200 is going to bring, where its length is the length of the file."""
    length = answer.headers.get("Content-Length", "")
    counts = not encoded(answer) and "Transfer-Encoding" not in answer.headers
    return int(length) if counts and re.fullmatch(r"\d{1,18}", length) else None


def content_range(answer: "Response") -> tuple[int, int, int] | None:
    """First byte, last byte, total; None where a 206 does not say them."""
    match = re.fullmatch(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})", answer.headers.get("Content-Range", "").strip())
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def unsatisfied_total(answer: "Response") -> int | None:
    """How long the file is, by a 416."""
    match = re.fullmatch(r"bytes \*/(\d{1,18})", answer.headers.get("Content-Range", "").strip())
    return int(match[1]) if match else None


def strong(etag: str | None) -> str | None:
    """The tag, where it stands for the same bytes."""
    return etag if etag and etag.startswith('"') else None


def asked_pause(answer: "Response", where: str) -> float:
    """Seconds the server asks to wait, by its own clock; 0 where it says none, Failed where that is too long."""
    asked, seconds = answer.headers.get("Retry-After", "").strip(), 0.0
    if asked.isdecimal():
        seconds = float(asked)
    elif asked:
        try:
            until, now = (parsedate_to_datetime(text) for text in (asked, answer.headers.get("Date", "")))
            seconds = max(0.0, (until - now).total_seconds())
        except (TypeError, ValueError, OverflowError):
            pass
    if seconds > PATIENCE:
        raise Failed(f"{where} and asks to wait {seconds:.0f} s; run it again then")
    return seconds
