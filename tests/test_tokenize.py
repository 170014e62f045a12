"""`tokenize` and `detokenize`: what they print, byte for byte, and what they refuse."""

import ast
import json
import shutil

import pytest

from gpt2ln.commands.tokenize import shown

from .tiny import tiny
from .vocabulary import with_official_vocabulary


@pytest.fixture(scope="session")
def V(T, tmp_path_factory):
    """A folder with the official vocabulary."""
    return with_official_vocabulary(T, tmp_path_factory.mktemp("official") / "model")


def refused(ran, status: int, *words: str) -> None:
    """Exactly one line of error, nothing else, and the words in it."""
    assert (ran.status, ran.out) == (status, ""), ran
    assert ran.err.startswith("error: "), ran.err
    assert ran.err.count("\n") == 1, ran.err
    assert ran.err.endswith("\n"), ran.err
    for word in words:
        assert word in ran.err, ran.err


# tokenize


@pytest.mark.parametrize(
    ("text", "out"),
    [
        ("Hello world ", "15496 995 220\n"),
        ("a\n\nb", "64 198 198 65\n"),
        ("\n\n\x1c", "198 198 216\n"),
        ("._", "13557\n"),
        ("x²", "87 31185\n"),
        ("Ⅷ", "158 227 100\n"),
        ("\ufeffhi", "171 119 123 5303\n"),
        ("it's", "270 338\n"),
        ("IT'S", "2043 6 50\n"),
        ("😨", "47249 101\n"),
        ("2017-10-10", "5539 12 940 12 940\n"),
        ("", "\n"),
    ],
)
def test_ids_of_a_text(cli, V, text, out):
    ran = cli("tokenize", "-m", V, "--", text)
    assert (ran.status, ran.out, ran.err) == (0, out, "")


@pytest.mark.parametrize(
    ("text", "out"),
    [("<|endoftext|>", "27 91 437 1659 5239 91 29\n"), ("a<|endoftext|>b", "64 27 91 437 1659 5239 91 29 65\n")],
)
def test_end_of_text_is_plain_text_with_one_hint(cli, V, text, out):
    ran = cli("tokenize", "-m", V, text)
    assert (ran.status, ran.out) == (0, out)
    assert ran.err == (
        "note: <|endoftext|> is plain text, as in the official encoder;"
        " for the token: --allow-special, elsewhere --ids or --prefix-token eot\n"
    )
    assert cli("tokenize", "-q", "-m", V, text).err == ""


def test_allow_special_takes_it_as_its_token(cli, V):
    ran = cli("tokenize", "-m", V, "--allow-special", "a<|endoftext|>b")
    assert (ran.status, ran.out, ran.err) == (0, "64 50256 65\n", "")


def test_a_file_is_one_text_as_it_is(cli, V, tmp_path):
    (tmp_path / "text").write_bytes(b"a\0b\r\n--help\n")
    ran = cli("tokenize", "-m", V, "-f", tmp_path / "text")
    assert (ran.status, ran.out, ran.err) == (0, "64 188 65 201 198 438 16794 198\n", "")


def test_a_table_shows_offsets_and_bytes(cli, V):
    ran = cli("tokenize", "-m", V, "--format", "table", "a 😨\n\n")
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        "   id  offset  bytes  token",
        "   64       0      1  a",
        "30325       1      4   \\xf0\\x9f\\x98",
        "  101       5      1  \\xa8",
        "  628       6      2  \\n\\n",
    ]


def test_json_lines_hold_the_same(cli, V):
    ran = cli("tokenize", "-m", V, "--format", "jsonl", "a😨")
    assert [json.loads(line) for line in ran.out.splitlines()] == [
        {"id": 64, "offset": 0, "bytes": 1, "token": "a"},
        {"id": 47249, "offset": 1, "bytes": 3, "token": "\\xf0\\x9f\\x98"},
        {"id": 101, "offset": 4, "bytes": 1, "token": "\\xa8"},
    ]


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (b" the", " the"),
        ("é".encode(), "é"),
        (b"\n\t\0", "\\n\\t\\x00"),
        ("\u00a0".encode(), "\\xc2\\xa0"),
        (b"\xa0", "\\xa0"),
        (b"\\n", "\\\\n"),
        (b"it's\xff\"", "it's\\xff\""),
        (b"'", "'"),
    ],
)
def test_no_two_tokens_look_alike(token, text):
    assert shown(token) == text


def test_every_single_byte_is_shown_as_itself_or_escaped():
    texts = [shown(bytes([b])) for b in range(256)]
    assert [ast.literal_eval(f"b'''{text}'''" if text != "'" else f'b"{text}"') for text in texts] == [
        bytes([b]) for b in range(256)
    ]


def test_a_text_that_looks_like_an_option_goes_after_two_hyphens(cli, T):
    assert cli("tokenize", "-m", T, "--", "-hello").out == "12 257 75 75 78\n"
    assert cli("tokenize", "-m", T, "--", "- item").out == "12 220 72 83 68 76\n"
    assert cli("tokenize", "-m", T, "--", "--help").out == "12 12 257 75 79\n"
    for text in ("-hello", "- item", "--nothing"):
        refused(cli("tokenize", "-m", T, text), 2, "No such option", "goes after --", "-f", "gpt2ln tokenize --help")


def test_text_or_file_but_one_of_them(cli, T, tmp_path):
    refused(cli("tokenize", "-m", T), 2, "give a TEXT or --file FILE")
    refused(cli("tokenize", "-m", T, "a", "-f", tmp_path / "x"), 2, "give a TEXT or --file FILE", "one of them")
    refused(cli("tokenize", "-m", T, "a", "b"), 2, "unexpected extra argument (b)")


def test_bytes_that_are_not_utf8_are_refused_with_their_place(cli, T, tmp_path):
    refused(cli("tokenize", "-m", T, "a\udcffb"), 5, "prompt is not valid UTF-8 at byte 1 (0xff)")
    (tmp_path / "x").write_bytes(b"fine\na\xffb")
    refused(
        cli("tokenize", "-m", T, "-f", tmp_path / "x"), 5, f"{tmp_path}/x is not valid UTF-8 at byte 6 (0xff) (line 2)"
    )
    (tmp_path / "x").write_bytes("café".encode("latin-1"))
    refused(cli("tokenize", "-m", T, "-f", tmp_path / "x"), 5, "is not valid UTF-8 at byte 3 (0xe9) (line 1)")
    refused(cli("tokenize", "-m", T, "a\ud83d"), 5, "prompt is not valid Unicode at character 1 (a lone surrogate)")


def test_a_missing_file_is_named(cli, T, tmp_path):
    refused(cli("tokenize", "-m", T, "-f", tmp_path / "gone"), 3, f"{tmp_path / 'gone'}: No such file")
    refused(cli("tokenize", "-m", T, "-f", tmp_path), 3, f"{tmp_path}: Is a directory")


def test_a_damaged_vocabulary_is_refused(cli, tmp_path):
    folder = tiny(tmp_path / "tiny")
    (folder / "vocab.bpe").write_text("#version: 0.2\nĠ t\nh e\n", encoding="utf-8")
    refused(cli("tokenize", "-m", folder, " the"), 4, "vocab.bpe has 2 merges, encoder.json needs 3", str(folder))
    refused(cli("detokenize", "-m", folder, "1"), 4, "vocab.bpe has 2 merges, encoder.json needs 3", str(folder))
    (folder / "encoder.json").unlink()
    refused(cli("tokenize", "-m", folder, " the"), 3, "encoder.json: no such file")


def test_a_vocabulary_of_another_model_is_said(cli, T, tmp_path):
    folder = shutil.copytree(T, tmp_path / "tiny")
    hparams = json.loads((folder / "hparams.json").read_text())
    (folder / "hparams.json").write_text(json.dumps(hparams | {"n_vocab": 300}))
    ran = cli("tokenize", "-m", folder, "a")
    assert (ran.status, ran.out) == (0, "64\n")
    assert ran.err == "warning: encoder.json has 260 entries, hparams.json says n_vocab 300\n"


# detokenize


@pytest.mark.parametrize(
    ("ids", "out"),
    [
        (["47249", "101"], "😨"),
        (["47249"], "\ufffd"),
        (["101"], "\ufffd"),
        (["50256"], "<|endoftext|>"),
        (["64 198 198 65"], "a\n\nb"),
        (["+64"], "a"),
    ],
)
def test_text_of_ids(cli, V, ids, out):
    ran = cli("detokenize", "-m", V, *ids)
    assert (ran.status, ran.out, ran.err) == (0, out, "")


def test_raw_writes_the_bytes_themselves(T, capfdbinary):
    from gpt2ln.commands import main

    assert main(["detokenize", "-m", str(T), "--raw", "182", "64", "255"]) == 0
    assert capfdbinary.readouterr() == (b"\xfaa\xad", b"")


def test_ids_from_a_file(cli, V, tmp_path):
    (tmp_path / "ids").write_text("64 198\n198\t65\n")
    assert cli("detokenize", "-m", V, "-f", tmp_path / "ids").out == "a\n\nb"
    (tmp_path / "ids").write_text("")
    ran = cli("detokenize", "-m", V, "-f", tmp_path / "ids")
    assert (ran.status, ran.out, ran.err) == (0, "", "")


@pytest.mark.parametrize("where", [[], ["--"]])
def test_whole_numbers_outside_are_refused(cli, V, T, where):
    refused(cli("detokenize", "-m", V, *where, "50257"), 5, "token id 50257 outside 0..50256 (item 1)")
    refused(cli("detokenize", "-m", V, *where, "-1"), 5, "token id -1 outside 0..50256 (item 1)")
    refused(cli("detokenize", "-m", T, *where, "0", "259", "260"), 5, "token id 260 outside 0..259 (item 3)")
    refused(
        cli("detokenize", "-m", T, *where, "1" * 5000), 5, "token id 11111111111111111111... is outside", "(item 1)"
    )


@pytest.mark.parametrize("word", ["1.5", "abc", "1e3", "0x10", "1_000", "٤", "²", "64,65", "-x", "1-", "+"])
def test_what_is_no_whole_number_is_a_usage_error(cli, V, word):
    refused(cli("detokenize", "-m", V, "64", word), 2, f"token id {word!r} is not a whole number (item 2)")


def test_an_option_that_is_none_is_no_id(cli, V):
    refused(cli("detokenize", "-m", V, "64", "--rwa"), 2, "No such option '--rwa'", "gpt2ln detokenize --help")


def test_ids_or_file_but_one_of_them(cli, V, tmp_path):
    refused(cli("detokenize", "-m", V), 2, "give ids, or --file FILE")
    refused(cli("detokenize", "-m", V, "1", "-f", tmp_path / "x"), 2, "give ids, or --file FILE", "one of them")


def test_last_id_and_round_trip(cli, T):
    assert cli("detokenize", "-m", T, "259").out == "<|endoftext|>"
    for text in ("constructor", "__proto__", " the\n", "😨", "a\ufffdb"):
        ids = cli("tokenize", "-m", T, text).out.split()
        assert cli("detokenize", "-m", T, *ids).out == text
