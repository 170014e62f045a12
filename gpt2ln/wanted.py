"""What is to lie in a folder, file by file, and where it is asked for: the official host, mirrors, a manifest."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from .claim import LOCK
from .errors import Damaged, NotFound, UsageError, first_five
from .pins import RECORD, Pin
from .published import CONVERTED, FILES, HUGGING_FACE, META, MODELS, NEEDED, File
from .request import shown
from .spec import canonical


@dataclass(frozen=True)
class Wanted:
    """A folder as it is to be.  files: in the order in which they get their names; bases: URLs of such a folder."""

    model: str
    folder: Path
    files: Mapping[str, File]
    bases: Sequence[str] = field(repr=False)  # there may be a password in them

    def urls(self, name: str) -> list[str]:
        return [_below(base, name) for base in self.bases]

    def held_against(self, pins: Mapping[str, Pin]) -> "Wanted":
        """Where nothing is published, a file is to be the one that was found here first."""
        known = {
            name: File(pins[name].size, pins[name].sha256) if not want.digests and name in pins else want
            for name, want in self.files.items()
        }
        return replace(self, files=known)


def released(name: str) -> str:
    """The name, or today's name, of a released model."""
    if name == "demo":
        raise UsageError(f"demo is built in, there is nothing to fetch; choose {', '.join(FILES)}")
    if canonical(name) not in FILES:
        raise UsageError(f"unknown model {name!r}; choose {', '.join(FILES)}")
    return canonical(name)


def size_in_all(model: str) -> int:
    return sum(FILES[model][name].size for name in NEEDED)


def official(model: str, folder: Path, mirrors: Sequence[str] = (), *, meta: bool = False) -> Wanted:
    """The files of a released model; meta: `model.ckpt.meta` too, which nothing here reads."""
    files = {name: FILES[model][name] for name in (*NEEDED, *([META] if meta else []))}
    return Wanted(model, folder, _in_order(files), [_below(base, model) for base in mirrors or [MODELS]])


def listed(model: str, folder: Path, mirrors: Sequence[str], files: Mapping[str, File]) -> Wanted:
    """The files of a manifest."""
    if not _plain(model) or model == "demo":
        raise UsageError(f"model {model!r}: expected the name of a folder, none that is built in or a path")
    return Wanted(model, folder, _in_order(files), [_below(base, model) for base in mirrors or [MODELS]])


def converted(model: str, folder: Path, mirrors: Sequence[str] = ()) -> Wanted:
    """The same weights as Hugging Face has them, at the one revision whose digests are known."""
    if model not in CONVERTED:
        raise UsageError(f"--source hf: no revision of {model} is pinned; choose {', '.join(CONVERTED)}")
    copy = CONVERTED[model]
    host = HUGGING_FACE.format(repository=copy.repository, revision=copy.revision)
    return Wanted(model, folder, copy.files, [_below(base, model) for base in mirrors] or [host])


def checked_mirror(url: str) -> str:
    """UsageError for what is no URL of a folder on a web server."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        raise UsageError("--mirror: not a URL; expected http:// or https://, a host and a folder") from None
    if not sound or re.search(r"[\s\x00-\x1f\x7f]", url):
        raise UsageError(f"--mirror {shown(url)!r}: expected http:// or https://, a host and a folder")
    return url


def _below(base: str, name: str) -> str:
    """The URL of `name` in the folder `base`; a query, such as a signature, stays behind it."""
    parts = urlsplit(base)
    return urlunsplit((parts.scheme, parts.netloc, f"{parts.path.rstrip('/')}/{quote(name, safe='')}", parts.query, ""))


def _in_order(files: Mapping[str, File]) -> dict[str, File]:
    """Indexes last: without its index a folder is no checkpoint."""
    place = {name: n for n, name in enumerate(NEEDED)}
    return dict(sorted(files.items(), key=lambda item: (item[0].endswith(".index"), place.get(item[0], len(place)))))


def _plain(name: str) -> bool:
    """A name that leads nowhere else, on any system."""
    return bool(re.fullmatch(r"[^/\\\x00-\x1f\x7f]{1,200}", name)) and name not in (".", "..") and name.isprintable()


def _free(name: str) -> bool:
    """None of the names that this program gives to files of its own."""
    return name not in (RECORD, LOCK) and not name.endswith((".part", ".part.json", ".new"))


_MANIFEST = '{"files": {"NAME": {"size": BYTES, "sha256": HEX}}}'


def read_manifest(path: Path) -> dict[str, File]:
    """`{"files": {name: {"size": bytes, "sha256": hex}}}`, either left out where not known.  All problems at once."""
    try:
        read = json.loads(path.read_bytes().decode())
    except FileNotFoundError:
        raise NotFound(f"{path.absolute()}: no such file; it is to be the manifest") from None
    except OSError as cause:
        raise NotFound(f"{path.absolute()}: {cause.strerror}; it is to be the manifest") from None
    except (ValueError, RecursionError) as cause:
        raise Damaged(f"{path}: not JSON ({cause}); expected {_MANIFEST}") from None
    entries = read.get("files") if isinstance(read, dict) else None
    if not isinstance(entries, dict) or not all(isinstance(known, dict) for known in entries.values()):
        raise Damaged(f"{path}: expected {_MANIFEST}")
    problems = [problem for name, known in entries.items() for problem in _odd(name, known)]
    if problems or not entries:
        raise Damaged(f"{path}: {first_five(problems) or 'lists no file'}")
    lower = {name: known.get("sha256") and known["sha256"].lower() for name, known in entries.items()}
    return {name: File(known.get("size"), lower[name]) for name, known in entries.items()}


def _odd(name: str, known: Mapping) -> list[str]:
    """What cannot be in a manifest."""
    size, sha256 = known.get("size"), known.get("sha256")
    odd = [] if _plain(name) and _free(name) else [f"{name!r} is no name of a file to fetch"]
    if size is not None and (type(size) is not int or not 0 <= size < 1 << 60):
        odd.append(f"{name}: size is {size!r}, expected bytes")
    if sha256 is not None and not (isinstance(sha256, str) and re.fullmatch("[0-9a-fA-F]{64}", sha256)):
        odd.append(f"{name}: sha256 is {sha256!r}, expected 64 hexadecimal digits")
    return odd + [f"{name}: unknown key {key!r}" for key in known if key not in ("size", "sha256")]
