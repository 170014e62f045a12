"""`ln-stats`: statistics of every LayerNorm over texts."""

from pathlib import Path

import click

from ..errors import NotFound, UsageError
from .documents import OVERFLOW, read_documents
from .ln_tables import FORMATS, remarks
from .options import command
from .output import as_json, checked, results
from .prompts import source_options


@command("ln-stats", 'gpt2ln -m demo ln-stats "To be, or not to be, that is the question."')
@click.argument("text", nargs=-1)
@source_options
@OVERFLOW
@click.option("--merge", is_flag=True, help="The arguments are files that -o wrote: say it of all together.")
@click.option("--by", type=click.Choice(["layer", "position", "channel"]), default="layer", show_default=True)
@click.option("--top-channels", "k", type=click.IntRange(min=0), default=3, show_default=True, metavar="K",
              help="Channels that hold most variance.")  # fmt: skip
@click.option("--format", "form", type=click.Choice(list(FORMATS)), default="table", show_default=True)
@click.option("-o", "--output", metavar="FILE.json", help="Also keep the run, for --merge.")
@click.option("--plot", metavar="FILE", help="Also draw it: png, pdf or svg.")
@click.option("--html", metavar="FILE", help="Also write it as one page that needs nothing else.")
@click.option("--force", is_flag=True, help="Overwrite these files.")
def command(g, text, merge, by, k, form, output, plot, html, force, overflow, **sources):
    """Run texts through the model and say what each LayerNorm did: mean, variance, rstd, RMS of its output.

    A channel's share is its part of the variance that the norm divides out; it is massive at a token where it alone
    holds a tenth.  Medians are within 1.6 %.
    """
    files = [path for path in (output, plot, html) if path is not None]
    if "-" in files or len({Path(path).absolute() for path in files}) < len(files):
        raise UsageError("ln-stats: -o, --plot and --html take a name of a file each; the table goes to stdout")
    for path in files:
        checked(Path(path), force)
    if plot is not None or html is not None:
        from ..figure import check

        check("svg" if plot is None else Path(plot).suffix.removeprefix("."))
    run = _merged(g, text, sources) if merge else _watched(g, text, overflow, sources)
    for path, made in ((output, _json), (plot, _plot), (html, _html)):
        if path is not None:
            with results(path, force, binary=True) as file:
                file.write(made(run, Path(path), k))
    click.echo(FORMATS[form](run, by, k), nl=False)
    for remark in remarks(run):
        g.note(remark)


def _json(run, path: Path, k: int) -> bytes:
    return as_json(run.record()).encode() + b"\n"


def _plot(run, path: Path, k: int) -> bytes:
    from ..figure import drawn

    return drawn(run.stats, run.gains, path.suffix.removeprefix("."))


def _html(run, path: Path, k: int) -> bytes:
    from ..page import page

    return page(run, k).encode()


def _watched(g, text: tuple[str, ...], overflow: str, sources: dict):
    """Run the texts."""
    from ..plan import digest_of
    from ..prompt import ABREAST, CHUNK
    from ..runs import Run
    from ..taps import FORMULAS_VERSION, choose

    if len(text) > 1:
        raise UsageError(f"ln-stats: {len(text)} texts; put quotes around one, or give --lines FILE; files: --merge")
    model = g.open()
    documents = read_documents(g, model, "ln-stats", overflow, text=text[0] if text else None, **sources)
    longest = max(len(d.ids) for d in documents)
    row = sum(tap.bytes_a_token() for tap in choose("@ln", model.hparams))
    g.afford(model, ABREAST, longest, held=ABREAST * min(CHUNK, longest) * row)
    engine = model.engine
    from ..observe import ln_stats

    with g.progress(sum(len(d.ids) for d in documents)) as bar:
        stats = ln_stats(engine, [d.ids for d in documents], progress=bar.update)
    provenance = model.provenance() | {"formulas_version": FORMULAS_VERSION, "prefix_token": sources["prefix_token"]}
    provenance |= {"overflow": overflow, "command": g.command_line("--force", "-q")}
    return Run(provenance, stats, model.gains(), [digest_of([d.ids]) for d in documents])


def _merged(g, names: tuple[str, ...], sources: dict):
    """Read and add up; needs no model."""
    from ..runs import Run, merge

    given = [key for key, value in sources.items() if value is not None and key != "prefix_token"]
    if given or not names:
        raise UsageError("ln-stats --merge: expected files that ln-stats -o wrote, as in: --merge a.json b.json")
    for path in map(Path, names):
        if path.is_dir() or not path.exists():
            what = "is a folder, expected a file that ln-stats -o wrote" if path.is_dir() else "no such file"
            raise NotFound(f"{path.absolute()}: {what}")
    run, notes = merge([Run.read(Path(name)) for name in names], names)
    for note in notes:
        g.note(note)
    return run
