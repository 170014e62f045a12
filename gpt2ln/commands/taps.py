"""`taps`: names and sizes of the activations."""

import contextlib

import click

from ..aliases import SCHEMES, near, same
from ..checkpoint import read_index
from ..errors import Damaged, NotFound, UsageError, first_five
from ..locate import Place
from ..published import advised
from ..spec import HParams
from ..taps import PRESETS, all_taps, choose, formula
from ..weights import check, read_hparams
from .options import command
from .output import as_json, as_table


@command("taps", "gpt2ln -m demo taps 'h0/ln_*/{mean,var}'")
@click.argument("globs", nargs=-1)
@click.option("--layers", metavar="LIST", help="Of these blocks alone: 0,3-5,-1.")
@click.option("--as", "scheme", type=click.Choice(list(SCHEMES)), help="What TransformerLens (tl) or Hugging Face (hf) "
              "call them.")  # fmt: skip
@click.option("--json", "form", is_flag=True, help="One object a line.")
def command(g, globs, layers, scheme, form):
    """Activations by name, in the order of the forward pass: shape and float32 bytes of one token, what it is.

    GLOBS pick some: * stays within a level, ** crosses levels, h{0..5}, h-1, {mean,var}, !not-these, @ln-stats.  Names
    of TransformerLens and Hugging Face do too where they are the same numbers.
    """
    place: Place = g.place()
    hparams = _hyperparameters(place)
    chosen = choose(",".join(globs) if globs else "**", hparams, layers=layers)
    foreign: dict[str, list[str]] = {}
    for name, tap in same(scheme, hparams.n_layer).items() if scheme else ():
        foreign.setdefault(tap, []).append(name)
    if form:
        for tap in chosen:
            record = {"tap": tap.name, "shape": tap.shape, "bytes": _bytes(tap), "what": formula(tap.name)}
            click.echo(as_json(record | ({scheme: foreign.get(tap.name, [])} if scheme else {})))
        return
    last = SCHEMES[scheme] if scheme else "what"
    rows = []
    for tap in chosen:
        said = ", ".join(foreign.get(tap.name, ["-"])) if scheme else formula(tap.name)
        rows.append([tap.name, "x".join(map(str, tap.shape)), _size(tap), said])
    click.echo(as_table(["tap", "shape", "bytes a token", last], rows, left=(0, 1, 3)), nl=False)
    _notes(g, chosen, hparams, scheme, everything=len(chosen) == len(all_taps(hparams)))


def _hyperparameters(place: Place) -> HParams:
    """Held against the index where there is one; no weights are needed."""
    with advised(place.folder):
        path = place.file("hparams.json")
        hparams, _ = read_hparams(path)
        if hparams.n_embd % hparams.n_head:
            raise Damaged(f"{path}: n_head {hparams.n_head} does not divide n_embd {hparams.n_embd}")
        with contextlib.suppress(NotFound, UsageError):
            if problems := check(read_index(place.prefix), hparams, sizes=False).problems:
                raise Damaged(f"{place.prefix}: {first_five(problems, '; ')}")
    return hparams


def _notes(g, chosen, hparams, scheme: str | None, *, everything: bool) -> None:
    fixed = sum(tap.bytes_a_token() for tap in chosen if "T" not in tap.shape)
    growing = sum(tap.bytes_a_token() for tap in chosen if "T" in tap.shape)
    more = f" and {growing} more for each position attended to" if growing else ""
    g.note(f"{len(chosen)} tap{'s' * (len(chosen) != 1)}, {fixed} bytes a token{more}")
    if scheme:
        g.note("taps without a name there are the same numbers under none; refused as ambiguous or different:")
        refused = near(scheme, hparams.n_layer)
        for name in near(scheme, 1):
            g.note(f"  {name} {refused[name]}")
        if scheme == "tl":
            g.note("note: TransformerLens folds and centres weights unless told not to; then other numbers come out")
    elif everything:
        g.note(f"presets: {' '.join(PRESETS)}")


def _bytes(tap):
    return None if "T" in tap.shape else tap.bytes_a_token()


def _size(tap):
    return f"{tap.bytes_a_token()} x T" if "T" in tap.shape else str(tap.bytes_a_token())
