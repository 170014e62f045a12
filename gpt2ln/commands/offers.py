"""What may come next: what a shell completes on the command line, and the tab key at the prompt of `interact`.

Found by what a parameter is called in the help, so that a new FILE is completed without a word about it.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import click
from click.shell_completion import CompletionItem

Offer = Callable[[click.Context, str], list[CompletionItem]]


class Offered(click.ParamType):
    """A text as it is, for which a shell is offered something."""

    name = "text"

    def __init__(self, offer: Offer):
        self._offer = offer

    def shell_complete(self, ctx, param, incomplete):
        return self._offer(ctx, incomplete)


def offering(made: click.Command) -> click.Command:
    """Each text of a command that is a name of something is completed."""
    for param in made.params:
        known = param.metavar if isinstance(param, click.Option) else f"{made.name} {param.name}"
        if param.type is click.STRING and known in OFFERS:
            param.type = Offered(OFFERS[known])
    return made


def _files(ctx, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="file")]  # the shell's own, folders too


def _folders(ctx, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="dir")]


def _models(ctx, incomplete: str) -> list[CompletionItem]:
    """First what empties the list of bash."""
    return _files(ctx, incomplete) + _plain(["demo", *_released(), *_stored(ctx)], incomplete)


def _fetched(ctx, incomplete: str) -> list[CompletionItem]:
    return _plain(_released(), incomplete)


def _guessing(ctx, incomplete: str) -> list[CompletionItem]:
    return _models(ctx, incomplete) + _plain(["lookup"], incomplete)


def _taps(ctx, incomplete: str) -> list[CompletionItem]:
    return _plain(presets(incomplete), incomplete)


OFFERS = {
    "FILE": _files, "FILE.json": _files, "PATH": _files, "PREFIX": _files, "DUMP": _files, "DIR": _folders,
    "FOLDER": _folders, "SPEC": _taps, "NAME": _models, "lookup|MODEL": _guessing, "download models": _fetched,
    "prepare model": _models, "verify model": _models, "diff a": _models, "diff b": _models, "compare a": _files,
    "compare b": _files, "export out": _files, "import source": _files, "taps globs": _taps,
}  # fmt: skip


def presets(begun: str) -> list[str]:
    """Every list of taps that goes on with a preset: behind a comma, or a `!`, it is the last part that goes on."""
    from ..taps import PRESETS

    before, comma, last = begun.rpartition(",")
    before += comma + "!" * last.startswith("!")
    return [before + name for name in PRESETS if (before + name).startswith(begun)]


def at_prompt(line: str, commands: Mapping[str, bool], params: Mapping[str, click.Option]) -> list[str]:
    """What the last word of a line may become.  commands: /NAME, and whether something stands behind it."""
    *before, last = line.split(" ")
    if not before:
        words = [name + " " * takes for name, takes in commands.items()]
    elif before == ["/set"]:
        words = [f"{name} " for name in params]
    elif before[0] == "/set" and len(before) == 2:
        words = _values(params.get(before[1].lstrip("-").replace("-", "_")))
    else:
        words = presets(last) if before == ["/taps"] else []
    return [word for word in words if word.startswith(last)]


def _values(param: click.Option | None) -> list[str]:
    if param is None:
        return []
    choices = param.type.choices if isinstance(param.type, click.Choice) else ["on", "off"] if param.is_flag else []
    return [*choices, "default"]


def _released() -> Iterable[str]:
    from ..spec import RELEASED

    return RELEASED


def _stored(ctx) -> Iterable[str]:
    """Folders on the shelves that hold a checkpoint."""
    from .options import Globals

    for shelf in Globals(ctx).shelves:
        with contextlib.suppress(OSError):
            yield from sorted(folder.name for folder in Path(shelf).iterdir() if any(folder.glob("*.index")))


def _plain(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in dict.fromkeys(names) if name.startswith(incomplete)]
