"""`ln-stats`: statistics of every LayerNorm over a text."""

import math
import shutil
import sys

import click

from ..errors import BadInput, UsageError
from ..stats import STATISTICS, Moments, NormStats
from .options import command
from .output import as_csv, as_json, as_table, results
from .prompts import prompt_options, read_prompts


@command("ln-stats", 'gpt2ln -m demo ln-stats "To be, or not to be, that is the question."')
@prompt_options
@click.option(
    "--top-channels",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    metavar="K",
    help="Channels that hold most variance.",
)
@click.option("--overflow", type=click.Choice(["error", "truncate", "split"]), default="error", show_default=True,
              help="A text past the context: refuse it, keep its first part, or read it in parts.")  # fmt: skip
@click.option("--format", "form", type=click.Choice(["table", "json", "csv"]), default="table", show_default=True)
@click.option("-o", "--output", metavar="FILE", help="Write there, not to stdout.")
@click.option("--force", is_flag=True, help="Overwrite FILE.")
def command(g, text, file, lines, ids, jsonl, prefix_token, top_channels, overflow, form, output, force):
    """Run TEXT through the model and say what each LayerNorm did: mean, variance, rstd, RMS of its output.

    Spread is the population standard deviation over tokens.  A channel's share is its part of the variance that the
    norm divides out; one channel in a thousand holding half of it is a massive activation.
    """
    model = g.open()
    sources = dict(text=text, file=file, lines=lines, ids=ids, jsonl=jsonl, prefix_token=prefix_token)
    prompts = read_prompts(model.bpe, g.note, **sources)
    if not prompts:
        raise UsageError("ln-stats: nothing to read; give a TEXT, --file, --lines, --ids or --jsonl")
    documents = [part for p in prompts for part in _fit(p.ids, model.hparams.n_ctx, overflow)]
    if left := sum(len(p.ids) for p in prompts) - sum(map(len, documents)):
        g.note(f"note: {left} tokens past the context were left out (--overflow truncate)")
    g.afford(model, 1, max(map(len, documents)))
    with results(output, force) as out:
        engine = model.engine
        from ..observe import ln_stats

        out.write(FORMATS[form](model, ln_stats(engine, documents), top_channels))


def _fit(ids: tuple[int, ...], n_ctx: int, overflow: str) -> list[tuple[int, ...]]:
    if len(ids) <= n_ctx:
        return [ids]
    if overflow == "error":
        raise BadInput(
            f"text of {len(ids)} tokens, the context takes {n_ctx}; shorten it or pass --overflow truncate|split"
        )
    parts = [ids[start : start + n_ctx] for start in range(0, len(ids), n_ctx)]
    return parts if overflow == "split" else parts[:1]


def _table(model, stats: dict[str, NormStats], k: int) -> str:
    """A line a norm; on a terminal too narrow for it without the spreads."""
    wide, narrow = (_rows(model, stats, k, spread) for spread in (" ({:.2g})", ""))
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else math.inf
    return wide if max(map(len, wide.splitlines())) <= room else narrow


def _rows(model, stats: dict[str, NormStats], k: int, spread: str) -> str:
    title = "{} (spread)" if spread else "{}"
    head = ["norm", "tokens", *map(title.format, STATISTICS), f"top channels of {model.hparams.n_embd}"]
    rows = []
    for norm, s in stats.items():
        moments = [s.moments[name] for name in STATISTICS]
        cells = [f"{m.mean:.4g}" + spread.format(m.std) for m in moments]
        top = " ".join(f"{c}:{100 * share:.1f}%" for c, share in s.top_channels(k))
        rows.append([norm, str(moments[0].count), *cells, top])
    return as_table(head, rows, left=(0, 6))


def _record(norm: str, s: NormStats, k: int) -> dict:
    top = [{"channel": c, "share": share} for c, share in s.top_channels(k)]
    return (
        {"norm": norm, "count": s.moments["mean"].count}
        | {n: _moments(s.moments[n]) for n in STATISTICS}
        | {"channels": top}
    )


def _moments(m: Moments) -> dict:
    return {"mean": m.mean, "std": m.std, "min": m.min, "max": m.max}


def _json(model, stats: dict[str, NormStats], k: int) -> str:
    return "".join(as_json(_record(norm, s, k)) + "\n" for norm, s in stats.items())


def _csv(model, stats: dict[str, NormStats], k: int) -> str:
    rows = []
    for norm, s in stats.items():
        record = _record(norm, s, k)
        row = {"norm": norm, "count": record["count"]}
        row |= {f"{name}_{key}": value for name in STATISTICS for key, value in record[name].items()}
        top = record["channels"]
        row["channels"] = " ".join(f"{c['channel']}:{c['share']:.6g}" for c in top)
        rows.append(row)
    return as_csv(rows)


FORMATS = {"table": _table, "json": _json, "csv": _csv}
