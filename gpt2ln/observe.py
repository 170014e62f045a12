"""Watch a model at work: texts in, activations and statistics of every LayerNorm out."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from .dump import Sink
from .engine import Exact, Frozen
from .prompt import ABREAST
from .stats import LnStats, Part
from .taps import NORM_LEAVES, norm_scopes
from .unbroken import unbroken

MASKED = {"scores": np.float32(-1e10), "probs": np.float32(0)}  # what the official graph gives past the diagonal


Replay = Callable[[int], Frozen | None]  # number of a document -> statistics of its norms that are frozen


def watch(
    engine: Exact, ids: Sequence[int], wanted: Sequence[str], *, frozen: Frozen | None = None, width: int | None = None
) -> Iterator[tuple[int, dict[str, np.ndarray], bool]]:
    """Taps of one text, some positions at a time: the first of them, arrays [t, ...], whether all is finite.

    Positions are the first axis of every array; attention taps are `width` wide, by default the whole text.
    """
    start, width = 0, width or len(ids)
    for taps, finite in engine.watch(ids, wanted, frozen):
        rows = {name: _positions_first(name, x, width) for name, x in taps.items()}
        yield start, rows, finite
        start += len(rows[wanted[0]])


def _positions_first(name: str, x: np.ndarray, width: int) -> np.ndarray:
    if x.ndim == 3:
        x = x.swapaxes(0, 1)  # [H, t, ...] -> [t, H, ...]
    masked = MASKED.get(name.rsplit("/", 1)[-1])
    if masked is None or x.shape[-1] == width:
        return x
    wide = np.full((*x.shape[:-1], width), masked, x.dtype)
    wide[..., : x.shape[-1]] = x
    return wide


def observe(
    engine: Exact, ids: Sequence[int], wanted: Sequence[str], *, frozen: Frozen | None = None
) -> dict[str, np.ndarray]:
    """Taps of one text: [T, ...] each.  NonFinite names the first that is not finite."""
    parts = []
    for _, taps, finite in watch(engine, ids, wanted, frozen=frozen):
        if not finite:
            raise engine.not_finite(ids, frozen)
        parts.append(taps)
    return {name: np.concatenate([part[name] for part in parts]) for name in wanted}


def in_order(work: Callable, items: Iterable) -> Iterator:
    """`work` of each item, two at a time, results in the order of the items.

    One text leaves gaps on the machine, between operations and in small ones, that a second one fills.
    """
    ahead: deque[Future] = deque()
    with ThreadPoolExecutor(ABREAST) as pool:
        for item in items:
            with unbroken():
                ahead.append(pool.submit(work, item))
            if len(ahead) > ABREAST:
                yield _result(ahead.popleft())
        while ahead:
            yield _result(ahead.popleft())


def _result(future: Future):
    """Ctrl-C, which waits here for a text that is begun in any case, could leave a lock that its thread needs."""
    with unbroken():
        return future.result()


def dump(
    engine: Exact,
    sink: Sink,
    *,
    replay: Replay = lambda document: None,
    progress: Callable[[int], object] = lambda tokens: None,
) -> None:
    """Fill a sink with the documents it still lacks, each read on its own."""
    plan = sink.plan
    wanted = [tap.name for tap in plan.taps]

    def fill(n: int) -> int:
        ids, positions = plan.documents[n].ids, plan.rows[n]
        if len(positions):
            for start, taps, finite in watch(engine, ids, wanted, frozen=replay(n), width=plan.width):
                stop = start + len(taps[wanted[0]])
                row, end = np.searchsorted(positions, [start, stop])
                if end - row < stop - start:
                    taps = {name: x[positions[row:end] - start] for name, x in taps.items()}
                sink.write(n, int(row), taps, finite)
        return len(ids)

    for group in sink.pending():
        sink.begin(group)
        for tokens in in_order(fill, group):
            progress(tokens)
        sink.end(group)


def ln_stats(
    engine: Exact,
    documents: Iterable[Sequence[int]],
    *,
    progress: Callable[[int], object] = lambda tokens: None,
) -> LnStats:
    """Statistics of each norm over all tokens of all documents, each document read on its own.

    documents: token ids, at most n_ctx each.  NonFinite names the first tap that is not finite.
    """
    stats = LnStats.empty(norm_scopes(engine.hparams), engine.hparams.n_embd)
    wanted = [f"{scope}/{leaf}" for scope in stats.norms for leaf in NORM_LEAVES]

    def reduce(ids: Sequence[int]) -> list[Part]:
        parts = []
        for start, taps, finite in watch(engine, ids, wanted):
            if not finite:
                raise engine.not_finite(ids)
            parts.append(stats.part(taps, start))
        return parts

    for parts in in_order(reduce, documents):
        for part in parts:
            stats.add(part)
        stats.documents += 1
        progress(sum(part.x.shape[-1] for part in parts))
    return stats
