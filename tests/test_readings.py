"""Our own dumps read back for `compare`: texts, positions, seals; and what is refused."""

import json
import re
import shutil

import numpy as np
import pytest

from gpt2ln.errors import BadInput, Damaged, NotFound
from gpt2ln.provenance import array_sha256, sealed
from gpt2ln.readings import is_ours, read

from .ports import IDS, saved
from .test_replay import TEXTS, dumped


@pytest.mark.parametrize("limit", [None, 3000])
def test_a_dump_of_several_texts(small, tmp_path, limit):
    """Attention is as wide as each text, though it lies as wide as the longest."""
    path = dumped(small, tmp_path / ("d" if limit else "d.npz"), "**", limit=limit)
    assert is_ours(path)
    found = read(path)
    assert [document.ids for document in found.documents] == list(TEXTS)
    assert (found.hparams, found.notes) == (small.hparams, ())
    assert set(found.dtypes.values()) == {"float32"}
    for ids, document in zip(TEXTS, found.documents, strict=True):
        right = small.observe(ids, "**")
        assert (document.T, document.whole, list(document.rows)) == (len(ids), True, list(range(len(ids))))
        assert set(document.taps) == set(right)
        for name, x in right.items():
            np.testing.assert_array_equal(document.taps[name], x, err_msg=name)
        assert document.spelt == tuple(small.bpe.token_bytes(i) for i in ids)


def test_some_positions(small, tmp_path):
    path = dumped(small, tmp_path / "d.npz", "h1/out,h0/attn/probs", positions="1,-1")
    found = read(path)
    assert [list(document.rows) for document in found.documents] == [[1, 3], [0], [1, 6]]
    assert [document.whole for document in found.documents] == [False, True, False]
    for ids, document in zip(TEXTS, found.documents, strict=True):
        for name in document.taps:
            np.testing.assert_array_equal(document.taps[name], small.observe(ids, name)[name][document.rows])


def test_what_is_no_whole_dump(small, tmp_path):
    with pytest.raises(NotFound, match=r"nowhere\.npz: no such dump"):
        read(tmp_path / "nowhere.npz")
    with pytest.raises(NotFound, match="no such dump"):
        read(tmp_path / "a" / "b")
    folder = dumped(small, tmp_path / "d", limit=3000)
    begun = shutil.copytree(folder, tmp_path / "begun")
    (begun / "manifest.json").rename(begun / "manifest.json.part")
    with pytest.raises(BadInput, match=r"interrupted dump; finish it with --resume"):
        read(begun)
    shard = next(folder.glob("shard-*"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    with pytest.raises(Damaged, match="was changed after it was sealed"):
        read(folder)
    lines = tmp_path / "d.jsonl"
    lines.write_text('{"meta": {}}\n')
    with pytest.raises(BadInput, match=r"d\.jsonl: JSON lines are for reading; compare takes what dump -o FILE\.npz"):
        read(lines)


def test_a_changed_value_breaks_the_seal(small, tmp_path):
    path = dumped(small, tmp_path / "d.npz", "h0/out")
    arrays = dict(np.load(path))
    arrays["h0/out"] = arrays["h0/out"] + 1
    with pytest.raises(Damaged, match="h0/out was changed after it was sealed"):
        read(saved(tmp_path / "e.npz", arrays))
    meta = json.loads(str(arrays["meta"])) | {"threads": 99}
    with pytest.raises(Damaged, match="its meta was changed"):
        read(saved(tmp_path / "f.npz", arrays | {"meta": np.array(json.dumps(meta))}))


@pytest.mark.parametrize(
    ("name", "edit", "words"),
    [
        ("token_ptr", lambda x: x[:3], "token_ptr are not as long as tokens say"),
        ("h0/out", lambda x: x[:-1], "h0/out are not as long"),
        ("doc_ptr", lambda x: x[:-1], "doc_ptr ends at 5, there are 12 tokens"),
        ("doc_ptr", lambda x: x[::-1].copy(), "doc_ptr is int64 [4], expected whole numbers that rise"),
        ("tokens", lambda x: x.astype("f4"), "tokens is float32 [12], expected whole numbers"),
    ],
)
def test_parts_that_do_not_fit_together(small, tmp_path, name, edit, words):
    """Sealed all the same: by a program that meant well."""
    arrays = dict(np.load(dumped(small, tmp_path / "d.npz", "h0/out")))
    meta = json.loads(str(arrays.pop("meta")))
    arrays[name] = edit(arrays[name])
    meta |= {"arrays_sha256": {k: array_sha256(x) for k, x in arrays.items()}}
    path = saved(tmp_path / "e.npz", arrays | {"meta": np.array(json.dumps(sealed(meta)))})
    with pytest.raises(Damaged, match="its parts do not fit together: " + re.escape(words)):
        read(path)


def test_an_npz_with_a_meta_of_its_own_is_not_ours(small, tmp_path):
    path = saved(tmp_path / "p.npz", {"meta": np.array("hello"), "h0/out": small.observe(IDS, "h0/out")["h0/out"]})
    assert not is_ours(path)
    found = read(path, small.hparams)
    assert (list(found.taps), found.record, found.notes) == (["h0/out"], None, ("left out: meta",))
