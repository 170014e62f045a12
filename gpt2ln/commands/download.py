"""`download`: the official checkpoints, every byte checked."""

from collections.abc import Sequence
from pathlib import Path

import click

from ..errors import Damaged, Different, NotFound, UsageError, first_five
from ..published import AGAIN
from .options import Globals, Number, command
from .output import as_table
from .prepare import make


@command("download", "gpt2ln download 124M --dry-run")
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option(
    "--mirror", multiple=True, metavar="URL", help="Ask for URL/NAME/FILE instead; several are tried in order."
)
@click.option("--manifest", metavar="FILE", help="JSON with sizes and sha256 in place of the published ones; any NAME.")
@click.option(
    "--source", type=click.Choice(["openai", "hf"]), default="openai", show_default=True,
    help="hf: rebuild the official files from Hugging Face's copy.",
)  # fmt: skip
@click.option("--keep", is_flag=True, help="Keep that copy, in NAME.hf.")
@click.option("--meta", is_flag=True, help="model.ckpt.meta too; nothing here reads it.")
@click.option("--offline", is_flag=True, help="No request: say whether all is there.")
@click.option("--verify-only", is_flag=True, help="No request, nothing written: what `verify` says.")
@click.option("--dry-run", is_flag=True, help="No request, nothing written: files, bytes, state, URL.")
@click.option("--force", is_flag=True, help="Replace files that are there and are not the right ones.")
@click.option(
    "--jobs", type=click.IntRange(1, 16), default=4, show_default=True, metavar="N", help="Files at one time."
)
@click.option(
    "--timeout", type=Number(0, 86400, open_below=True), default=30, show_default=True, metavar="S",
    help="Seconds without a byte.",
)  # fmt: skip
@click.option(
    "--retries", type=click.IntRange(0, 100), default=5, show_default=True, metavar="N", help="Of one file at one URL."
)
@click.option(
    "--prepare/--no-prepare", default=True, show_default=True, help="Make the fast engine at the end: gpt2ln prepare."
)
def command(g, models, mirror, manifest, source, keep, meta, offline, verify_only, dry_run, force, prepare, **how):
    """Fetch official checkpoints into models/NAME: 124M, 355M, 774M, 1558M.

    A file has its name when it is whole: size and sha256 where they are published, every tensor's CRC32C always.  What
    was interrupted goes on where it stopped.  Proxies and certificates come from the environment (HTTPS_PROXY,
    REQUESTS_CA_BUNDLE).
    """
    from .. import wanted as what

    if sum((offline, verify_only, dry_run)) > 1:
        raise UsageError("--offline, --verify-only and --dry-run: pass one of them")
    if source == "hf" and (manifest is not None or meta):
        raise UsageError(f"--source hf: goes without {'--meta' if meta else '--manifest'}, its files are known")
    if keep and source != "hf":
        raise UsageError("--keep: goes with --source hf, which alone makes a copy to keep")
    if g.models_dir == "":
        raise UsageError("--models-dir: empty, expected a path")
    mirrors = [what.checked_mirror(url) for url in mirror]
    files = None if manifest is None else what.read_manifest(Path(manifest))
    names = _names(g, models, listed=files is not None)
    folders = {name: g.shelves[0] / name for name in names}
    if files is not None:
        orders = [what.listed(name, folder, mirrors, files) for name, folder in folders.items()]
    else:
        orders = [what.official(name, folder, mirrors, meta=meta) for name, folder in folders.items()]
    copies = [
        what.converted(name, folder.with_name(f"{name}.hf"), mirrors) if source == "hf" else None
        for name, folder in folders.items()
    ]
    if verify_only:
        _verify(g, orders)
    elif dry_run:
        _print_plan([copy or order for copy, order in zip(copies, orders, strict=True)])
    elif offline:
        _say_what_is_there(g, orders)
    else:
        for order, copy in zip(orders, copies, strict=True):
            _fetch(g, order, copy, force, keep, **how)
        for order in orders if prepare else ():
            _prepare(g, order)


def _names(g: Globals, models: Sequence[str], *, listed: bool) -> list[str]:
    """Of the models, each once, as they are called today."""
    from ..published import FILES
    from ..spec import canonical
    from ..wanted import released, size_in_all

    if not models and g.model_name is not None:
        models = [g.model_name]
    if not models:
        choice = ", ".join(f"{name} ({size_in_all(name) / 1e9:.1f} GB)" for name in FILES)
        raise UsageError(f"no model named; choose {choice}")
    names = {name: canonical(name) if listed else released(name) for name in models}
    for old, name in names.items():
        if old != name:
            g.note(f"model: {old} is now called {name}")
    return list(dict.fromkeys(names.values()))


def _fetch(g: Globals, order, copy, force: bool, keep: bool, jobs: int, timeout: float, retries: int) -> None:
    """One model, with a bar."""
    from ..download import Way, convert, download, survey
    from ..fetch import Limits

    fetched = copy or order
    todo = [state for state in survey(fetched, digests=False).values() if state.kind != "whole"]
    with g.progress(sum(state.want.size or 0 for state in todo), unit="B") as bar:
        way = Way(Limits(timeout, retries), jobs, force, bar.update)
        try:
            done = convert(order, copy, way, keep=keep) if copy else download(order, way)
        except KeyboardInterrupt:
            bar.close()
            _say_what_is_kept(g, fetched)
            raise
    for note in done.notes:
        g.note(f"warning: {note}")
    count = f"{len(done.fetched)} file{'s' * (len(done.fetched) != 1)} fetched" if done.fetched else "already complete"
    g.note(f"{order.model}: {count} ({order.folder.absolute()})")


def _prepare(g: Globals, order) -> None:
    """The fast engine of what has been fetched: whatever stops that, the download is whole."""
    from ..library import Model
    from ..locate import Place
    from ..prepared import command as to_type

    place = Place(str(order.folder) if g.models_dir else order.model, order.folder)
    run = to_type(place, g.kept)
    try:
        made, new = make(g, Model(place, threads=g.threads, cache_dir=g.kept))
    except KeyboardInterrupt:
        g.note(f"interrupted: {order.model} is fetched and whole; its fast engine is made by: {run}")
        raise
    except Exception as cause:
        known = isinstance(cause, Different) or "gpt2ln " in str(cause)
        how = "" if known else f"; it is made by: {run}"
        g.note(f"warning: {order.model} is fetched and whole, without a fast engine: {cause}{how}")
    else:
        g.note(
            f"{order.model}: {'prepared' if new else 'already prepared'}, {made.distance} ({made.folder.absolute()})"
        )


def _say_what_is_kept(g: Globals, order) -> None:
    from ..download import survey

    states = survey(order, digests=False).values()
    held, of = sum(state.held for state in states), sum(state.want.size or 0 for state in states)
    if held:
        g.note(f"interrupted: {held} of {of} bytes are kept in {order.folder.absolute()}; run it again to go on")
    else:
        g.note("interrupted: nothing had come")


def _say_what_is_there(g: Globals, orders: Sequence) -> None:
    from ..download import look, unfinished

    wrong, missing = [], []
    for order in orders:
        states = unfinished(look(order))
        wrong += [f"{order.folder.absolute()}/{s.name}: {s.why}" for s in states if s.kind == "wrong"]
        missing += [f"{order.folder.absolute()}/{s.name}" for s in states if s.kind == "missing"]
        if not states:
            g.note(f"{order.model}: already complete ({order.folder.absolute()})")
    if wrong:
        raise Damaged(f"{first_five(wrong, '; ')}; without --offline, --force fetches and replaces it")
    if missing:
        raise NotFound(f"{first_five(missing)} missing; without --offline they are fetched")


def _print_plan(orders: Sequence) -> None:
    from ..download import survey
    from ..pins import read_pins
    from ..request import shown

    rows = []
    for order in orders:
        known = order.held_against(read_pins(order.folder))
        for state in survey(known).values():
            begun = f"{state.held} bytes held" if state.kind == "missing" and state.held else state.kind
            size = "-" if state.want.size is None else str(state.want.size)
            rows.append([f"{order.model}/{state.name}", size, begun, shown(order.urls(state.name)[0])])
    click.echo(as_table(["file", "bytes", "state", "url"], rows, left=(0, 2, 3)), nl=False)


def _verify(g: Globals, orders: Sequence) -> None:
    """The findings of `verify`, and each file against what is wanted here: a manifest may know more."""
    from ..download import survey, unfinished
    from ..finding import worst
    from ..locate import Place
    from ..verify import verify
    from .verify import RAISED

    for order in orders:
        if not order.folder.is_dir():
            raise NotFound(f"{order.folder.absolute()}: no such folder; run: gpt2ln download {order.model}")
        findings = verify(Place(order.model, order.folder))
        rows = [[f.file, "-" if f.size is None else str(f.size), f.state, f.text] for f in findings]
        click.echo(as_table(["file", "bytes", "state", "found"], rows, left=(0, 2, 3)), nl=False)
        state = worst(findings)
        said = [f"{f.file}: {f.text}" for f in findings if f.state == state] if state in RAISED else []
        if not said:
            state, said = "different", [f"{s.name}: {s.why or s.kind}" for s in unfinished(survey(order))]
        if said:
            raise RAISED[state](f"{order.folder.absolute()}: {state}: {first_five(said, '; ')}; {AGAIN}")
        g.note(f"{order.model}: {len(findings)} files whole")
