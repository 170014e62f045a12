"""The proofs that TensorFlow has a part in: this machine's graph against the official source, and against float64.

They reach the graph through its module, so that a wrong one put there is what they meet.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from . import model as m
from .distance import BOUND, TEXT, Distance, follow, measure, prompts
from .generate import generate
from .library import Model
from .prompt import Prompt
from .proof import (
    Proof,
    at_most,
    demo_answer,
    golden_arrays,
    golden_hparams,
    golden_values,
    normed,
    of_the_largest,
    same_bits,
)
from .reference import input_of
from .runtime import tf
from .sample import Sampling
from .settings import Settings
from .spec import HParams
from .taps import NORM_LEAVES, norm_scopes

Taps = Mapping[str, np.ndarray]
HIDDEN = 1000  # times c_attn: enough for a mask of -1e4 to let later tokens through
FEW = 8  # tokens that a model of any size is run on beside float64


def golden_weights() -> dict[str, tf.Tensor]:
    return {name: tf.constant(x) for name, x in golden_arrays().items()}


def watched(weights, hparams: HParams, ids, *, graph: bool) -> dict[str, np.ndarray]:
    """Every tap of a forward pass, run as one graph or one operation after the other.  ids: [B, T]"""
    return _watch(weights, hparams, graph)(ids)


def _watch(weights, hparams: HParams, graph: bool) -> Callable:
    """Traced once for all texts."""

    def forward(ids):
        seen = {}
        m.model(ids, m.Scope("model", weights, seen.__setitem__), hparams=hparams)
        return seen

    if graph:
        forward = tf.function(forward, autograph=False, input_signature=[tf.TensorSpec([None, None], tf.int32)])
    return lambda ids: {name: x.numpy() for name, x in forward(tf.constant(ids, tf.int32)).items()}


def watched_norm(x, g, b, *, graph: bool) -> dict[str, np.ndarray]:
    def forward(x):
        seen = {}
        m.norm(x, m.Scope("model/n", {"model/n/g": tf.constant(g), "model/n/b": tf.constant(b)}, seen.__setitem__))
        return seen

    forward = tf.function(forward, autograph=False) if graph else forward
    return {name.removeprefix("n/"): value.numpy() for name, value in forward(tf.constant(x)).items()}


def golden_run(*, graph: bool = True) -> dict[str, np.ndarray]:
    return watched(golden_weights(), golden_hparams(), golden_values()["ids"], graph=graph)


def graph_is_eager(seen: Taps) -> Proof:
    """Not one bit differs at any tap of golden, nor in a norm of real width.  seen: by `golden_run`"""
    eager = golden_run(graph=False)
    rng = np.random.default_rng(0)
    x, g, b = (rng.normal(0, s, n).astype("f4") for s, n in ((3, (1, 64, 768)), (1, 768), (1, 768)))
    norms = [watched_norm(x, g, b, graph=way) for way in (True, False)]
    pairs = [(seen[name], eager[name]) for name in eager] + [(norms[0][name], norms[1][name]) for name in norms[1]]
    return same_bits(pairs, f"values differ at {len(pairs)} taps")


def norm_is_the_official_steps(gains: Iterable[tuple[np.ndarray, np.ndarray]] | None = None) -> Proof:
    """`norm` in the graph is, bit for bit, the operations that the official `.meta` names, run one by one; width 768.

    gains: g and b of some norms.  The output alone is asked for: so the rewriting passes are free to do what they do.
    """
    rng, pairs = np.random.default_rng(1), []
    for g, b in gains or [(rng.normal(1, 0.5, 768).astype("f4"), rng.normal(0, 0.2, 768).astype("f4"))]:
        scope = m.Scope("model/n", {"model/n/g": tf.constant(g), "model/n/b": tf.constant(b)})
        in_graph = _in_graph(scope)
        for scale in (1, 0.02, 1e-3, 3e3):
            x = tf.constant(rng.normal(0.1, scale, (1, 64, 768)).astype("f4"))
            u = tf.reduce_mean(x, -1, keepdims=True)
            s = tf.reduce_mean(tf.square(x - u), -1, keepdims=True)
            official = (x - u) * tf.math.rsqrt(s + np.float32(1e-5)) * g + b
            pairs.append((in_graph(x).numpy(), official.numpy()))
    return same_bits(pairs)


def _in_graph(scope) -> Callable:
    return tf.function(lambda x: m.norm(x, scope), autograph=False)


def golden_values_hold(seen: Taps) -> Proof:
    """Every norm's five values and its input, keys, values and logits, in parts of the largest value of the tensor."""
    e, hparams = golden_values(), golden_hparams()
    off = {"logits": of_the_largest(seen["logits"], e["f32/logits"])}
    for norm in norm_scopes(hparams):
        for leaf in NORM_LEAVES:
            off[f"{norm}/{leaf}"] = of_the_largest(seen[f"{norm}/{leaf}"], e[f"f32/{norm}/{leaf}"])
        x = input_of(norm, hparams)
        off[x] = of_the_largest(seen[x], e[f"f32/{norm}/x"])
    present = np.stack([[seen[f"h{i}/attn/{leaf}"] for leaf in "kv"] for i in range(hparams.n_layer)])
    off["present"] = of_the_largest(present.transpose(2, 0, 1, 3, 4, 5), e["f32/present"])
    worst = max(off, key=lambda name: np.nan_to_num(off[name], nan=np.inf))
    return at_most(off[worst], 4e-6, f"of the largest, {worst}")


def error_is_no_larger_than_the_official_one(seen: Taps) -> Proof:
    """Root mean square of the distance from float64, at every norm and the logits, in parts of the official graph's."""
    e, ratios = golden_values(), {}
    for name in normed(golden_hparams()):
        ours, official = (np.sqrt(np.mean((x - e[f"f64/{name}"]) ** 2)) for x in (seen[name], e[f"f32/{name}"]))
        ratios[name] = float(ours / official)
    worst = max(ratios, key=lambda name: np.nan_to_num(ratios[name], nan=np.inf))
    return at_most(ratios[worst], 1.5, f"times the official, {worst}")


def gelu_is_the_tanh_form() -> Proof:
    """20,001 points of [-6, 6], bit for bit TensorFlow's own tanh form; the erf form is 4.7e-4 away."""
    x = tf.constant(np.linspace(-6, 6, 20001, dtype="f4"))
    graph = tf.function(lambda x: m.gelu(x), autograph=False)(x)
    return same_bits([(graph.numpy(), tf.nn.gelu(x, approximate=True).numpy())])


def future_is_hidden() -> Proof:
    """With loud queries and keys, another last token changes no bit of any tap before it."""
    weights = {name: x * (HIDDEN if name.endswith("c_attn/w") else 1) for name, x in golden_weights().items()}
    hparams, ids = golden_hparams(), golden_values()["ids"][:1]
    other = ids.copy()
    other[0, -1] = (ids[0, -1] + 100) % hparams.n_vocab
    a, b = map(_watch(weights, hparams, True), (ids, other))
    T = ids.shape[1] - 1
    pairs = [[np.take(x[name], range(T), 1 + _has_heads(name)) for x in (a, b)] for name in a]
    above = [np.triu(x, 1) for name, x in a.items() if name.endswith("/probs")]
    return same_bits([*pairs, *((x, np.zeros_like(x)) for x in above)])


def _has_heads(tap: str) -> bool:
    """[B, H, T, ...], where others are [B, T, ...]"""
    return tap.rsplit("/", 1)[-1] in ("q", "k", "v", "scores", "probs")


def no_fused_norm_runs() -> Proof:
    """The very form that TensorFlow's remapper makes `_MklLayerNorm` of, epsilon 0.001: in a graph it stays what it is.

    Rows of small variance, where that epsilon is a tenth of it.
    """
    rng = np.random.default_rng(0)
    g, b = rng.normal(1, 0.3, 768).astype("f4"), rng.normal(0, 0.1, 768).astype("f4")
    x = tf.constant(rng.normal(0, 0.1, (2, 8, 768)).astype("f4"))
    eager = by_moments(g, b)
    return same_bits([(tf.function(eager, autograph=False)(x).numpy(), eager(x).numpy())])


def by_moments(g: np.ndarray, b: np.ndarray) -> Callable:
    """The trap: an axis by its number, gain and bias constants."""

    def norm(x):
        u, s = tf.nn.moments(x, axes=[2], keepdims=True)
        return tf.nn.batch_normalization(x, u, s, b, g, 1e-5)

    return norm


def products_are_float32() -> Proof:
    """1 + 2^-12 times 1: TF32 and bfloat16 make 1 of it."""
    x = np.full((256, 256), 1 + 2**-12, "f4")
    product = tf.matmul(tf.constant(x), tf.eye(256)).numpy()
    proof = same_bits([(product, x)], "products are rounded")
    if tf.config.experimental.tensor_float_32_execution_enabled():
        return Proof(False, f"TensorFlow says it is on; {proof.found}")
    return proof


def cached_is_a_full_pass(models: Iterable[Model]) -> Proof:
    """A prompt, then its last tokens one by one; and all of them at once.  In logits, float32."""
    off = []
    for model in models:
        ids = _probe(model, 24)
        full = model.logits(ids)
        logits, cache = model.exact.prefill(ids[:8])
        rows = [logits, *(model.exact.step([i], [cache])[0] for i in ids[8:])]
        off.append(np.abs(full[7:] - np.stack(rows)).max())
    return at_most(np.max(off), 1e-4, "in a logit")


def _probe(model: Model, length: int) -> list[int]:
    """The beginning of a fixed text, as far as the context goes."""
    return model.encode(TEXT)[: min(length, model.hparams.n_ctx)]


def batch_is_single(model: Model) -> Proof:
    """Steps of four sequences abreast, and of each alone, from the same places: all logits, bit for bit."""
    engine, ids = model.exact, _probe(model, 24)
    abreast = [engine.prefill(ids[:n])[1] for n in (1, 5, 9, 18)]
    alone, pairs = [cache.copy() for cache in abreast], []
    for n in range(6):
        step = [ids[(n + 3 * s) % len(ids)] for s in range(len(abreast))]
        together = engine.step(step, abreast)
        single = [engine.step([i], [cache])[0] for i, cache in zip(step, alone, strict=True)]
        pairs += zip(together, single, strict=True)
    return same_bits(pairs, "logits differ")


def several_are_one_by_one(model: Model) -> Proof:
    """Three texts and two samples of each, drawn side by side and one after the other: every id, every logprob."""
    texts = [tuple(_probe(model, n)) for n in (2, 7, 13)]
    drawn = [
        _drawn(model, texts, length=12, nsamples=2, seed=1, logprobs=0, batch_size=size, sampling=Sampling(top_k=40))
        for size in (6, 1)
    ]
    pairs = [(a, b) for a, b in zip(*([_of(sample) for sample in run] for run in drawn), strict=True)]
    return same_bits(pairs, "ids and logprobs differ")


def _of(sample) -> np.ndarray:
    return np.array([*sample.tokens, *(step["logprob"] for step in sample.logprobs)], np.float64)


def _drawn(model: Model, texts: Iterable[Sequence[int]], **settings) -> list:
    return list(generate(model.exact, model.bpe, [Prompt(tuple(ids)) for ids in texts], Settings(**settings)))


def _greedy(model: Model, texts: Iterable[Sequence[int]], length: int) -> list[list[int]]:
    greedy = Sampling(temperature=0.0)
    return [s.tokens for s in _drawn(model, texts, length=length, batch_size=3, sampling=greedy)]


def golden_ids(model: Model) -> Proof:
    """The official sampler at top_k 1, three lengths of prompt."""
    e, pairs = golden_values(), []
    for P in (1, 7, 32):
        right = e[f"greedy/{P}/out"]
        found = _greedy(model, e[f"greedy/{P}/prompt"].tolist(), right.shape[1])
        pairs.append((np.array(found, right.dtype), right))
    return same_bits(pairs, "ids differ")


def demo_ids(model: Model) -> Proof:
    """Against those of the float64 pass; its likeliest token is ahead by far more than float32 is off."""
    answer = demo_answer()
    if model.index_sha256 != answer["index_sha256"]:
        return Proof(False, "another demo than the ids were stored for")
    (found,) = _greedy(model, [model.encode(answer["text"])], len(answer["next"]))
    return same_bits([(np.array(found), np.array(answer["next"]))], "ids differ")


def sums_hold(model: Model) -> Proof:
    """Every CRC32C: Damaged names those that differ."""
    arrays = model.weights
    return Proof(True, f"{len(arrays)} tensors, {sum(x.nbytes for x in arrays.values()):,} bytes")


def is_close_to_float64(model: Model) -> Proof:
    ids = _probe(model, FEW)
    off = of_the_largest(model.logits(ids), model.reference(ids)["logits"])
    return at_most(off, BOUND, "of the largest logit")


def prepared_is_close(model: Model) -> Proof:
    """The prepared engine, where there is one, on the probe that it was measured by when it was made."""
    if model.prepared.state == "none":
        return Proof(None, "none is prepared")
    if model.prepared.state != "ready":
        return Proof(None if model.prepared.state == "stale" else False, f"{model.prepared.state}: make it anew")
    distance = _measured(model)
    d, largest = distance.max_abs_dlogit, distance.largest_logit
    proof = at_most(d / largest if largest else d, BOUND, "of the largest logit")
    return Proof(distance.within, proof.found, proof.number, proof.limit)


def _measured(model: Model) -> Distance:
    right, found = [], []
    for prompt in prompts(model.encode(TEXT), model.hparams):
        rows, ids = follow(model.exact, prompt)
        right.append(rows)
        found.append(follow(model.fast, prompt, ids)[0])
    return measure(np.concatenate(right), np.concatenate(found))
