"""A run as a file: it reads back as it was, parts of one run add up, and what is no part of it is refused by name."""

import json
import shutil
from itertools import permutations

import numpy as np
import pytest

from gpt2ln.commands.output import as_json
from gpt2ln.errors import BadInput, Damaged
from gpt2ln.provenance import sealed
from gpt2ln.runs import FORMAT, Run, merge

from . import norms

TEXTS = norms.inputs(0)


def written(path, run: Run):
    path.write_text(as_json(run.record()))
    return path


def part(*texts: int, **provenance) -> Run:
    made = norms.stats_of([TEXTS[n] for n in texts])
    return norms.run_of(made, [f"text {n}" for n in texts], **provenance)


@pytest.fixture
def path(tmp_path):
    return written(tmp_path / "run.json", part(0, 1))


def test_a_run_reads_back_as_it_was(path):
    run, again = part(0, 1), Run.read(path)
    assert as_json(again.record()) == path.read_text() == as_json(run.record())
    assert again.documents == ["text 0", "text 1"]
    assert again.provenance == run.provenance
    assert again.stats.record() == run.stats.record()
    for norm in norms.NORMS:
        for k in "gb":
            np.testing.assert_array_equal(again.gains[norm][k], run.gains[norm][k])


def test_a_file_says_what_it_is(path):
    record = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert record["format"] == FORMAT
    assert {"formulas_version", "model", "tokenizer_sha256", "documents_sha256", "gains", "stats", "seal"} <= {*record}


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r.update(threads=3),
        lambda r: r["gains"]["ln_f"]["g"].__setitem__(0, 9.0),
        lambda r: r["stats"]["count"].__setitem__(0, 9),
        lambda r: r["documents_sha256"].append("text 2"),
        lambda r: r.pop("model"),
        lambda r: r.update(seal="0" * 64),
    ],
)
def test_what_was_changed_is_seen(path, change):
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    with pytest.raises(Damaged, match=r"run\.json: was changed after it was sealed; make it again with ln-stats -o"):
        Run.read(path)


def resealed(path, change) -> None:
    record = json.loads(path.read_text())
    del record["seal"]
    change(record)
    path.write_text(json.dumps(sealed(record)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: r.update(format="gpt2ln dump 1"), "format 'gpt2ln dump 1', expected 'gpt2ln ln-stats 1'"),
        (lambda r: r.pop("format"), "format None, expected"),
        (lambda r: r.pop("stats"), "not what ln-stats -o writes .*'stats'"),
        (lambda r: r.pop("gains"), "'gains'"),
        (lambda r: r.pop("documents_sha256"), "'documents_sha256'"),
        (lambda r: r["gains"].pop("ln_f"), "'ln_f'"),
        (lambda r: r["gains"]["ln_f"].pop("b"), "'b'"),
        (lambda r: r["gains"]["ln_f"]["b"].pop(), "cannot reshape"),
        (lambda r: r.update(gains=[]), "indices must be"),
        (lambda r: r.update(stats=None), "not subscriptable"),
        (lambda r: r["stats"].pop("values"), "'values'"),
        (lambda r: r["stats"]["count"].append(1), "moments has shape"),
        (lambda r: r["stats"]["count"].append(10**30), "too"),
        (lambda r: r["stats"].update(peak=[["a"]]), "could not convert"),
    ],
)
def test_what_is_no_run_is_refused(path, change, words):
    """Sealed again: by another program, or another version of this one."""
    resealed(path, change)
    with pytest.raises(BadInput, match=rf"run\.json: .*{words}.*ln-stats -o"):
        Run.read(path)


def test_a_run_without_a_seal_is_refused(path):
    record = json.loads(path.read_text())
    del record["seal"]
    path.write_text(json.dumps(record))
    with pytest.raises(BadInput, match=r"run\.json: "):
        Run.read(path)


@pytest.mark.parametrize("content", [b"", b"{", b"\x93NUMPY\x01", b"PK\x03\x04\xff", b"[1]", b"\xff\xfe"])
def test_what_is_no_json_is_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(Damaged, match=r"run\.json: (not JSON \(.*\)|JSON, but no object); make it again"):
        Run.read(path)


# Merging


def test_parts_add_up_and_say_whose_they_were():
    a, b = part(0, 1, command=["a"]), part(2, 3, command=["b"])
    both, notes = merge([a, b], ["a.json", "b.json"])
    assert notes == []
    assert both.stats.record() == (part(0, 1).stats + part(2, 3).stats).record()
    assert both.documents == [f"text {n}" for n in range(4)]
    assert both.provenance == {**a.provenance, "command": [["a"], ["b"]]}
    assert both.gains is a.gains


def test_a_merged_run_merges_on(tmp_path):
    """(0 + 1) + 2 through files, and 0 + 1 + 2 at once, hold the same numbers."""
    pair, _ = merge([part(0), part(1)], "ab")
    onward, _ = merge([Run.read(written(tmp_path / "pair", pair)), part(2)], ["pair", "c"])
    at_once, _ = merge([part(0), part(1), part(2)], "abc")
    assert onward.stats.record() == at_once.stats.record()
    assert onward.documents == at_once.documents


def test_any_order_gives_the_same_counts():
    found = [merge([part(n) for n in order], "abc")[0].stats for order in permutations(range(3))]
    for stats in found:
        assert stats.values.record() == found[0].values.record()
        assert stats.massive.record() == found[0].massive.record()
        np.testing.assert_array_equal(stats.peak_x, found[0].peak_x)
        np.testing.assert_allclose(stats.power, found[0].power, rtol=1e-12)  # float64, three numbers


def test_one_run_alone_stays_what_it_is(path):
    run = Run.read(path)
    alone, notes = merge([run], [str(path)])
    assert notes == []
    assert alone.stats is run.stats


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("formulas_version", 99),
        ("model", {"index_sha256": "6" * 64}),
        ("tokenizer_sha256", {"vocab.bpe": "8" * 64}),
    ],
)
def test_runs_of_different_things_do_not_merge(key, value):
    with pytest.raises(BadInput, match=rf"b\.json: {key} is .*, in a\.json .*; runs of one model merge"):
        merge([part(0), part(1, **{key: value})], ["a.json", "b.json"])


def test_what_else_differs_is_said():
    _, notes = merge([part(0, tensorflow="2.16"), part(1, threads=1)], ["a.json", "b.json"])
    assert notes == [
        'note: tensorflow is null in b.json, "2.16" in a.json',
        "note: threads is 1 in b.json, 2 in a.json",
    ]


def test_documents_that_count_twice_are_said(path, tmp_path):
    shutil.copy(path, tmp_path / "copy.json")
    names = [str(path), str(tmp_path / "copy.json"), "other.json"]
    both, notes = merge([Run.read(path), Run.read(tmp_path / "copy.json"), part(1, 2)], names)
    assert notes == [
        f"warning: {names[1]} holds documents that {names[0]} holds too; they count twice",
        f"warning: other.json holds documents that {names[1]} holds too; they count twice",
    ]
    assert both.stats.documents == 6
