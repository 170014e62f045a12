"""`compare`: two dumps, ours or anyone's: which tap differs first, why, and whether it is rounding or a bug."""

import sys
from pathlib import Path

import click

from ..errors import BadInput, Different, Gpt2lnError, UsageError
from .options import Number, command


@command("compare", "gpt2ln -m demo dump 'To be' -o A.npz && gpt2ln -m demo compare A.npz --backend float64")
@click.argument("a")
@click.argument("b", required=False)
@click.option("--backend", type=click.Choice(["exact", "float64"]), help="Compute anew what the one dump was made of.")
@click.option("--against", type=click.Choice(["auto", "float64", "none"]), default="auto", show_default=True,
              help="What tells rounding from a bug: the model in float64, or limits alone.")  # fmt: skip
@click.option("--rtol", type=Number(), metavar="R", help="Limit, in units of a row's RMS, where limits alone count.  "
              "[default: 1e-4]")  # fmt: skip
@click.option("--atol", type=Number(), metavar="X", help="Limit, beside it.  [default: 0]")
@click.option("--all", "everything", is_flag=True, help="List every tap, those that agree too.")
@click.option("--json", "form", is_flag=True, help="One object.")
def command(g, a, b, backend, against, rtol, atol, everything, form):
    """Where B parts from A, in the order of the forward pass: exit status 0 where it is rounding alone, 1 elsewhere.

    Of a tap that differs, "here" says that B's own inputs do not give what B got, "before" that they do.

    A is taken to be right.  Each is a dump, or npz, npy, safetensors of another program, under our names or those of
    TransformerLens or Hugging Face; docs/porting.md shows how to write one.  Texts may be padded (attention_mask or
    lengths beside them), packed (doc_ptr or cu_seqlens), or some of their positions alone (positions, position_ids or
    rows): what is no token is cut away, and a note says so.  With the model of A at hand (-m) the
    noise of float32 is known at each tap, and tells rounding from a bug; else a limit does.

    With --backend there is no B: what the model computes now stands for A, and the dump is asked about.
    """
    limits = rtol is not None or atol is not None
    if (b is None) == (backend is None):
        raise UsageError("compare: expected two dumps, or one and --backend exact or float64")
    if limits and against == "float64":
        raise UsageError(
            "--rtol, --atol: limits are for --against none; with float64 the noise of float32 is the limit"
        )
    from .. import compare as core
    from . import comparing

    against = "none" if limits else against
    first, second, hparams, model = _sides(g, a, b, backend, against)
    weights = {} if model is None or against == "none" else model.weights
    by = core.Measure(hparams, weights, core.RTOL if rtol is None else rtol, atol or core.ATOL)
    notes = comparing.remarks(first, second)
    looks = sys.stderr.isatty()  # elsewhere the answer is enough
    report = core.compare(first, second, by, lambda tap: looks and g.note(f"{tap} differs; looking for the cause"))
    notes += report.notes
    for note in notes:
        g.note(note)
    if form:
        click.echo(comparing.record(first, second, report, by, notes), nl=False)
    else:
        limit = comparing.measured_by(by, report, Path(model.place.name).name if model else "")
        click.echo(comparing.tables(first, second, report, limit, everything=everything), nl=False)
    if report.verdict == core.BUG:
        raise Different(comparing.in_short(first, report))


def _sides(g, a: str, b: str | None, backend: str | None, against: str):
    """Both readings, the hyperparameters, and the model of A where there is one."""
    from ..readings import is_ours, read

    paths = [Path(name) for name in (a, b) if name is not None]
    if "" in (a, b):
        raise UsageError("compare: a name is empty, expected that of a dump")
    read_ = {path: read(path) for path in paths if is_ours(path)}  # these say what the others may leave out
    stated = next((one.hparams for one in read_.values() if one.hparams), None)
    model = _model(g, read_.get(paths[0]), stated, insist=(backend and f"--backend {backend}") or _asked(against))
    hparams = stated or (model.hparams if model else None)
    sides = [read_.get(path) or read(path, hparams) for path in paths]
    if model is not None:
        _check_ids(sides, model, insist=bool(backend) or against == "float64")
    if backend is not None:
        sides = [_anew(g, model, sides[0], backend), *sides]
    return *sides, hparams, model


def _asked(against: str) -> str:
    return "--against float64" if against == "float64" else ""


def _model(g, a, stated, *, insist: str):
    """The model that A was made by, or None.  insist: the option that cannot do without."""
    from .comparing import digest_of

    named = g.model_name is not None or g.checkpoint is not None
    if not named and a is None:
        if insist:
            raise UsageError(f"{insist}: A does not say which model it is of; name it with -m")
        return None
    try:
        model = g.open()
    except Gpt2lnError as cause:
        if named or insist:
            raise
        g.note(f"note: no model to tell rounding from a bug: {cause}")
        return None
    digest = model.index_sha256 if a is None else digest_of(a)
    if digest == model.index_sha256 and stated == (model.hparams if stated or a else None):
        return model
    wrong = f"{model.place.name} is not the model of {'A' if digest != model.index_sha256 else 'these dumps'}"
    if insist:
        raise BadInput(f"{insist}: {wrong}; name that one with -m")
    g.note(f"note: {wrong}, so a limit tells rounding from a bug; name the one that is with -m")
    return None


def _check_ids(sides, model, *, insist: bool) -> None:
    """Hold token ids against the model."""
    from ..bpe import check_ids

    for document in (document for one in sides for document in one.documents):
        if document.ids is not None:
            check_ids(document.ids, model.hparams.n_vocab)
        if model.hparams.n_ctx < document.T:
            raise BadInput(f"{document.T} tokens, expected 1..{model.hparams.n_ctx} of {model.place.name}")
    if insist and all(document.ids is None for one in sides for document in one.documents):
        some = any(document.some for one in sides for document in one.documents)
        held = (
            "token ids are those of some rows alone; save the whole text"
            if some
            else "no side holds token ids; save them"
        )
        raise BadInput(f"{held} as tokens [T], or pass --against none")


def _anew(g, model, given, backend: str):
    """The same texts and taps, as the model computes them now."""
    import numpy as np

    from ..readings import Document, Reading

    if given.record and given.record.get("ln_from"):
        raise BadInput(f"{given.where}: was made with --ln-from, whose statistics it does not hold; compare two dumps")
    if backend == "exact":
        g.afford(model, 1, max(document.T for document in given.documents))
    documents = []
    names = [*given.taps, *(tap for pair in given.documents[0].either for tap in pair)]
    for one in given.documents:
        if backend == "exact":
            taps = model.observe(one.ids, ",".join(names))
        else:
            taps = dict(model.reference(one.ids).walk(names))
        documents.append(Document(one.T, np.arange(one.T), taps, one.ids, one.spelt))
    dtype = "float32" if backend == "exact" else "float64"
    record = None
    if backend == "exact" and given.record:
        keys = ("prefix_token", "dtype", "formulas_version", "ln_from")
        record = {**model.provenance(), **{key: given.record.get(key) for key in keys}}
    where = f"{Path(model.place.name).name}, computed anew, {backend}"
    return Reading(where, tuple(documents), record, (), dict.fromkeys(names, dtype))
