"""Is this checkpoint a GPT-2, and do its hyperparameters fit it?  All problems at once, none repaired.

Names and shapes come from `spec`; what is found comes from the index.  Notes are for people, problems stop a run.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .checkpoint import Bundle, Entry, size_problems
from .disk import contents
from .errors import Damaged, NotFound, first_five, in_short
from .spec import HPARAM_NAMES, RELEASED, HParams, variables

MOST = dict.fromkeys(HPARAM_NAMES, 2**31 - 1) | {"n_layer": 4096}  # past these names would be listed for ever
_LAYER = re.compile(r"model/h(\d{1,18})/")
_OBJECT_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"


@dataclass
class Findings:
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    cut_short: bool = False  # a data file is: fetching it again helps


def read_hparams(path: Path) -> tuple[HParams, list[str]]:
    """-> hyperparameters, notes.  NotFound when there is no file, Damaged when it does not hold the five numbers."""
    try:
        found = json.loads(contents(path).decode("utf-8"), object_pairs_hook=_once)
    except FileNotFoundError:
        raise NotFound(f"{path}: no such file; it holds {', '.join(HPARAM_NAMES)}") from None
    except UnicodeDecodeError as cause:
        raise Damaged(f"{path}: not UTF-8 at byte {cause.start}") from None
    except json.JSONDecodeError as cause:
        raise Damaged(f"{path}: line {cause.lineno} column {cause.colno}: {cause.msg}") from None
    except (ValueError, RecursionError) as cause:
        raise Damaged(f"{path}: {cause}") from None
    if not isinstance(found, dict):
        raise Damaged(f"{path}: a {type(found).__name__}, expected an object with {', '.join(HPARAM_NAMES)}")
    problems = [f"{key} is missing" for key in HPARAM_NAMES if key not in found]
    for key in HPARAM_NAMES:
        value = found.get(key, 1)
        if type(value) is not int or value < 1:
            problems.append(f"{key} is {in_short(value)}, expected a positive whole number")
        elif value > MOST[key]:
            problems.append(f"{key} is {in_short(value)}, expected at most {MOST[key]}")
    if problems:
        raise Damaged(f"{path}: {first_five(problems)}")
    notes = [f"{path.name}: unknown key {key} ignored" for key in found if key not in HPARAM_NAMES]
    return HParams(**{key: found[key] for key in HPARAM_NAMES}), notes


def _once(pairs: list[tuple[str, object]]) -> dict:
    """A JSON object whose keys are all different: of two values for one number, neither can be trusted."""
    if twice := [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]:
        raise ValueError(f"{first_five(twice)} given more than once")
    return dict(pairs)


def shown_by(entries: Mapping[str, Entry]) -> dict[str, int]:
    """What the shapes themselves say of the hyperparameters; `n_head` cannot be seen in them."""
    seen = {}
    layers = {int(m[1]) for name in entries if (m := _LAYER.match(name))}
    if layers:
        seen["n_layer"] = max(layers) + 1
    for name, axes in (("model/wte", ("n_vocab", "n_embd")), ("model/wpe", ("n_ctx", "n_embd"))):
        if name in entries and len(entries[name].shape) == 2:
            seen = dict(zip(axes, entries[name].shape, strict=True)) | seen
    return seen


def check(bundle: Bundle, hparams: HParams, *, sizes: bool = True) -> Findings:
    """Hold the index against the hyperparameters, both against what a GPT-2 is, and the data against the index.

    sizes: of the data files, too.  NotFound where one is not there.
    """
    findings = Findings()
    entries = bundle.entries
    stranger = _kind_of_stranger(entries)
    if stranger:
        findings.problems.append(stranger)
        return findings
    seen = shown_by(entries)
    findings.problems += _contradictions(entries, hparams, seen)
    n_layer = seen.get("n_layer", hparams.n_layer)
    if n_layer > len(entries):  # do not list millions of names
        findings.problems.append(f"{n_layer} layers, but the checkpoint has {len(entries)} variables")
        return findings
    expected = variables(HParams(**(hparams.as_dict() | seen)))
    findings.problems += _names_and_shapes(entries, expected)
    findings.extra = [name for name in entries if name not in expected]
    if findings.extra:
        findings.notes.append(f"ignored {len(findings.extra)} other variables: {first_five(findings.extra)}")
    findings.notes += _official_but_for_heads(hparams)
    problems, notes = size_problems(bundle) if sizes else ([], [])
    findings.problems += problems
    findings.cut_short = bool(problems)
    findings.notes += [f"warning: {note}" for note in notes]
    return findings


def _kind_of_stranger(entries: Mapping[str, Entry]) -> str | None:
    """Say what a checkpoint is that has nothing under `model/`."""
    if any(name.startswith("model/") and not name.endswith(_OBJECT_SUFFIX) for name in entries):
        return None
    if any(name.endswith(_OBJECT_SUFFIX) for name in entries):
        return (
            "an object checkpoint (tf.train.Checkpoint), expected name-based variables such as model/wte;"
            " save it again with tf.compat.v1.train.Saver or tf.raw_ops.SaveV2"
        )
    for name in entries:
        if name.split("/")[-1] == "wte":
            return f"no variable under model/, but {name}: the scope was renamed; expected model/wte"
    return f"not a GPT-2: none of its {len(entries)} variables is under model/ (first: {next(iter(entries))})"


def _contradictions(entries: Mapping[str, Entry], hparams: HParams, seen: dict[str, int]) -> list[str]:
    problems = []
    where = {"n_vocab": "model/wte", "n_embd": "model/wte", "n_ctx": "model/wpe"}
    for key, value in seen.items():
        claimed = getattr(hparams, key)
        if claimed == value:
            continue
        if key == "n_layer":
            problems.append(f"n_layer {claimed}, but the checkpoint has h0..h{value - 1}")
        else:
            name = where[key] if where[key] in entries else "model/wpe"
            problems.append(f"{key} {claimed}, but {name} is {list(entries[name].shape)}")
    if hparams.n_embd % hparams.n_head:
        problems.append(f"n_head {hparams.n_head} does not divide n_embd {hparams.n_embd}")
    return problems


def _names_and_shapes(entries: Mapping[str, Entry], expected: dict[str, tuple[int, ...]]) -> list[str]:
    problems = []
    missing = [name for name in expected if name not in entries]
    if missing:
        problems.append(f"{len(missing)} of {len(expected)} variables missing: {first_five(missing)}")
    for name, shape in expected.items():
        entry = entries.get(name)
        if entry is None:
            continue
        if entry.sliced:
            problems.append(f"{name} is stored in slices (a partitioned variable), expected whole")
        elif entry.shape != shape:
            problems.append(f"{name} is {list(entry.shape)}, expected {list(shape)}")
        elif entry.dtype != "float32":
            problems.append(f"{name} is {entry.dtype}, expected float32")
    return problems


def _official_but_for_heads(hparams: HParams) -> list[str]:
    for name, official in RELEASED.items():
        same = {k: v for k, v in hparams.as_dict().items() if k != "n_head"}
        if same.items() <= official.as_dict().items() and hparams.n_head != official.n_head:
            return [f"warning: n_head {hparams.n_head}, the official {name} has {official.n_head}"]
    return []
