"""Make the fast engine of a checkpoint: convert, run beside `exact`, and keep it only if it is close enough.

One engine is in memory at a time, so that the largest model is prepared in little more than its own size.
"""

import contextlib
import gc
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from . import processor
from .checkpoint import Bundle, load
from .convert import Recipe, convert, recipes
from .disk import alone, check_room, disk, open_own
from .distance import BOUND, Distance, follow, measure, prompts
from .engine import Exact, to_tensors
from .errors import Different, DiskError, NonFinite, NotFound, UsageError, first_five
from .fast import Fast
from .prepared import FORMAT, RECORD, code, file_crc, folder_name, litert_version, others
from .provenance import sealed
from .runtime import tf
from .spec import HParams, variables
from .whole import whole_folder

OVERHEAD = 1 << 14  # bytes of a file beside its weights, at most


def prepare(
    bundle: Bundle,
    hparams: HParams,
    probe: Sequence[int],
    parent: Path,
    *,
    index_sha256: str,
    threads: int,
    run: str,
    force: bool = False,
    on_file: Callable[[str], object] = lambda name: None,
) -> dict:
    """Into a folder of `parent` that has its name when all of it is proved -> its record.

    probe: token ids of `distance.TEXT`; run: the command that does this.  `parent` is made where it is not there.
    Different where the engine is further from exact than BOUND allows.
    """
    wanted = list(recipes(hparams))
    names = {*(recipe.file for recipe in wanted), RECORD}
    folder = parent / folder_name(index_sha256, hparams)
    with _elsewhere(run):
        _make_room(parent, folder, _bytes(bundle, wanted), names)
        with whole_folder(folder, names, force=force) as part:
            record = _make(bundle, hparams, probe, part, wanted, threads, on_file)
            record |= {"index_sha256": index_sha256, "hparams": hparams.as_dict()}
            _write(part / RECORD, (json.dumps(sealed(record), indent=1) + "\n").encode())
            _remove(folder.with_name(folder.name + ".old"))  # what was killed while it took the place of another
    for older in others(index_sha256, hparams, parent, begun=True):
        _remove(older)
    return record


@contextlib.contextmanager
def _elsewhere(run: str) -> Iterator[None]:
    """What the system says of a disk gets the way to another."""
    try:
        yield
    except DiskError as cause:
        if not isinstance(cause.__cause__, OSError):
            raise
        raise DiskError(f"{cause}; another folder: {_with_cache_dir(run)}") from cause


def _with_cache_dir(run: str) -> str:
    return f"{run.partition(' --cache-dir')[0]} --cache-dir DIR"


def _make_room(parent: Path, folder: Path, need: int, names: set[str]) -> None:
    """Refuse, before anything is computed, where the folder cannot be; make the one it is to lie in."""
    if parent.exists() and not parent.is_dir():
        raise UsageError(f"--cache-dir {parent}: a file, expected a folder")
    check_room(parent, need, "another folder: --cache-dir DIR")
    with disk(parent):
        parent.mkdir(parents=True, exist_ok=True)
    if folder.is_dir() and (other := [n for n in sorted(os.listdir(folder)) if not _ours(folder / n, names)]):
        raise UsageError(f"{folder}: holds {first_five(other)}, expected files of an engine alone; remove the folder")


def _ours(path: Path, names: set[str]) -> bool:
    return path.name in names and path.is_file()


def _make(
    bundle: Bundle,
    hparams: HParams,
    probe: Sequence[int],
    part: Path,
    wanted: Sequence[Recipe],
    threads: int,
    on_file: Callable[[str], object],
) -> dict:
    """Fill the folder -> what the record says of that."""
    on_file("exact")
    expected = _expected(bundle, hparams, prompts(probe, hparams), threads)
    files = {}
    for recipe in wanted:
        on_file(recipe.file)
        files[recipe.file] = _write(part / recipe.file, _converted(bundle, hparams, recipe))
    on_file("fast")
    distance = _distance(Fast(hparams, part, bundle, threads=threads), expected)
    return _facts(threads) | {"files": files, "distance": asdict(distance)}


def _bytes(bundle: Bundle, wanted: Sequence[Recipe]) -> int:
    return sum(OVERHEAD + sum(bundle.entries[f"model/{name}"].size for name in recipe.variables) for recipe in wanted)


def _expected(bundle: Bundle, hparams: HParams, probe: list[list[int]], threads: int) -> list[tuple]:
    """What exact makes of the probe: prompt, ids stepped by, logits."""
    engine = Exact(hparams, to_tensors(load(bundle, variables(hparams))), threads=threads)
    found = [(prompt, *follow(engine, prompt)) for prompt in probe]
    del engine
    gc.collect()  # the graphs hold each other, and all weights
    return [(prompt, ids, rows) for prompt, rows, ids in found]


def _distance(engine: Fast, expected: list[tuple]) -> Distance:
    try:
        found = [follow(engine, prompt, ids)[0] for prompt, ids, _ in expected]
    except NonFinite as cause:  # where exact was finite
        raise Different(f"fast engine: {cause}; not kept: generate runs on exact") from None
    distance = measure(np.concatenate([rows for *_, rows in expected]), np.concatenate(found))
    if not distance.within:
        raise Different(
            f"fast engine: logits differ by up to {distance.max_abs_dlogit:.3g} from exact, expected at most"
            f" {BOUND * distance.largest_logit:.3g} ({BOUND:g} of the largest); not kept: generate runs on exact"
        )
    return distance


def _converted(bundle: Bundle, hparams: HParams, recipe: Recipe) -> bytes:
    shapes = variables(hparams)
    wanted = {f"model/{name}": shapes[f"model/{name}"] for name in recipe.variables}
    try:
        arrays = {name: array.copy() for name, array in load(bundle, wanted)}  # a map would stay in memory
        return convert(recipe, arrays)
    except (AttributeError, ImportError) as cause:
        raise NotFound(
            f"TensorFlow {tf.__version__}: no converter for LiteRT in it ({cause}); tried with tensorflow 2.16 and 2.21"
        ) from cause
    finally:
        gc.collect()  # graphs hold each other: else all weights that were converted stay


def _facts(threads: int) -> dict:
    from . import __version__

    versions = {"gpt2ln": __version__, "ai-edge-litert": litert_version()}
    versions |= {"tensorflow": tf.__version__, "numpy": np.__version__}
    return {"format": FORMAT, "code": code(), "versions": versions, "cpu": processor.name(), "threads": threads}


def _write(path: Path, content: bytes) -> dict:
    """-> what the record says of it"""
    with disk(path):
        with os.fdopen(open_own(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return {"size": len(content), "crc32c": file_crc(path)}


def _remove(folder: Path) -> None:
    """An engine that this one replaces, unless somebody writes it, or keeps something else there."""
    with contextlib.suppress(OSError, DiskError):
        held = [folder / name for name in os.listdir(folder)]
        if not all(path.is_file() and (path.suffix == ".tflite" or path.name == RECORD) for path in held):
            return
        with alone(folder):
            for path in held:
                path.unlink()
            folder.rmdir()
