"""`interact`: continue what you type, again and again."""

import contextlib
import sys

import click

from ..errors import BadInput
from ..prompt import Prompt
from .generate import TextWriter, engine_option, make_settings, run, sampling_options
from .options import command
from .prompts import argument
from .speculating import Guesses, speculate_options

with contextlib.suppress(ImportError):
    import readline  # noqa: F401  line editing and history in input()


@command("interact", "echo 'ROMEO:' | gpt2ln -m demo interact --length 20")
@sampling_options
@speculate_options
@engine_option
def command(g, engine, speculate, guesses, **options):
    """Continue each line you type; the model is loaded once.  Ctrl-D ends.

    Prompts go to stderr, text to stdout.
    """
    model = g.open(engine=engine)
    guessing = Guesses(g, model, engine, speculate, guesses)
    settings = make_settings(g, [], model.hparams.n_ctx, **options)
    g.afford(model, settings.batch_size, model.hparams.n_ctx)
    guessing.afford(settings.batch_size, model.hparams.n_ctx)
    _ = g.engine(model), guessing.speculation
    if hasattr(sys.stdin, "reconfigure"):  # UTF-8 under every locale, and a line that is not gets its own message
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape", newline="\n")
    while True:
        try:
            line = _ask()
        except EOFError:
            click.echo(err=True)
            return
        if not line:
            click.echo("Prompt should not be empty!", err=True)
            continue
        try:
            prompt = Prompt(tuple(model.bpe.encode(argument(line))), line)
            make_settings(g, [prompt], model.hparams.n_ctx, **(options | {"seed": settings.seed}))
            writer = TextWriter(sys.stdout, model, settings, "none", False)
            run(g, model, [prompt], settings, guessing, writer, live=True)
        except BadInput as problem:
            click.echo(f"error: {problem}", err=True)


def _ask() -> str:
    click.echo("Model prompt >>> ", nl=False, err=True)
    if sys.stdin.isatty():
        return input()
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.removesuffix("\n").removesuffix("\r")
