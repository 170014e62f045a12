"""A folder of official files: locked, with room enough, fetched, checked as a whole, and only then named.

What has its final name is whole and right; what is not yet is `NAME.part`.  What was there before is never touched
unless it is right, or `force` says so, and then it stays until the new one is whole.
"""

import contextlib
import os
import stat
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from .abreast import abreast
from .claim import claim
from .disk import check_room, disk, sha256
from .errors import Damaged, Different, DiskError, NetworkError, UsageError, first_five
from .fetch import Fetched, Limits, fetch
from .locate import Place
from .pins import RECORD, Pin, read_pins, read_source, write_pins
from .published import File
from .request import Unreachable
from .verify import verify
from .wanted import Wanted

PART = ".part"
ROOM = "--models-dir names a folder on another disk"


@dataclass(frozen=True)
class State:
    """One wanted file.  kind: whole | missing | wrong; held: bytes that are there; pin: of what was read."""

    name: str
    want: File
    kind: str
    held: int = 0
    why: str = ""
    pin: Pin | None = None


@dataclass(frozen=True)
class Done:
    """fetched: names, none where all were there already."""

    fetched: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Way:
    """How to fetch.  jobs: files at one time; force: replace what is wrong; on_bytes: told of what is held more."""

    limits: Limits
    jobs: int = 4
    force: bool = False
    on_bytes: Callable[[int], object] = lambda count: None


def survey(wanted: Wanted, seen: Mapping[str, Pin] | None = None, *, digests: bool = True) -> dict[str, State]:
    """What is there.  seen: digests of files that were read already; digests=False: sizes have to do."""
    return {name: _state(wanted.folder / name, want, seen or {}, digests) for name, want in wanted.files.items()}


def _state(path: Path, want: File, seen: Mapping[str, Pin], digests: bool) -> State:
    part = path.with_name(path.name + PART)
    with disk(path):
        if not os.path.lexists(path):
            return State(path.name, want, "missing", part.stat().st_size if part.is_file() else 0)
        if not path.exists():
            return State(path.name, want, "wrong", 0, f"a link to {os.readlink(path)}, which is not there")
        found = path.stat()
        size, known = found.st_size, seen.get(path.name)
        if not stat.S_ISREG(found.st_mode):
            return State(path.name, want, "wrong", 0, "no regular file")
        if want.sure and not want.size_fits(size):
            return State(path.name, want, "wrong", size, f"{size} bytes, expected {want.size}")
        digest = known.sha256 if known and known.still(path) else sha256(path) if digests else ""
    if digests and want.sure and want.digests and digest not in want.digests:
        return State(path.name, want, "wrong", size, f"sha256 {digest}, expected {want.sha256}")
    return State(path.name, want, "whole", size, pin=Pin(size, digest, found.st_mtime_ns))


def to_come(states: Mapping[str, State]) -> int:
    """Bytes, as far as sizes are known."""
    todo = (s for s in states.values() if s.kind != "whole" and s.want.size)
    return sum(max(0, s.want.size - (s.held if s.kind == "missing" else 0)) for s in todo)


def look(wanted: Wanted, seen: Mapping[str, Pin] | None = None) -> dict[str, State]:
    """Every file read, and, where no digest proves them and all are there, held against each other.

    What nobody has published is pinned here as it is found, where all is right.
    """
    pins = read_pins(wanted.folder)
    wanted = wanted.held_against(pins)
    states = survey(wanted, seen)
    if all(s.kind == "whole" for s in states.values()) and not all(s.want.digests for s in states.values()):
        misfits = _misfits(wanted, ())
        states |= {name: State(name, wanted.files[name], "wrong", why=why) for name, why in misfits.items()}
    if unfinished(states) == [] and not states.keys() <= pins.keys():
        with contextlib.suppress(DiskError):  # a folder that may only be read is complete all the same
            _pin(wanted, pins, states, read_source(wanted.folder))
    return states


def unfinished(states: Mapping[str, State]) -> list[State]:
    return [state for state in states.values() if state.kind != "whole"]


def download(wanted: Wanted, way: Way) -> Done:
    """Make the folder complete.  NetworkError, DiskError; UsageError for what is there and is not the file wanted."""
    before = look(wanted)
    refuse(wanted, before, way.force)
    if not unfinished(before):
        return Done(())
    with claim(wanted.folder):
        read = {name: state.pin for name, state in before.items() if state.pin}
        states = look(wanted, read)
        refuse(wanted, states, way.force)
        if not unfinished(states):  # another process was faster
            return Done(())
        pins = read_pins(wanted.folder)
        known = wanted.held_against(pins)
        check_room(wanted.folder, to_come(states), ROOM)
        came = _fetched(known, unfinished(states), way)
        if way.force and (old := [states[name] for name in _misfits(known, came) if name not in came]):
            came |= _fetched(known, old, way)
        _check_whole(known, came)
        _name(known.folder, [name for name in known.files if name in came])
        source = came[next(name for name in known.files if name in came)].url.rpartition("/")[0]
        _pin(known, pins, survey(known, read | _pins(known.folder, came)), source)
    return Done(tuple(came), tuple(note for one in came.values() for note in one.notes))


def refuse(wanted: Wanted, states: Mapping[str, State], force: bool) -> None:
    """Nothing is replaced unasked."""
    if not force and (wrong := [f"{s.name}: {s.why}" for s in states.values() if s.kind == "wrong"]):
        raise UsageError(f"{wanted.folder.absolute()}: {first_five(wrong, '; ')}; --force fetches and replaces it")


def _fetched(wanted: Wanted, todo: list[State], way: Way) -> dict[str, Fetched]:
    """All that is to come, small files first: what is wrong with a server shows in them as well."""
    in_turn = sorted(todo, key=lambda state: (state.want.size is None, state.want.size or 0))

    def one(name: str, on_bytes, wait) -> Fetched:
        part = wanted.folder / (name + PART)
        return fetch(wanted.urls(name), part, wanted.files[name], way.limits, on_bytes=on_bytes, wait=wait)

    came, failed = abreast([state.name for state in in_turn], one, jobs=way.jobs, on_bytes=way.on_bytes)
    if failed:
        raise _in_one(wanted, [state.name for state in todo], failed)
    return came


def _in_one(wanted: Wanted, names: list[str], failed: list[BaseException]) -> BaseException:
    """The error that says it all: a bug before the disk, the disk before the network."""
    for error in failed:
        if not isinstance(error, NetworkError):
            return error
    said = first_five(list(dict.fromkeys(str(error) for error in failed)), "; ")
    if any(isinstance(error, Unreachable) for error in failed):
        said = str(next(error for error in failed if isinstance(error, Unreachable)))
        by_hand = f"{', '.join(names)} fetched otherwise go into {wanted.folder.absolute()}"
        return NetworkError(f"{said}; try --mirror URL; {by_hand}")
    kept = sum(state.held for state in survey(wanted, digests=False).values())
    return NetworkError(f"{said}{f'; {kept} bytes are kept, run it again to go on' if kept else ''}")


def _check_whole(wanted: Wanted, came: Mapping[str, Fetched]) -> None:
    """Do the files fit each other?  What came and does not is dropped, unless what was there before is to blame."""
    wrong = _misfits(wanted, came)
    if not wrong:
        return
    said = f"{wanted.folder.absolute()}: {first_five([f'{name}: {why}' for name, why in wrong.items()], '; ')}"
    if wrong.keys() - came.keys():
        raise UsageError(f"{said}; --force fetches and replaces what was there before")
    dropped = [name for name in wrong if not wanted.files[name].digests]
    for name in dropped:
        (wanted.folder / (name + PART)).unlink()
    if not dropped:
        raise Damaged(f"{said}; so say the digests of the manifest")
    raise NetworkError(f"{said}; what came does not fit and was dropped, run it again")


def _misfits(wanted: Wanted, came) -> dict[str, str]:
    """Hold index, data, hyperparameters and vocabulary against each other, wherever they lie -> file, what is wrong.

    They are looked at through links, under the names that they do not have yet.
    """
    wrong: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="gpt2ln-") as view:
        for name in wanted.files:
            os.symlink((wanted.folder / (name + (PART if name in came else ""))).absolute(), Path(view, name))
        for index in (name for name in wanted.files if name.endswith(".index")):
            findings = verify(Place(wanted.model, Path(view), Path(view, index.removesuffix(".index"))))
            found = {f.file: f.text for f in findings if f.file in wanted.files and f.state != "ok"}
            if any(".data-" in name for name in found) and not wanted.files[index].digests:
                found.setdefault(index, "its sums are not those of the data")  # either may be the wrong one
            wrong |= found
    return wrong


def _name(folder: Path, names: list[str]) -> None:
    for name in names:
        with disk(folder / name):
            os.replace(folder / (name + PART), folder / name)
    _sync(folder)


def _sync(folder: Path) -> None:
    """What was renamed is renamed after a power cut, too."""
    with disk(folder):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _pins(folder: Path, came: Mapping[str, Fetched]) -> dict[str, Pin]:
    found = {name: (folder / name).stat() for name in came}
    return {name: Pin(one.size, one.sha256, found[name].st_mtime_ns) for name, one in came.items()}


def _pin(wanted: Wanted, old: Mapping[str, Pin], states: Mapping[str, State], source: str | None) -> None:
    pins = {name: state.pin for name, state in states.items()}
    write_pins(wanted.folder, {**old, **pins}, model=wanted.model, source=source)


def convert(wanted: Wanted, source: Wanted, way: Way, *, keep: bool = False) -> Done:
    """The official files out of a converted copy, whose folder is removed again unless `keep`.

    They get their names when their digests are the published ones: that is the proof.
    """
    from .restore import restore

    before = look(wanted)
    refuse(wanted, before, way.force)
    if not unfinished(before):
        return Done(())
    with claim(wanted.folder):
        check_room(wanted.folder, to_come(survey(source, digests=False)) + to_come(before), ROOM)
        notes = download(source, way).notes
        made = replace(wanted, folder=source.folder / "official")
        restored = restore(source.folder, made.folder, force=True)
        states = survey(made)
        if wrong := [f"{state.name}: {state.why or 'not made'}" for state in unfinished(states)]:
            raise Different(f"{made.folder.absolute()}: not the published files: {first_five(wrong, '; ')}")
        for name in wanted.files:
            with disk(wanted.folder / name):
                os.replace(made.folder / name, wanted.folder / name)
        _sync(wanted.folder)
        _pin(wanted, read_pins(wanted.folder), states, read_source(source.folder))
        _remove(made.folder, [RECORD])
        if not keep:
            _remove(source.folder, [*source.files, RECORD])
    return Done(tuple(wanted.files), (*notes, *restored.notes))


def _remove(folder: Path, names: list[str]) -> None:
    """What was written here and nothing else, and the folder where nothing else is in it."""
    for name in names:
        (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()
