"""`norm-study`: what each wrong LayerNorm would do to this model on these texts."""

from pathlib import Path

import click

from ..errors import UsageError
from ..mistakes import MISTAKES, choose
from .documents import OVERFLOW, read_documents
from .options import command
from .output import as_json, checked, results
from .prompts import prompt_options


def _with_names(function):
    """Its help ends with what there is, a line each."""
    lines = [f"    {mistake.name.ljust(11)}  {mistake.what}" for mistake in MISTAKES]
    function.__doc__ += "\n".join(["", "    \b", *lines])
    return function


@command("norm-study", 'gpt2ln -m demo norm-study --only eps-1e-6,rms "To be, or not to be"')
@prompt_options
@OVERFLOW
@click.option("--only", metavar="NAME,...", help="These variants alone.  [default: all]")
@click.option("--json", "as_object", is_flag=True, help="One JSON object, every digit.")
@click.option("-o", "--output", metavar="FILE.json", help="Also keep that object, with its provenance.")
@click.option("--plot", metavar="FILE", help="Also draw it, norm by norm: png, pdf or svg.")
@click.option("--force", is_flag=True, help="Overwrite these files.")
@_with_names
def command(g, only, as_object, output, plot, force, overflow, **sources):
    """Run texts through the exact graph and through wrong ones: say what each wrong LayerNorm would do.

    first norm, logits: the largest difference of what comes out there.  KL: of the exact distribution from the wrong
    one, in nats, mean over tokens and the worst.  flips: tokens with another argmax.  ppl %: change of the perplexity
    of the texts.  from: where it starts to matter, the first norm whose output differs by more than ten times the noise
    of float32, which is the exact graph's largest distance there from the float64 pass of the same weights.
    """
    mistakes = choose(only)
    files = [path for path in (output, plot) if path is not None]
    if "-" in files or len({Path(path).absolute() for path in files}) < len(files):
        raise UsageError("norm-study: -o and --plot take a name of a file each; the table goes to stdout")
    for path in files:
        checked(Path(path), force)
    if plot is not None:
        from ..figure import check

        check(Path(plot).suffix.removeprefix("."))
    study, provenance = _studied(g, mistakes, overflow, sources)
    from .study_tables import as_record, table

    line = as_json(as_record(study) | {"provenance": provenance}) + "\n"
    for path, made in ((output, lambda: line.encode()), (plot, lambda: _drawn(study, Path(plot)))):
        if path is not None:
            with results(path, force, binary=True) as file:
                file.write(made())
    click.echo(line if as_object else table(study), nl=False)


def _drawn(study, path: Path) -> bytes:
    from ..study_figure import drawn

    return drawn(study, path.suffix.removeprefix("."))


def _studied(g, mistakes, overflow: str, sources: dict):
    """Run the texts -> study, provenance."""
    from ..plan import digest_of
    from ..prompt import CHUNK
    from ..taps import FORMULAS_VERSION, norm_scopes

    model = g.open()
    documents = read_documents(g, model, "norm-study", overflow, **sources)
    longest, hp = max(len(d.ids) for d in documents), model.hparams
    row = 4 * (len(norm_scopes(hp)) * hp.n_embd + hp.n_vocab)
    g.afford(model, 2, longest, held=row * (longest + min(CHUNK, longest)))
    engine = g.engine(model)
    from ..study import study

    with g.progress((len(mistakes) + 2) * sum(len(d.ids) for d in documents)) as bar:
        made = study(engine, [d.ids for d in documents], mistakes, progress=bar.update)
    provenance = model.provenance() | {"formulas_version": FORMULAS_VERSION, "prefix_token": sources["prefix_token"]}
    provenance |= {"overflow": overflow, "documents": [digest_of([d.ids]) for d in documents]}
    return made, provenance | {"command": g.command_line("--force", "-q")}
