"""`interact`: continue what you type, again and again."""

import sys

import click

from ..errors import BadInput, Gpt2lnError, NonFinite, UsageError, printable
from ..prompt import Prompt
from ..settings import fit
from ..unbroken import heard
from .generate import TextWriter, engine_option, make_settings, run, sampling_options
from .offers import at_prompt
from .options import Globals, command
from .prompts import argument
from .signals import Ended
from .speculating import Guesses, speculate_options
from .talking import History, ask, changes, on_terminal, settings_table, shown, stats_table, tab_key, tap_names

HELP = """\
/set NAME VALUE  change a setting, as in /set temperature 0.8; the value default
                 is what this session began with
/settings        what is set
/stats           LayerNorm statistics of the last text and its prompt
/taps [GLOB]     names of activations, for gpt2ln dump
/help            this
/quit            end, as Ctrl-D does
Any other line is continued; one that starts with // is sent with one / less.
"""


@command("interact", "echo 'ROMEO:' | gpt2ln -m demo interact --length 20")
@sampling_options
@speculate_options
@engine_option
def command(g, engine, speculate, guesses, **options):
    """Continue each line you type; the model is loaded once.  Ctrl-D ends.

    A line such as /set temperature 0.8 changes a setting, /stats says what the LayerNorms did in the last text; /help
    lists more, and on a terminal Tab completes them.  Prompts go to stderr, text to stdout.

    On a terminal Ctrl-C clears the line, or ends the text that is being written; at a pipe it ends all, with 130.
    """
    model = g.open(engine=engine)
    guessing = Guesses(g, model, engine, speculate, guesses)
    talk = Talk(g, model, guessing, options)
    g.afford(model, talk.settings.batch_size, model.hparams.n_ctx)
    guessing.afford(talk.settings.batch_size, model.hparams.n_ctx)
    _ = g.engine(model), guessing.speculation
    if hasattr(sys.stdin, "reconfigure"):  # UTF-8 under every locale, and a line that is not gets its own message
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape", newline="\n")
    history = History(g)
    tab_key(talk.offers)
    while not talk.over:
        try:
            line = ask()
            history.keep()
            talk.take(line)
        except EOFError:
            click.echo(err=True)
            return
        except KeyboardInterrupt as end:
            if isinstance(end, Ended) or not on_terminal():
                raise
            heard()
            click.echo(err=True)
        except NonFinite:
            raise
        except Gpt2lnError as problem:
            click.echo(f"error: {printable(' '.join(str(problem).split()))}", err=True)


class Told(TextWriter):
    """The text as it comes; keeps what was written."""

    def __init__(self, *how):
        super().__init__(*how)
        self.samples = []

    def whole(self, sample, *, streamed: bool) -> None:
        super().whole(sample, streamed=streamed)
        self.samples.append(sample)


class Talk:
    """What lasts from line to line: the settings, and the last text."""

    def __init__(self, g: Globals, model, guessing: Guesses, options: dict):
        self.over, self._g, self._model, self._guessing = False, g, model, guessing
        self._params = {p.name: p for p in click.get_current_context().command.params if p.name in options}
        self._last: list = []
        self._began = options
        self._set(options)

    def _set(self, options: dict) -> None:
        """A seed that is drawn serves from then on."""
        n_ctx = self._model.hparams.n_ctx
        made = make_settings(self._g, [], n_ctx, **options)
        fit(1, made.length, n_ctx, made.overflow)  # or no text would
        self.settings = made
        drawn = self.settings.seed if self.settings.sampling.temperature > 0 else options["seed"]
        self._options = options | {"seed": drawn}

    def take(self, line: str) -> None:
        """A text to continue, or what stands behind a `/`."""
        if not line:
            click.echo("Prompt should not be empty!", err=True)
        elif line.startswith("/") and not line.startswith("//"):
            word, _, rest = line[1:].partition(" ")
            if word not in COMMANDS:
                known = ", ".join(f"/{name}" for name in COMMANDS)
                raise UsageError(
                    f"/{argument(word)}: expected {known}; a text that starts with / is sent with two of them"
                )
            if rest.strip() and word not in TAKES:
                raise UsageError(f"/{word} {rest}: expected nothing after /{word}")
            COMMANDS[word](self, rest)
        else:
            self._continue(line.removeprefix("/"))

    def offers(self, line: str) -> list[str]:
        """How a line that begins with a / may go on."""
        return at_prompt(line, {f"/{name}": name in TAKES for name in COMMANDS}, self._params)

    def _continue(self, text: str) -> None:
        prompt = Prompt(tuple(self._model.bpe.encode(argument(text))), text)
        make_settings(self._g, [prompt], self._model.hparams.n_ctx, **self._options | {"seed": self.settings.seed})
        writer = Told(sys.stdout, self._model, self.settings, "none", False)
        try:
            run(self._g, self._model, [prompt], self.settings, self._guessing, writer, live=True)
        finally:
            self._last = writer.samples or self._last

    def set(self, rest: str) -> None:
        asked = changes(self._began, self._params, rest)
        before = self._options
        self._set(before | asked)
        for n, name in enumerate(asked):
            told = name == "seed" and asked[name] is None  # as it was drawn
            if not told and (n == 0 or before[name] != asked[name]):
                self._g.note(f"{name}: {shown(asked[name])}")

    def show(self, rest: str) -> None:
        click.echo(settings_table({name: self._options[name] for name in self._params}), nl=False)

    def taps(self, rest: str) -> None:
        click.echo(tap_names(self._model.hparams, rest.strip()), nl=False)

    def stats(self, rest: str) -> None:
        if not self._last:
            raise BadInput("/stats: no text yet; type one first")
        texts = [(*sample.context, *sample.tokens) for sample in self._last]
        click.echo(stats_table(self._g, self._model, texts), nl=False)

    def help(self, rest: str) -> None:
        click.echo(HELP, nl=False)

    def quit(self, rest: str) -> None:
        self.over = True


COMMANDS = {
    "set": Talk.set,
    "settings": Talk.show,
    "stats": Talk.stats,
    "taps": Talk.taps,
    "help": Talk.help,
    "quit": Talk.quit,
}
TAKES = ("set", "taps")  # something behind their names
