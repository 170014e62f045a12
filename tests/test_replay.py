"""Frozen statistics: a run given its own repeats itself bit for bit; others stand where a norm's own would."""

import json
import shutil

import numpy as np
import pytest

import gpt2ln
from gpt2ln import observe
from gpt2ln.dump import Npz
from gpt2ln.errors import BadInput, Damaged, NotFound
from gpt2ln.folder import Folder
from gpt2ln.plan import Plan, Positions
from gpt2ln.prompt import Prompt
from gpt2ln.replay import Replay, documents, frozen_from
from gpt2ln.taps import choose, norm_scopes

from .dumps import equal, read_lines
from .proofs import GOLDEN
from .refusals import done, refused

TEXTS = ((64, 65, 66, 258), (70,), (1, 2, 3, 4, 5, 6, 7))


def dumped(m, path, spec="@ln-stats", texts=TEXTS, positions="all", limit=None, replay=lambda n: None):
    """A dump as the command makes it: npz, or a folder where a limit is given."""
    prompts = tuple(Prompt(tuple(ids), None, {"n": n}) for n, ids in enumerate(texts))
    plan = Plan(tuple(choose(spec, m.hparams)), prompts, m.bpe.token_bytes, Positions(positions))
    stated = m.provenance() | {"prefix_token": "none"}
    sink = Npz(path, plan, stated)
    if limit is not None:
        sink.abandon()
        sink = Folder(path, plan, stated, limit=limit, resume=False, force=False)
    observe.dump(m.engine, sink, replay=replay)
    sink.finish()
    return path


# its own statistics


def texts_of(golden):
    return [ids.tolist() for ids in golden["ids"]]


@pytest.mark.parametrize("which", ["golden", "T", "several chunks"])
def test_given_its_own_statistics_a_run_repeats_itself(which, small, long, golden_model, golden):
    rng = np.random.default_rng(4)
    m, texts = {
        "golden": (golden_model, texts_of(golden)),
        "T": (small, [*map(list, TEXTS), list(range(100, 116))]),
        "several chunks": (long, [rng.integers(0, 260, n).tolist() for n in (700, 257, 256, 1)]),
    }[which]
    for ids in texts:
        first = m.observe(ids, "**,!h*/attn/{scores,probs}")
        again = m.observe(ids, "**,!h*/attn/{scores,probs}", ln_from=first)
        equal(again, first)


@pytest.mark.parametrize("limit", [None, 1, 10**6])
def test_a_dump_replayed_is_the_same_dump(small, tmp_path, limit):
    path = dumped(small, tmp_path / "a", spec="@ln,logits", limit=limit)
    replay = Replay(path, small.hparams)
    assert [(d.ids, d.id) for d in replay.documents] == [(ids, {"n": n}) for n, ids in enumerate(TEXTS)]
    again = dumped(small, tmp_path / "b", spec="@ln,logits", limit=limit, replay=replay)
    for (ids, taps), (same_ids, same) in zip(documents(path), documents(again), strict=True):
        assert ids == same_ids
        equal(same, taps)


def test_several_chunks_replayed_from_a_dump(long, tmp_path):
    texts = [tuple(np.random.default_rng(5).integers(0, 260, 600).tolist()), (3, 4)]
    path = dumped(long, tmp_path / "a", texts=texts)
    replay = Replay(path, long.hparams)
    for n, ids in enumerate(texts):
        right = long.logits(ids)
        np.testing.assert_array_equal(long.observe(ids, "logits", ln_from=replay(n))["logits"], right)


# statistics of others


def test_frozen_statistics_are_what_the_norms_use(small):
    """`norm` = (x - mean) * rstd and `out` = norm * g + b, in float32, in this order: bit for bit NumPy's own."""
    ids, other = [64, 65, 66, 258], [9, 200, 30, 4]
    given = small.observe(other, "@ln-stats")
    found = small.observe(ids, "@all", ln_from=given)
    gains = small.gains()
    for norm in norm_scopes(small.hparams):
        x = found["h1/out" if norm == "ln_f" else norm.replace("ln_1", "in").replace("ln_2", "mid")]
        for leaf in ("mean", "rstd"):
            np.testing.assert_array_equal(found[f"{norm}/{leaf}"], given[f"{norm}/{leaf}"])
        n = (x - given[f"{norm}/mean"]) * given[f"{norm}/rstd"]
        np.testing.assert_array_equal(found[f"{norm}/norm"], n, err_msg=norm)
        np.testing.assert_array_equal(found[f"{norm}/out"], n * gains[norm]["g"] + gains[norm]["b"], err_msg=norm)
    assert not np.array_equal(found["logits"], small.logits(ids))


def test_a_frozen_run_is_linear_in_the_residual_stream(small):
    """Between a frozen norm's input and output nothing but a factor and a shift is left: twice the input, twice the
    distance from the mean."""
    ids = [64, 65, 66]
    first = small.observe(ids, "@ln,h0/in")
    frozen = {k: v * (0.5 if k.endswith("rstd") else 1) for k, v in first.items() if k.endswith(("mean", "rstd"))}
    halved = small.observe(ids, "h0/ln_1/norm", ln_from=frozen)["h0/ln_1/norm"]
    np.testing.assert_array_equal(halved, first["h0/ln_1/norm"] / 2)


def test_some_norms_frozen_leaves_the_others_to_themselves(small):
    ids = [64, 65, 66, 258]
    own = small.observe(ids, "@all")
    given = small.observe([9, 200, 30, 4], "h1/ln_1/{mean,rstd}")
    found = small.observe(ids, "@all", ln_from=given)
    names = list(own)
    at = names.index("h1/ln_1/mean")
    for name in names[:at]:
        np.testing.assert_array_equal(found[name], own[name], err_msg=name)
    np.testing.assert_array_equal(found["h1/ln_1/mean"], given["h1/ln_1/mean"])
    u = found["h1/mid"].mean(-1, keepdims=True, dtype="f8")
    np.testing.assert_allclose(found["h1/ln_2/mean"], u, rtol=0, atol=1e-6)  # float32, of values of about 1
    assert not np.array_equal(found["h1/ln_2/mean"], own["h1/ln_2/mean"])


def test_own_statistics_of_some_norms_change_nothing(small):
    own = small.observe([64, 65, 66, 258], "@all")
    equal(small.observe([64, 65, 66, 258], "@all", ln_from={k: own[k] for k in ("ln_f/mean", "ln_f/rstd")}), own)


@pytest.mark.parametrize("which", ["mean", "rstd"])
def test_half_of_a_pair_freezes_nothing(small, which):
    own = small.observe([64, 65], "@ln-stats")
    with pytest.raises(BadInput, match="no norm has both its mean and its rstd"):
        small.observe([64, 65], "logits", ln_from={f"h0/ln_1/{which}": own[f"h0/ln_1/{which}"]})


def test_rows_are_taken_from_the_right_chunk(long):
    """A change of one position's rstd is seen at this position and later ones, and at no earlier one."""
    ids = np.random.default_rng(6).integers(0, 260, 600).tolist()
    own = long.observe(ids, "@ln-stats,h0/ln_1/norm,logits")
    given = {k: v.copy() for k, v in own.items() if k.endswith(("mean", "rstd"))}
    given["h0/ln_1/rstd"][400] *= 2
    found = long.observe(ids, "h0/ln_1/norm,logits", ln_from=given)
    changed = np.flatnonzero((found["h0/ln_1/norm"] != own["h0/ln_1/norm"]).any(-1))
    np.testing.assert_array_equal(changed, [400])
    np.testing.assert_array_equal(found["logits"][:400], own["logits"][:400])
    assert (found["logits"][400] != own["logits"][400]).any()


def test_statistics_that_are_not_finite_are_named(small):
    own = small.observe([64, 65], "@ln-stats")
    own["h1/ln_1/rstd"][1] = np.nan
    with pytest.raises(gpt2ln.errors.NonFinite, match="h1/ln_1/rstd: NaN or Inf in the forward pass"):
        small.observe([64, 65], "logits", ln_from=own)


# refusals


@pytest.mark.parametrize("value", [np.zeros((3, 1), "f4"), np.zeros((4,), "f4"), np.zeros((4, 2), "f4"),
                                   np.zeros((4, 1), int), np.array([["a"]] * 4)])  # fmt: skip
def test_statistics_of_another_shape_are_refused(value):
    given = {"ln_f/mean": value, "ln_f/rstd": np.ones((4, 1), "f4")}
    with pytest.raises(BadInput, match=r"ln_f/mean: shape \[.*\], expected \[4, 1\]: a row for each token of the text"):
        frozen_from(given, 4, ["h0/ln_1", "ln_f"])


def test_a_dump_without_statistics_is_refused(small, tmp_path):
    path = dumped(small, tmp_path / "a", spec="h*/mid,ln_f/mean")
    with pytest.raises(BadInput, match=r"a: no norm has both its mean and its rstd, .* --taps @ln-stats"):
        Replay(path, small.hparams)


@pytest.mark.parametrize("limit", [None, 1])
def test_a_dump_of_some_positions_is_refused(small, tmp_path, limit):
    path = dumped(small, tmp_path / "a", positions="last", limit=limit)
    with pytest.raises(BadInput, match="holds some positions alone; make it again with dump --positions all"):
        Replay(path, small.hparams)


def test_texts_of_other_lengths_are_refused(small, tmp_path):
    replay = Replay(dumped(small, tmp_path / "a"), small.hparams)
    replay.check_lengths([4, 1, 7])
    for lengths, says in (([4, 1], "2 of 4, 1"), ([4, 1, 8], "3 of 4, 1, 8"), ([1] * 9, "9 of 1, 1, 1, 1, 1, ...")):
        with pytest.raises(BadInput) as caught:
            replay.check_lengths(lengths)
        assert f"3 documents of 4, 1, 7 tokens, the texts are {says}; statistics go by position" in str(caught.value)


def test_what_is_no_dump_is_refused(small, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("no zip")
    np.save(tmp_path / "y.npy", np.zeros(3))
    np.savez(tmp_path / "none.npz", x=1)
    np.savez(tmp_path / "text.npz", meta="no json")
    np.savez(tmp_path / "list.npz", meta="[1]")
    np.savez(tmp_path / "object.npz", meta=np.array([{}], object))
    for name, error, says in (
        ("gone", NotFound, f"{tmp_path}/gone: no such dump"),
        ("empty", BadInput, "is no dump"),
        ("text", Damaged, "cannot be read as npz"),
        ("y.npy", Damaged, "cannot be read as npz"),
        ("none.npz", BadInput, "has no meta that is JSON"),
        ("text.npz", BadInput, "has no meta that is JSON"),
        ("list.npz", BadInput, "its meta is no object"),
        ("object.npz", Damaged, "cannot be read as npz"),
        (str(GOLDEN / "expected.npz"), BadInput, "has no meta"),
    ):
        with pytest.raises(error) as caught:
            Replay(tmp_path / name, small.hparams)
        assert says in str(caught.value), name
        assert "\n" not in str(caught.value)


def test_a_damaged_npz_is_refused(small, tmp_path):
    data = dumped(small, tmp_path / "a.npz").read_bytes()
    half, flipped = data[: len(data) // 2], bytearray(data)
    flipped[data.index(b"h0/ln_1/mean.npy") + 200] ^= 1
    for damaged in (half, bytes(flipped), data[:-30], b""):
        (tmp_path / "b.npz").write_bytes(damaged)
        with pytest.raises(Damaged, match=r"b\.npz: cannot be read as npz"):
            Replay(tmp_path / "b.npz", small.hparams)


def test_arrays_that_are_not_those_sealed_are_refused(small, tmp_path):
    arrays = dict(np.load(dumped(small, tmp_path / "a.npz")))
    changed = arrays | {"h0/ln_1/mean": arrays["h0/ln_1/mean"] + 1}
    without = {name: x for name, x in arrays.items() if name != "doc_ptr"}
    said = json.loads(str(arrays["meta"]))
    other = arrays | {"meta": json.dumps(said | {"threads": 99})}
    for held, says in ((changed, "h0/ln_1/mean was changed after it was sealed"), (without, "has no doc_ptr"),
                       (other, "its meta was changed after it was sealed")):  # fmt: skip
        np.savez(tmp_path / "b.npz", **held)
        with pytest.raises(Damaged, match=says):
            Replay(tmp_path / "b.npz", small.hparams)


def test_a_damaged_folder_is_refused(small, tmp_path):
    whole = dumped(small, tmp_path / "a", limit=1)
    shard, said = "shard-00001.safetensors", "manifest.json"
    data, text = (whole / shard).read_bytes(), (whole / said).read_text()
    bad = shutil.copytree(whole, tmp_path / "b")
    for damaged in (data[:-1] + bytes([data[-1] ^ 1]), data[:-1], b"", None):
        (bad / shard).unlink() if damaged is None else (bad / shard).write_bytes(damaged)
        with pytest.raises(Damaged, match=r"b/shard-00001\.safetensors: .*; make it again with dump"):
            Replay(bad, small.hparams)
    (bad / said).write_text(text.replace('"float32"', '"float16"'))
    with pytest.raises(Damaged, match=r"manifest\.json: was changed after it was sealed"):
        Replay(bad, small.hparams)
    (bad / said).rename(bad / "manifest.json.part")
    with pytest.raises(BadInput, match="an interrupted dump; finish it with --resume"):
        Replay(bad, small.hparams)


def test_only_what_is_needed_is_read(small, tmp_path):
    for limit in (None, 1):
        path = dumped(small, tmp_path / f"a{limit}", spec="@all", limit=limit)
        for _, taps in documents(path, leaves=("mean",)):
            assert list(taps) == [f"{norm}/mean" for norm in norm_scopes(small.hparams)]


# the command


def test_a_prefix_that_the_dump_was_not_read_with_is_refused(dump):
    done(dump("abc", "-o", "d.npz"))
    done(dump("abc", "--prefix-token", "eot", "-o", "eot.npz"))
    refused(dump("--ln-from", "d.npz", "--prefix-token", "eot"), 2, "the texts are those of d.npz, read with none")
    meta, *_ = read_lines(done(dump("--ln-from", "eot.npz", "--prefix-token", "eot")))
    assert meta["prefix_token"] == "eot"
    assert meta["documents"] == [{"id": None, "tokens": 4}]


def test_statistics_in_float16_are_spoken_of(dump):
    done(dump("abc", "-o", "half.npz", "--dtype", "float16"))
    ran = dump("--ln-from", "half.npz", "-t", "logits")
    assert ran.status == 0
    assert "warning: the statistics of half.npz are float16: no rerun repeats its logits bit for bit" in ran.err
