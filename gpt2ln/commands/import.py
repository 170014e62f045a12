"""`import`: such weights back to the official layout."""

from pathlib import Path

import click

from ..errors import UsageError
from .options import command


@command("import", "gpt2ln -m demo export demo-hf && gpt2ln import demo-hf -o again && ls again")
@click.argument("source", metavar="IN")
@click.option("-o", "--output", metavar="FOLDER", required=True, help="Where to: a new folder.")
@click.option("--n-head", type=click.IntRange(min=1), metavar="N", help="Where nothing beside the weights says it.")
@click.option("--force", is_flag=True, help="Replace FOLDER.")
def command(g, source, output, n_head, force):
    """Write a Hugging Face GPT-2, or npz, in the official layout, byte for byte as OpenAI's files are.

    IN is a folder with model.safetensors and config.json, or one .safetensors or .npz file.  Of the 124M the sha256 of
    data and index are published: whether they came out is said.  float16 and bfloat16 are refused, and so is every
    setting under which the same weights are another function.
    """
    from ..restore import restore

    for option, value in (("IN", source), ("--output", output)):
        if not value:
            raise UsageError(f"{option}: empty, expected a path")
    made = restore(Path(source), Path(output), n_head=n_head, force=force)
    for note in made.notes:
        g.note(f"note: {note}")
    if made.published is not None:
        same = "are OpenAI's, by their published sha256" if made.published else "are not those that OpenAI published"
        g.note(f"data and index {same}")
    g.note(f"wrote {output}")
