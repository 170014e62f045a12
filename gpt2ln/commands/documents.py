"""Texts to watch, as `dump` and `ln-stats` take them: one or many, each of at most the context."""

from dataclasses import replace

import click

from ..errors import BadInput, UsageError
from ..prompt import Prompt
from .prompts import read_prompts

OVERFLOW = click.option(
    "--overflow",
    type=click.Choice(["error", "truncate", "split"]),
    default="error",
    show_default=True,
    help="A text past the context: refuse it, keep its first part, or read it in parts.",
)


def read_documents(g, model, command: str, overflow: str, **sources) -> list[Prompt]:
    """Documents in order, every one of 1 to n_ctx tokens.  A part of a longer text has its id and no text."""
    prompts = read_prompts(model.bpe, g.note, **sources)
    if not prompts:
        raise UsageError(f"{command}: nothing to read; give a TEXT, --file, --lines, --ids or --jsonl")
    n_ctx = model.hparams.n_ctx
    documents = [part for n, p in enumerate(prompts) for part in _fit(p, n, len(prompts), n_ctx, overflow)]
    if left := sum(len(p.ids) for p in prompts) - sum(len(d.ids) for d in documents):
        g.note(f"note: {left} tokens past the context were left out (--overflow truncate)")
    return documents


def _fit(prompt: Prompt, n: int, of: int, n_ctx: int, overflow: str) -> list[Prompt]:
    if len(prompt.ids) <= n_ctx:
        return [prompt]
    if overflow == "error":
        which = "" if of == 1 else f" (document {n}" + ("" if prompt.id is None else f", id {prompt.id!r}") + ")"
        raise BadInput(
            f"text of {len(prompt.ids)} tokens{which}, the context takes {n_ctx};"
            " shorten it or pass --overflow truncate|split"
        )
    starts = range(0, len(prompt.ids) if overflow == "split" else n_ctx, n_ctx)
    return [replace(prompt, ids=prompt.ids[start : start + n_ctx], text=None) for start in starts]
