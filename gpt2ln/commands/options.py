"""Options that several commands share, and the one way to open the model they name.

Global options stand before and after the command's name.  Nearest wins: flag after the command, flag before it,
environment of the command, environment of the group, default.
"""

import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click
from click.core import ParameterSource

from ..errors import BadInput, UsageError, printable
from ..locate import default_shelves, find
from ..published import advised
from ..spec import canonical

SETTINGS = {
    "help_option_names": ["-h", "--help"],
    "token_normalize_func": lambda name: name.replace("_", "-"),
    "max_content_width": 100,
}

GLOBALS = [
    click.option("-m", "--model-name", metavar="NAME", help="Name, alias, folder or prefix.  [default: 124M or demo]"),
    click.option("--checkpoint", metavar="PREFIX", help="Other weights for the same model."),
    click.option("--models-dir", metavar="DIR", help="Where models are kept.  [default: models]"),
    click.option(
        "--cache-dir", metavar="DIR", help="Where prepared engines are kept.  [default: beside the checkpoint]"
    ),
    click.option("--device", metavar="cpu|gpu:N", help="Where to compute.  [default: cpu]"),
    click.option("--threads", type=click.IntRange(1, 1024), metavar="N", help="Threads.  [default: all cores]"),
    click.option("-q", "--quiet", is_flag=True, help="No notes on stderr."),
    click.option("-v", "--verbose", is_flag=True, help="More on stderr: estimates, TensorFlow's own log."),
]


def global_options(function: Callable) -> Callable:
    for option in reversed(GLOBALS):
        function = option(function)
    return function


class Globals:
    """The global options of this call, wherever they were given."""

    def __init__(self, ctx: click.Context):
        contexts = [c for c in (ctx, ctx.parent) if c is not None]
        self._sources = [(c, s) for s in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT) for c in contexts]

    def __getattr__(self, name: str):
        for ctx, source in self._sources:
            if ctx.get_parameter_source(name) is source:
                return ctx.params[name]
        return None

    @property
    def shelves(self) -> list[Path]:
        return default_shelves(self.models_dir, os.environ)

    def note(self, text: str) -> None:
        if not self.quiet:
            click.echo(printable(text), err=True)

    def command_line(self, *without: str) -> list[str]:
        """As it was typed, less flags that change no result."""
        (ctx, _), *_ = self._sources
        return ["gpt2ln", *(arg for arg in ctx.find_root().obj if arg not in without)]

    def progress(self, total: int, done: int = 0, *, unit: str = " tokens"):
        """A bar on stderr, on a terminal alone.  unit: "B" for bytes, which are shown in thousands."""
        from tqdm import tqdm

        hidden = True if self.quiet else None
        return tqdm(total=total, initial=done, unit=unit, unit_scale=unit == "B", leave=False, disable=hidden)

    def _paths(self):
        return (
            ("--checkpoint", self.checkpoint),
            ("--models-dir", self.models_dir),
            ("--cache-dir", self.cache_dir),
        )

    def place(self, name: str | None = None):
        """Of the model, or of another of that name."""
        for option, value in self._paths():
            if value == "":
                raise UsageError(f"{option}: empty, expected a path")
        if name is not None:
            return find(name, self.shelves)
        place = find(self.model_name, self.shelves, None if self.checkpoint is None else Path(self.checkpoint))
        place = replace(place, name=os.fsencode(place.name).decode("utf-8", "replace"))  # whatever the locale
        if self.model_name is None:
            self.note(f"model: {place.name} (choose another with -m)")
        elif canonical(self.model_name) != self.model_name:
            self.note(f"model: {self.model_name} is now called {place.name}")
        if self.checkpoint:
            self.note(f"weights: {place.prefix}")
        return place

    def tensors(self, name: str | None = None):
        """The variables of the model, or of whatever `name` is: checkpoint, safetensors or npz.

        A name of a shelf comes before a folder here, as everywhere.
        """
        from ..checkpoint import read_index
        from ..tensors import foreign, open_foreign

        named = self.model_name if name is None else name
        is_file = named and not self.checkpoint and os.path.isfile(named)
        file = foreign(Path(named)) if is_file else None
        if file is None:
            place = self.place(name)
            file = None if place.named else foreign(place.folder)
        if file is not None:
            return open_foreign(file)
        with advised(place.folder):
            return read_index(place.prefix)

    def open(self, *, engine: str = "exact"):
        """The model, its whole folder checked, no weights read yet."""
        from .. import library  # with numpy, which half the commands and every --help do without

        if self.verbose:
            os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "0")
        model = library.Model(
            self.place(), threads=self.threads, device=self.device or "cpu", engine=engine, cache_dir=self.kept
        )
        self._notes(model.notes)
        return model

    def engine(self, model):
        """Its engine, which is loaded here, and what there is to say about that."""
        said = len(model.notes)
        try:
            return model.engine
        finally:
            self._notes(model.notes[said:])

    def _notes(self, notes: list[str]) -> None:
        for note in notes:
            self.note(note if note.startswith(("warning", "engine")) else f"note: {note}")

    @property
    def kept(self) -> Path | None:
        """Where prepared engines are kept, if not beside the checkpoint."""
        return None if self.cache_dir is None else Path(self.cache_dir)

    def vocabulary(self):
        """The model's vocabulary alone; that it does not fit the model is only said."""
        from ..bpe import Bpe

        place = self.place()
        with advised(place.folder):
            bpe = Bpe(place.file("encoder.json"), place.file("vocab.bpe"))
        if not bpe.as_usual:
            self.note(f"warning: {place.file('encoder.json')}: its ids are not in the order of vocab.bpe")
        if place.file("hparams.json").is_file():
            from ..weights import read_hparams

            n_vocab = read_hparams(place.file("hparams.json"))[0].n_vocab
            if bpe.n_vocab != n_vocab:
                self.note(f"warning: encoder.json has {bpe.n_vocab} entries, hparams.json says n_vocab {n_vocab}")
        return bpe

    def afford(self, model, sequences: int, positions: int, *, held: int = 0) -> None:
        """Refuse what does not fit in memory before it is begun; with -v, say how much it is.

        held: bytes of activations at one time.
        """
        need, free = model.bytes_needed(sequences, positions) + held, _available()
        what = f"weights and {sequences} caches of {positions} positions" + (", and activations" if held else "")
        if self.verbose:
            self.note(f"memory: about {need / 1e6:.0f} MB for {what}")
        if free is not None and need > free:
            way_out = "fewer --taps take less" if held else "a smaller --batch-size takes less"
            raise BadInput(f"memory: about {need / 1e6:.0f} MB needed for {what}, {free / 1e6:.0f} MB free; {way_out}")


def _available() -> int | None:
    """Bytes the system can still give, where it says so."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _name_variables(made: click.Command) -> click.Command:
    """Environment variables are called after the flag, `GPT2LN_GENERATE_FORMAT`, whatever the parameter is called."""
    for param in made.params:
        flag = max(param.opts, key=len).lstrip("-").replace("-", "_")
        if isinstance(param, click.Option) and flag != param.name:
            param.envvar = f"GPT2LN_{made.name}_{flag}".replace("-", "_").upper()
    return made


def command(name: str, epilog: str, **settings) -> Callable:
    """A command with the global options and an example; its function gets `g`, the globals, first."""

    def wrap(function: Callable) -> click.Command:
        @click.pass_context
        def called(ctx, **params):
            own = {k: v for k, v in params.items() if k not in _NAMES}
            return function(Globals(ctx), **own)

        called.__doc__ = function.__doc__
        called.__click_params__ = getattr(function, "__click_params__", [])
        made = click.command(name, context_settings=SETTINGS | settings, epilog=f"Example: {epilog}")
        return _name_variables(made(global_options(called)))

    return wrap


_NAMES = {"model_name", "checkpoint", "models_dir", "cache_dir", "device", "threads", "quiet", "verbose"}


class Number(click.ParamType):
    """A finite number from `least` (or above it, with `open_below`) to `most`."""

    name = "number"

    def __init__(self, least: float = 0.0, most: float = math.inf, *, open_below: bool = False):
        self.least, self.most, self.open_below = least, most, open_below

    def convert(self, value, param, ctx):
        try:
            number = float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number", param, ctx)
        too_small = number <= self.least if self.open_below else number < self.least
        if not math.isfinite(number) or too_small or number > self.most:
            below = "above" if self.open_below else "from"
            up_to = f" to {self.most:g}" if math.isfinite(self.most) else ""
            self.fail(f"{value} is out of range, expected a number {below} {self.least:g}{up_to}", param, ctx)
        return number
