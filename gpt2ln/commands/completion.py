"""`completion`: a script that completes commands and options in a shell."""

import sys

import click

from .options import command
from .shells import script

WHERE = {
    "bash": "mkdir -p ~/.local/share/bash-completion/completions && gpt2ln completion bash > $_/gpt2ln",
    "zsh": 'gpt2ln completion zsh > "${fpath[1]}/_gpt2ln"',
    "fish": "gpt2ln completion fish > ~/.config/fish/completions/gpt2ln.fish",
}


@command("completion", "gpt2ln completion bash")
@click.argument("shell", metavar="SHELL", type=click.Choice(list(WHERE)))
def command(g, shell):
    """The script that completes commands, options and choices in SHELL: bash, zsh or fish.

    Once and for all: write it to where the shell looks for such scripts; on a terminal a note says where that is.  In
    bash for the running shell alone: source <(gpt2ln completion bash)
    """
    click.echo(script(click.get_current_context().find_root().command, shell))
    if sys.stdout.isatty():
        g.note(f"to keep it: {WHERE[shell]}")
