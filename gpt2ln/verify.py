"""A folder held against whatever is known of it: published and pinned digests, its index, hyperparameters, vocabulary.

Each file gets one `Finding`, and no finding keeps another from being made.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from .abreast import abreast
from .bpe import Bpe, read_encoder, read_merges
from .checkpoint import Bundle, read_index, size_problems
from .disk import sha256
from .errors import Damaged, NotFound, first_five
from .finding import Finding, Look, look_at
from .locate import Place
from .pins import RECORD, Pin, expected, known, official, read_pins
from .published import FILES, INDEX, META, File
from .spec import HPARAM_NAMES, MODEL_FILES, RELEASED, HParams
from .sums import data_files, in_shard, read_sums
from .weights import check, read_hparams

INDEXES = {files[INDEX].sha256: model for model, files in FILES.items() if files[INDEX].sha256}
VOCABULARY = tuple(FILES["124M"][name].sha256 for name in ("encoder.json", "vocab.bpe"))
OnBytes = Callable[[int], object]
Pins = dict[str, Pin]


def data_bytes(place: Place) -> int:
    """How much `verify` will read."""
    prefix, _ = _prefix(place)
    return sum(path.stat().st_size for path in data_files(prefix) if path.is_file())


def verify(
    place: Place, *, fast: bool = False, digests: bool = False, on_bytes: OnBytes = lambda count: None
) -> list[Finding]:
    """One finding a file.  fast: no values are read.  digests: of the data too where there is none to compare with.

    A file is held against what is published where its folder has the name of a released model, and against the pins of
    its folder.  UsageError where the folder holds several checkpoints.  on_bytes: of data, as they are read.
    """
    prefix, why_none = _prefix(place)
    pins = {folder: _pins(folder) for folder in dict.fromkeys((place.folder, prefix.parent))}
    small = {name: look_at(place.file(name), place.folder) for name in _small(place, pins[place.folder][0])}
    index = look_at(prefix.with_name(prefix.name + ".index"), place.folder)
    if why_none and index.gone == "missing":
        index.problems = [why_none]
    bundle = _read_index(index, prefix)
    shards = [look_at(path, place.folder) for path in data_files(prefix, bundle)]
    said = {look.path: known(look.path, pins[look.path.parent][0]) for look in (*small.values(), index, *shards)}
    hparams = _hyperparameters(small["hparams.json"], index, bundle)

    def values(told: OnBytes) -> None:
        for look in shards:
            look.unread = fast or not (bundle or said[look.path])
            wanted = digests or any(file.digests for file in said[look.path].values())
            _data(look, bundle, fast=fast, digest=wanted, on_bytes=told)

    def rest(_: OnBytes) -> None:
        for look in (*small.values(), index):
            look.sha256 = look.reading(lambda look=look: sha256(look.path))
        _vocabulary(small["encoder.json"], small["vocab.bpe"], hparams)
        _state(small.get("checkpoint"))

    _at_a_time({"values": values, "rest": rest}, on_bytes)
    for look in (*small.values(), index, *shards):
        _hold(look, said[look.path])
    if index.sha256 in INDEXES and not official(prefix.parent):
        index.said.append(f"the index of the published {INDEXES[index.sha256]}")
    records = [record for _, record in pins.values() if record]
    return [look.finding() for look in (*records, *small.values(), index, *shards)]


def _at_a_time(work: Mapping[str, Callable[[OnBytes], None]], on_bytes: OnBytes) -> None:
    """The one waits for the disk while the other works."""
    _, failed = abreast(list(work), lambda name, told, _: work[name](told), jobs=len(work), on_bytes=on_bytes)
    if failed:
        raise failed[0]


def _prefix(place: Place) -> tuple[Path, str | None]:
    """Of the weights; where there are none, of those that should be there, and why there are none."""
    try:
        return place.prefix, None
    except NotFound as cause:
        return place.folder / "model.ckpt", str(cause).removeprefix(f"{place.folder.absolute()}: ")
    except OSError:  # of the file `checkpoint`, which has its own finding
        return place.folder / "model.ckpt", None


def _pins(folder: Path) -> tuple[Pins, Look | None]:
    """What is pinned; the record itself where it cannot be read or is not what was written."""
    record = Look(folder / RECORD, RECORD, size=0)
    try:
        return read_pins(folder), None
    except Damaged as cause:
        record.damaged(cause)
    except OSError as cause:
        record.gone, record.problems = "unreadable", [cause.strerror or str(cause)]
    return {}, record


def _small(place: Place, pins: Pins) -> list[str]:
    """Names of the files beside the weights."""
    there = [name for name in ("checkpoint", META) if place.file(name).exists()]
    names = dict.fromkeys([*MODEL_FILES, *there, *expected(place.folder, pins)])
    return [name for name in names if not name.endswith(".index") and ".data-" not in name]


def _read_index(index: Look, prefix: Path) -> Bundle | None:
    bundle = index.reading(lambda: read_index(prefix))
    if bundle:
        index.said.append(f"{len(bundle.entries)} variables")
    return bundle


def _hyperparameters(look: Look, index: Look, bundle: Bundle | None) -> HParams | None:
    """Hold them against the index and, under a released name, against that model's: n_head shows nowhere else."""
    found = look.reading(lambda: read_hparams(look.path))
    if found is None:
        return None
    hparams, notes = found
    look.said += notes
    if model := official(look.path.parent):
        published = RELEASED[model].as_dict()
        wrong = {name: value for name, value in hparams.as_dict().items() if value != published[name]}
        look.differs += [f"{name} {value}, published {published[name]}" for name, value in wrong.items()]
    if bundle:
        _fits(look, index, bundle, hparams)
    return hparams


def _fits(look: Look, index: Look, bundle: Bundle, hparams: HParams) -> None:
    """Of two that contradict each other the smaller file is named.  What concerns the data stands with the data."""
    findings = check(bundle, hparams, sizes=False)
    for problem in findings.problems:
        (look if problem.split()[0] in HPARAM_NAMES else index).problems.append(problem)
    if not look.problems:
        look.said.append("fits the index")
    for note in findings.notes:
        (look if "n_head" in note else index).said.append(note)


def _state(look: Look | None) -> None:
    """What it names need not be there, folders move; but it names something."""
    content = look.reading(look.path.read_bytes) if look else None
    if content is not None and b"model_checkpoint_path" not in content:
        look.problems.append("no model_checkpoint_path in it")


def _vocabulary(encoder: Look, merges: Look, hparams: HParams | None) -> None:
    """Both together; where they do not go together, each alone as well.  The published one is known by its digests."""
    n_vocab = RELEASED["124M"].n_vocab if (encoder.sha256, merges.sha256) == VOCABULARY else _built(encoder, merges)
    if n_vocab is None:
        return
    encoder.said.append(f"{n_vocab} entries")
    merges.said.append(f"{n_vocab - 257} merges")
    if hparams and hparams.n_vocab != n_vocab:
        encoder.problems.append(f"{n_vocab} entries, hparams.json says n_vocab {hparams.n_vocab}")


def _built(encoder: Look, merges: Look) -> int | None:
    """n_vocab of the two; None where they are none, and why in the findings."""
    together = None
    if encoder.there and merges.there:
        try:
            bpe = Bpe(encoder.path, merges.path)
            encoder.said += [] if bpe.as_usual else ["warning: its ids are not in the order of vocab.bpe"]
            return bpe.n_vocab
        except (Damaged, OSError) as cause:
            together = cause
    for look, read in ((encoder, read_encoder), (merges, read_merges)):
        look.reading(lambda look=look, read=read: read(look.path))
    if together and not encoder.problems + merges.problems:
        (merges if str(together).startswith(str(merges.path)) else encoder).damaged(together)
    return None


def _hold(look: Look, known: Mapping[str, File]) -> None:
    """Against each digest or size that is known; where that itself is not sure, a mismatch is only told."""
    for source, file in known.items() if look.there else ():
        if look.sha256 and file.digests:
            fits, said = look.sha256 in file.digests, f"sha256 as {source}"
            differs = f"sha256 is {look.sha256}, {source} {file.digests[0]}"
        else:
            fits, said = file.size_fits(look.size), f"size as {source}"
            differs = f"{look.size} bytes, {source} {file.size}"
        if fits and (file.digests or file.size):
            look.said.append(said)
        elif not fits:
            (look.differs if file.sure else look.said).append(differs if file.sure else f"note: {differs} (not sure)")


def _data(look: Look, bundle: Bundle | None, *, fast: bool, digest: bool, on_bytes: OnBytes) -> None:
    """Its size against the index, and each variable in it against its sum."""
    if not look.there:
        return
    if bundle:
        entries = {entry.name: entry for entry in in_shard(bundle, look.path)}
        problems, notes = size_problems(replace(bundle, entries=entries, pieces=()))
        look.problems += problems
        look.said += [f"warning: {note}" for note in notes]
    if look.unread:
        look.said.append("values not read" if bundle or fast else "nothing to hold it against")
        return
    sums = look.reading(lambda: read_sums(look.path, bundle, digest=digest, on_bytes=on_bytes))
    if sums is None:
        return
    look.sha256, look.tensors = sums.sha256, sums.bad
    if sums.bad:
        named = first_five([str(bad) for bad in sums.bad])
        look.problems.append(f"{len(sums.bad)} of {sums.checked} tensors damaged: {named}")
    elif bundle:
        look.said.append(f"CRC32C of {sums.checked} tensors")
