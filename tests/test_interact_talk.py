"""What may be asked between two texts: settings, statistics, names; every mistake is one line and the loop goes on."""

import io
import sys

import pytest

import gpt2ln
from gpt2ln.commands import talking
from gpt2ln.commands.talking import History, history_file

from . import tiny as made_up
from .refusals import done
from .tiny import ID

ASK = talking.PROMPT


@pytest.fixture(autouse=True)
def _warm(warm):
    """Engines are kept."""


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    ids = [ID[b] for b in b"abcabdabcabd!?xy"]
    return made_up.tiny(tmp_path_factory.mktemp("talk") / "words", made_up.says(ids), n_embd=16)


@pytest.fixture
def talk(cli, monkeypatch, words):
    """Type lines -> what came of them, and what was said, less the prompts."""

    def call(*lines: str | bytes, model=words, options=("--greedy", "--length", 3)):
        typed = b"".join((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in lines)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed), encoding="latin-1"))
        ran = cli("interact", "-m", model, *options)
        assert ran.status == 0, ran
        return ran.out, ran.err.replace(ASK, "").rstrip("\n").split("\n")

    return call


def test_settings_hold_from_then_on(talk):
    out, said = talk(
        "x", "/set length 5", "x", "x", "/set stop ca", "x", "/set stop default", "/set length default", "x"
    )
    assert out == "abc\n" + "abcab\n" * 2 + "ab\n" + "abc\n"
    assert said == ["length: 5", "stop: 'ca'", "stop: none", "length: 3"]


@pytest.mark.parametrize(
    ("asked", "option"),
    [
        (("temperature 0.7",), ("--temperature", 0.7)),
        (("temperature 2", "top-k 5"), ("--temperature", 2, "--top-k", 5)),
        (("temperature 1", "top_p 0.6", "nucleus hf"), ("--top-p", 0.6, "--nucleus", "hf")),
        (("temperature 1", "--nsamples 3"), ("--nsamples", 3)),
    ],
)
def test_a_setting_is_the_option_of_generate(cli, talk, T, asked, option):
    out, _ = talk(*(f"/set {one}" for one in asked), "abc", model=T, options=("--greedy", "--length", 6, "--seed", 2))
    assert out == done(cli("generate", "-m", T, "abc", "--length", 6, "--seed", 2, *option))


def test_temperature_ends_greedy_and_greedy_comes_back(cli, talk, T):
    how = ("--greedy", "--length", 6, "--seed", 2)
    out, said = talk("/set temperature 1.5", "/set temperature 1", "/set greedy on", "abc", model=T, options=how)
    assert out == done(cli("generate", "-m", T, "abc", *how))
    assert said == ["temperature: 1.5", "greedy: off", "temperature: 1.0", "greedy: on"]


def test_a_seed_is_drawn_when_one_is_needed_and_stays(talk, T):
    out, said = talk("ab", "/set temperature 9", "ab", "/set length 4", "ab", "/set seed 7", "ab", model=T)
    seed = said[0]
    assert seed.startswith("seed: ")
    assert said[1:] == ["temperature: 9.0", "greedy: off", "length: 4", "seed: 7"]
    shown, _ = talk("/set temperature 9", f"/set {seed.replace(':', '')}", "ab", model=T)
    assert shown == out.split("\n")[1] + "\n"
    _, again = talk("/set seed 5", "/set temperature 9", "/set seed default", model=T)
    assert again[:3] == ["seed: 5", "temperature: 9.0", "greedy: off"]
    assert again[3].startswith("seed: ")
    assert len(again) == 4


def test_what_is_set(talk):
    out, _ = talk("/set stop  a", "/set stop-eot on", "/settings")
    assert out == (
        "setting      value\n"
        "length       3\n"
        "temperature  1.0\n"
        "greedy       on\n"
        "top_k        0\n"
        "top_p        1.0\n"
        "nucleus      openai\n"
        "seed         default\n"
        "stop         ' a'\n"
        "stop_eot     on\n"
        "overflow     error\n"
        "nsamples     1\n"
        "batch_size   1\n"
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/set", "/set : expected a setting and its value; settings: length, temperature, greedy, top_k,"),
        ("/set speed 3", "/set speed 3: expected a setting and its value; settings: length,"),
        ("/set engine fast", "/set engine fast: expected a setting"),
        ("/set length", "/set length: no value, expected one as in /set temperature 0.8, or the word default"),
        ("/set length   ", "/set length: no value"),
        ("/set length 0", "/set length: 0 is not in the range x>=1"),
        ("/set length x", "/set length: 'x' is not a valid integer"),
        ("/set temperature nan", "/set temperature: nan is out of range, expected a number from 0"),
        ("/set top_p 0", "/set top_p: 0 is out of range, expected a number above 0 to 1"),
        ("/set nucleus x", "/set nucleus: 'x' is not one of 'openai', 'hf'"),
        ("/set greedy maybe", "/set greedy: 'maybe' is not a valid boolean"),
        (b"/set stop \xff", "--stop is not valid UTF-8 at byte 0 (0xff)"),
        ("/", "/: expected /set, /settings, /stats, /taps, /help, /quit; a text that starts with / is sent with two"),
        ("/Set length 3", "/Set: expected /set, "),
        ("/usr/bin", "/usr/bin: expected /set, "),
        ("/\x1b[2J", "/\\x1b[2J: expected /set, "),
        (b"/\xff", "prompt is not valid UTF-8"),
        ("/quit now", "/quit now: expected nothing after /quit"),
        ("/stats", "/stats: no text yet; type one first"),
        ("/taps h7/out", "h7"),
        ("/taps nothing", "nothing"),
    ],
)
def test_a_mistake_is_one_line_and_the_loop_goes_on(talk, line, said):
    out, err = talk(line, "x")
    assert out == "abc\n"
    assert len(err) == 1
    assert err[0].startswith("error: ")
    assert said in err[0]
    assert err[0].isprintable()


def test_a_length_that_no_text_could_have_is_refused_at_once(talk):
    out, said = talk("a", "/set length 100000", "a")
    assert said[0].startswith("error: ")
    assert "100000" in said[0]
    assert out == talk("a", "a")[0]


def test_a_setting_that_was_refused_changes_nothing(talk):
    out, _ = talk("/set length 5", "/set length x", "/set temperature -1", "x")
    assert out == "abcab\n"


def test_a_text_that_starts_with_a_slash(cli, talk, T):
    out, _ = talk("//set", "//", " /set", model=T)
    expected = [cli("generate", "-m", T, "--greedy", "--length", 3, text).out for text in ("/set", "/", " /set")]
    assert out == "".join(expected)


def test_the_end_and_the_list(talk):
    out, err = talk("x", "/quit", "x")
    assert (out, err) == ("abc\n", [""])
    out, _ = talk("/help")
    assert out.startswith("/set NAME VALUE  change a setting, as in /set temperature 0.8;")
    assert max(map(len, out.splitlines())) <= 80


def test_names_of_taps(talk):
    out, _ = talk("/taps h*/ln_1/{mean,var}", "/taps h1/mid,ln_f/rstd", "/taps")
    assert out.startswith("h{0..1}/ln_1/mean h{0..1}/ln_1/var\nh1/mid ln_f/rstd\nwte/out wpe/out embed h{0..1}/in ")
    assert max(map(len, out.splitlines())) <= 80


def test_statistics_of_the_last_text(cli, talk, T):
    """Prompt and text, read in one pass; of all samples together."""
    how = ("--length", 5, "--seed", 2, "--nsamples", 2)
    out, _ = talk("ab", "/stats", model=T, options=how)
    text, table = out[: out.index("norm ")], out[out.index("norm ") :]
    m = gpt2ln.load(T)
    ids = [[*m.encode("ab"), *sample.tokens] for sample in m.generate("ab", length=5, seed=2, nsamples=2)]
    assert text == "---\n".join(m.decode(one[2:]) + "\n" for one in ids)
    assert [line.split()[1] for line in table.splitlines()[1:]] == ["14"] * 5
    var = [m.observe(one, "h0/ln_1/var")["h0/ln_1/var"].mean(dtype="f8") for one in ids]
    assert float(table.splitlines()[1].split()[3]) == pytest.approx(sum(var) / 2, rel=1e-3)


def test_statistics_of_a_text_past_the_context_are_of_what_fits(talk, T):
    out, _ = talk("ab", "/stats", model=T, options=("--greedy", "--length", 30, "--overflow", "slide"))
    assert {line.split()[1] for line in out[out.index("norm ") :].splitlines()[1:]} == {"16"}


def test_the_fast_engine_says_what_statistics_cost(talk, T, engines):
    how = ("--greedy", "--length", 3, "--cache-dir", engines, "--engine", "fast")
    out, said = talk("ab", "/stats", model=T, options=how)
    assert "note: statistics are the exact engine's; it is loaded now, with TensorFlow" in said
    assert "ln_f" in out


# history


class Note:
    def __init__(self):
        self.said = []

    def note(self, text):
        self.said.append(text)


def test_where_history_is_kept(monkeypatch):
    monkeypatch.setattr("os.path.expanduser", lambda path: path.replace("~", "/home/me"))
    assert str(history_file({})) == "/home/me/.local/state/gpt2ln/history"
    assert str(history_file({"XDG_STATE_HOME": "/s"})) == "/s/gpt2ln/history"
    assert history_file({"XDG_STATE_HOME": "not/absolute"}) is None
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    assert history_file({}) is None


def test_a_pipe_keeps_no_history(talk, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    talk("x", "/quit")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_is_told_of_and_no_more(monkeypatch, tmp_path):
    pytest.importorskip("readline")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True, raising=False)
    g = Note()
    History(g).keep()
    assert g.said == [f"note: {tmp_path}/file/gpt2ln/history: Not a directory; lines typed are not kept"]
