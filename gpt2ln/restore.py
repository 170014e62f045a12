"""Weights of a GPT-2 in Hugging Face's layout, or npz, back to the official one, byte for byte as OpenAI's files are.

A converted copy holds the same float32 values under other names; the official files follow from the values and the
names.  So everything that is not so is refused, all of it at once, and nothing is guessed.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .bpe import Bpe
from .checkpoint import Entry
from .disk import check_room, disk, replace, sha256
from .errors import Damaged, NotFound, UsageError, first_five
from .hf import VOCABULARY, Spelling, sizes_of, spelling, strange
from .official import PREFIX, STATE, Writer, hparams_text
from .pins import RECORD
from .provenance import array_sha256
from .published import DATA, FILES, INDEX, NEEDED
from .spec import HPARAM_NAMES, RELEASED, HParams, variables
from .tensors import Tensors, foreign, open_foreign
from .weights import read_hparams, shown_by
from .whole import checked_folder, whole_folder

# What may lie in a folder that --force replaces: what is written here, and what is pinned of it.
NAMES = (*NEEDED, RECORD)
_SMALL = 1 << 22  # room for what lies beside data and vocabulary


@dataclass(frozen=True)
class Restored:
    """What was written.  published: whether data and index are OpenAI's, None where no digest of theirs is known."""

    hparams: HParams
    published: bool | None
    notes: tuple[str, ...]


def restore(source: Path, folder: Path, *, n_head: int | None = None, force: bool = False) -> Restored:
    """Write the official layout into `folder`, which is whole or not there.

    source: a folder with model.safetensors, one file of safetensors or npz, or the index of several.  n_head: where
    nothing beside the weights says it.  Damaged, naming all that does not fit, before anything is written.
    """
    file = _weights_file(source)
    tensors = open_foreign(file)
    spelt = spelling(tensors.entries)
    hparams, text, notes = _hyperparameters(file.parent, _seen(tensors, spelt), n_head)
    _check(tensors, spelt, hparams)
    texts = {"checkpoint": STATE.encode(), "hparams.json": text} | _vocabulary(file.parent)
    folder = checked_folder(folder, NAMES, force=force)
    size = sum(tensors.entries[spelt.ours[name]].size for name in variables(hparams))
    check_room(folder.parent, size + _SMALL + sum(map(len, texts.values())))
    if spelt.tied:
        _check_tied(tensors, spelt)
    with whole_folder(folder, NAMES, force=force) as part:
        for name, content in texts.items():
            replace(part / name, content)
        if "vocab.bpe" in texts:
            _check_vocabulary(part, file.parent, hparams)
        _write(tensors, spelt, hparams, part)
        published = _published(part, hparams)
    if "vocab.bpe" not in texts:
        notes.append("no vocabulary in it; put encoder.json and vocab.bpe there, or use the weights with --checkpoint")
    return Restored(hparams, published, (*notes, *_left_out(spelt)))


def _left_out(spelt: Spelling) -> list[str]:
    copies = [f"{len(spelt.masks)} masks"] * bool(spelt.masks) + [f"{spelt.tied}, which is wte"] * bool(spelt.tied)
    return [f"left out: {' and '.join(copies)}"] * bool(copies)


def _weights_file(source: Path) -> Path:
    """NotFound or UsageError, with the reason, where there are no weights to be restored."""
    if file := foreign(source):
        return file
    if source.is_file() and source.name.endswith(".safetensors.index.json"):
        return source
    if not source.exists():
        raise NotFound(f"{source.absolute()}: no such file or folder; expected model.safetensors in a folder, or npz")
    if source.is_dir() and (official := sorted(source.glob("*.index"))):
        raise UsageError(f"{source}: {official[0].name} is there, it has the official layout already")
    pickled = [path.name for path in sorted(source.glob("*.bin"))] if source.is_dir() else []
    pickled += [source.name] * (source.suffix in (".bin", ".pt", ".pth", ".pkl"))
    if pickled:
        raise UsageError(f"{source}: {pickled[0]} is a pickle, which can run code; save it as safetensors")
    raise NotFound(f"{source.absolute()}: no model.safetensors, and no .safetensors or .npz file itself")


def _shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """As we store it: Hugging Face drops the first axis of `conv1d`."""
    return (1, *shape) if name.endswith("/w") and len(shape) == 2 else shape


def _seen(tensors: Tensors, spelt: Spelling) -> dict[str, int]:
    """What the shapes say of the hyperparameters."""
    return shown_by({ours: tensors.entries[theirs] for ours, theirs in spelt.ours.items()})


def _hyperparameters(beside: Path, seen: Mapping[str, int], n_head: int | None) -> tuple[HParams, bytes, list[str]]:
    """-> hyperparameters, the bytes of hparams.json, notes.  What several say must be the same."""
    said: dict[str, dict[str, int]] = {}
    notes, text = [], None
    if (path := beside / "hparams.json").is_file():
        hparams, notes = read_hparams(path)
        said[str(path)], text = hparams.as_dict(), path.read_bytes()
    if (path := beside / "config.json").is_file():
        said[str(path)] = _read_config(path)
    if n_head is not None:
        said["--n-head"] = {"n_head": n_head}
    said["the weights"] = dict(seen)
    sizes, problems = {}, []
    for who, numbers in said.items():
        for name, value in numbers.items():
            if sizes.setdefault(name, (value, who))[0] != value:
                problems.append(f"{name} is {value} in {who}, {sizes[name][0]} in {sizes[name][1]}")
    if problems:
        raise Damaged(first_five(problems, "; "))
    known = {name: value for name, (value, _) in sizes.items()}
    if "n_head" not in known:
        known["n_head"] = _official_heads(known)
        notes.append(f"n_head is {known['n_head']}, as in the official model of these shapes; weights do not show it")
    if missing := [name for name in HPARAM_NAMES if name not in known]:
        raise Damaged(
            f"{beside.absolute()}: neither a tensor nor a file there says {', '.join(missing)}; is it a GPT-2 with wte"
            " and wpe? config.json beside it would say"
        )
    if nothing := [name for name, value in known.items() if value < 1]:
        raise Damaged(f"{beside.absolute()}: {', '.join(nothing)} is 0 in the weights, expected a positive number")
    hparams = HParams(**known)
    if hparams.n_embd % hparams.n_head:
        raise Damaged(f"{beside.absolute()}: n_head {hparams.n_head} does not divide n_embd {hparams.n_embd}")
    return hparams, text or hparams_text(hparams).encode(), notes


def _official_heads(known: Mapping[str, int]) -> int:
    for official in RELEASED.values():
        if known.items() <= official.as_dict().items() and len(known) == 4:
            return official.n_head
    raise UsageError("n_head cannot be seen in weights, and there is no hparams.json or config.json; give --n-head")


def _read_config(path: Path) -> dict[str, int]:
    """The hyperparameters of a `config.json`.  Damaged where it is none, or of another function than a GPT-2."""
    try:
        config = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as cause:
        raise Damaged(f"{path}: not JSON ({cause})") from None
    if not isinstance(config, dict):
        raise Damaged(f"{path}: a {type(config).__name__}, expected an object")
    sizes = sizes_of(config)
    odd = [f"{k} is {v!r}, expected a positive whole number" for k, v in sizes.items() if type(v) is not int or v < 1]
    if odd := odd + strange(config):
        raise Damaged(f"{path}: {first_five(odd)}: another function than OpenAI's GPT-2")
    return sizes


def _check(tensors: Tensors, spelt: Spelling, hparams: HParams) -> None:
    """All that does not fit, at once."""
    if hparams.n_layer > len(spelt.ours):  # do not list millions of names
        raise Damaged(f"{tensors.where}: {hparams.n_layer} layers, but {len(spelt.ours)} tensors")
    expected = variables(hparams)
    problems = [f"{name} is there twice" for name in spelt.twice]
    if missing := [name for name in expected if name not in spelt.ours]:
        problems.append(f"{len(missing)} of {len(expected)} variables missing: {first_five(missing)}")
    if extra := [theirs for ours, theirs in spelt.ours.items() if ours not in expected]:
        problems.append(f"{len(extra)} that no GPT-2 has: {first_five(extra)}")
    for ours, theirs in spelt.ours.items():
        if ours in expected and (problem := _misfit(tensors.entries[theirs], ours, expected[ours])):
            problems.append(problem)
    if problems:
        raise Damaged(f"{tensors.where}: {first_five(problems, '; ')}")


def _misfit(entry: Entry, ours: str, shape: tuple[int, ...]) -> str | None:
    found = _shape(ours, entry.shape)
    if found != shape:
        hint = ", stored as Linear does; transpose it" if found == (1, *reversed(shape[1:])) else ""
        return f"{entry.name} is {list(entry.shape)}, expected {list(shape[-2:])}{hint}"
    if entry.dtype != "float32":
        return f"{entry.name} is {entry.dtype}, expected float32: a narrower copy has lost the official values"
    return None


def _check_tied(tensors: Tensors, spelt: Spelling) -> None:
    """A head of its own would be lost; both are read in turn, one copy in memory at a time."""
    import numpy as np

    digests = []
    for name in (spelt.tied, spelt.ours["model/wte"]):
        entry = tensors.entries[name]
        digests.append((entry.dtype, entry.shape, array_sha256(np.ascontiguousarray(tensors.array(entry)))))
        tensors.release(entry)
    if digests[0] != digests[1]:
        raise Damaged(f"{tensors.where}: {spelt.tied} is not wte; OpenAI's GPT-2 has one matrix for both, a head of"
                      " its own would be lost")  # fmt: skip


def _vocabulary(beside: Path) -> dict[str, bytes]:
    """Both files as they are, else what a `tokenizer.json` holds of them; nothing where there is nothing."""
    found = {}
    for official, theirs in VOCABULARY.items():
        if paths := [path for name in (official, theirs) if (path := beside / name).is_file()]:
            found[official] = paths[0]
    if len(found) < 2 and (path := beside / "tokenizer.json").is_file():
        return _from_tokenizer(path)
    if missing := [f"{ours} or {VOCABULARY[ours]}" for ours in VOCABULARY if found and ours not in found]:
        raise NotFound(f"{beside.absolute()}: {missing[0]} is missing, the other half of the vocabulary is there")
    return {name: path.read_bytes() for name, path in found.items()}


def _from_tokenizer(path: Path) -> dict[str, bytes]:
    """The vocabulary that transformers 5 keeps in one file, as the two official ones are written."""
    try:
        model = json.loads(path.read_bytes())["model"]
        ids = dict(sorted(model["vocab"].items(), key=lambda item: item[1]))
        merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as cause:
        raise Damaged(f"{path}: no vocabulary of byte pairs in it ({type(cause).__name__}: {cause})") from None
    lines = "".join(f"{line}\n" for line in ["#version: 0.2", *merges])
    return {"encoder.json": json.dumps(ids).encode(), "vocab.bpe": lines.encode("utf-8", "surrogatepass")}


def _check_vocabulary(folder: Path, beside: Path, hparams: HParams) -> None:
    """Damaged where it is none, or of another size."""
    try:
        bpe = Bpe(folder / "encoder.json", folder / "vocab.bpe")
    except Damaged as cause:
        raise Damaged(f"{beside}: vocabulary: {str(cause).replace(f'{folder}/', '')}") from None
    if bpe.n_vocab != hparams.n_vocab:
        raise Damaged(f"{beside}: the vocabulary has {bpe.n_vocab} entries, the weights have n_vocab {hparams.n_vocab}")


def _write(tensors: Tensors, spelt: Spelling, hparams: HParams, part: Path) -> None:
    """Data and index, in the byte order of the names: h0, h1, h10, h11, h2, ..."""
    writer = Writer(part / PREFIX)
    try:
        for name, shape in sorted(variables(hparams).items(), key=lambda item: item[0].encode()):
            entry = tensors.entries[spelt.ours[name]]
            with disk(tensors.where):
                array = tensors.array(entry)
            writer.add(name, array.reshape(shape))
            tensors.release(entry)
        writer.finish()
    except BaseException:
        writer.abandon()
        raise


def _published(folder: Path, hparams: HParams) -> bool | None:
    """Whether data and index have the sha256 that was published for a model of these hyperparameters."""
    name = next((name for name, official in RELEASED.items() if official == hparams), None)
    known = {file: FILES[name][file].digests for file in (INDEX, DATA) if name and FILES[name][file].digests}
    if not known:
        return None
    return all(sha256(folder / file) in digests for file, digests in known.items())
