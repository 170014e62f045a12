"""`dump`: activations of every layer, into a file."""

import shutil
from pathlib import Path

import click

from ..errors import UsageError
from ..plan import DTYPES, Plan, Positions
from ..prompt import ABREAST, CHUNK
from ..taps import choose
from .documents import OVERFLOW, read_documents
from .dumping import FORMATS, MB, SHARD_MB, check_target, fill, form_of, sink
from .options import command
from .output import as_table
from .prompts import prompt_options


@command("dump", "gpt2ln -m demo dump 'To be' -t 'h0/ln_1/{mean,var,rstd}'")
@prompt_options
@click.option("-t", "--taps", metavar="SPEC", default="@ln-stats", show_default=True, help="Which: see gpt2ln taps.")
@click.option("--layers", metavar="LIST", help="Of these blocks alone: 0,3-5,-1.")
@click.option("--stop-after", metavar="TAP", help="End the forward pass there.")
@click.option("--positions", metavar="LIST", default="all", show_default=True, help="all, last, 5, 0:16, -4:")
@click.option("--dtype", type=click.Choice(DTYPES), default="float32", show_default=True)
@OVERFLOW
@click.option("--ln-from", metavar="DUMP", help="Use mean and rstd of this dump in place of what the norms compute.")
@click.option("--format", "form", type=click.Choice(FORMATS), help="[default: by the name of the output, else dir]")
@click.option("-o", "--output", metavar="PATH", help="FILE.npz, FILE.jsonl or a folder.")
@click.option("--shard-mb", type=click.IntRange(min=1), default=SHARD_MB, show_default=True, help="Size of a shard.")
@click.option("--resume", is_flag=True, help="Go on with a folder that was interrupted.")
@click.option("--dry-run", is_flag=True, help="Say how many bytes it will be, and write nothing.")
@click.option("--force", is_flag=True, help="Replace the output.")
def command(
    g, taps, layers, stop_after, positions, dtype, overflow, ln_from, form, output, shard_mb, resume, dry_run, force,
    **sources,
):  # fmt: skip
    """Run texts through the model and keep activations: one row a token, documents one after the other.

    A folder is written in shards while it runs and goes on with --resume, even after kill -9.  Every dump says what it
    was made from: digests of checkpoint and vocabulary, formulas, versions, threads, command line.
    """
    model = g.open()
    if ln_from is None:
        documents, replay = read_documents(g, model, "dump", overflow, **sources), None
    else:
        documents, replay = _replayed(g, model, Path(ln_from), overflow, sources)
    prefix_token = replay.prefix_token if replay and documents is replay.documents else sources["prefix_token"]
    chosen = choose(taps, model.hparams, layers=layers, stop_after=stop_after)
    plan = Plan(tuple(chosen), tuple(documents), model.bpe.token_bytes, Positions(positions), dtype)
    form, limit = form_of(output, form), shard_mb * MB
    if dry_run:
        click.echo(_sizes(plan, form, limit), nl=False)
        folder = Path(output or "-").absolute().parent
        if folder.is_dir():
            g.note(f"{shutil.disk_usage(folder).free} bytes are free in {folder}")
        return
    where = dict(limit=limit, resume=resume, force=force)
    check_target(plan, output, form, **where)
    g.afford(model, ABREAST, plan.width, held=ABREAST * 2 * min(CHUNK, plan.width) * plan.row_bytes)
    engine = model.engine
    provenance = model.provenance() | {"prefix_token": prefix_token, "overflow": overflow}
    provenance |= {"ln_from": replay.seal if replay else None, "command": g.command_line("--resume", "--force", "-q")}
    opened = sink(plan, provenance, output, form, **where)
    fill(g, engine, plan, opened, replay or (lambda document: None))


def _replayed(g, model, path: Path, overflow: str, sources: dict):
    """The texts of a dump, or others of as many tokens, with its statistics."""
    from ..replay import Replay

    replay = Replay(path, model.hparams)
    if all(value is None for key, value in sources.items() if key != "prefix_token"):
        documents = replay.documents
        if sources["prefix_token"] not in ("none", replay.prefix_token):
            raise UsageError(f"--prefix-token: the texts are those of {path}, read with {replay.prefix_token}")
    else:
        documents = read_documents(g, model, "dump", overflow, **sources)
        replay.check_lengths([len(d.ids) for d in documents])
    if replay.index_sha256 != model.index_sha256:
        g.note(f"warning: the statistics of {path} are those of another checkpoint")
    if replay.dtype != "float32":
        g.note(f"warning: the statistics of {path} are {replay.dtype}: no rerun repeats its logits bit for bit")
    return documents, replay


def _sizes(plan: Plan, form: str, limit: int) -> str:
    """Exact: bytes of the arrays of all taps, and of the files of a folder without its manifest."""
    rows = [["documents", str(len(plan.documents))], ["tokens", str(plan.n_tokens)], ["rows", str(plan.n_rows)]]
    rows += [
        ["taps", str(len(plan.taps))],
        ["bytes a row", str(plan.row_bytes)],
        ["bytes of all rows", str(plan.tap_bytes)],
    ]
    if form == "dir":
        rows += [["shards", str(len(plan.shards(limit)))], ["bytes of all shards", str(plan.file_bytes(limit))]]
    return as_table(["what", "number"], rows)
