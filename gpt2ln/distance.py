"""How far another engine is from `exact`: the same tokens through both, and their logits side by side.

The probe is fixed: an English text, read once as a short prompt and once as a long one, each continued by the ids that
`exact` finds likeliest.  So prompts, single steps and all their ways through an engine are measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .sample import log_softmax
from .spec import HParams

TEXT = (
    "It was a bright morning in the harbour town, and the ferry had not yet come in. Two old men sat on a bench by the"
    ' water and argued about the price of rope. "In 1957," said the first, "you could buy a mile of it for a week\'s'
    ' pay." The other shook his head slowly, counted on his fingers, and answered: "Nobody ever bought a mile of rope."'
)
SHORT, LONG, STEPS = 9, 300, 24  # tokens of the two prompts, and steps after each
BOUND = 1e-4  # of the largest logit; float32 rounding through 48 blocks stays well below


@dataclass(frozen=True)
class Distance:
    """max_abs_dlogit and largest |logit|; KL divergence from exact in nats, the worst row; rows with equal argmax."""

    max_abs_dlogit: float
    largest_logit: float
    kl: float
    greedy_agree: int
    greedy_of: int

    @property
    def within(self) -> bool:
        return self.max_abs_dlogit <= BOUND * self.largest_logit  # False for NaN


def prompts(text_ids: Sequence[int], hparams: HParams) -> list[list[int]]:
    """The two of the probe, cut to what the context holds."""
    room = max(hparams.n_ctx - STEPS, 1)
    long = list(text_ids) * (-(-LONG // len(text_ids)))
    return [list(text_ids[: min(SHORT, room)]), long[: min(LONG, room)]]


def follow(engine, prompt: Sequence[int], given: Sequence[int] | None = None) -> tuple[np.ndarray, list[int]]:
    """-> [rows, V] logits after the prompt and each step, and the ids stepped by: those given, or the likeliest."""
    logits, cache = engine.prefill(prompt)
    rows, ids = [logits], []
    for n in range(min(STEPS, engine.hparams.n_ctx - len(prompt))):
        ids.append(int(logits.argmax()) if given is None else given[n])
        (logits,) = engine.step(ids[-1:], [cache])
        rows.append(logits)
    return np.stack(rows), ids


def measure(right: np.ndarray, found: np.ndarray) -> Distance:
    """[rows, V] of exact and of the other engine -> how far apart."""
    p, q = log_softmax(right), log_softmax(found)
    kl = (np.exp(p) * (p - q)).sum(axis=1)
    return Distance(
        max_abs_dlogit=float(np.abs(right.astype(np.float64) - found).max()),
        largest_logit=float(np.abs(right).max()),
        kl=float(max(kl.max(), 0.0)),
        greedy_agree=int((right.argmax(axis=1) == found.argmax(axis=1)).sum()),
        greedy_of=len(right),
    )
