"""The cache is the full pass: chunks, steps, growth, copies and neighbours change nothing that is not stated here.

Stated: a prompt read in chunks and single steps sums in another order than one pass over everything; the distance is
at most 1e-5 of the largest value on these models (measured: 3e-7), and greedy ids are equal.
"""

import numpy as np
import pytest

import gpt2ln
from gpt2ln import engine
from gpt2ln.engine import CHUNK, SMALLEST, Cache
from gpt2ln.errors import NonFinite
from gpt2ln.model import Scope, model
from gpt2ln.runtime import tf
from gpt2ln.taps import all_taps

from . import tiny as made_up

LONG = 2 * CHUNK + 90


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """A model whose context holds several chunks and several doublings of the cache."""
    folder = made_up.tiny(tmp_path_factory.mktemp("deep") / "m", n_ctx=1000, n_embd=32, n_head=4, n_layer=3)
    return gpt2ln.load(folder)


@pytest.fixture(scope="module")
def ids():
    return np.random.default_rng(5).integers(0, 260, LONG).tolist()


def one_pass(m, ids):
    """Every tap, from the graph without a cache, all positions at once."""
    seen = {}
    scope = Scope("model", m.engine.weights, seen.__setitem__)
    model(tf.constant([ids], tf.int32), scope, hparams=m.hparams)
    return {name: x.numpy()[0] for name, x in seen.items()}


def close(ours, right, name=""):
    np.testing.assert_allclose(ours, right, rtol=0, atol=1e-5 * np.abs(right).max(), err_msg=name)


@pytest.mark.parametrize("length", [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, LONG])
def test_prefill_is_the_last_row_of_one_pass(deep, ids, length):
    logits, cache = deep.engine.prefill(ids[:length])
    right = one_pass(deep, ids[:length])
    close(logits, right["logits"][-1])
    assert cache.length == length
    for layer in range(3):
        close(cache.k[layer].numpy()[0, :, :length], right[f"h{layer}/attn/k"])
        close(cache.v[layer].numpy()[0, :, :length], right[f"h{layer}/attn/v"])


def test_steps_past_every_growth_are_one_pass(deep, ids):
    """From 100 positions over 128, 256 and 512 to 602: each step the row of one pass."""
    right = one_pass(deep, ids)["logits"]
    _, cache = deep.engine.prefill(ids[:100])
    rooms = set()
    for position in range(100, LONG):
        (logits,) = deep.engine.step([ids[position]], [cache])
        rooms.add(cache.room)
        close(logits, right[position], f"position {position}")
    assert rooms == {128, 256, 512, 1000}


def test_a_full_cache_is_the_whole_context(deep):
    ids = np.random.default_rng(6).integers(0, 260, 1000).tolist()
    _, cache = deep.engine.prefill(ids[:-1])
    (logits,) = deep.engine.step(ids[-1:], [cache])
    assert cache.length == cache.room == 1000
    close(logits, one_pass(deep, ids)["logits"][-1])


def test_two_graphs_serve_every_length(T):
    m = gpt2ln.load(T)
    for length in (1, 2, 5, 11, 16):
        _, cache = m.engine.prefill([7] * length)
        while cache.length < 16:
            m.engine.step([3], [cache])
    assert m.engine.traces == 2


def test_neighbours_change_no_bit(deep, ids):
    """Each sequence of a batch gets what it gets alone, whatever else runs beside it."""
    prompts = [ids[:3], ids[50:190], ids[200:460], ids[9:10]]
    alone = []
    for prompt in prompts:
        logits, cache = deep.engine.prefill(prompt)
        alone.append([logits, *(deep.engine.step([i], [cache])[0] for i in (5, 6, 7))])
    together = [deep.engine.prefill(prompt) for prompt in prompts]
    caches = [cache for _, cache in together]
    rows = [[logits] for logits, _ in together]
    for i in (5, 6, 7):
        for row, logits in zip(rows, deep.engine.step([i] * 4, caches), strict=True):
            row.append(logits)
    np.testing.assert_array_equal(rows, alone)


def test_a_copy_goes_its_own_way(deep, ids):
    _, cache = deep.engine.prefill(ids[:20])
    other = cache.copy()
    (first,) = deep.engine.step([1], [cache])
    (second,) = deep.engine.step([2], [other])
    (again,) = deep.engine.step([9], [cache])
    assert cache.ids == [*ids[:20], 1, 9]
    assert other.ids == [*ids[:20], 2]
    right = [one_pass(deep, ids[:20] + tail)["logits"][-1] for tail in ([1], [2], [1, 9])]
    for ours, logits in zip((first, second, again), right, strict=True):
        close(ours, logits)


def test_the_cache_is_written_in_place(deep, ids):
    """No step copies what is held: the tensors before and after are the same memory."""
    _, cache = deep.engine.prefill(ids[:20])
    before = [np.asarray(x).__array_interface__["data"][0] for x in cache.k + cache.v]
    deep.engine.step([1], [cache])
    assert before == [np.asarray(x).__array_interface__["data"][0] for x in cache.k + cache.v]
    assert len(set(before)) == 2 * deep.hparams.n_layer
    assert np.asarray(cache.k[0])[0, :, 20].any()


def test_room_doubles_and_ends_at_the_context(deep):
    rooms = [Cache(deep.hparams, n).room for n in (1, SMALLEST, SMALLEST + 1, 512, 513, 1000)]
    assert rooms == [128, 128, 256, 512, 1000, 1000]


@pytest.mark.parametrize("length", [3, LONG])
def test_every_tap_watched_in_chunks_is_that_of_one_pass(deep, ids, length):
    right = one_pass(deep, ids[:length])
    names = [tap.name for tap in all_taps(deep.hparams)]
    parts = [taps for taps, finite in deep.engine.watch(ids[:length], names) if finite]
    assert [len(p["embed"]) for p in parts] == [256, 256, 90][: len(parts)] if length == LONG else [3]
    for name in names:
        if name.endswith(("scores", "probs")):
            start = 0
            for part in parts:  # [H, T, S]: a chunk attends to what came before it and to itself
                stop = start + part[name].shape[1]
                close(part[name], right[name][:, start:stop, :stop], name)
                start = stop
        else:
            axis = 1 if name.split("/")[-1] in "qkv" else 0
            close(np.concatenate([p[name] for p in parts], axis), right[name], name)


def test_watching_computes_as_prefill_does(deep, ids):
    logits, _ = deep.engine.prefill(ids)
    *_, (last, _) = deep.engine.watch(ids, ["logits"])
    close(logits, last["logits"][-1])


def test_only_what_is_asked_for_is_computed(deep, ids, monkeypatch):
    """A tap of the first block needs nothing after it: the product with wte would fail here and is never run."""
    weights = dict(deep.engine.weights)
    weights["model/h2/mlp/c_fc/w"] = tf.fill([1, 32, 128], np.float32("nan"))
    broken = engine.Exact(deep.hparams, weights)
    ((part, finite),) = broken.watch(ids[:9], ["h0/ln_2/mean"])
    assert finite
    assert list(part) == ["h0/ln_2/mean"]
    assert part["h0/ln_2/mean"].shape == (9, 1)
    with pytest.raises(NonFinite, match="h2/mlp/fc: NaN or Inf in the forward pass of 9 tokens"):
        broken.prefill(ids[:9])


def test_a_step_that_leaves_the_finite_is_named(T):
    m = gpt2ln.load(T)
    weights = dict(m.engine.weights)
    poisoned = weights["model/wpe"].numpy()
    poisoned[5] = np.inf
    weights["model/wpe"] = tf.constant(poisoned)
    broken = engine.Exact(m.hparams, weights)
    _, cache = broken.prefill([1, 2, 3, 4])
    broken.step([5], [cache])
    with pytest.raises(NonFinite, match="wpe/out"):
        broken.step([6], [cache])


def test_library_face(T):
    m = gpt2ln.load(T)
    ids = m.encode("the abc")
    np.testing.assert_array_equal(m.logits("the abc"), m.logits(ids))
    assert m.logits(ids).shape == (len(ids), 260)
    assert m.decode(ids) == "the abc"
    (sample,) = m.generate("the abc", length=3, seed=1)
    assert len(sample.tokens) == 3
    assert m.index_sha256 == gpt2ln.load(str(T)).index_sha256
    with pytest.raises(gpt2ln.errors.BadInput, match="token id 260 outside"):
        m.logits([260])
    with pytest.raises(gpt2ln.errors.BadInput, match="17 tokens, expected"):
        m.logits([1] * 17)


def test_a_long_prompt_from_python(T):
    """`overflow` decides, as on the command line; logits refuse."""
    m = gpt2ln.load(T)
    (slid,) = m.generate([5] * 30, overflow="slide", length=2, seed=1)
    (cut,) = m.generate([5] * 30, overflow="truncate", length=2, seed=1)
    assert (len(slid.context), len(cut.context)) == (16, 15)
    with pytest.raises(gpt2ln.errors.BadInput, match="30 tokens"):
        m.logits([5] * 30)


def test_logits_that_are_not_finite_are_refused(T):
    m = gpt2ln.load(T)
    m.engine.weights = m.engine.weights | {"model/ln_f/g": tf.fill([8], np.float32("nan"))}
    with pytest.raises(NonFinite, match="ln_f/out"):
        m.logits([1, 2])


def test_large_but_finite_variances_are_no_error(T):
    """Each variance is finite, their sum is not: nothing is wrong with the pass."""
    m = gpt2ln.load(T)
    weights = {k: v * 0 if "c_proj" in k else v for k, v in m.engine.weights.items()}
    taps = [f"{norm}/var" for norm in ("h0/ln_1", "h0/ln_2", "h1/ln_1", "h1/ln_2", "ln_f")]
    ((part, _),) = engine.Exact(m.hparams, weights).watch([7] * 16, taps)
    scale = np.float32(np.sqrt(3e37 / float(max(x.max() for x in part.values()))))
    big = engine.Exact(m.hparams, weights | {k: weights[k] * scale for k in ("model/wte", "model/wpe")})
    ((part, finite),) = big.watch([7] * 16, taps)
    assert finite
    variances = np.concatenate(list(part.values())).ravel()
    assert np.isfinite(variances).all()
    with np.errstate(over="ignore"):
        assert not np.isfinite(variances.sum(dtype=np.float32))
    logits, _ = big.prefill([7] * 16)
    assert np.isfinite(logits).all()


def test_threads_are_fixed_once_tensorflow_works(T):
    gpt2ln.load(T).logits([1])
    with pytest.raises(gpt2ln.errors.UsageError, match="threads 7"):
        gpt2ln.load(T, threads=7).logits([1])
