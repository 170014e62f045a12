"""`interact`, the tab key: what the last word of a /line may become, and a tab in a text that stays one."""

import pytest

from gpt2ln.commands import interact, talking
from gpt2ln.commands.interact import TAKES, Talk
from gpt2ln.commands.offers import at_prompt

SETTINGS = [
    "length", "temperature", "greedy", "top_k", "top_p", "nucleus", "seed", "stop", "stop_eot", "overflow", "nsamples",
    "batch_size",
]  # fmt: skip
PRESETS = ["@ln-stats", "@ln", "@resid", "@attn", "@mlp", "@all"]


@pytest.fixture
def talk():
    """As it is when the loop begins, as far as the tab key looks."""
    made = object.__new__(Talk)
    made._params = {param.name: param for param in interact.command.params if param.name in SETTINGS}
    return made


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/", ["/set ", "/settings", "/stats", "/taps ", "/help", "/quit"]),
        ("/se", ["/set ", "/settings"]),
        ("/q", ["/quit"]),
        ("/x", []),
        ("/set ", [f"{name} " for name in SETTINGS]),
        ("/set to", ["top_k ", "top_p "]),
        ("/set nucleus ", ["openai", "hf", "default"]),
        ("/set --stop-eot o", ["on", "off"]),
        ("/set temperature ", ["default"]),
        ("/set nothing ", []),
        ("/set nucleus hf ", []),
        ("/set  ", []),
        ("/taps ", PRESETS),
        ("/taps h0/in,!@a", ["h0/in,!@attn", "h0/in,!@all"]),
        ("/taps @ln ", []),
        ("/stats ", []),
    ],
)
def test_what_may_come_next(talk, line, words):
    assert talk.offers(line) == words


def test_all_that_is_offered_is_taken(talk):
    assert list(talk._params) == SETTINGS
    assert at_prompt("/", {f"/{name}": name in TAKES for name in interact.COMMANDS}, {}) == talk.offers("/")


class Editor:
    """A line editor, for what is asked of it: the cursor may stand before the end."""

    def __init__(self, about: str):
        self.__doc__, self.line, self.told = about, "", {}

    def __getattr__(self, name: str):
        return lambda *words: self.told.__setitem__(name, *words)

    def get_line_buffer(self) -> str:
        return self.line + "\0 behind"

    def get_endidx(self) -> int:
        return len(self.line)

    def press(self, line: str) -> list[str]:
        self.line, word = line, line.rpartition(self.told["set_completer_delims"])[2]
        found = [self.told["set_completer"](word, n) for n in range(9)]
        return [word for word in found if word is not None]


@pytest.mark.parametrize(
    ("about", "bound"), [("GNU readline", "tab: complete"), ("with libedit readline", "bind ^I rl_complete")]
)
def test_the_key(talk, monkeypatch, about, bound):
    editor = Editor(about)
    monkeypatch.setattr(talking, "line_editor", lambda: editor)
    talking.tab_key(talk.offers)
    assert editor.told["parse_and_bind"] == bound
    assert editor.press("/set nuc") == ["nucleus "]
    assert editor.press("/set 2") == []
    assert editor.press("a word") == ["word\t"]
    assert editor.press("//set nuc") == ["nuc\t"]
    assert editor.press("") == ["\t"]


def test_at_a_pipe_there_is_no_editor():
    assert talking.line_editor() is None
    talking.tab_key(lambda line: pytest.fail("asked"))
