"""What a dump will hold is known before it is made: positions, shapes, and the size of every file to the byte."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2ln.errors import BadInput, UsageError
from gpt2ln.folder import Folder
from gpt2ln.plan import Plan, Positions, digest_of
from gpt2ln.prompt import Prompt
from gpt2ln.shards import file_bytes
from gpt2ln.taps import Tap

from .dumps import TAPS, fill, plan_of, spell

# positions


@pytest.mark.parametrize(
    ("text", "T", "kept"),
    [
        ("all", 3, [0, 1, 2]),
        (":", 3, [0, 1, 2]),
        ("last", 3, [2]),
        ("last", 1, [0]),
        ("0", 3, [0]),
        ("-1", 3, [2]),
        ("-3", 3, [0]),
        ("-4", 3, []),
        ("3", 3, []),
        ("0:16", 3, [0, 1, 2]),
        ("1:2", 3, [1]),
        ("2:1", 3, []),
        (":2", 5, [0, 1]),
        ("-2:", 5, [3, 4]),
        (":-2", 5, [0, 1, 2]),
        ("-3:-1", 5, [2, 3]),
        (":2,-2:", 5, [0, 1, 3, 4]),
        (":2,-2:", 3, [0, 1, 2]),
        ("4, 0 ,0,last", 5, [0, 4]),
        ("0,last", 1, [0]),
        ("999999999", 3, []),
    ],
)
def test_positions_of_a_document(text, T, kept):
    np.testing.assert_array_equal(Positions(text).of(T), kept)


@pytest.mark.parametrize(
    "text", ["", ",", "0,", "a", "first", "1:2:3", "1.0", "--1", "+1", "1-2", "9" * 10, "٣", "ALL", "0\n1", "1e3", "::"]
)
def test_what_is_no_position_is_refused(text):
    with pytest.raises(UsageError) as caught:
        Positions(text)
    assert str(caught.value).startswith(f"positions {text!r}: ")
    assert "expected all, last, 5, 0:16 or -4:" in str(caught.value)


ENDS = st.none() | st.integers(-12, 12)


@given(spans=st.lists(st.tuples(ENDS, ENDS), min_size=1, max_size=4), T=st.integers(1, 10))
def test_slices_are_those_of_python(spans, T):
    text = ",".join(":".join("" if end is None else str(end) for end in span) for span in spans)
    kept = sorted({i for first, last in spans for i in range(T)[first:last]})
    np.testing.assert_array_equal(Positions(text).of(T), kept)


# what is refused


def test_no_document_and_no_row_are_refused():
    with pytest.raises(BadInput, match="0 documents, expected at least 1"):
        plan_of([])
    with pytest.raises(BadInput, match=r"positions '7:': no document has any; the longest is 3 tokens"):
        plan_of([2, 3, 1], "7:")


def test_a_type_that_no_dump_has_is_refused():
    with pytest.raises(UsageError, match=r"dtype 'int8', expected float32, float16"):
        plan_of([1], dtype="int8")


# rows, shapes, what stands beside


def test_rows_and_shapes():
    plan = plan_of([2, 5, 1], "1:3")
    assert [list(rows) for rows in plan.rows] == [[1], [1, 2], []]
    assert (plan.n_rows, plan.n_tokens, plan.width) == (3, 8, 5)
    assert [plan.shape(tap) for tap in plan.taps] == [(1,), (2, 5), (8,)]
    assert plan.row_bytes == 4 * (1 + 10 + 8)
    assert plan.tap_bytes == 3 * plan.row_bytes
    assert plan_of([2, 5, 1], "1:3", "float16").row_bytes == 2 * (1 + 10 + 8)


def test_tokens_are_all_there_whatever_positions_are_kept():
    plan = plan_of([2, 5, 1], "0,-1")
    beside = plan.tokens(0, 3)
    np.testing.assert_array_equal(beside["tokens"], range(8))
    np.testing.assert_array_equal(beside["doc_ptr"], [0, 2, 7, 8])
    np.testing.assert_array_equal(beside["rows"], [0, 1, 2, 6, 7])
    assert beside["token_bytes"].tobytes() == b"".join(map(spell, range(8)))
    np.testing.assert_array_equal(beside["token_ptr"], np.cumsum([0, *map(len, map(spell, range(8)))]))
    assert {name: x.dtype.name for name, x in beside.items()} == {
        "tokens": "int32", "doc_ptr": "int64", "token_bytes": "uint8", "token_ptr": "int64", "rows": "int64",
    }  # fmt: skip


def test_a_later_file_counts_from_its_own_first_token():
    beside = plan_of([2, 5, 1], "last").tokens(1, 3)
    np.testing.assert_array_equal(beside["tokens"], range(2, 8))
    np.testing.assert_array_equal(beside["doc_ptr"], [0, 5, 6])
    np.testing.assert_array_equal(beside["rows"], [4, 5])


def test_rows_are_named_only_where_some_are_missing():
    assert "rows" not in plan_of([2, 3]).tokens(0, 2)


# bytes


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("positions", ["all", "last", "1:"])
@pytest.mark.parametrize("limit", [1, 300, 10**9])
def test_bytes_are_those_of_the_real_files(tmp_path, dtype, positions, limit):
    plan = plan_of([3, 1, 7, 2, 2], positions, dtype)
    folder = Folder(tmp_path / "d", plan, {}, limit=limit, resume=False, force=False)
    fill(folder)
    folder.finish()
    files = sorted((tmp_path / "d").glob("shard-*"))
    assert len(files) == len(plan.shards(limit))
    assert sum(path.stat().st_size for path in files) == plan.file_bytes(limit)
    assert [path.stat().st_size for path in files] == [file_bytes(plan.arrays(*edges)) for edges in plan.shards(limit)]


# shards

LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=20)


@given(lengths=LENGTHS, limit=st.integers(1, 3000), positions=st.sampled_from(["all", "last", "2:", "0:3"]))
def test_shards_hold_every_document_once_whole_and_in_order(lengths, limit, positions):
    if positions == "2:" and max(lengths) < 3:
        lengths = [*lengths, 3]
    plan = plan_of(lengths, positions)
    edges = plan.shards(limit)
    assert [n for first, last in edges for n in range(first, last)] == list(range(len(lengths)))
    for first, last in edges:
        sizes = [len(rows) * plan.row_bytes for rows in plan.rows[first:last]]
        assert sum(sizes) <= limit or np.count_nonzero(sizes) == 1
        assert sum(sizes) > 0


@given(lengths=LENGTHS, limit=st.integers(1, 3000))
def test_no_shard_could_take_the_next_document(lengths, limit):
    plan = plan_of(lengths)
    for (first, last), (_, after) in zip(plan.shards(limit), plan.shards(limit)[1:], strict=False):
        held = sum(lengths[first:last]) * plan.row_bytes
        assert held + lengths[last] * plan.row_bytes > limit
        assert after > last


def test_shards_by_hand():
    plan = plan_of([2, 2, 5, 1, 1], taps=[Tap("h0/mid", (25,))])
    assert plan.row_bytes == 100
    assert plan.shards(400) == [(0, 2), (2, 3), (3, 5)]
    assert plan.shards(399) == [(0, 1), (1, 2), (2, 3), (3, 5)]
    assert plan.shards(1100) == [(0, 5)]
    assert plan_of([3, 1, 1, 3], "2:").shards(1) == [(0, 3), (3, 4)]
    assert plan.shards(1) == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]


# the record


def record(**changes) -> str:
    fields = {"taps": TAPS, "documents": (Prompt((1, 2)), Prompt((3,))), "spell": spell} | changes
    return json.dumps(Plan(**fields).record(), sort_keys=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"taps": TAPS[:2]},
        {"taps": (*TAPS[:2], Tap("h0/out", (9,)))},
        {"documents": (Prompt((1, 2)), Prompt((4,)))},
        {"documents": (Prompt((1,)), Prompt((2, 3)))},
        {"documents": (Prompt((1, 2)), Prompt((3,), id="x"))},
        {"positions": Positions("last")},
        {"dtype": "float16"},
    ],
)
def test_plans_that_differ_have_records_that_differ(changes):
    assert record(**changes) != record()


def test_a_text_is_no_part_of_the_record_its_ids_are():
    assert record(documents=(Prompt((1, 2), "text"), Prompt((3,)))) == record()


def test_digest_knows_where_documents_end():
    assert digest_of([[1, 2], [3]]) != digest_of([[1], [2, 3]])
    assert digest_of([(1, 2), (3,)]) == digest_of([[1, 2], [3]])


def test_thousands_of_tiny_documents_are_planned_at_once():
    plan = plan_of([1] * 20_000)
    assert plan.n_rows == 20_000
    assert plan.shards(100 * plan.row_bytes) == [(n, n + 100) for n in range(0, 20_000, 100)]
