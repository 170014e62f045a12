"""`detokenize`: token ids to text."""

import sys

import click

from ..bpe import check_ids
from ..errors import UsageError
from .options import command
from .prompts import parse_ids, read_text


@command("detokenize", "gpt2ln -m demo detokenize 39 68 75 75 78", ignore_unknown_options=True)  # -1 is an id
@click.argument("ids", nargs=-1)
@click.option("-f", "--file", metavar="FILE", help="Ids with blanks or line ends between; - is stdin.")
@click.option("--raw", is_flag=True, help="The bytes themselves, also where they are no UTF-8.")
def command(g, ids, file, raw):
    """Text of token IDS.  Bytes that are no UTF-8 become U+FFFD; no line end is added."""
    if bool(ids) == (file is not None):
        raise UsageError("detokenize: give ids, or --file FILE (- is stdin), one of them")
    for word in ids:
        if word.startswith("--"):
            raise click.NoSuchOption(word, ctx=click.get_current_context())
    words = " ".join(ids).split() if ids else read_text(file).split()
    numbers = parse_ids(words)
    bpe = g.vocabulary()
    check_ids(numbers, bpe.n_vocab)
    if raw:
        sys.stdout.flush()
        sys.stdout.buffer.write(bpe.decode_bytes(numbers))
    else:
        click.echo(bpe.decode(numbers), nl=sys.stdout.isatty())
