"""`tokenize`: text to token ids."""

import click

from ..bpe import Bpe
from ..errors import UsageError
from ..spec import EOT_TEXT
from .options import command
from .output import as_json, as_table
from .prompts import argument, read_text


@command("tokenize", 'gpt2ln -m demo tokenize "To be, or not to be"')
@click.argument("text", required=False)
@click.option("-f", "--file", metavar="FILE", help="The whole content is one text; - is stdin.")
@click.option("--allow-special", is_flag=True, help=f"Take {EOT_TEXT} in the text as its token.")
@click.option("--format", "form", type=click.Choice(["ids", "table", "jsonl"]), default="ids", show_default=True)
def command(g, text, file, allow_special, form):
    """Token ids of TEXT, with blanks between; as a table or JSON also each token's bytes and their offset."""
    if (text is None) == (file is None):
        raise UsageError("tokenize: give a TEXT or --file FILE (- is stdin), one of them")
    bpe: Bpe = g.vocabulary()
    content = argument(text) if text is not None else read_text(file)
    ids = bpe.encode(content, allow_special=allow_special)
    if EOT_TEXT in content and not allow_special:
        g.note(
            f"note: {EOT_TEXT} is plain text, as in the official encoder;"
            " for the token: --allow-special, elsewhere --ids or --prefix-token eot"
        )
    if form == "ids":
        click.echo(" ".join(map(str, ids)))
        return
    offset, rows = 0, []
    for i in ids:
        token = bpe.token_bytes(i)
        rows.append({"id": i, "offset": offset, "bytes": len(token), "token": shown(token)})
        offset += len(token)
    if form == "jsonl":
        for row in rows:
            click.echo(as_json(row))
    else:
        click.echo(
            as_table(["id", "offset", "bytes", "token"], [[str(v) for v in r.values()] for r in rows], left=(3,)),
            nl=False,
        )


def shown(token: bytes) -> str:
    """A token as a person reads it, byte for byte: text where it is printable UTF-8, else escapes, as in Python."""
    try:
        text = token.decode("utf-8")
    except UnicodeDecodeError:
        return _escaped(token)
    return "".join(c if c.isprintable() and c != "\\" else _escaped(c.encode()) for c in text)


def _escaped(data: bytes) -> str:
    """Each byte as Python writes it between quotes."""
    return "".join("'" if b == 39 else repr(bytes([b]))[2:-1] for b in data)
