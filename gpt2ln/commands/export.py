"""`export`: weights in formats of others."""

from pathlib import Path

import click

from ..errors import UsageError
from ..spec import MODEL_FILES
from .options import command
from .output import checked


@command("export", "gpt2ln -m demo export demo-hf && ls demo-hf")
@click.argument("out")
@click.option("--format", "form", type=click.Choice(["safetensors", "npz"]), help="[default: npz for OUT.npz]")
@click.option("--force", is_flag=True, help="Replace OUT.")
def command(g, out, form, force):
    """Write the model as a folder that Hugging Face's transformers opens, or as one npz.

    The folder OUT gets model.safetensors, config.json, the vocabulary, and hparams.json for the way back:
    GPT2LMHeadModel.from_pretrained(OUT), AutoTokenizer.from_pretrained(OUT).  OUT.npz holds float32 arrays under their
    official names.  Every tensor is checked against its CRC32C first; OUT has its name when it is whole.
    """
    from .. import export

    target = _target(out)
    form = form or ("npz" if target.suffix == ".npz" else "safetensors")
    if form == "npz":
        checked(target, force)
        model = g.open()
        _refuse_source(model, target)
        export.export_npz(model.bundle, model.hparams, target)
    else:
        if target.suffix in (".safetensors", ".npz"):
            raise UsageError(f"{target}: --format safetensors writes a folder, expected the name of one")
        model = g.open()
        place = model.place
        export.export_folder(model.bundle, model.hparams, place.folder, model.bpe.eot, target, force=force)
    g.note(f"wrote {target}")


def _refuse_source(model, target: Path) -> None:
    """Not over what is read."""
    place, bundle = model.place, model.bundle
    shards = [bundle.shard_path(n) for n in range(bundle.shards)]
    read = [*shards, Path(f"{place.prefix}.index"), *map(place.file, (*MODEL_FILES, "checkpoint"))]
    if any(path.exists() and target.exists() and path.samefile(target) for path in read):
        raise UsageError(f"{target}: is a file of the model itself; choose another name")


def _target(out: str) -> Path:
    if not out:
        raise UsageError("OUT: empty, expected the name of a folder or of an npz file")
    return Path(out)
