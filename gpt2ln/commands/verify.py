"""`verify`: a model's files held against all that is known of them, and its answers against the published ones."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

import click
from click.core import ParameterSource

from ..errors import Damaged, Different, DiskError, Gpt2lnError, NotFound, UsageError, first_five
from ..locate import Place, find
from ..published import AGAIN
from .options import Globals, command
from .output import as_json, as_table

RAISED: dict[str, type[Gpt2lnError]] = {
    "damaged": Damaged,
    "unreadable": DiskError,
    "missing": NotFound,
    "different": Different,
}
FILES = ("file", "bytes", "state", "found")
ANSWERS = ("answer", "sure", "holds", "found")


@command("verify", "gpt2ln verify demo")
@click.argument("model", required=False)
@click.option("--fast", is_flag=True, help="Read no values: presence, sizes, index, hyperparameters, vocabulary.")
@click.option("--json", "form", is_flag=True, help="One object a file, then a summary.")
@click.option("--pin", is_flag=True, help="If all is whole, keep its digests in gpt2ln.json, to be held against later.")
@click.option("--answers", is_flag=True, help="Then ask for the published answers of 124M or 355M.  Needs TensorFlow.")
def command(g, model, fast, form, pin, answers):
    """Every file against its size and sha256 where known, every tensor against its CRC32C.

    Then the shapes against hparams.json, and the vocabulary against itself.  A folder with the name of a released
    model is held against what is published of it, one with gpt2ln.json against what is pinned there.

    Exit status: 0 whole; 4 damaged; 7 unreadable; 3 missing; 1 sound, but not the published or pinned bytes, or an
    answer does not hold that is sure.  Of several the first in this order.
    """
    from ..finding import worst

    place = _place(g, model)
    _refuse_pin(place, pin, fast)
    asked = _published_answers(place) if answers else []
    findings = _findings(g, place, fast, pin)
    state = worst(findings)
    _show(form, FILES, [_file_record(f) for f in findings], [_file_row(f) for f in findings])
    held = _held(g, place, asked) if asked and state in ("ok", "unchecked", "different") else []
    if held:
        click.echo("" if form else "\n", nl=False)
        _show(form, ANSWERS, [_answer_record(h) for h in held], [_answer_row(h) for h in held])
    if form:
        click.echo(as_json({"summary": _summary(place, state, findings, held)}))
    for finding in findings:
        for said in finding.text.split("; "):
            if said.startswith("warning: "):
                g.note(said)
    _raise(place, state, findings, held)
    if pin:
        _pin(g, place, findings)
    g.note(f"{place.name}: {len(findings)} files whole" + (", values not read (--fast)" if fast else ""))


def _place(g: Globals, model: str | None) -> Place:
    """Of MODEL, which is the same as -m and says more than the environment."""
    _refuse_foreign(Path(model or g.model_name or ""), g.checkpoint)
    place = g.place() if model is None else _of_argument(g, model)
    _refuse_foreign(place.folder, g.checkpoint or place.named)
    return place


def _of_argument(g: Globals, model: str) -> Place:
    ctx = click.get_current_context()
    typed = [c for c in (ctx, ctx.parent) if c.get_parameter_source("model_name") is ParameterSource.COMMANDLINE]
    if typed and g.model_name != model:
        raise UsageError(f"two models: {model} and -m {g.model_name}; name one")
    place = g.place(model)
    return find(model, g.shelves, Path(g.checkpoint)) if g.checkpoint else place


def _refuse_foreign(path: Path, weights: object) -> None:
    """safetensors and npz hold no sums to be held against; beside `weights` they are no matter."""
    from ..tensors import foreign

    if weights is None and path.name and (file := foreign(path)):
        raise UsageError(f"{file}: verify takes the official layout; what reads this: gpt2ln inspect, gpt2ln diff")


def _refuse_pin(place: Place, pin: bool, fast: bool) -> None:
    if pin and fast:
        raise UsageError("--pin needs the digest of every file, which --fast does not read; pass one of the two")
    if pin:
        with contextlib.suppress(NotFound):
            if place.prefix.parent != place.folder:
                raise UsageError(f"--pin is for a folder as it lies; {place.prefix} is outside {place.folder}")


def _findings(g: Globals, place: Place, fast: bool, pin: bool) -> list:
    from ..verify import data_bytes, verify

    if fast:
        return verify(place, fast=True)
    with _bar(g, data_bytes(place), "B") as bar:
        return verify(place, digests=pin, on_bytes=bar.update)


def _bar(g: Globals, total: int, unit: str):
    """On stderr, on a terminal alone."""
    from tqdm import tqdm

    return tqdm(total=total, unit=unit, unit_scale=True, leave=False, disable=True if g.quiet else None)


def _show(form: bool, head: Sequence[str], records: list[dict], rows: list[list[str]]) -> None:
    if form:
        for record in records:
            click.echo(as_json(record))
    else:
        left = [i for i, name in enumerate(head) if name != "bytes"]
        click.echo(as_table(head, rows, left=left), nl=False)


def _file_row(finding) -> list[str]:
    return [finding.file, "-" if finding.size is None else str(finding.size), finding.state, finding.text or "-"]


def _file_record(finding) -> dict:
    record = {"file": finding.file, "state": finding.state, "bytes": finding.size, "sha256": finding.sha256}
    sums = [{"name": bad.name, "crc32c": _hex(bad.found), "index": _hex(bad.stored)} for bad in finding.tensors]
    return record | {"found": finding.text, "tensors": sums}


def _hex(crc: int | None) -> str | None:
    return None if crc is None else f"{crc:08x}"


def _summary(place: Place, state: str, findings: list, held: list) -> dict:
    summary = {"model": place.name, "folder": str(place.folder.absolute()), "state": state, "files": len(findings)}
    if held:
        for kind, some in (("sure", [h for h in held if h.sure]), ("others", [h for h in held if not h.sure])):
            summary[kind] = {"answers": len(some), "hold": sum(h.holds for h in some)}
    return summary


def _raise(place: Place, state: str, findings: list, held: list) -> None:
    """What the worst of it comes to."""
    told = []
    if state in RAISED:
        at_fault = [f"{f.file}: {f.text}" for f in findings if f.state == state]
        told.append(f"{len(at_fault)} of {len(findings)} files {state}: {first_five(at_fault, '; ')}")
    sure = [h for h in held if h.sure]
    if wrong := [f"{h.name}: {h.found}" for h in sure if not h.holds]:
        told.append(f"{len(wrong)} of {len(sure)} sure answers do not hold: {first_five(wrong, '; ')}")
    if told:
        told += _advice(place, state, told[0])
        raise RAISED.get(state, Different)("; ".join([f"{place.folder.absolute()}: {told[0]}", *told[1:]]))


def _advice(place: Place, state: str, told: str) -> list[str]:
    from ..pins import RECORD, official

    again = AGAIN.replace("NAME", official(place.folder) or "NAME")
    advice = [again] if state in ("damaged", "missing", "different") and AGAIN not in told else []
    if state == "different" and "pinned" in told:
        advice.append(f"if the change is meant, remove {RECORD} and pin anew: gpt2ln verify --pin")
    return advice


def _pin(g: Globals, place: Place, findings: list) -> None:
    from ..pins import RECORD, Pin, official, read_source, write_pins

    pins = {f.file: Pin(f.size, f.sha256, f.mtime_ns) for f in findings}
    model = official(place.folder) or place.name
    write_pins(place.folder, pins, model=model, source=read_source(place.folder))
    g.note(f"pinned: {place.folder / RECORD}")


def _published_answers(place: Place) -> list[dict]:
    """Those of the model whose name the folder bears."""
    from ..answers import read_answers
    from ..pins import official

    answers = read_answers()
    if model := answers.get(official(place.folder)):
        return model
    some = " and ".join(name for name in answers if answers[name])
    raise UsageError(f"--answers: none are published for {place.name}; there are some for {some}")


def _held(g: Globals, place: Place, asked: list[dict]) -> list:
    from ..answers import check
    from ..library import Model
    from ..sample import Sampling

    model = Model(place, threads=g.threads, device=g.device or "cpu")
    g.afford(model, 1, model.hparams.n_ctx)
    with _bar(g, len(asked), " answers") as bar:
        held = []
        for answer in asked:
            held += check(model, [answer], greedy=Sampling(temperature=0.0))
            bar.update()
    if wrong := [one.name for one in held if not (one.sure or one.holds)]:
        g.note(f"note: of the answers that one source alone gives, {len(wrong)} do not hold: {first_five(wrong, '; ')}")
    return held


def _answer_row(held) -> list[str]:
    return [held.name, "yes" if held.sure else "no", "yes" if held.holds else "no", held.found]


def _answer_record(held) -> dict:
    record = {"answer": held.name, "sure": held.sure, "holds": held.holds, "found": held.found}
    return record | {"difference": held.difference, "tolerance": held.tolerance, "sources": list(held.sources)}
