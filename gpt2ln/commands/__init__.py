"""The command line: one file a command, imported when it is called.

`main` is the only place that turns errors into exit statuses.
"""

import importlib
import io
import os
import re
import signal
import sys
import traceback

import click

from .. import __version__
from ..errors import Gpt2lnError, printable
from .signals import Ended, no_other_error, raised

COMMANDS = {
    "generate": "Continue a text.",
    "interact": "Continue what you type, again and again.",
    "score": "Probability of every token of a text.",
    "dump": "Activations of every layer, into a file.",
    "ln-stats": "Statistics of every LayerNorm over a text.",
    "compare": "Two dumps: where they part, and why.",
    "norm-study": "What each wrong LayerNorm would do.",
    "taps": "Names and sizes of the activations.",
    "inspect": "Variables of a checkpoint.",
    "verify": "Every file and every tensor against its sum.",
    "diff": "Two checkpoints against each other.",
    "download": "Fetch the official checkpoints.",
    "prepare": "Make the fast engine of a model, once.",
    "export": "Weights as safetensors with Hugging Face names, or npz.",
    "import": "Such weights back to the official layout.",
    "models": "What is on this disk, and whether it is whole.",
    "tokenize": "Text to token ids.",
    "detokenize": "Token ids to text.",
    "doctor": "Versions, and proofs run on this machine.",
    "completion": "Completion for bash, zsh or fish.",
}


ASKED = "_GPT2LN_COMPLETE"  # by a shell, what may come next


class LazyGroup(click.Group):
    """Knows its commands by name and imports one only when it is called."""

    def list_commands(self, ctx):
        return list(COMMANDS)

    def get_command(self, ctx, name):
        name = name.replace("_", "-")
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f".{name.replace('-', '_')}", __package__)
        if not os.environ.get(ASKED):
            return module.command
        from .offers import offering

        return offering(module.command)

    def format_commands(self, ctx, formatter):
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _group() -> click.Group:
    from .options import SETTINGS, global_options

    settings = SETTINGS | {"auto_envvar_prefix": "GPT2LN"}  # commands below append their own name to it

    @click.group(
        cls=LazyGroup,
        no_args_is_help=False,
        context_settings=settings,
        epilog='Example: gpt2ln -m demo generate "ROMEO:" --length 40',
    )
    @click.version_option(__version__, prog_name="gpt2ln")
    @global_options
    def gpt2ln(**_):
        """Run the original OpenAI GPT-2 checkpoints exactly as published, and see what every LayerNorm does."""

    return gpt2ln


def main(argv: list[str] | None = None) -> int:
    """Run a command line -> exit status.  Every failure is one line on stderr."""
    argv = sys.argv[1:] if argv is None else argv
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        with no_other_error():
            _invoke(argv)
        sys.stdout.flush()
        return 0
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        return _say(_click_message(error), 2)
    except Gpt2lnError as error:
        return _say(str(error), error.status)
    except Ended as end:
        return end.status
    except (KeyboardInterrupt, click.Abort):
        return 130
    except BrokenPipeError:
        _forget(1)
        return 141
    except OSError as error:
        _give_up_stdout()
        return _say(f"{error.filename or 'disk'}: {error.strerror or error}", 7)
    except MemoryError:
        return _say("out of memory; a smaller model or --batch-size 1 takes less", 5)
    except Exception as error:
        if os.environ.get("GPT2LN_VERBOSE") or any(re.fullmatch("-[a-z]*v[a-z]*|--verbose", arg) for arg in argv):
            traceback.print_exc()
        return _say(f"a bug in gpt2ln: {type(error).__name__}: {error}; -v shows where, please report it", 70)


def _invoke(argv: list[str]) -> None:
    """What `click.Command.main` does, less its own ideas of exit statuses (1 for a closed pipe)."""
    group = _group()
    if asked := os.environ.get(ASKED):
        from .offers import offering
        from .shells import answer

        raise click.exceptions.Exit(answer(offering(group), asked))
    with group.make_context("gpt2ln", list(argv), obj=tuple(argv)) as context:
        group.invoke(context)


def _say(message: str, status: int) -> int:
    """A stderr that is full or gone is no reason for another status."""
    try:
        click.echo(f"error: {printable(' '.join(message.split()))}", err=True)
    except OSError:
        _forget(2)
    return status


def _click_message(error: click.ClickException) -> str:
    """One line of what click says, with the way to more."""
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    takes_text = context is not None and any(param.name == "text" for param in context.command.params)
    if isinstance(error, click.NoSuchOption) and takes_text:
        message += " (a text that starts with - goes after --, or into a file for -f)"
    path = context.command_path if context else "gpt2ln"
    return f"{message}; see: {path} --help"


def _give_up_stdout() -> None:
    """Forget it where it is what failed."""
    try:
        sys.stdout.flush()
    except OSError:
        _forget(1)


def _forget(stream: int) -> None:
    """Keep the interpreter from writing to a closed pipe or a full disk once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream)


def _buffer_stdout() -> None:
    """Give an unbuffered stdout (PYTHONUNBUFFERED) a buffer, flushed at each line.

    Without one, what a closed pipe or a full disk takes only half of is lost without an error.
    """
    if isinstance(getattr(sys.stdout, "buffer", None), io.RawIOBase):
        raw, encoding = io.BufferedWriter(sys.stdout.buffer), sys.stdout.encoding
        sys.stdout = io.TextIOWrapper(raw, encoding, line_buffering=True)


def run() -> None:
    """A process of its own; called by `__main__`."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by whoever called
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    _buffer_stdout()
    try:
        with raised():
            status = main()
    except KeyboardInterrupt as end:  # while something was told
        status = getattr(end, "status", 130)
    sys.exit(status)
