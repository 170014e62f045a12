"""`prepare`: make the fast engine of a model, once."""

import click

from ..errors import UsageError
from .options import command
from .output import as_json


@command("prepare", "gpt2ln prepare demo --cache-dir engines")
@click.argument("model", required=False)
@click.option("--force", is_flag=True, help="Make it anew, though it is there and whole.")
@click.option("--json", "form", is_flag=True, help="The record, as one object.")
def command(g, model, force, form):
    """Make the fast engine of MODEL: `generate` and `interact` then run it, and start without TensorFlow.

    It takes as much disk as the weights and lies beside the checkpoint, or in --cache-dir, which is made where it is
    not there.  It is run beside the exact one, and kept only if its logits are close; how close is what this prints,
    and `models`.
    """
    if model is not None:
        if g.model_name is not None:
            raise UsageError(f"{model}: a second model beside -m {g.model_name}; name one")
        g.model_name = model
    if g.device not in (None, "cpu"):
        raise UsageError(f"--device {g.device}: a prepared engine runs on the processor alone; expected cpu")
    opened = g.open()
    found, new = make(g, opened, force=force)
    if not new:
        g.note(f"note: {opened.place.name} was already prepared; --force makes it anew")
    if form:
        click.echo(as_json({"model": opened.place.name, "folder": str(found.folder.absolute())} | dict(found.record)))
        return
    click.echo(f"{opened.place.name}: {found.distance}")
    click.echo(f"{found.folder.absolute()}: {found.bytes:,} bytes in {len(found.record['files'])} files")


def make(g, model, *, force: bool = False) -> tuple:
    """With a bar on a terminal, one step a file and two for the runs beside each other -> it, whether it is new."""
    g.afford(model, 1, 1)
    steps = []
    with g.progress(2 * model.hparams.n_layer + 4, unit=" files") as bar:
        found = model.prepare(force=force, on_file=lambda name: steps.append(name) or bar.update(1))
    return found, bool(steps)
