"""Arrays that say how texts lie, and say nonsense: each is refused in words, all of a file at once."""

import re

import numpy as np
import pytest

from gpt2ln.compare import Measure, compare
from gpt2ln.errors import BadInput
from gpt2ln.marks import KINDS
from gpt2ln.pairing import differing_tokens, settled
from gpt2ln.readings import read
from gpt2ln.spec import HParams

from .conftest import ROOT
from .ports import saved

MODEL = HParams(260, 16, 8, 2, 2)
OUT = np.ones((2, 4, 8), "f4")
IDS = np.arange(8).reshape(2, 4)


def file_of(tmp_path, arrays):
    return saved(tmp_path / "p.npz", {name: np.asarray(x) for name, x in ({"h0/out": OUT} | arrays).items()})


def rows(n):
    return {"h0/out": np.ones((n, 8), "f4")}


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (
            {"attention_mask": [[1, 0, 1, 1], [1, 1, 1, 1]]},
            "attention_mask of text 0 has a hole at 1, expected padding",
        ),
        ({"attention_mask": [[1, 1, 1, 1], [0, 0, 0, 0]]}, "attention_mask leaves no token of text 1"),
        ({"attention_mask": [[1, 1, 1, 2], [1, 1, 1, 1]]}, "attention_mask holds 2, expected 0 where padding is and 1"),
        ({"attention_mask": [[1, 1, 1, np.nan], [1] * 4]}, "attention_mask holds nan, expected 0 where padding is"),
        ({"attention_mask": [[-1e9, 0, 0, 0], [0] * 4]}, "attention_mask holds -1000000000.0, expected 0 where"),
        ({"attention_mask": np.ones((2, 1, 4, 4))}, "attention_mask is float64 [2, 1, 4, 4], expected 0 and 1, [B, T]"),
        ({"attention_mask": np.ones((2, 4), "c8")}, "attention_mask is complex64 [2, 4], expected 0 and 1, [B, T]"),
        (
            {"attention_mask": np.ones((2, 3)), "tokens": IDS},
            "tokens is [2, 4], attention_mask is [2, 3]; expected the",
        ),
        ({"attention_mask": np.ones((2, 3))}, "attention_mask: 2 x 3, h0/out [2, 4, 8]: not the same positions in all"),
        ({"lengths": [4, 0]}, "lengths of text 1 is 0, expected 1 or more tokens"),
        ({"lengths": [4, 5], "tokens": IDS}, "lengths is 4, 5; expected 2, each of 1..4"),
        ({"lengths": [4, 2, 2], "tokens": IDS}, "lengths is 4, 2, 2; expected 2, each of 1..4"),
        ({"lengths": [4, 5]}, "lengths: 2 x 5, activations: 2 x 4: not the same texts in both"),
        ({"lengths": [3]}, "lengths: 1 x 3, activations: 2 x 4: not the same texts in both"),
        ({"lengths": [[3, 4]]}, "lengths is int64 [1, 2], expected whole numbers [B]"),
        ({"lengths": [3.0, 4.0]}, "lengths is float64 [2], expected whole numbers [B]"),
        (
            {"lengths": [3, 4], "attention_mask": np.ones((2, 4))},
            "attention_mask and lengths do not say the same lengths",
        ),
        ({"doc_ptr": [0, 3, 3, 8]}, "doc_ptr is 0, 3, 3, 8; expected 0 and where each text ends, none of them empty"),
        ({"cu_seqlens": [3, 8]}, "cu_seqlens is 3, 8; expected 0 and where each text ends"),
        ({"doc_ptr": [0]}, "doc_ptr is 0; expected 0 and where"),
        ({"doc_ptr": [0, 8, 4]}, "doc_ptr is 0, 8, 4; expected 0 and where"),
        ({"doc_ptr": [0, 3, 8]}, "doc_ptr: 1 x 8, h0/out [2, 4, 8]: not the same positions in all"),
        (rows(8) | {"doc_ptr": [0, 3, 7]}, "doc_ptr: 1 x 7, h0/out [8, 8]: not the same positions in all"),
        (rows(8) | {"doc_ptr": [0, 3, 8], "tokens": np.arange(7)}, "doc_ptr ends at 8, tokens is [7]"),
        (
            rows(8) | {"doc_ptr": [0, 3, 8], "attention_mask": [1] * 7 + [0]},
            "doc_ptr is of packed texts, attention_mask of padded ones; expected one of them",
        ),
        (rows(8) | {"doc_ptr": [0, 3, 8], "lengths": [3, 4]}, "doc_ptr and lengths do not say the same lengths"),
        (rows(8) | {"doc_ptr": [0, 3, 8], "cu_seqlens": [0, 4, 8]}, "doc_ptr and cu_seqlens differ, expected one of"),
        (
            rows(2) | {"doc_ptr": [0, 3, 8], "positions": [1, 2]},
            "positions is [2] of 8 packed tokens; name some of them",
        ),
        (rows(2) | {"doc_ptr": [0, 3, 8], "rows": [1, 8]}, "rows holds 8, expected less than 8, the number of tokens"),
        (
            rows(2) | {"doc_ptr": [0, 3, 8], "rows": [4, 1]},
            "rows has 1 behind 4, expected each position once",
        ),
        (rows(2) | {"tokens": np.arange(9), "positions": [4, 4]}, "positions has 4 behind 4, expected each"),
        (
            rows(2) | {"tokens": np.arange(9), "positions": [4, 9]},
            "positions holds 9, expected less than 9, the number",
        ),
        (
            rows(2) | {"tokens": np.arange(9), "positions": [-1, 2]},
            "positions holds -1, expected positions, counted from",
        ),
        (
            rows(2) | {"positions": [1, 2**62]},
            "positions holds 4611686018427387904, expected positions, counted from 0",
        ),
        (rows(2) | {"positions": np.array([1, 2**64 - 1], "u8")}, "positions holds 18446744073709551615, expected"),
        (rows(2) | {"positions": ["a", "b"]}, "positions is <U1, expected whole numbers"),
        (rows(2) | {"positions": [1.0, 2.0]}, "positions is float64 [2], expected whole numbers [rows] or [B, rows]"),
        (rows(2) | {"positions": [1, 2, 3]}, "positions: 1 x 3, h0/out [2, 8]: not the same positions in all"),
        (
            {"tokens": IDS, "positions": np.zeros((3, 1), int)},
            "positions is [3, 1], expected [rows] or [2, rows]: there",
        ),
        (
            {"lengths": [4, 2], "tokens": IDS, "h0/out": OUT[:, :2], "positions": [1, 2]},
            "positions of text 1 holds 2, expected less than 2, the number of tokens",
        ),
        ({"tokens": IDS, "input_ids": IDS + 1}, "tokens and input_ids differ, expected one of them"),
        (
            rows(2) | {"tokens": np.arange(9), "positions": [4, 5], "h0/attn/probs": np.ones((2, 2, 7), "f4")},
            "h0/attn/probs is [2, 2, 7], expected [rows, 2, 9]",
        ),
        (
            rows(2) | {"positions": [4, 5], "h0/attn/probs": np.ones((2, 2, 3), "f4")},
            "h0/attn/probs is [2, 2, 3], expected [rows, 2, 6 or more]",
        ),
        (
            rows(8) | {"doc_ptr": [0, 3, 8], "h0/attn/probs": np.ones((8, 2, 3), "f4")},
            "h0/attn/probs is [8, 2, 3], expected [rows, 2, 5 or 8]",
        ),
        (
            {"lengths": [0, 4], "positions": [-1]},
            "lengths of text 0 is 0, expected 1 or more tokens; positions holds -1",
        ),
        ({"wpe/out": np.ones((3, 8)), "tokens": IDS}, "wpe/out [3, 8], expected 2 x 4 positions, as the others have"),
        (
            rows(2) | {"h0/attn/q": np.ones((2, 2, 4)), "tokens": np.arange(9), "positions": [4, 5]},
            "h0/attn/q [2, 2, 4] fits [T, H, D] and [H, T, D]; save a number of rows other than the number of heads",
        ),
        (
            {"h0/out": OUT[:, :2], "lengths": [4, 2], "tokens": IDS, "positions": [1, 2]},
            "positions of text 1 holds 2, expected less than 2, the number of tokens",
        ),
    ],
)
def test_what_is_refused(tmp_path, arrays, words):
    with pytest.raises(BadInput, match=re.escape(f"p.npz: {words}")) as caught:
        read(file_of(tmp_path, arrays), MODEL)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arrays", "lengths"),
    [
        ({"attention_mask": np.array([[1, 1, 0, 0], [0, 0, 1, 1]], bool)}, [2, 2]),
        ({"attention_mask": np.array([[0, 1, 1, 0], [1, 1, 1, 1]], "f2")}, [2, 4]),
        ({"attention_mask": np.ones((2, 4), "u1"), "lengths": [4, 4]}, [4, 4]),
        ({"attention_mask": [[0, 0, 1, 1], [1, 1, 1, 1]], "lengths": [2, 4], "tokens": IDS, "input_ids": IDS}, [2, 4]),
        ({"lengths": np.array([1, 3], "i1")}, [1, 3]),
        (rows(5) | {"attention_mask": [1, 1, 1, 0, 0]}, [3]),
        (rows(5) | {"doc_ptr": [0, 5], "attention_mask": np.ones((1, 5), int)}, [5]),
        ({"h0/out": np.ones((1, 5, 8), "f4"), "cu_seqlens": [0, 1, 5], "tokens": np.arange(5)[None]}, [1, 4]),
        (rows(5) | {"doc_ptr": [0, 1, 5], "cu_seqlens": np.array([0, 1, 5], "i4"), "lengths": [1, 4]}, [1, 4]),
    ],
)
def test_what_is_read(tmp_path, arrays, lengths):
    found = read(file_of(tmp_path, arrays), MODEL)
    assert [document.T for document in found.documents] == lengths
    assert [document.taps["h0/out"].shape for document in found.documents] == [(T, 8) for T in lengths]
    assert found.left_out == 0


def test_lengths_without_tokens_say_where_a_text_ends(tmp_path):
    found = read(file_of(tmp_path, {"h0/out": OUT[:, :1], "lengths": [4, 3], "positions": [1]}), MODEL)
    assert [(document.T, document.open, document.rows.tolist()) for document in found.documents] == [
        (4, False, [1]),
        (3, False, [1]),
    ]


def test_tokens_of_rows_are_those_of_all_texts_or_of_none(tmp_path):
    """One that lacks some could not be computed anew beside the others."""
    arrays = {"h0/out": OUT[:, :2], "positions": [[0, 1], [1, 2]], "tokens": IDS[:, :2]}
    found = read(file_of(tmp_path, arrays), MODEL).documents
    assert [(document.T, document.open, document.ids, document.some) for document in found] == [
        (2, True, None, (0, 1)),
        (3, True, None, (4, 5)),
    ]


def test_keys_say_how_long_a_text_is_at_least(tmp_path):
    probs = [np.ones((3, 2, n), "f4") for n in (7, 5)]
    found = [
        read(file_of(tmp_path, rows(3) | {"positions": [0, 1, 4], "h0/attn/probs": x, "h0/in": np.ones((3, 8))}), MODEL)
        for x in probs
    ]
    assert [(one.documents[0].T, one.documents[0].open) for one in found] == [(7, True), (5, True)]
    np.testing.assert_array_equal(found[0].documents[0].taps["h0/attn/probs"], probs[0])
    with pytest.raises(BadInput, match=r"text 0: h0/attn/probs is \[3, 2, 7\] in A, \[3, 2, 5\] in B"):
        compare(*found, Measure())


def test_what_the_other_side_knows_of_a_text(tmp_path):
    """Its length, and its tokens."""
    whole = read(file_of(tmp_path, {"h0/out": OUT[0], "tokens": IDS[0]}), MODEL)
    begun = read(file_of(tmp_path, {"h0/out": OUT[0, :2], "tokens": IDS[0, :2], "rows": [0, 1]}), MODEL)
    for a, b in ((whole, begun), (begun, whole)):
        for one in settled(a, b)[:2]:
            (document,) = one.documents
            assert (document.T, document.ids, document.open) == (4, (0, 1, 2, 3), False)


@pytest.mark.parametrize("left", [True, False])
def test_padding_without_a_mask_is_asked_about(tmp_path, left):
    whole = read(file_of(tmp_path, {"h0/out": OUT[0], "tokens": [5, 6, 7, 8]}), MODEL)
    ids = [9, 9, 5, 6, 7, 8] if left else [5, 6, 7, 8, 9, 9]
    padded = read(file_of(tmp_path, rows(6) | {"tokens": ids}), MODEL)
    assert differing_tokens(whole, padded).endswith("; is one side padded? save its attention_mask too")
    other = read(file_of(tmp_path, rows(6) | {"tokens": ids[::-1]}), MODEL)
    assert differing_tokens(whole, other).endswith("; dump the same text with both")


def test_a_mask_by_another_name_is_said_to_be_left_out(tmp_path):
    found = read(file_of(tmp_path, {"mask": np.ones((4, 4)), "tokens": IDS}), MODEL)
    assert found.notes[0] == "left out: mask (one that tells padding is attention_mask)"


def test_the_page_has_every_name():
    page = (ROOT / "docs/porting.md").read_text(encoding="utf-8")
    assert [name for name, kind in KINDS.items() if kind != "ids" and f"`{name}`" not in page] == []
