"""Logits to the next id: temperature, top-k, top-p, and a draw that depends on nothing but its key.

The cuts are those of the official `sample.py`; what they remove gets `REMOVED`.  The draw inverts the cumulative
distribution in float64 at one uniform number keyed by (seed, sample, position), so sample 7 is the same whether it is
computed alone, in a batch or after a restart.
"""

from dataclasses import dataclass

import numpy as np

from .errors import UsageError

REMOVED = np.float32(-1e10)


@dataclass(frozen=True)
class Sampling:
    """temperature 0 is greedy; top_k 0 and top_p 1 cut nothing; nucleus `openai` or `hf`."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    nucleus: str = "openai"

    def __post_init__(self):
        if not 0 <= self.temperature < np.inf:
            raise UsageError(f"temperature {self.temperature}, expected a finite number from 0")
        if self.top_k < 0:
            raise UsageError(f"top_k {self.top_k}, expected 0 (no cut) or more")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p {self.top_p}, expected a number above 0 to 1")
        if self.nucleus not in ("openai", "hf"):
            raise UsageError(f"nucleus {self.nucleus!r}, expected openai or hf")


def softmax(logits: np.ndarray) -> np.ndarray:
    """[V] -> [V], in float64."""
    shifted = _shifted(logits)
    np.exp(shifted, out=shifted)
    return shifted / shifted.sum()


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """[..., V] -> [..., V], in float64 and nats; finite where the probability itself underflows to 0."""
    shifted = _shifted(logits)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def _shifted(logits: np.ndarray) -> np.ndarray:
    """float64, so that what differed still does; the largest is 0."""
    logits = logits.astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    return logits


def top_k_logits(logits: np.ndarray, k: int) -> np.ndarray:
    """Keep the k largest and all that tie with the k-th.  [V] -> [V]"""
    if k == 0 or k >= logits.size:
        return logits
    least = np.partition(logits, -k)[-k]
    return np.where(logits < least, REMOVED, logits)


def top_p_logits(logits: np.ndarray, p: float, nucleus: str = "openai") -> np.ndarray:
    """Keep the likeliest whose probabilities sum to p.  [V] -> [V]

    `openai` drops the token that crosses p (at least one stays), `hf` keeps it; ties with the last one kept stay.
    """
    if p >= 1:
        return logits
    descending = np.sort(logits)[::-1]
    total = np.cumsum(softmax(descending))
    kept = np.count_nonzero(total <= p) + (nucleus == "hf")
    least = descending[min(max(kept, 1), logits.size) - 1]
    return np.where(logits < least, REMOVED, logits)


def uniform(seed: int, sample: int, position: int) -> float:
    """A number in [0, 1) that is a function of its three keys, each below 2**64: Philox, a counter-based generator.

    The keys are uint64 from the start: NumPy makes float64 of a list that holds both small and large ones.
    """
    key, counter = np.array([seed, sample], np.uint64), np.array([0, 0, 0, position], np.uint64)
    return (np.random.Philox(key=key, counter=counter).random_raw() >> 11) * 2.0**-53


def draw(logits: np.ndarray, u: float) -> int:
    """The first id whose cumulative probability exceeds u; never one of probability 0, nor one past the last."""
    total = np.cumsum(softmax(logits))
    last = np.searchsorted(total, total[-1], side="left")
    return int(min(np.searchsorted(total, u * total[-1], side="right"), last))


def next_id(logits: np.ndarray, sampling: Sampling, *, seed: int, sample: int, position: int) -> int:
    """[V] -> id.  Argmax at temperature 0; of equal logits the smallest id."""
    if sampling.temperature == 0:
        return int(logits.argmax())
    with np.errstate(over="ignore"):  # -inf at the smallest temperatures: probability 0
        logits = _shifted(logits) / sampling.temperature
    logits = top_k_logits(logits, sampling.top_k)
    logits = top_p_logits(logits, sampling.top_p, sampling.nucleus)
    return draw(logits, uniform(seed, sample, position))
