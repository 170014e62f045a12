"""A person at a prompt: lines with editing and history, and what they may ask for between two texts.

On a terminal the line editor of the system (readline) reads; at a pipe lines are read as they are.
"""

import contextlib
import os
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import click

from ..errors import UsageError
from ..prompt import ABREAST, CHUNK
from ..taps import choose
from .ln_tables import FORMATS, remarks
from .options import Globals
from .output import as_table

PROMPT = "Model prompt >>> "
KEPT = 1000  # lines of history


def on_terminal() -> bool:
    return sys.stdin.isatty()


def ask() -> str:
    """The next line, its end cut off; EOFError when there is none.

    The prompt goes to stderr, unless a terminal shows stdout: there the line editor must know it, to draw around it.
    """
    if on_terminal() and sys.stdout.isatty():
        return input(PROMPT)
    click.echo(PROMPT, nl=False, err=True)
    if on_terminal():
        return input()
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.removesuffix("\n").removesuffix("\r")


def line_editor():
    """readline, where it is what reads."""
    if on_terminal() and sys.stdout.isatty():
        with contextlib.suppress(ImportError):
            import readline

            return readline
    return None


def tab_key(offered: Callable[[str], Sequence[str]]) -> None:
    """Completes what begins with a /; in a text it is a tab.  offered: what the last word of such a line may become."""
    if (editor := line_editor()) is None:
        return

    def complete(word: str, n: int) -> str | None:
        line = editor.get_line_buffer()[: editor.get_endidx()]
        found = offered(line) if re.match("/(?!/)", line) else [word + "\t"]
        return found[n] if n < len(found) else None

    editor.set_completer(complete)
    editor.set_completer_delims(" ")
    editor.parse_and_bind("bind ^I rl_complete" if "libedit" in (editor.__doc__ or "") else "tab: complete")


class History:
    """Lines typed in earlier sessions; kept from a terminal alone, each as soon as it is typed."""

    def __init__(self, g: Globals):
        self._readline, self._path, self._count = line_editor(), None, 0
        if not hasattr(self._readline, "append_history_file") or (path := history_file(os.environ)) is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            self._readline.read_history_file(path)
            self._path = path
        except OSError as cause:
            g.note(f"note: {path}: {cause.strerror}; lines typed are not kept")
        self._readline.set_history_length(KEPT)
        self._count = self._readline.get_current_history_length()

    def keep(self) -> None:
        """The last line, where it is a new one."""
        if self._path is None or self._readline.get_current_history_length() == self._count:
            return
        self._count = self._readline.get_current_history_length()
        with contextlib.suppress(OSError):  # a disk that is full by now
            self._readline.append_history_file(1, self._path)


def history_file(environ: Mapping[str, str]) -> Path | None:
    """In the user's folder for state; none where no such folder is known."""
    state = environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(state) / "gpt2ln" / "history" if os.path.isabs(state) else None


def changes(began: Mapping[str, object], params: Mapping[str, click.Option], asked: str) -> dict[str, object]:
    """What `/set NAME VALUE` comes to, taken as the option of that name takes it; `default` is what a session began
    with."""
    name, _, value = asked.strip("\r").partition(" ")
    name = name.lstrip("-").replace("-", "_")
    if name not in params:
        raise UsageError(f"/set {asked}: expected a setting and its value; settings: {', '.join(params)}")
    if not value.strip():
        raise UsageError(f"/set {name}: no value, expected one as in /set temperature 0.8, or the word default")
    if value.strip() == "default":
        found = began[name]
    else:
        given = (value,) if params[name].multiple else value.strip()
        try:
            found = params[name].process_value(click.get_current_context(), given)
        except click.BadParameter as cause:
            raise UsageError(f"/set {name}: {cause.message.rstrip('.')}") from None
    return {name: found} | ({"greedy": False} if name == "temperature" else {})  # greedy would go before it


def settings_table(options: Mapping[str, object]) -> str:
    rows = [[name, shown(value)] for name, value in options.items()]
    return as_table(["setting", "value"], rows, left=(0, 1))


def shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " ".join(map(repr, value)) or "none"
    return "default" if value is None else str(value)


def tap_names(hparams, globs: str) -> str:
    """The taps chosen, all layers of a kind in one name."""
    kinds: dict[str, list[int]] = {}
    for tap in choose(globs or "**", hparams):
        layer = re.match(r"h(\d+)(?=/)", tap.name)
        kinds.setdefault(tap.name[layer.end() :] if layer else tap.name, []).extend([int(layer[1])] if layer else [])
    names = [_layers(layers) + kind for kind, layers in kinds.items()]
    return textwrap.fill(" ".join(names), 80, break_long_words=False, break_on_hyphens=False) + "\n"


def _layers(layers: Sequence[int]) -> str:
    if len(layers) < 2:
        return "".join(f"h{i}" for i in layers)
    if all(b == a + 1 for a, b in pairwise(layers)):
        return f"h{{{layers[0]}..{layers[-1]}}}"
    return f"h{{{','.join(map(str, layers))}}}"


def stats_table(g: Globals, model, texts: Sequence[Sequence[int]]) -> str:
    """What each LayerNorm did in these texts, on the exact engine: one clean pass over each, as `ln-stats` makes it."""
    n_ctx = model.hparams.n_ctx
    texts = [ids[:n_ctx] for ids in texts]
    longest = max(map(len, texts))
    row = sum(tap.bytes_a_token() for tap in choose("@ln", model.hparams))
    g.afford(model, ABREAST, longest, held=ABREAST * min(CHUNK, longest) * row)
    if model.engine.name != "exact" and "exact" not in vars(model):
        g.note("note: statistics are the exact engine's; it is loaded now, with TensorFlow")
    engine = model.exact
    from ..observe import ln_stats
    from ..runs import Run

    run = Run({}, ln_stats(engine, texts), model.gains(), [])
    for remark in remarks(run):
        g.note(remark)
    return FORMATS["table"](run, "layer", 3)
