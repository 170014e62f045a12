"""`taps`: names and sizes of the activations."""

import click

from ..errors import Damaged
from ..locate import Place
from ..taps import PRESETS, all_taps, choose
from ..weights import read_hparams
from .options import command
from .output import as_json, as_table


@command("taps", "gpt2ln -m demo taps 'h0/ln_*/{mean,var}'")
@click.argument("globs", nargs=-1)
@click.option("--json", "form", is_flag=True, help="One object a line.")
def command(g, globs, form):
    """Activations by name, in the order of the forward pass: shape and float32 bytes of one token.

    GLOBS pick some: * stays within a level, ** crosses levels, h{0..5}, h-1, {mean,var}, !not-these, @ln-stats.
    """
    place: Place = g.place()
    hparams, _ = read_hparams(place.file("hparams.json"))
    if hparams.n_embd % hparams.n_head:
        raise Damaged(f"{place.file('hparams.json')}: n_head {hparams.n_head} does not divide n_embd {hparams.n_embd}")
    chosen = choose(",".join(globs), hparams) if globs else all_taps(hparams)
    if form:
        for tap in chosen:
            click.echo(as_json({"tap": tap.name, "shape": tap.shape, "bytes": _bytes(tap)}))
        return
    rows = [[tap.name, "x".join(map(str, tap.shape)), _size(tap)] for tap in chosen]
    click.echo(as_table(["tap", "shape", "bytes a token"], rows, left=(0, 1)), nl=False)
    fixed = sum(tap.bytes_a_token() for tap in chosen if "T" not in tap.shape)
    growing = sum(tap.bytes_a_token() for tap in chosen if "T" in tap.shape)
    g.note(
        f"{len(chosen)} taps, {fixed} bytes a token"
        + (f" and {growing} more for each position attended to" if growing else "")
    )
    if not globs:
        g.note(f"presets: {' '.join(PRESETS)}")


def _bytes(tap):
    return None if "T" in tap.shape else tap.bytes_a_token()


def _size(tap):
    return f"{tap.bytes_a_token()} x T" if "T" in tap.shape else str(tap.bytes_a_token())
