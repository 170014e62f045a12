"""The prepared engine: the products of each block by LiteRT, attention beside them, no TensorFlow.

Rows of a product do not see each other, and XNNPACK computes a row the same whatever rows stand beside it.  So one call
takes the next token of every sequence, or several tokens of one, and each number is, bit for bit, what it would be
alone.  Attention of such rows is NumPy's, row by row, on keys and values that lie where they were written; a prompt's,
many rows at once, is LiteRT's.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np

from .checkpoint import Bundle
from .errors import NonFinite
from .litert import Part
from .spec import HParams

SMALLEST = 128  # positions a cache has room for at first; the room doubles when it is full
ROWS = 126  # of a product at once: small, since each part keeps the memory it needs; a multiple of what kernels take
ABREAST = 128  # of them at once: more compute what no row may see, fewer read keys and values more often
ALONE = 16  # tokens of a prompt from which their attention is computed at once
HUGE = 1e18  # above it a variance may be infinite; LiteRT makes the largest finite number of an infinite one


class Cache:
    """Keys and values of one sequence, one array.  [L, 2, H, S, D], S >= length; what lies past the length is free."""

    def __init__(self, hparams: HParams, room: int):
        self.hparams, self.ids = hparams, []
        shape = (hparams.n_layer, 2, hparams.n_head, self._rounded(room), hparams.head_dim)
        self.kv = np.zeros(shape, np.float32)

    @property
    def length(self) -> int:
        return len(self.ids)

    def _rounded(self, room: int) -> int:
        return min(max(SMALLEST, 1 << (room - 1).bit_length()), self.hparams.n_ctx)

    def reserve(self, room: int) -> None:
        """Make room for that many positions: a copy, but one each time the length doubles."""
        if room > self.kv.shape[3]:
            self.kv = self._copied(room)

    def copy(self) -> "Cache":
        """A cache that goes its own way from here, as each sample of one prompt does."""
        other = Cache.__new__(Cache)
        other.hparams, other.ids, other.kv = self.hparams, list(self.ids), self._copied(self.kv.shape[3])
        return other

    def _copied(self, room: int) -> np.ndarray:
        L, two, H, _, D = self.kv.shape
        kv = np.zeros((L, two, H, self._rounded(room), D), np.float32)
        kv[:, :, :, : self.length] = self.kv[:, :, :, : self.length]
        return kv

    def cut(self, length: int) -> None:
        """Forget what lies past that many positions."""
        del self.ids[length:]


class Fast:
    """A prepared model.  Its distance from `Exact` was measured when it was prepared."""

    name = "fast"

    def __init__(self, hparams: HParams, folder: Path, bundle: Bundle, *, threads: int):
        """bundle: the checkpoint, of whose embeddings a few rows are read."""
        self.hparams, self._bundle = hparams, bundle
        layers = range(hparams.n_layer)
        self._logits = Part(folder / "logits.tflite", threads=threads)  # the largest first: the peak is lower
        self._qkv = [Part(folder / f"h{layer}.qkv.tflite", threads=threads) for layer in layers]
        self._rest = [Part(folder / f"h{layer}.tflite", threads=threads) for layer in layers]
        self._attend = Part(folder / "attend.tflite", threads=threads)
        self._scale = np.float32(1 / np.sqrt(hparams.head_dim))

    def prefill(self, ids: Sequence[int]) -> tuple[np.ndarray, Cache]:
        """Read a prompt.  [T] -> [V] logits after it, and its cache."""
        (found,) = self.read([ids])
        return found

    def read(self, prompts: Sequence[Sequence[int]]) -> list[tuple[np.ndarray, Cache]]:
        """Read several prompts at once: each gets what it gets alone, and the weights are read less often."""
        caches = [Cache(self.hparams, len(ids) + 1) for ids in prompts]
        h = self._blocks([list(ids) for ids in prompts], caches, prompt=True)
        last = np.cumsum([len(ids) for ids in prompts]) - 1
        return list(zip(self._finite(self._logits(h=h[last]), "logits", caches), caches, strict=True))

    def step(self, ids: Sequence[int], caches: Sequence[Cache]) -> list[np.ndarray]:
        """Append one id to each sequence -> its [V] logits each.  A cache holds at most n_ctx positions."""
        return list(self._rows([[i] for i in ids], caches))

    def several(self, ids: Sequence[Sequence[int]], caches: Sequence[Cache]) -> list[np.ndarray]:
        """Append some ids to each sequence -> [n, V] logits each: row j as `step` would give it after the ids to j."""
        rows = self._rows(ids, caches)
        return [rows[a:b] for a, b in pairwise([0, *accumulate(map(len, ids))])]

    def _rows(self, ids: Sequence[Sequence[int]], caches: Sequence[Cache]) -> np.ndarray:
        """-> [N, V], N the number of ids in all"""
        return self._finite(self._logits(h=self._blocks(ids, caches)), "logits", caches)

    def _blocks(self, ids: Sequence[Sequence[int]], caches: Sequence[Cache], *, prompt: bool = False) -> np.ndarray:
        """-> [N, C] the residual stream after the last block; the caches hold the new positions"""
        attends = [self._attend_at_once if prompt and len(new) >= ALONE else self._attend_in_rows for new in ids]
        begins = [cache.length for cache in caches]
        for new, cache in zip(ids, caches, strict=True):
            cache.reserve(cache.length + len(new))
            cache.ids += new
        tokens = np.concatenate([np.asarray(new) for new in ids])
        positions = np.concatenate([np.arange(begin, begin + len(new)) for begin, new in zip(begins, ids, strict=True)])
        h = self._embedding("wte", tokens) + self._embedding("wpe", positions)
        edges = list(pairwise([0, *accumulate(map(len, ids))]))
        for layer, (qkv, rest) in enumerate(zip(self._qkv, self._rest, strict=True)):
            c = _pieced(qkv, h=h)
            a = np.empty_like(h)
            for (start, stop), begin, cache, attend in zip(edges, begins, caches, attends, strict=True):
                a[start:stop] = attend(c[start:stop], cache.kv[layer], begin)
            h = _pieced(rest, h=h, a=a)
            self._finite(h, f"h{layer}/out", caches)
        return h

    def _embedding(self, name: str, rows: np.ndarray) -> np.ndarray:
        """[N] -> [N, C]; the pages that were mapped for it are given back."""
        entry = self._bundle.entries[f"model/{name}"]
        out = self._bundle.array(entry)[rows].astype(np.float32)
        self._bundle.release(entry)
        return out

    def _extended(self, c: np.ndarray, kv: np.ndarray, begin: int) -> np.ndarray:
        """Write the new keys and values behind the `begin` old ones.  c: [n, 3C] -> [H, n, D] the queries"""
        n = len(c)
        q, k, v = c.reshape(n, 3, self.hparams.n_head, self.hparams.head_dim).transpose(1, 2, 0, 3)
        kv[0, :, begin : begin + n], kv[1, :, begin : begin + n] = k, v
        return q

    def _attend_in_rows(self, c: np.ndarray, kv: np.ndarray, begin: int) -> np.ndarray:
        """c: [n, 3C] -> [n, C], each row as if it had come alone"""
        q = self._extended(c, kv, begin)
        rows = [self._attend_row(q[:, j], kv[:, :, : begin + j + 1]) for j in range(len(c))]
        return np.stack(rows).reshape(len(c), -1)

    def _attend_at_once(self, c: np.ndarray, kv: np.ndarray, begin: int) -> np.ndarray:
        """c: [n, 3C] -> [n, C], ABREAST rows at a time: most of what lies above the diagonal is never computed"""
        q = self._extended(c, kv, begin) * self._scale
        out = np.empty((len(c), *q.shape[::2]), np.float32)  # [n, H, D]
        for start in range(0, len(c), ABREAST):
            stop = min(start + ABREAST, len(c))
            k, v = kv[:, :, : begin + stop]
            hidden = _hidden(stop - start, begin + stop)
            out[start:stop] = self._attend(q=q[:, start:stop], k=k, v=v, hidden=hidden).transpose(1, 0, 2)
        return out.reshape(len(c), -1)

    def _attend_row(self, q: np.ndarray, kv: np.ndarray) -> np.ndarray:
        """One token, to which all that is there may be shown.  q: [H, D], kv: [2, H, S, D] -> [H, D]"""
        w = np.matmul(q[:, None], kv[0].transpose(0, 2, 1))  # [H, 1, S]
        w *= self._scale
        w -= w.max(axis=-1, keepdims=True)
        np.exp(w, out=w)
        w /= w.sum(axis=-1, keepdims=True)
        return np.matmul(w, kv[1])[:, 0]

    @staticmethod
    def _finite(x: np.ndarray, where: str, caches: Sequence[Cache]) -> np.ndarray:
        if np.abs(x).max() < HUGE:  # False for NaN
            return x
        longest = max(cache.length for cache in caches)
        raise NonFinite(
            f"{where}: NaN, Inf or a value past {HUGE:g} in the forward pass of {longest} tokens, expected finite;"
            " --engine exact names the first tap; look at the weights: gpt2ln inspect --stats"
        )


@lru_cache(maxsize=8)  # of a prompt of 1,024 tokens: each layer needs them all
def _hidden(n: int, S: int) -> np.ndarray:
    """-> [1, n, S]: 1e10 where the last n of S positions may not look, in their future"""
    return 1e10 * (1 - np.tri(n, S, S - n, dtype=np.float32)[None])


def _pieced(part: Part, **inputs: np.ndarray) -> np.ndarray:
    """[N, ...] -> [N, ...], ROWS at a time: of no consequence for the numbers."""
    n = len(inputs["h"])
    if n <= ROWS:
        return part(**inputs)
    return np.concatenate([part(**{k: x[i : i + ROWS] for k, x in inputs.items()}) for i in range(0, n, ROWS)])
