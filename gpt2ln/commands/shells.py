"""How shells ask what may come next, and are answered: click's way, where it knows the shell well enough."""

import os

import click
from click.shell_completion import (
    BashComplete,
    FishComplete,
    add_completion_class,
    get_completion_class,
    shell_complete,
    split_arg_string,
)

from ..errors import UsageError
from . import ASKED

NAME = "gpt2ln"


def script(group: click.Group, shell: str) -> str:
    """What a shell is to read once."""
    return get_completion_class(shell)(group, {}, NAME, ASKED).source().strip()


def answer(group: click.Group, asked: str) -> int:
    """Print what that script asks for -> exit status."""
    try:
        return shell_complete(group, {}, NAME, ASKED, asked)
    except (KeyError, ValueError):
        raise UsageError(f"{ASKED}={asked}: set without what a shell sets beside it; unset it") from None


BASH = """\
%(complete_func)s() {
    local type value
    COMPREPLY=()
    while IFS=, read -r type value; do
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done < <(COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_WORDBREAKS="$COMP_WORDBREAKS" \\
        %(complete_var)s=bash_complete "$1")
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


@add_completion_class
class Bash(BashComplete):
    """bash takes a word apart at @ and =, as in @ln and --top-p=1, and puts only its last part in place of what is
    offered: here the line is read as it is typed."""

    source_template = BASH
    _there = ""  # what of the word is not replaced

    def get_completion_args(self) -> tuple[list[str], str]:
        if "COMP_LINE" not in os.environ:  # a script of click's own, kept from an earlier version
            return super().get_completion_args()
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)[1:]
        begun = words.pop() if words and not line[-1].isspace() else ""
        value = begun.partition("=")[2] if begun.startswith("--") and "=" in begun else begun
        breaks = [n for n, c in enumerate(value, 1) if c in os.environ.get("COMP_WORDBREAKS", "")]
        self._there = value[: breaks[-1]] if breaks else ""
        return words, begun

    def format_completion(self, item) -> str:
        return f"{item.type},{item.value.removeprefix(self._there)}"


FISH = """\
function %(complete_func)s
    set -l how COMP_WORDS=(commandline -cp) COMP_CWORD=(commandline -t) %(complete_var)s=fish_complete
    for completion in (env $how %(prog_name)s)
        set -l parts (string split -m 1 , -- $completion)
        switch $parts[1]
            case dir
                __fish_complete_directories $parts[2]
            case file
                __fish_complete_path $parts[2]
            case plain
                echo $parts[2]
        end
    end
end
complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)"
"""


@add_completion_class
class Fish(FishComplete):
    """With the commas that a list of taps has, and the words about a command."""

    source_template = FISH
