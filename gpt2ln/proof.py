"""A proof as a record, what proofs are held against, and those that need no TensorFlow.

A proof is a number and the limit that it stays within.  Golden is a small checkpoint with what the official source
computed on it, and float64 beside that.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .bpe import Bpe
from .checkpoint import load, read_index
from .errors import BadInput
from .locate import Place
from .reference import Reference
from .sample import top_k_logits, top_p_logits
from .spec import HParams, variables
from .taps import norm_scopes
from .weights import read_hparams

FOLDER = Path(__file__).with_name("golden")
GOLDEN = Place("golden", FOLDER / "model")
# Characters of one to four bytes, and some that are made of several.
TEXT = (
    'Say: "O, na\u00efve \u2014 \u03ba\u03b1\u1f76 \u65e5\u672c \U0001f628!"'
    "\n\n  ROMEO:\tgo\u0301 \u200d\U0001f469\u200d\U0001f680."
)


@dataclass(frozen=True)
class Proof:
    """holds: None where it could not be tried.  found: what came out, in words; number and limit, where there are."""

    holds: bool | None
    found: str
    number: float | None = None
    limit: float | None = None


def none_of(differ: int, of: int, what: str) -> Proof:
    """The limit is 0."""
    return Proof(differ == 0, f"{differ:,} of {of:,} {what}", float(differ), 0.0)


def at_most(number: float, limit: float, what: str) -> Proof:
    """NaN is within no limit."""
    return Proof(bool(number <= limit), f"{number:.2g} {what}", float(number), limit)


def same_bits(pairs: Iterable[tuple[np.ndarray, np.ndarray]], what: str = "values differ") -> Proof:
    """Whether the bytes of each value are the same: -0 is not 0, and NaN is NaN."""
    differ = of = 0
    for a, b in pairs:
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        a, b = (np.ascontiguousarray(x)[..., None].view(np.uint8) for x in (a, b))
        rows = (a != b).any(-1)
        differ, of = differ + int(rows.sum()), of + rows.size
    return none_of(differ, of, what)


def of_the_largest(ours: np.ndarray, right: np.ndarray) -> float:
    """The largest difference, in parts of the largest value, where that is not 0."""
    largest = np.abs(right).max()
    return float(np.abs(ours.astype(np.float64) - right).max() / (largest or 1))


def golden_values() -> dict[str, np.ndarray]:
    with np.load(FOLDER / "expected.npz") as file:
        return dict(file)


def golden_hparams() -> HParams:
    return read_hparams(GOLDEN.file("hparams.json"))[0]


def golden_arrays() -> dict[str, np.ndarray]:
    return dict(load(read_index(GOLDEN.prefix), variables(golden_hparams())))


def demo_answer() -> dict:
    """`text`, its `ids` and the greedy ids after them, `next`, by the float64 pass on the demo of `index_sha256`."""
    return json.loads((FOLDER / "demo.json").read_text(encoding="utf-8"))


def normed(hparams: HParams) -> list[str]:
    """The taps that float64 stands beside: the output of every norm, and the logits."""
    return [f"{norm}/out" for norm in norm_scopes(hparams)] + ["logits"]


def float64_is_the_golden_one() -> Proof:
    """The NumPy pass of this package against the one that was kept beside the official values."""
    e, hparams, weights = golden_values(), golden_hparams(), golden_arrays()
    off = []
    for row, ids in enumerate(e["ids"]):
        ours = Reference(hparams, ids, weights)
        off += [of_the_largest(ours[tap], e[f"f64/{tap}"][row]) for tap in normed(hparams)]
    return at_most(np.max(off), 1e-12, "of the largest")


def cuts_are_the_official_ones() -> Proof:
    """What `top_k_logits` and `top_p_logits` leave of rows with ties, all equal, one huge."""
    e = golden_values()
    cuts: Mapping[str, Callable] = {"top_k": lambda x, k: top_k_logits(x, int(k)), "top_p": top_p_logits}
    pairs = []
    for key, right in e.items():
        if key.startswith(("filter/top_k", "filter/top_p")):
            _, kind, value = key.split("/")
            pairs.append((np.stack([cuts[kind](row, float(value)) for row in e["filter/logits"]]), right))
    return same_bits(pairs, "logits differ")


def streamed_is_whole(bpe: Bpe) -> Proof:
    """Every beginning of a text, decoded id by id and at once: where a character is cut, too."""
    ids = bpe.encode(TEXT)
    parts = [ids[:n] for n in range(len(ids) + 1)]
    return none_of(sum(_streamed(bpe, part) != bpe.decode(part) for part in parts), len(parts), "texts differ")


def _streamed(bpe: Bpe, ids: list[int]) -> str:
    stream = bpe.stream()
    return "".join(map(stream.feed, ids)) + stream.finish()


def outside_is_refused(models: Iterable) -> Proof:
    """-1 and n_vocab are no ids: a GPU would read zeros for them.  models: of `library.Model`."""
    asked = [(model, i) for model in models for i in (-1, model.hparams.n_vocab)]
    return none_of(sum(not _refuses(model, i) for model, i in asked), len(asked), "ids taken")


def _refuses(model, i: int) -> bool:
    try:
        model.logits([i])
    except BadInput:
        return True
    except Exception:
        return False  # it got past us, to somebody else's error
    return False
