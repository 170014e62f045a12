"""Text and ids: the official ids for every text, and no id from a vocabulary that is damaged."""

import hashlib
import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2ln.bpe import Bpe, check_ids
from gpt2ln.errors import BadInput

from .tiny import ID, MERGES
from .vocabulary import official_encode, official_files

CASES = json.loads(Path(__file__).with_name("tokenizer_cases.json").read_text(encoding="utf-8"))
SHA256 = {
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}
# Letters that Python's Unicode tables know: younger ones may be letters to one library and nothing to another.
KNOWN = st.text(st.characters(exclude_categories=("Cs", "Cn")))
unhurried = settings(deadline=None)  # the first example builds the encoder
MIXED = st.text(st.sampled_from([*" the'sdlv\n\t_²Ⅷé😨\x1c\u00a0\u3000.1x"]))


def read(folder) -> Bpe:
    return Bpe(folder / "encoder.json", folder / "vocab.bpe")


@pytest.fixture(scope="session")
def official() -> Bpe:
    for name, digest in SHA256.items():
        assert hashlib.sha256((official_files() / name).read_bytes()).hexdigest() == digest, name
    return read(official_files())


@pytest.fixture(scope="session")
def bpe(T) -> Bpe:
    return read(T)


# ids


def test_there_are_as_many_cases_as_there_were():
    assert (len(CASES["encode"]), len(CASES["decode"])) == (322, 14)


def test_official_encode_cases(official):
    wrong = {text: official.encode(text) for text, ids in CASES["encode"] if official.encode(text) != ids}
    assert wrong == {}


def test_official_decode_cases(official):
    wrong = {tuple(ids): official.decode(ids) for ids, text in CASES["decode"] if official.decode(ids) != text}
    assert wrong == {}


def test_size_and_end_of_text(official, bpe):
    assert (official.n_vocab, official.eot) == (50257, 50256)
    assert (bpe.n_vocab, bpe.eot) == (260, 259)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("\n\n\x1c", [198, 198, 216]),
        ("._", [13557]),
        ("x²", [87, 31185]),
        ("Ⅷ", [158, 227, 100]),
        ("a\0b", [64, 188, 65]),
        ("\ufeffhi", [171, 119, 123, 5303]),
        ("it's", [270, 338]),
        ("IT'S", [2043, 6, 50]),
        ("<|endoftext|>", [27, 91, 437, 1659, 5239, 91, 29]),
        ("👍", [41840, 235]),
    ],
)
def test_character_classes_are_those_of_unicode(official, text, ids):
    assert official.encode(text) == ids


@pytest.mark.parametrize("word", ["constructor", "__proto__", "toString", "hasOwnProperty", "__class__", "None", "nan"])
def test_names_that_mean_something_to_a_language_round_trip(official, word):
    assert official.decode(official.encode(word)) == word


@unhurried
@given(text=MIXED | KNOWN)
def test_encode_is_the_official_algorithm(bpe, T, text):
    encoder = json.loads((T / "encoder.json").read_text(encoding="utf-8"))
    assert bpe.encode(text) == official_encode(text, encoder, list(MERGES))


@unhurried
@given(text=MIXED | KNOWN)
def test_decode_undoes_encode(bpe, text):
    assert bpe.decode(bpe.encode(text)) == text


@unhurried
@given(text=st.text(st.characters(exclude_categories=("Cs",))))
def test_decode_undoes_encode_with_the_official_vocabulary(official, text):
    assert official.decode(official.encode(text)) == text


@unhurried
@given(parts=st.lists(MIXED, min_size=1, max_size=4))
def test_allow_special_makes_one_id_of_each_end_of_text(bpe, parts):
    apart = [bpe.encode(part) for part in parts]
    expected = apart[0] + [i for ids in apart[1:] for i in (bpe.eot, *ids)]
    assert bpe.encode("<|endoftext|>".join(parts), allow_special=True) == expected


def test_special_text_is_text_by_default(bpe):
    assert bpe.encode("<|endoftext|>") == [ID[ord(c)] for c in "<|endoftext|>"]
    assert bpe.encode("<|endoftext|>", allow_special=True) == [259]


@pytest.mark.parametrize(("text", "at"), [("\ud83d", 0), ("ab\udc4d", 2), ("a\ud83d\udc4d", 1)])
@pytest.mark.parametrize("allow_special", [False, True])
def test_a_lone_surrogate_is_refused_not_replaced(bpe, text, at, allow_special):
    with pytest.raises(BadInput, match=f"not valid Unicode at character {at} "):
        bpe.encode(text, allow_special=allow_special)


# speed


def long_word(letters: int) -> str:
    x, word = 1, []
    for _ in range(letters):
        x = (x * 1103515245 + 12345) % 2**31
        word.append(chr(97 + (x >> 16) % 26))
    return "".join(word)


@pytest.mark.parametrize(
    ("text", "count", "digest"),
    [
        (long_word(8_000), 4_775, "88bbc154bdcbdbde"),
        (long_word(100_000), 59_547, "8a9f57d769ea1576"),
        ("_" * 100_000, 1_563, "23a0862ef44d1a95"),
    ],
    ids=["8,000 letters", "100,000 letters", "100,000 underscores"],
)
def test_one_long_word_does_not_hang(official, text, count, digest):
    began = time.perf_counter()
    ids = official.encode(text)
    took = time.perf_counter() - began
    assert len(ids) == count
    assert hashlib.sha256(" ".join(map(str, ids)).encode()).hexdigest()[:16] == digest
    assert 0 < took < 5


@pytest.mark.parametrize("text", [" ", "\n", " \n", "1", "é", "😨"])
def test_a_million_of_anything_neither_hangs_nor_crashes(official, text):
    began = time.perf_counter()
    assert official.decode(official.encode(text * 500_000)) == text * 500_000
    assert 0 < time.perf_counter() - began < 5


# stream


@unhurried
@given(ids=st.lists(st.integers(0, 259) | st.sampled_from([ID[b] for b in "😨é👍".encode()])))
def test_pieces_of_a_stream_joined_are_the_text(bpe, ids):
    stream, whole = bpe.stream(), bpe.decode(ids)
    pieces = [stream.feed(i) for i in ids]
    assert "".join([*pieces, stream.finish()]) == whole
    at = 0
    for piece in pieces:  # what has been shown is never taken back
        assert whole[at : at + len(piece)] == piece
        at += len(piece)


@unhurried
@given(text=MIXED | KNOWN)
def test_a_stream_of_valid_text_shows_no_replacement(bpe, text):
    stream = bpe.stream()
    pieces = [stream.feed(i) for i in bpe.encode(text)]
    assert "".join(pieces).count("\ufffd") == text.count("\ufffd")
    assert stream.finish() == ""


def test_an_unfinished_character_is_one_replacement_at_the_end(bpe):
    stream = bpe.stream()
    assert [stream.feed(ID[b]) for b in "😨".encode()[:3]] == ["", "", ""]
    assert stream.finish() == "\ufffd"


def test_bytes_of_a_token_are_its_own(official):
    assert official.token_bytes(47249) == b"\xf0\x9f\x98"
    assert official.decode_bytes([47249, 101]) == "😨".encode()
    assert [official.decode(ids) for ids in ([47249, 101], [47249], [101])] == ["😨", "\ufffd", "\ufffd"]


# ids out of range


@pytest.mark.parametrize(("ids", "at"), [([260], 1), ([0, -1], 2), ([0, 1, 10**30], 3)])
def test_ids_outside_are_refused_with_their_place(ids, at):
    with pytest.raises(BadInput, match=rf"token id {ids[-1]} outside 0\.\.259 \(item {at}\)"):
        check_ids(ids, 260)


def test_the_last_id_is_inside():
    check_ids([0, 259], 260)
