"""The distance between two engines: a probe that goes through all of an engine, and three numbers."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2ln.distance import BOUND, LONG, SHORT, STEPS, TEXT, Distance, follow, measure, prompts
from gpt2ln.fast import ALONE, ROWS
from gpt2ln.prompt import CHUNK
from gpt2ln.spec import RELEASED

HPARAMS = RELEASED["124M"]
RIGHT = np.array([[1.0, 2.0, 4.0], [0.0, -8.0, 3.0]], np.float32)


def test_equal_is_no_distance():
    assert measure(RIGHT, RIGHT) == Distance(0.0, 8.0, 0.0, 2, 2)
    assert measure(RIGHT, RIGHT).within


def test_by_hand():
    """Two likely ids of equal logits against log 3 apart: KL of (1/2, 1/2) from (3/4, 1/4) is log 2/sqrt 3."""
    right, found = np.zeros((1, 2), np.float32), np.array([[0, -math.log(3)]], np.float32)
    d = measure(right, found)
    assert d.max_abs_dlogit == pytest.approx(math.log(3), rel=1e-6)
    assert d.kl == pytest.approx(math.log(2 / math.sqrt(3)), rel=1e-6)
    assert (d.greedy_agree, d.greedy_of, d.largest_logit) == (1, 1, 0.0)
    assert not d.within


def test_the_worst_row_counts():
    found = RIGHT + np.array([[0, 0, 0], [0, 0, -5]], np.float32)
    d = measure(RIGHT, found)
    assert (d.max_abs_dlogit, d.greedy_agree, d.greedy_of) == (5.0, 1, 2)
    assert d.kl == pytest.approx(float(measure(RIGHT[1:], found[1:]).kl))


def test_the_bound_is_of_the_largest_logit():
    d = Distance(BOUND * 8, 8.0, 0.0, 2, 2)
    assert d.within
    assert not replace(d, max_abs_dlogit=BOUND * 8.001).within
    assert not replace(d, max_abs_dlogit=math.nan).within
    assert Distance(0.0, 0.0, 0.0, 2, 2).within


def test_nan_is_far():
    found = RIGHT.copy()
    found[1, 1] = np.nan
    assert not measure(RIGHT, found).within


@given(n_ctx=st.integers(1, 1100), tokens=st.integers(1, 400))
def test_the_probe_fits_every_context(n_ctx, tokens):
    for prompt in prompts(list(range(tokens)), replace(HPARAMS, n_ctx=n_ctx)):
        assert 1 <= len(prompt) <= max(n_ctx - STEPS, 1)
        assert [i % tokens for i in range(len(prompt))] == prompt


def test_the_probe_goes_every_way_through_the_engine():
    """Rows alone and together, several pieces of rows, more than one chunk of attention."""
    short, long = prompts(list(range(90)), HPARAMS)
    assert (len(short), len(long)) == (SHORT, LONG)
    assert len(short) < ALONE < ROWS < CHUNK < len(long)
    assert TEXT.isprintable()


class Echo:
    """An engine whose logits point at the number of ids it has seen."""

    hparams = replace(HPARAMS, n_vocab=50, n_ctx=20)

    def prefill(self, ids):
        self.seen = list(ids)
        return self._logits(), self

    def step(self, ids, caches):
        assert caches == [self]
        self.seen += ids
        return [self._logits()]

    def _logits(self):
        return np.eye(50, dtype=np.float32)[len(self.seen)]


def test_follow():
    engine = Echo()
    rows, ids = follow(engine, [7, 7, 7])
    assert ids == list(range(3, 20))
    assert engine.seen == [7, 7, 7, *ids]
    np.testing.assert_array_equal(rows.argmax(axis=1), np.arange(3, 21))
    rows, ids = follow(engine, [7], list(range(30, 60)))
    assert ids == list(range(30, 49))
    assert engine.seen == [7, *ids]
