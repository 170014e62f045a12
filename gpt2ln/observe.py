"""Watch a model at work: texts in, statistics of every LayerNorm out."""

from collections.abc import Iterable, Sequence

import numpy as np

from .engine import Exact
from .stats import NormStats
from .taps import NORM_LEAVES, norm_scopes


def ln_stats(engine: Exact, documents: Iterable[Sequence[int]]) -> dict[str, NormStats]:
    """Statistics of each norm over all tokens of all documents, each document read on its own.

    documents: token ids, at most n_ctx each -> `h0/ln_1` ... `ln_f`, in the order of the forward pass.
    NonFinite names the first tap that is not finite.
    """
    scopes = norm_scopes(engine.hparams)
    total = {scope: NormStats() for scope in scopes}
    wanted = [f"{scope}/{leaf}" for scope in scopes for leaf in NORM_LEAVES]
    for ids in documents:
        for taps in engine.watch(ids, wanted):
            for scope in scopes:
                seen = {leaf: taps[f"{scope}/{leaf}"] for leaf in NORM_LEAVES}
                if not (np.isfinite(seen["var"]).all() and np.isfinite(seen["out"]).all()):
                    raise engine.not_finite(ids)
                total[scope] += NormStats.of(seen)
    return total
