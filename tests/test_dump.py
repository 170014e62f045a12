"""npz, JSON lines and folder hold the same numbers: those of one clean pass, each text as if it were alone."""

import io
import json
from itertools import pairwise

import numpy as np
import pytest

import gpt2ln
from gpt2ln import observe
from gpt2ln.dump import Lines, Npz
from gpt2ln.engine import CHUNK
from gpt2ln.errors import DiskError
from gpt2ln.folder import Folder
from gpt2ln.model import Scope, model
from gpt2ln.plan import Plan, Positions
from gpt2ln.prompt import Prompt
from gpt2ln.runtime import tf
from gpt2ln.taps import choose

from . import tiny as made_up
from .disks import mounted
from .dumps import equal, expected, fill, names, plan_of, read_folder, read_lines, read_npz

DOCUMENTS = ((64, 65, 66, 258, 259), (64,), (70, 71, 72), (9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 11, 12, 13, 14, 15, 16))


def plan(m, spec="**", documents=DOCUMENTS, positions="all", dtype="float32") -> Plan:
    prompts = tuple(Prompt(tuple(ids), None, f"doc {n}") for n, ids in enumerate(documents))
    return Plan(tuple(choose(spec, m.hparams)), prompts, m.bpe.token_bytes, Positions(positions), dtype)


def filled(m, sink):
    observe.dump(m.engine, sink)
    sink.finish()
    return sink


def npz(m, path, **settings) -> tuple[dict, dict]:
    filled(m, Npz(path, plan(m, **settings), {"stated": 1}))
    return read_npz(path)


def lines(m, **settings) -> tuple[dict, list[dict], dict]:
    out = io.StringIO()
    filled(m, Lines(out, plan(m, **settings), {"stated": 1}))
    return read_lines(out.getvalue())


def one_pass(m, ids) -> dict[str, np.ndarray]:
    """Every tap of the official graph, all positions at once, positions first."""

    def forward(ids):
        seen = {}
        model(ids, Scope("model", m.engine.weights, seen.__setitem__), hparams=m.hparams)
        return seen

    seen = tf.function(forward, autograph=False)(tf.constant([ids], tf.int32))
    found = {name: x.numpy()[0] for name, x in seen.items()}
    return {name: x.swapaxes(0, 1) if x.ndim == 3 else x for name, x in found.items()}


def pad(name: str, x: np.ndarray, width: int) -> np.ndarray:
    """A tap of attention as the official graph gives it where more tokens follow."""
    if not name.endswith(("/scores", "/probs")):
        return x
    beyond = -1e10 if name.endswith("/scores") else 0
    return np.pad(x, ((0, 0), (0, 0), (0, width - x.shape[-1])), constant_values=beyond).astype("f4")


# the numbers


def test_a_dump_is_one_clean_pass_of_the_graph(small, tmp_path):
    _, found = npz(small, tmp_path / "x.npz")
    passes = [one_pass(small, ids) for ids in DOCUMENTS]
    for name in passes[0]:
        right = np.concatenate([pad(name, seen[name], 16) for seen in passes])
        np.testing.assert_array_equal(found[name], right, err_msg=name)


def test_attention_is_padded_as_the_graph_gives_it_where_more_tokens_follow(small, tmp_path):
    """A short text, and its tokens with others after them: one row of the mask, -1e10 and 0 past the diagonal."""
    longer = (*DOCUMENTS[0], 40, 41, 42)
    spec = "h*/attn/{scores,probs}"
    _, found = npz(small, tmp_path / "x.npz", spec=spec, documents=(DOCUMENTS[0], longer))
    for name, x in found.items():
        if name.startswith("h"):
            assert x.shape == (13, 2, 8)
            beyond = -1e10 if name.endswith("scores") else 0
            np.testing.assert_array_equal(x[:5, :, 5:], np.float32(beyond), err_msg=name)
            # the two passes have matrices of 5 and 8 rows, which a kernel may sum in another order
            np.testing.assert_allclose(x[:5], x[5:10], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("limit", [1, 3000, 10**9])
def test_texts_side_by_side_are_what_each_gives_alone(small, tmp_path, limit):
    documents = tuple(tuple(np.random.default_rng(n).integers(0, 260, 1 + n % 16).tolist()) for n in range(40))
    whole = plan(small, spec="**,!h*/attn/{scores,probs}", documents=documents)
    filled(small, Folder(tmp_path / "d", whole, {}, limit=limit, resume=False, force=False))
    found, wanted = read_folder(tmp_path / "d"), [tap.name for tap in whole.taps]
    alone = [observe.observe(small.engine, ids, wanted) for ids in documents]
    equal({n: found[n] for n in wanted}, {n: np.concatenate([part[n] for part in alone]) for n in wanted})


def test_a_text_of_several_chunks_is_a_full_pass_but_for_its_rounding(long, tmp_path):
    ids = tuple(np.random.default_rng(2).integers(0, 260, 2 * CHUNK + 50).tolist())
    _, found = npz(long, tmp_path / "x.npz", documents=(ids,))
    right = one_pass(long, ids)
    for name, x in right.items():  # products of 256 and of 562 rows sum in another order; measured 1e-6 of the largest
        np.testing.assert_allclose(found[name], x, rtol=0, atol=1e-5 * np.abs(x).max(), err_msg=name)


@pytest.mark.parametrize("positions", ["all", "last", "0,-1", "254:258", ":3,-2:"])
def test_positions_are_rows_of_the_whole(long, tmp_path, positions):
    rng = np.random.default_rng(3)
    documents = tuple(tuple(rng.integers(0, 260, n).tolist()) for n in (CHUNK + 5, 2, CHUNK, 1, CHUNK + 1))
    spec = "h1/attn/probs,h0/attn/q,ln_f/*"
    _, everything = npz(long, tmp_path / "all.npz", spec=spec, documents=documents)
    _, found = npz(long, tmp_path / "some.npz", spec=spec, documents=documents, positions=positions)
    rows = found.get("rows", np.arange(len(everything["tokens"])))
    kept = [start + i for start, ids in zip(everything["doc_ptr"], documents, strict=False)
            for i in Positions(positions).of(len(ids))]  # fmt: skip
    np.testing.assert_array_equal(rows, kept)
    for tap in choose(spec, long.hparams):
        np.testing.assert_array_equal(found[tap.name], everything[tap.name][rows], err_msg=tap.name)
    np.testing.assert_array_equal(found["tokens"], everything["tokens"])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("positions", ["all", "last"])
def test_three_formats_one_set_of_numbers(small, tmp_path, dtype, positions):
    settings = dict(spec="**,!h*/attn/scores", dtype=dtype, positions=positions)
    meta, arrays = npz(small, tmp_path / "x.npz", **settings)
    filled(small, Folder(tmp_path / "d", plan(small, **settings), {}, limit=2000, resume=False, force=False))
    folder = read_folder(tmp_path / "d")
    equal(folder, {name: arrays[name] for name in folder})
    said, rows, _ = lines(small, **settings)
    assert said["documents_sha256"] == meta["documents_sha256"]
    for name in meta["taps"]:
        read = np.array([row["taps"][name] for row in rows], "f8").reshape(arrays[name].shape)
        np.testing.assert_array_equal(read, arrays[name].astype("f8"), err_msg=name)
        assert arrays[name].dtype == dtype


def test_float16_is_the_nearest_of_float32(small, tmp_path):
    _, full = npz(small, tmp_path / "a.npz", spec="@ln,logits")
    _, half = npz(small, tmp_path / "b.npz", spec="@ln,logits", dtype="float16")
    for name in half:
        np.testing.assert_array_equal(half[name], full[name].astype(half[name].dtype), err_msg=name)


# npz


def test_npz_needs_no_pickle_and_is_the_same_bytes_again(small, tmp_path):
    npz(small, tmp_path / "a.npz", spec="@all")
    npz(small, tmp_path / "b.npz", spec="@all")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    with np.load(tmp_path / "a.npz", allow_pickle=False) as file:
        assert [name for name in file.files if file[name].dtype.kind not in "fiuU"] == []
    assert names(tmp_path) == ["a.npz", "b.npz"]


def test_npz_says_what_it_is(small, tmp_path):
    from gpt2ln.provenance import seal

    meta, arrays = npz(small, tmp_path / "x.npz", spec="@ln-stats")
    assert (meta["format"], meta["stated"], meta["seal"]) == ("gpt2ln dump 1", 1, seal(meta))
    assert set(meta["arrays_sha256"]) == set(arrays)
    assert meta["documents"] == [{"id": f"doc {n}", "tokens": len(ids)} for n, ids in enumerate(DOCUMENTS)]
    spelt, ends = arrays["token_bytes"].tobytes(), arrays["token_ptr"]
    right = [small.bpe.token_bytes(i) for ids in DOCUMENTS for i in ids]
    assert [spelt[a:b] for a, b in pairwise(ends)] == right


def test_npz_given_up_leaves_nothing(tmp_path):
    sink = Npz(tmp_path / "x.npz", plan_of([3, 2]), {})
    fill(sink)
    assert names(tmp_path) == ["x.npz.rows.part"]
    sink.abandon()
    assert names(tmp_path) == []


def test_npz_on_a_disk_that_fills_up_at_the_end_says_so_and_leaves_nothing(tmp_path):
    with mounted(tmp_path / "disk", "size=1m") as disk:
        sink = Npz(disk / "x.npz", plan_of([280]), {})
        fill(sink)
        with pytest.raises(DiskError, match=r"x\.npz\.part: No space left on device"):
            sink.finish()
        sink.abandon()
        assert names(disk) == []


def test_npz_is_locked_until_it_has_its_name(tmp_path):
    sink = Npz(tmp_path / "x.npz", plan_of([3]), {})
    fill(sink)
    with pytest.raises(DiskError, match="locked, another process writes it"):
        Npz(tmp_path / "x.npz", plan_of([3]), {}).begin([])
    sink.finish()
    equal({tap: read_npz(tmp_path / "x.npz")[1][tap] for tap in expected(sink.plan)}, expected(sink.plan))


# JSON lines


def test_a_line_a_row(small):
    meta, rows, summary = lines(small, spec="h0/ln_1/mean,h0/mid", documents=DOCUMENTS[:3], positions="0,-1")
    assert [(row["doc"], row["doc_id"], row["i"], row["id"], row["text"]) for row in rows] == [
        (0, "doc 0", 0, 64, "a"), (0, "doc 0", 4, 259, "<|endoftext|>"), (1, "doc 1", 0, 64, "a"),
        (2, "doc 2", 0, 70, "g"), (2, "doc 2", 2, 72, "i"),
    ]  # fmt: skip
    assert summary == {"documents": 3, "rows": 5, "nonfinite": {}, "nonfinite_documents": []}
    assert meta["stated"] == 1
    assert isinstance(rows[0]["taps"]["h0/ln_1/mean"], float)
    assert len(rows[0]["taps"]["h0/mid"]) == 8


def test_lines_of_a_text_of_several_chunks_count_on(long):
    ids = tuple(n % 260 for n in range(CHUNK + 5))
    _, rows, _ = lines(long, spec="ln_f/mean", documents=(ids,), positions="1:3,255:258,-1")
    assert [row["i"] for row in rows] == [1, 2, 255, 256, 257, 260]
    assert [row["id"] for row in rows] == [ids[row["i"]] for row in rows]


@pytest.mark.parametrize("shape", [(1,), (3,), (2, 3), (2, 1)])
def test_what_is_not_finite_is_null_at_its_place(shape):
    from gpt2ln.dump import _numbers

    x = np.arange(1, 1 + np.prod(shape), dtype="f4").reshape(shape) / 3
    x.reshape(-1)[0] = np.inf
    read = _numbers(x)
    flat = np.array(json.loads(json.dumps(read)), object)
    assert flat.shape == (() if shape == (1,) else shape)
    assert flat.reshape(-1)[0] is None
    np.testing.assert_array_equal(flat.reshape(-1)[1:].astype("f4"), x.reshape(-1)[1:])


@pytest.mark.parametrize("number", [1e-45, 3.4028235e38, 0.1, -0.0, 1 / 3])
def test_every_digit_is_there(number):
    from gpt2ln.dump import _numbers

    read = np.float32(json.loads(json.dumps(_numbers(np.array([number], "f4")))))
    assert read.tobytes() == np.float32(number).tobytes()


# what is not finite


def nan_in_ln_2(w):
    w["model/h1/ln_2/g"][3] = np.nan


def test_what_is_not_finite_is_counted_in_every_format(tmp_path):
    broken = gpt2ln.load(made_up.tiny(tmp_path / "m", nan_in_ln_2))
    settings = dict(spec="h1/ln_2/{norm,out},h1/mlp/out,h1/mid", documents=((64, 65, 66), (64,)))
    counts = {"h1/ln_2/out": 4, "h1/mlp/out": 32}
    meta, arrays = npz(broken, tmp_path / "x.npz", **settings)
    assert (meta["nonfinite"], meta["nonfinite_documents"]) == (counts, [0, 1])
    np.testing.assert_array_equal(np.isnan(arrays["h1/ln_2/out"]), [[n == 3 for n in range(8)]] * 4)
    assert np.isfinite(arrays["h1/ln_2/norm"]).all()
    _, rows, summary = lines(broken, **settings)
    assert (summary["nonfinite"], summary["nonfinite_documents"]) == (counts, [0, 1])
    assert [row["taps"]["h1/ln_2/out"][3] for row in rows] == [None] * 4
    sink = filled(broken, Folder(tmp_path / "d", plan(broken, **settings), {}, limit=1, resume=False, force=False))
    assert (sink.bad(), sink.nonfinite()) == ([0, 1], counts)
