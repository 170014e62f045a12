"""What a proof is, and those that need no TensorFlow, each where it must fail."""

import math
from functools import partial

import numpy as np
import pytest

from gpt2ln import bpe, proof
from gpt2ln.library import Model
from gpt2ln.proof import Proof, at_most, none_of, same_bits
from gpt2ln.sample import top_p_logits


def wrong(found: Proof, words: str) -> None:
    assert (found.holds, found.found) == (False, words)


# what a proof is


def test_a_number_and_its_limit():
    assert at_most(1e-4, 1e-4, "of it") == Proof(True, "0.0001 of it", 1e-4, 1e-4)
    assert not at_most(1.01e-4, 1e-4, "").holds
    assert not at_most(math.nan, 1e-4, "").holds
    assert none_of(0, 3, "differ") == Proof(True, "0 of 3 differ", 0, 0)
    assert none_of(1, 3000, "differ") == Proof(False, "1 of 3,000 differ", 1, 0)


def test_bits_are_compared():
    x = np.array([1, 0, np.nan], "f4")
    assert same_bits([(x, x.copy())]) == Proof(True, "0 of 3 values differ", 0, 0)
    wrong(same_bits([(x, np.array([1, -0.0, np.nan], "f4"))]), "1 of 3 values differ")
    wrong(same_bits([(x, x), (x[:1], np.nextafter(x[:1], np.float32(2)))], "are off"), "1 of 4 are off")
    with pytest.raises(AssertionError):
        same_bits([(x, x.astype("f8"))])
    with pytest.raises(AssertionError):
        same_bits([(x, x[:1])])


def test_the_largest_difference_in_parts_of_the_largest_value():
    assert proof.of_the_largest(np.array([1.0, -3]), np.array([1.0, -4])) == 0.25
    assert proof.of_the_largest(np.array([0.0, -3]), np.zeros(2)) == 3
    assert math.isnan(proof.of_the_largest(np.array([1, np.nan]), np.array([1.0, -4])))


# those that need no TensorFlow


def test_another_float64_pass(monkeypatch):
    real = proof.Reference
    off = {"mlp/gelu": lambda t, at: np.maximum(t[f"{at}/fc"], 0)}
    monkeypatch.setattr(proof, "Reference", lambda hparams, ids, weights: real(hparams, ids, weights, formulas=off))
    found = proof.float64_is_the_golden_one()
    assert (found.holds, found.limit) == (False, 1e-12)
    assert 0.01 < found.number < 10
    off["mlp/gelu"] = lambda t, at: t[f"{at}/fc"] * np.nan
    assert not proof.float64_is_the_golden_one().holds


def test_other_cuts(monkeypatch):
    monkeypatch.setattr(proof, "top_p_logits", partial(top_p_logits, nucleus="hf"))
    found = proof.cuts_are_the_official_ones()
    assert not found.holds
    assert 0 < found.number < 100
    assert found.found.endswith(" of 3,000 logits differ")


def test_a_stream_that_loses_its_end(monkeypatch, golden_model):
    monkeypatch.setattr(bpe.Stream, "finish", lambda self: "")
    found = proof.streamed_is_whole(golden_model.bpe)
    assert not found.holds
    assert 0 < found.number < len(proof.TEXT.encode())


def test_an_id_that_is_taken(golden_model, monkeypatch):
    monkeypatch.setattr("gpt2ln.library.check_ids", lambda ids, n_vocab: None)
    monkeypatch.setattr(Model, "logits", lambda model, ids: model.ids(ids) and np.zeros(3))
    wrong(proof.outside_is_refused([golden_model]), "2 of 2 ids taken")
    monkeypatch.setattr("gpt2ln.library.check_ids", lambda ids, n_vocab: bpe.check_ids(ids, n_vocab + 1))
    wrong(proof.outside_is_refused([golden_model]), "1 of 2 ids taken")
