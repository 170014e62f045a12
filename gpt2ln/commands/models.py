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
    gpt2ln.json says: pinned by `verify --pin` or `download`, and not touched since.
    """
    from ..inventory import take

    if g.models_dir == "":
        raise UsageError("--models-dir: empty, expected a path")
    shelves = take(g.shelves)
    if form:
        for shelf in shelves:
            for record in _records(shelf):
                click.echo(as_json(record))
        return
    found = [model for shelf in shelves for model in shelf.models]
    rows = [[m.name, m.state, m.verified, f"{m.bytes:,}", str(m.path.absolute()), m.text] for m in found]
    click.echo(as_table(["name", "state", "verified", "bytes", "where", ""], rows, left=(0, 1, 2, 4, 5)), nl=False)
    for shelf in shelves:
        if not shelf.models:
            g.note(f"looked in {shelf.path.absolute()}: {shelf.why or 'nothing there'}")


def _records(shelf) -> list[dict]:
    where = str(shelf.path.absolute())
    if not shelf.models:
        return [{"shelf": where, "found": shelf.why or "nothing there"}]
    return [
        {"name": m.name, "state": m.state, "verified": m.verified, "bytes": m.bytes, "path": str(m.path.absolute())}
        | {"shelf": where, "found": m.text}
        for m in shelf.models
    ]
