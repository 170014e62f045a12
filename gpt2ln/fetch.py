"""One file over HTTP into `NAME.part`: resumed where it broke off, tried again, taken only when it is the right one.

A server is believed in nothing that can be checked: not its status, its length, its type, its ranges or its word that
this was all.  What it does wrong is a NetworkError.
"""

import base64
import binascii
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from . import __version__
from .bodies import first_bytes, last_bytes
from .errors import first_five
from .published import File
from .request import (
    Again,
    Broken,
    Failed,
    answer_to,
    asked_pause,
    blocks,
    content_range,
    encoded,
    shown,
    strong,
    unsatisfied_total,
    whole_length,
)
from .stump import Origin, Stump

if TYPE_CHECKING:
    from requests import Response, Session

LOOK = 1 << 10  # bytes that show what a body is
PROGRESS = 1 << 20  # a try that brought as much is not counted
_LATER = {408, 425, 429}


@dataclass(frozen=True)
class Limits:
    """timeout: seconds without a byte.  retries: how often more, after a try that brought nearly nothing."""

    timeout: float = 30.0
    retries: int = 5


@dataclass(frozen=True)
class Fetched:
    """A whole file.  notes: what is not as expected where nobody is sure of it."""

    size: int
    sha256: str
    md5_checked: bool
    url: str
    notes: tuple[str, ...] = ()


class _Anew(Failed):
    """What is held is not of this file, or not all right: it may come from the start."""


def fetch(
    urls: Iterable[str],
    part: Path,
    want: File,
    limits: Limits,
    *,
    on_bytes: Callable[[int], None] = lambda _: None,
    wait: Callable[[float], object],
) -> Fetched:
    """Fetch a file from the first of `urls` that gives it.  Leaves `part`, whole and right, or what came of it.

    on_bytes: told how many bytes are held more, or less.  wait: sleeps some seconds.
    """
    failed: list[Failed] = []
    with Stump(part, on_bytes) as stump:
        for url in urls:
            try:
                return _Source(url, stump, want, limits).fetched(wait)
            except Failed as cause:
                failed.append(cause)
    raise failed[0].error(f"{stump.name}: {first_five([str(cause) for cause in failed], '; ')}")


@dataclass
class _Source:
    """One URL of a file."""

    url: str
    stump: Stump
    want: File
    limits: Limits

    def fetched(self, wait: Callable[[float], object]) -> Fetched:
        """Ask as often as it is worth it.  Failed when it is not."""
        from requests import Session

        if self.stump.size and self.stump.sha256 in self.want.digests:
            return self._judged()
        tries, most, anew = 0, self.stump.size, 1 + bool(self.stump.size)
        with Session() as session:
            session.headers.update({"Accept-Encoding": "identity", "User-Agent": f"gpt2ln/{__version__}"})
            while True:
                try:
                    return self._once(session)
                except _Anew:
                    self.stump.drop()
                    most, anew = 0, anew - 1
                    if anew < 0:
                        raise
                except Again as cause:
                    if cause.kept:
                        most = max(most, self.stump.size)
                        continue
                    tries += self.stump.size - most < PROGRESS
                    most = max(most, self.stump.size)
                    if tries > self.limits.retries:
                        raise Failed(f"{cause}{f', tried {tries} times' if tries > 1 else ''}", cause.error) from None
                    wait(max(cause.pause, min(30.0, 0.5 * 2 ** max(0, min(tries, 10) - 1))))

    def _once(self, session: "Session") -> Fetched:
        """One request -> the file, if with its answer it is whole."""
        asked = self._range()
        with answer_to(self.url, session, asked, self.limits.timeout) as answer:
            where, status = f"server answered {answer.status_code} ({shown(self.url)})", answer.status_code
            try:
                if status == 200:
                    self._take_whole(answer)
                elif status == 206 and asked:
                    self._take_rest(answer, where)
                elif status == 416 and asked:
                    self._check_end(answer, where)
                elif status in _LATER or status >= 500:
                    raise Again(where, pause=asked_pause(answer, where))
                else:
                    raise Failed(where)
            except Broken as cause:
                if self.stump.sha256 not in self.want.digests:
                    raise Again(self._got(str(cause))) from None
            return self._judged()

    def _range(self) -> dict[str, str]:
        """The headers that ask for the rest, where what is held is of use."""
        stump, origin = self.stump, self.stump.origin
        another = origin is not None and origin.url != shown(self.url)
        longest = self._longest()
        if stump.size and ((another and not self.want.digests) or (longest is not None and stump.size > longest)):
            stump.drop()
        if not stump.size:
            return {}
        unchanged = None if origin is None or another else strong(origin.etag) or origin.last_modified
        return {"Range": f"bytes={stump.size}-"} | ({"If-Range": unchanged} if unchanged else {})

    def _longest(self) -> int | None:
        if self.want.size is None or not self.want.sure:
            return None
        return max([self.want.size, *(size for size, _ in self.want.others)])

    def _may_be(self, total: int) -> bool:
        return self.want.size_fits(total) or not self.want.sure

    def _named(self, answer: "Response", total: int | None) -> Origin:
        """The file as the answer names it.  Azure gives the MD5 of the whole even with a part of it."""
        head = answer.headers
        md5 = head.get("x-ms-blob-content-md5") or (head.get("Content-MD5") if answer.status_code == 200 else None)
        md5 = None if encoded(answer) else md5
        return Origin(shown(self.url), head.get("ETag"), head.get("Last-Modified"), total, md5)

    def _take_whole(self, answer: "Response") -> None:
        """A 200: its first bytes and its length are looked at before any of it is kept, or what is held is dropped."""
        total, body = whole_length(answer), blocks(answer, self.limits.timeout)
        head, broken = b"", None
        try:
            while len(head) < LOOK and (block := next(body, b"")):
                head += block
        except Broken as cause:
            broken = cause
        if head and (wrong := first_bytes(self.stump.name, head)):
            raise Failed(f"got {wrong} ({shown(self.url)})")
        if total is not None and not self._may_be(total):
            raise Failed(f"server has {total} bytes ({shown(self.url)}), expected {self.want.size}")
        if not head and self.stump.size:
            raise broken or Broken
        self.stump.begin(self._named(answer, total))
        self._take([head] if head else [])
        if broken:
            raise broken
        self._take(body)

    def _take_rest(self, answer: "Response", where: str) -> None:
        """A 206: only what goes on where the stump ends, of the same file, is added to it."""
        origin, found = self.stump.origin, content_range(answer)
        if found is None or encoded(answer):
            raise _Anew(f"{where} without saying what part it is")
        first, last, total = found
        if first != self.stump.size or not first <= last < total or not self._may_be(total):
            raise _Anew(f"{where} with bytes {first}-{last} of {total}, asked for {self.stump.size}-")
        if origin and origin.url == shown(self.url):
            before, now = strong(origin.etag), strong(answer.headers.get("ETag"))
            if (origin.total or total) != total or (before and now and before != now):
                raise _Anew(f"{where} with a part of another file than before")
        self.stump.go_on(self._named(answer, total))
        self._take(blocks(answer, self.limits.timeout))
        if self.stump.size == last + 1 < total and last + 1 - first >= LOOK:  # no less, or there would be no end
            raise Again(self._got(), kept=True)

    def _check_end(self, answer: "Response", where: str) -> None:
        """A 416: there is no more, if what is held is all."""
        total = unsatisfied_total(answer)
        total = self.want.size if total is None else total
        if total != self.stump.size or not self._may_be(total):
            raise _Anew(f"{where}, {self.stump.size} bytes are held")

    def _take(self, body: Iterable[bytes]) -> None:
        total = self.stump.origin.total
        most = self._longest() if total is None else total
        for block in body:
            self.stump.write(block)
            if most is not None and self.stump.size > most:
                raise _Anew(f"more than {most} bytes came ({shown(self.url)})")

    def _got(self, how: str = "") -> str:
        total = (self.stump.origin.total if self.stump.origin else None) or self.want.size
        of = "" if total is None else f" of {total}"
        return f"got {self.stump.size}{of} bytes{how and ', ' + how} ({shown(self.url)})"

    def _judged(self) -> Fetched:
        """Hold what is held against what is known of the file.  Again where it is short, _Anew where it is wrong."""
        stump, want = self.stump, self.want
        origin, size = stump.origin, stump.size
        if (origin and origin.total is not None and size < origin.total) or not self._may_be(size):
            raise Again(self._got())
        notes, md5 = [], _md5(origin)
        if wrong := last_bytes(stump.name, stump.tail):
            raise _Anew(f"got {wrong} ({shown(self.url)})")
        if want.digests and stump.sha256 not in want.digests:
            wrong = f"sha256 {stump.sha256}, expected {want.sha256}"
            if want.sure:
                raise _Anew(f"got {wrong} ({shown(self.url)})")
            notes.append(f"{stump.name}: {wrong} by its shape; none is published")
        elif not want.digests and md5 not in (None, stump.md5):
            raise _Anew(f"got MD5 {stump.md5.hex()}, the server says {md5.hex()} ({shown(self.url)})")
        if not want.size_fits(size):
            notes.append(f"{stump.name}: {size} bytes, expected {want.size} by its shape; none is published")
        stump.finish()
        return Fetched(size, stump.sha256, md5 == stump.md5, shown(self.url), tuple(notes))


def _md5(origin: Origin | None) -> bytes | None:
    """The digest that came with the file, where it is one."""
    try:
        digest = base64.b64decode(origin.content_md5, validate=True)
    except (AttributeError, TypeError, binascii.Error, ValueError):
        return None
    return digest if len(digest) == 16 else None
