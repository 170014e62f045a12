"""Prefill and step over a KV cache: the seam behind which engines live.  `Exact` is the graph of `model` itself.

Each sequence is computed on its own: its numbers are a function of its own tokens, never of what else is in the batch.
(A product of one row and of eight rows round differently; computed together, a text would change with
`--batch-size`.)  Sequences of a batch still share the machine, one a thread.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from threading import Lock

import numpy as np

from .errors import NonFinite
from .model import Scope, model
from .prompt import CHUNK
from .runtime import tf
from .spec import HParams
from .unbroken import unbroken

NOT_FINITE = "NaN or Inf in the forward pass"
SMALLEST = 128  # positions a cache has room for at first; the room doubles when it is full


Frozen = Mapping[str, np.ndarray]  # tap name -> [T, 1]


class _Enough(Exception):
    """The last wanted tap has been seen."""


class Cache:
    """Keys and values of one sequence: a tensor each for every layer, written in place.  [1, H, S, D], S >= length"""

    def __init__(self, hparams: HParams, room: int):
        self.hparams, self.ids = hparams, []
        shape = [1, hparams.n_head, self._rounded(room), hparams.head_dim]
        self.k = [tf.zeros(shape) for _ in range(hparams.n_layer)]
        self.v = [tf.zeros(shape) for _ in range(hparams.n_layer)]

    @property
    def length(self) -> int:
        return len(self.ids)

    @property
    def room(self) -> int:
        return self.k[0].shape[2]

    def _rounded(self, room: int) -> int:
        return min(max(SMALLEST, 1 << (room - 1).bit_length()), self.hparams.n_ctx)

    def reserve(self, room: int) -> None:
        """Make room for that many positions: a copy, but one each time the length doubles."""
        if room > self.room:
            more = [[0, 0], [0, 0], [0, self._rounded(room) - self.room], [0, 0]]
            self.k, self.v = [[tf.pad(x, more) for x in held] for held in (self.k, self.v)]

    def copy(self) -> "Cache":
        """A cache that goes its own way from here, as each sample of one prompt does."""
        other = Cache.__new__(Cache)
        other.hparams, other.ids = self.hparams, list(self.ids)
        other.k, other.v = [[tf.raw_ops.DeepCopy(x=x) for x in held] for held in (self.k, self.v)]  # identity aliases
        return other

    def cut(self, length: int) -> None:
        """Forget what lies past that many positions: no call looks there, and the next one writes over it."""
        del self.ids[length:]


class _Past:
    """The cache as the graph sees it: `model.Past`."""

    def __init__(self, length: tf.Tensor, k: Sequence[tf.Tensor], v: Sequence[tf.Tensor], T: int | tf.Tensor):
        """T: positions that this call adds; 1, or a tensor in the graph that takes any number."""
        self.length, self._k, self._v, self._stop, self._step = length, k, v, length + T, isinstance(T, int)
        _, H, _, self._D = k[0].shape
        self._room = tf.shape(k[0])[2]
        rows = tf.range(H)[:, None] * self._room + length + tf.range(T)
        self._rows = tf.reshape(rows, [-1])  # where the new positions of all heads lie in [H * S, D]
        self._full = tf.stack([1, H, self._room, self._D])

    def span(self, T) -> tf.Tensor:
        """A step is shown the whole room: the mask gives what lies past the last position probability 0, exactly."""
        return self._room if self._step else self.length + T

    def extend(self, layer: int, k: tf.Tensor, v: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Write the new positions into the buffers themselves, then hand out what there is.

        `InplaceUpdate` returns its own input, changed; a variable would be copied whole on each read.
        """
        return self._written(self._k[layer], k), self._written(self._v[layer], v)

    def _written(self, held: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
        flat = tf.reshape(held, [-1, self._D])
        flat = tf.raw_ops.InplaceUpdate(x=flat, i=self._rows, v=tf.reshape(new, [-1, self._D]))
        full = tf.reshape(flat, self._full)
        return full if self._step else full[:, :, : self._stop]


class Exact:
    """The official operations in their order, with nothing fused; float32."""

    name = "exact"

    def __init__(
        self,
        hparams: HParams,
        weights: Mapping[str, tf.Tensor],
        *,
        threads: int = 2,
        others: Mapping[str, Callable] | None = None,
    ):
        """others: functions that stand in place of ours, as `Scope` takes them; with them it is exact no more."""
        self.hparams, self.weights, self.others, self.traces = hparams, weights, others, 0
        self._prompt = self._function(None, self._last_logits)
        self._step = self._function(1, self._last_logits)
        self._pool = ThreadPoolExecutor(threads)
        self._watching, self._lock = cache(self._watcher), Lock()

    def _function(self, T: int | None, body: Callable, given: Sequence[str] = ()) -> Callable:
        """One graph for every length: only `T`, 1 or open, and the taps `given` are part of its signature."""
        hp = self.hparams
        held = [tf.TensorSpec([1, hp.n_head, None, hp.head_dim])] * hp.n_layer
        frozen = {name: tf.TensorSpec([1, T, 1]) for name in given}
        signature = [tf.TensorSpec([1, T], tf.int32), tf.TensorSpec([], tf.int32), held, held, frozen]

        def traced(ids, length, k, v, frozen):
            self.traces += 1
            return body(ids, _Past(length, k, v, tf.shape(ids)[1] if T is None else T), frozen)

        return tf.function(traced, input_signature=signature, autograph=False)

    def _scope(self, tap: Callable, given: Mapping[str, tf.Tensor] | None = None) -> Scope:
        return Scope("model", self.weights, tap, given, self.others)

    def _last_logits(self, ids, past, _):
        """-> [V] logits after the last id; whether every variance is finite; an infinite one leaves no trace there."""
        seen = {}
        logits = model(ids, self._scope(seen.__setitem__), hparams=self.hparams, past=past, last=True)
        return logits[0, -1], _all_finite([x for name, x in seen.items() if name.endswith("/var")])

    def _watcher(self, wanted: tuple[str, ...], given: tuple[str, ...]) -> Callable:
        """The graph that ends where the last wanted tap is: what lies behind it is not even traced."""

        def body(ids, past, frozen):
            seen, missing = {}, set(wanted)

            def tap(name, x):
                seen[name] = x
                missing.discard(name)
                if not missing:
                    raise _Enough

            with contextlib.suppress(_Enough):
                model(ids, self._scope(tap, frozen), hparams=self.hparams, past=past)
            checked = [x for name, x in seen.items() if name in wanted or name.endswith("/var")]
            return {name: seen[name][0] for name in wanted}, _all_finite(checked)

        return self._function(None, body, given)

    def _call(self, function, ids, cache: Cache, frozen: Frozen | None = None):
        here = slice(cache.length, cache.length + len(ids))
        frozen = {name: tf.constant(x[None, here], tf.float32) for name, x in (frozen or {}).items()}
        with unbroken():
            out = function(tf.constant([ids], tf.int32), tf.constant(cache.length), cache.k, cache.v, frozen)
            cache.ids += ids
        return out

    def _chunks(self, ids: Sequence[int]) -> Iterable[list[int]]:
        edges = [*range(0, len(ids), CHUNK), len(ids)]
        return [list(ids[a:b]) for a, b in pairwise(edges)]

    def prefill(self, ids: Sequence[int]) -> tuple[np.ndarray, Cache]:
        """Read a prompt.  [T] -> [V] logits after it, and its cache.  NonFinite names the first tap that is not."""
        cache = Cache(self.hparams, len(ids) + 1)
        for chunk in self._chunks(ids):
            logits = self._finite(self._call(self._prompt, chunk, cache), cache)
        return logits, cache

    def step(self, ids: Sequence[int], caches: Sequence[Cache]) -> list[np.ndarray]:
        """Append one id to each sequence -> its [V] logits each.  A cache holds at most n_ctx positions."""
        with unbroken():
            return list(self._pool.map(self._step_one, ids, caches))

    def _step_one(self, i: int, cache: Cache) -> np.ndarray:
        cache.reserve(cache.length + 1)
        return self._finite(self._call(self._step, [i], cache), cache)

    def _finite(self, result, cache: Cache) -> np.ndarray:
        logits, healthy = (x.numpy() for x in result)
        if not (healthy and np.isfinite(logits).all()):
            raise self.not_finite(cache.ids)
        return logits

    def watch(
        self, ids: Sequence[int], wanted: Sequence[str], frozen: Frozen | None = None
    ) -> Iterable[tuple[dict[str, np.ndarray], bool]]:
        """The wanted taps, a chunk of positions at a time, computed as `prefill` computes; whether all is finite.

        Each array has its positions first, or second where there are heads: [T, ...] or [H, T, ...].  All: the wanted
        taps and the variances on the way to them.  frozen: `mean` and `rstd` of some norms that stand in place of what
        they would compute.
        """
        cache = Cache(self.hparams, len(ids))
        with self._lock:
            function = self._watching(tuple(wanted), tuple(frozen or ()))
        for chunk in self._chunks(ids):
            taps, finite = self._call(function, chunk, cache, frozen)
            yield {name: np.asarray(x) for name, x in taps.items()}, bool(finite)  # no copy

    def not_finite(self, ids: Sequence[int], frozen: Frozen | None = None) -> NonFinite:
        """The error that says which value of the forward pass is the first that is not finite."""
        order = []

        def body(ids, past, frozen):
            finite = []

            def watch(name, x):
                order.append(name)
                finite.append(_all_finite([x]))

            model(ids, self._scope(watch, frozen), hparams=self.hparams, past=past)
            return tf.stack(finite)

        function = self._function(None, body, tuple(frozen or ()))
        finite = self._call(function, list(ids), Cache(self.hparams, len(ids)), frozen).numpy()
        first = order[int(finite.argmin())] if not finite.all() else "logits"
        where = f"{first}: {NOT_FINITE} of {len(ids)} tokens, expected finite"
        return NonFinite(f"{where}; look at the weights: gpt2ln inspect --stats")


def _all_finite(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.reduce_all(tf.stack([tf.reduce_all(tf.math.is_finite(x)) for x in tensors]))


def to_tensors(arrays: Iterable[tuple[str, np.ndarray]]) -> dict[str, tf.Tensor]:
    """Copy mapped arrays into TensorFlow's own memory, one after the other.

    A constant made from an array keeps a NumPy copy of it alive as long as it lives itself: all weights twice.
    """
    return {name: _copied(array) for name, array in arrays}


def _copied(array: np.ndarray) -> tf.Tensor:
    with unbroken():
        return tf.raw_ops.DeepCopy(x=tf.constant(array))
