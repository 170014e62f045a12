"""Vocabulary files: line ends change no id, another numbering is followed, and what is damaged says where."""

import json
import random
import shutil

import pytest

from gpt2ln.bpe import BYTE_OF, Bpe, read_encoder, read_merges
from gpt2ln.errors import Damaged, NotFound

from .test_bpe import CASES, SHA256, read
from .tiny import MERGES
from .vocabulary import official_encode, official_files


@pytest.fixture(scope="session")
def bpe(T) -> Bpe:
    return read(T)


@pytest.fixture
def damaged(T, tmp_path):
    """T's vocabulary, to be changed: `damaged("vocab.bpe", old, new)` -> folder."""
    for name in SHA256:
        shutil.copy(T / name, tmp_path / name)

    def change(name: str, edit):
        (tmp_path / name).write_bytes(edit((tmp_path / name).read_bytes()))
        return tmp_path

    return change


@pytest.mark.parametrize(
    "edit",
    [
        lambda data: data.rstrip(b"\n"),
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: data.replace(b"\n", b"\r\n").rstrip(b"\r\n"),
        lambda data: data + b"\n\n",
        lambda data: data.removeprefix(b"#version: 0.2\n"),
    ],
    ids=["no last newline", "CRLF", "CRLF, no last newline", "blank lines", "no version line"],
)
def test_line_ends_of_the_merges_change_no_id(damaged, bpe, edit):
    found = read(damaged("vocab.bpe", edit))
    assert found.encode("a the hethe") == bpe.encode("a the hethe")
    assert found.encode(" the") == [258]


@pytest.mark.parametrize(
    ("name", "edit", "says"),
    [
        ("vocab.bpe", lambda d: b"".join(d.splitlines(True)[:-1]), "vocab.bpe has 2 merges, encoder.json needs 3"),
        ("vocab.bpe", lambda d: b"", "vocab.bpe has 0 merges, encoder.json needs 3"),
        ("vocab.bpe", lambda d: d + b"t h\n", "vocab.bpe has 4 merges, encoder.json needs 3"),
        ("vocab.bpe", lambda d: d + b"h e\n", "vocab.bpe: line 5 makes 'he' a second time"),
        ("vocab.bpe", lambda d: d.replace(b"h e\n", b"h e r\n"), "vocab.bpe: line 3 has 3 words, a merge has 2"),
        ("vocab.bpe", lambda d: d.replace(b"h e\n", b"he r\n"), "vocab.bpe: line 3 merges 'he', which no line before"),
        ("vocab.bpe", lambda d: d.replace(b"h e\n", b"h o\n"), "vocab.bpe: line 4 merges 'he', which no line before"),
        ("vocab.bpe", lambda d: b"\xff" + d, "vocab.bpe: not UTF-8 at byte 0"),
        ("vocab.bpe", lambda d: b"<html><body>Not found</body></html>\n", "vocab.bpe: line 1 merges '<html><body>Not'"),
        ("encoder.json", lambda d: d[: len(d) // 2], "encoder.json: line 1 column "),
        ("encoder.json", lambda d: b"", "encoder.json: line 1 column 1: Expecting value, expected JSON"),
        ("encoder.json", lambda d: b"<!doctype html>", "encoder.json: line 1 column 1: Expecting value, expected JSON"),
        ("encoder.json", lambda d: b"[" * 100_000, "encoder.json: expected an object of token: id"),
        ("encoder.json", lambda d: b"[1]", "encoder.json: expected an object of token: id"),
        ("encoder.json", lambda d: b'{"a": ' + b"1" * 5000 + b"}", "encoder.json: expected an object of token: id"),
        ("encoder.json", lambda d: d.replace(b": 64,", b": 64.0,"), "encoder.json: expected an object of token: id"),
        ("encoder.json", lambda d: d.replace(b": 64,", b": true,"), "encoder.json: expected an object of token: id"),
        (
            "encoder.json",
            lambda d: d.replace(b": 64,", b": 65,"),
            "260 entries, their ids are not 0..259 each once: 64 ",
        ),
        ("encoder.json", lambda d: d.replace(b": 64,", b": -1,"), "ids are not 0..259 each once: -1, 64 missing"),
        (
            "encoder.json",
            lambda d: d.replace(b'"a": 64, ', b""),
            "259 entries, their ids are not 0..258 each once: 64, ",
        ),
        ("encoder.json", lambda d: d.replace(b'"a": 64', b'"aa": 64'), "encoder.json: no id for 'a', which vocab.bpe"),
        ("encoder.json", lambda d: d.replace(b"<|endoftext|>", b"<|end|>"), r"encoder.json: <|endoftext|> has no id"),
    ],
)
def test_anything_else_is_damaged_and_says_where(damaged, name, edit, says):
    folder = damaged(name, edit)
    with pytest.raises(Damaged) as caught:
        read(folder)
    assert says in str(caught.value)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", list(SHA256))
def test_a_missing_file_is_not_found(damaged, name):
    folder = damaged(name, lambda data: data)
    (folder / name).unlink()
    with pytest.raises(NotFound, match=f"{name}: no such file"):
        read(folder)


def shuffled(data: bytes, seed: int = 1) -> tuple[bytes, list[int]]:
    """The same tokens under other ids, and the new id of each old one."""
    encoder = json.loads(data)
    new = list(range(len(encoder)))
    random.Random(seed).shuffle(new)
    return json.dumps({word: new[i] for word, i in encoder.items()}).encode(), new


def test_ids_in_another_order_encode_as_the_official_algorithm_does(damaged, bpe):
    data, new = shuffled((damaged("vocab.bpe", bytes) / "encoder.json").read_bytes())
    other = read(damaged("encoder.json", lambda _: data))
    text = "a the hethe\n\nthe the😨 <|endoftext|>"
    assert other.encode(text) == [new[i] for i in bpe.encode(text)]
    assert other.encode(text) == official_encode(text, json.loads(data), list(MERGES))
    assert other.decode(other.encode(text)) == text
    assert other.eot == new[259]
    assert other.encode("<|endoftext|>", allow_special=True) == [new[259]]


def test_official_ids_in_another_order(tmp_path):
    data, new = shuffled((official_files() / "encoder.json").read_bytes())
    (tmp_path / "encoder.json").write_bytes(data)
    other = Bpe(tmp_path / "encoder.json", official_files() / "vocab.bpe")
    wrong = [text for text, ids in CASES["encode"] if other.encode(text) != [new[i] for i in ids]]
    assert wrong == []


def test_readers_give_what_is_written(T):
    made = list(read_merges(T / "vocab.bpe").items())
    assert made[:256] == [(letter, bytes([byte])) for letter, byte in BYTE_OF.items()]
    assert made[256:] == [("Ġt", b" t"), ("he", b"he"), ("Ġthe", b" the")]
    assert list(read_encoder(T / "encoder.json").values()) == list(range(260))
