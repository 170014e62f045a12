"""`models`: what is on this disk."""

import click

from ..errors import UsageError
from .options import command
from .output import as_json, as_table


@command("models", "gpt2ln models")
@click.option("--json", "form", is_flag=True, help="One object a model; shelves where nothing is have one too.")
def command(g, form):
    """What is on this disk, where it was looked for, and whether it is whole.

    Told from names, sizes and index, without reading values: that is for `gpt2ln verify`.  VERIFIED is what
    gpt2ln.json says: pinned by `verify --pin` or `download`, and not touched since.  FAST is the prepared engine,
    beside the checkpoint or in --cache-dir, and by how much its logits differ from the exact one's at most.
    """
    from ..inventory import take

    for option, value in (("--models-dir", g.models_dir), ("--cache-dir", g.cache_dir)):
        if value == "":
            raise UsageError(f"{option}: empty, expected a path")
    shelves = take(g.shelves, g.kept)
    if form:
        for shelf in shelves:
            for record in _records(shelf):
                click.echo(as_json(record))
        return
    found = [model for shelf in shelves for model in shelf.models]
    rows = [
        [m.name, m.state, m.verified, _fast(m.engine), f"{m.bytes:,}", str(m.path.absolute()), _text(m)] for m in found
    ]
    head = ["name", "state", "verified", "fast", "bytes", "where", ""]
    click.echo(as_table(head, rows, left=(0, 1, 2, 3, 5, 6)), nl=False)
    for shelf in shelves:
        if not shelf.models:
            g.note(f"looked in {shelf.path.absolute()}: {shelf.why or 'nothing there'}")


def _fast(engine) -> str:
    """State of a prepared engine; of one that is ready, its distance."""
    if engine is None:
        return "-"
    return f"{engine.record['distance']['max_abs_dlogit']:.1e}" if engine.state == "ready" else engine.state


def _text(model) -> str:
    why = model.engine.why if model.engine else ""
    return "; ".join(text for text in (model.text, why and f"fast: {why}") if text)


def _records(shelf) -> list[dict]:
    where = str(shelf.path.absolute())
    if not shelf.models:
        return [{"shelf": where, "found": shelf.why or "nothing there"}]
    return [
        {"name": m.name, "state": m.state, "verified": m.verified, "bytes": m.bytes, "path": str(m.path.absolute())}
        | {"shelf": where, "found": m.text, "fast": m.engine and _engine(m.engine)}
        for m in shelf.models
    ]


def _engine(engine) -> dict:
    """All that is known of it but the sums of its files."""
    record = engine.record or {}
    known = {key: record[key] for key in ("distance", "versions", "cpu", "threads") if key in record}
    known |= {"bytes": engine.bytes} if record else {}
    return {"state": engine.state, "why": engine.why, "folder": str(engine.folder.absolute())} | known
