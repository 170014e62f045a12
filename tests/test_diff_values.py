"""`diff --values`: how far apart, by variable and by layer, against the plain formulas on whole arrays."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gpt2ln import diff as module
from gpt2ln.diff import Distance, Row, by_layer, diff, side
from gpt2ln.tensors import open_foreign

from . import tiny
from .memory import large, peak
from .test_diff import differing

FLOATS = st.floats(width=32) | st.sampled_from(
    np.float32([math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-45, -1e-45, 1e-38, 3.4e38]).tolist()
)
PAIRS = st.integers(1, 40).flatmap(lambda n: st.tuples(*[arrays("f4", n, elements=FLOATS)] * 2))
ONE = np.float32(1)


def distance(x, y, folder: Path, chunk: int = 1 << 18) -> Distance | None:
    """Of two arrays that lie in npz files; None where they are equal."""
    np.savez(folder / "a.npz", **{"model/wpe": x})
    np.savez(folder / "b.npz", **{"model/wpe": y})
    sides = [side(letter, open_foreign(folder / f"{letter.lower()}.npz")) for letter in "AB"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CHUNK", chunk)
        (row,) = diff(*sides, values=True)
    return row.distance


def ordinal(x: np.float32) -> int:
    """Its place among all float32, both zeros at 0."""
    bits = int(np.abs(x).view(np.uint32))
    return -bits if x < 0 else bits


@given(pair=PAIRS, chunk=st.integers(1, 45))
@example(pair=(np.float32([1, 2, 5]), np.float32([1, 4, 5.5])), chunk=2)
@example(pair=(np.float32([-0.0]), np.float32([0.0])), chunk=1)
def test_the_plain_formulas(pair, chunk, tmp_path_factory):
    a, b = pair
    found = distance(a, b, tmp_path_factory.mktemp("d"), chunk)
    differ = int((a.view("u4") != b.view("u4")).sum())
    if not differ:
        assert found is None
        return
    both = np.isfinite(a) & np.isfinite(b)
    p, q = a[both].astype("f8"), b[both].astype("f8")
    d = np.abs(p - q)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    assert (found.differ, found.finite, found.unmatched) == (differ, both.sum(), (~both & ~same).sum())
    assert found.largest == d.max(initial=0)
    if d.max(initial=0):
        assert found.where == (int(np.flatnonzero(both)[d.argmax()]),)
    else:
        assert found.where is None
    ulps = [abs(ordinal(x) - ordinal(y)) for x, y in zip(a[both], b[both], strict=True)]
    assert found.ulp == max(ulps, default=0)
    np.testing.assert_allclose(found.dot, p @ q, rtol=1e-12, atol=1e-12 * np.abs(p) @ np.abs(q))
    np.testing.assert_allclose(found.squares, (p @ p, q @ q), rtol=1e-12)
    if p @ p and q @ q:
        rms = math.sqrt(np.square(p).mean())
        np.testing.assert_allclose(found.relative, d.max() / rms, rtol=1e-9)
        bound = 1e-9 * (np.abs(p) @ np.abs(q)) / math.sqrt(p @ p) / math.sqrt(q @ q)
        np.testing.assert_allclose(found.cosine, p @ q / math.sqrt(p @ p) / math.sqrt(q @ q), rtol=1e-9, atol=bound)
        assert -1 <= found.cosine <= 1


@pytest.mark.parametrize(
    ("x", "y", "steps"),
    [
        (ONE, np.nextafter(ONE, np.float32(2)), 1),
        (ONE, np.nextafter(ONE, np.float32(0)), 1),
        (np.float32(1e-45), np.float32(-1e-45), 2),
        (np.float32(0), np.float32(-1e-45), 1),
        (np.float32(1), np.float32(2), 1 << 23),
        (np.float32(-1), np.float32(-2), 1 << 23),
        (np.float32(-3.4028235e38), np.float32(3.4028235e38), 2 * 0x7F7FFFFF),
    ],
)
def test_steps_from_one_float_to_the_next(x, y, steps, tmp_path):
    assert distance(np.array([x]), np.array([y]), tmp_path).ulp == steps


def test_nan_where_both_are_is_no_distance(tmp_path):
    nan = np.uint32([0x7FC00000, 0x7FC00001]).view("f4")
    found = distance(np.float32([nan[0], 1, np.inf]), np.float32([nan[1], 2, np.inf]), tmp_path)
    assert (found.differ, found.unmatched, found.finite, found.largest) == (2, 0, 1, 1.0)
    found = distance(np.float32([np.inf, np.nan, np.inf]), np.float32([-np.inf, 0, np.inf]), tmp_path)
    assert (found.differ, found.unmatched, found.finite, found.ulp) == (2, 2, 0, 0)
    assert (found.relative, found.cosine, found.where) == (None, None, None)


@pytest.mark.parametrize(
    ("x", "y", "differ", "largest", "ulp"),
    [
        (np.float32([1, 0.1]), np.float16([1, 0.1]), 1, abs(float(np.float32(0.1)) - float(np.float16(0.1))), 3277),
        (np.float64([1, 2]), np.float32([1, 2.5]), 1, 0.5, None),
        (np.float64([1e308]), np.float64([-1e308]), 1, math.inf, None),
        (np.int64([7, 2**40]), np.int64([7, 2**40 + 3]), 1, 3.0, None),
        (np.uint8([255]), np.uint8([0]), 1, 255.0, None),
        (np.array([True, False]), np.array([False, False]), 1, 1.0, None),
        (np.int32(5), np.int32(9), 1, 4.0, None),
    ],
)
def test_other_numbers(x, y, differ, largest, ulp, tmp_path):
    found = distance(x, y, tmp_path)
    assert (found.differ, found.ulp) == (differ, ulp)
    np.testing.assert_allclose(found.largest, largest, rtol=1e-12)


def test_parts_add_up():
    """In any order, but for where the largest lies when two are as large."""
    a = Distance(3, 1, 0, 2.0, (1,), 5, 1.0, (4.0, 9.0))
    b = Distance(4, 2, 1, 3.0, (7, 0), None, -2.0, (1.0, 1.0))
    right = Distance(7, 3, 1, 3.0, (7, 0), 5, -1.0, (5.0, 10.0))
    assert a + b == b + a == right
    assert Distance() + a == a
    np.testing.assert_allclose([right.relative, right.cosine], [3 / math.sqrt(5 / 7), -1 / math.sqrt(50)])


def test_layers():
    near, far = Distance(1, 1, 0, 1.0, (0,), 1, 1.0, (1.0, 1.0)), Distance(1, 1, 0, 2.0, (0,), 2, 1.0, (1.0, 1.0))
    names = ["model/wte", "model/wpe", "model/h0/ln_1/g", "model/h10/mlp/c_fc/w", "model/ln_f/b", "global_step"]
    rows = [Row(name, "values", d) for name in names for d in (near, far)] + [Row("model/h3/ln_1/g", "only in A")]
    found = by_layer(rows)
    assert {layer: n for layer, (n, _) in found.items()} == {"embedding": 4, "h0": 2, "h10": 2, "ln_f": 2, "other": 2}
    assert {(d.largest, d.ulp, d.where) for _, d in found.values()} == {(2.0, 2, None)}


# the command


def edit(w):
    w["model/wte"][3, 4] *= -1
    w["model/h0/ln_1/g"][0] = np.nan
    w["model/h1/attn/c_attn/w"][0, 7, 23] = np.nextafter(w["model/h1/attn/c_attn/w"][0, 7, 23], np.float32(9))
    w["model/ln_f/b"] = w["model/ln_f/b"][:5]


def test_tables(cli, T, tmp_path):
    """Where is in the shape without the axis of length 1."""
    other = tiny.tiny(tmp_path / "other", edit)
    ran = cli("diff", T, other, "--values")
    found = differing(ran)
    assert "--values tells how far" not in ran.err
    columns = {name: how.split() for name, how in found.items()}
    assert columns["model/wte"][:2] == ["values", "1"]
    assert columns["model/wte"][3] == "3,4"
    assert columns["model/h0/ln_1/g"][1:5] == ["1", "(1", "not", "finite)"]
    assert columns["model/h1/attn/c_attn/w"][3:5] == ["7,23", "1"]
    assert columns["model/ln_f/b"] == ["shape", "[8]", "/", "[5]", *"------"]
    assert [line.split()[:2] for line in ran.out.split("\n\n")[1].splitlines()] == [
        ["layer", "variables"],
        ["embedding", "1"],
        ["h0", "1"],
        ["h1", "1"],
    ]


def test_json(cli, T, tmp_path):
    other = tiny.tiny(tmp_path / "other", edit)
    rows = [json.loads(line) for line in cli("diff", T, other, "--values", "--json").out.splitlines()]
    named, layers = {row["name"]: row for row in rows[:28]}, rows[28:]
    w = tiny.weights()
    x = w["model/wte"].astype("f8")
    row = named["model/wte"]
    assert (row["differ"], row["unmatched_nonfinite"], row["at"]) == (1, 0, [3, 4])
    assert row["max_abs"] == 2 * abs(x[3, 4])
    np.testing.assert_allclose(row["relative"], row["max_abs"] / math.sqrt((x**2).mean()), rtol=1e-12)
    np.testing.assert_allclose(row["cosine"], 1 - 2 * x[3, 4] ** 2 / (x**2).sum(), rtol=1e-12)
    assert named["model/h0/ln_1/g"]["unmatched_nonfinite"] == 1
    assert "differ" not in named["model/ln_f/b"]
    assert [(row["layer"], row["variables"], row["differ"]) for row in layers] == [
        ("embedding", 1, 1),
        ("h0", 1, 1),
        ("h1", 1, 1),
    ]


def test_numbers_that_json_lacks(cli, tmp_path):
    for name, x in (("a.npz", 1e308), ("b.npz", -1e308)):
        np.savez(tmp_path / name, x=np.float64([x]))
    ran = cli("diff", tmp_path / "a.npz", tmp_path / "b.npz", "--values", "--json")
    row, layer = map(json.loads, ran.out.splitlines())
    assert (row["max_abs"], row["relative"], row["cosine"], layer["layer"]) == (None, None, None, "other")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["checkpoint", "safetensors"])
def test_memory(cli, T, tmp_path, kind):
    """Less than 1.2 of the largest variable, though two of them are compared."""
    a, largest = large(tmp_path / "a")
    b, _ = large(tmp_path / "b", lambda w: w.update({name: x + 1 for name, x in w.items()}))
    few = peak("diff", T, tiny.tiny(tmp_path / "other", seed=7), "--values")
    if kind == "safetensors":
        for name in ("a", "b"):
            assert cli("-m", tmp_path / name, "export", tmp_path / f"{name}-hf").status == 0
        a, b = tmp_path / "a-hf", tmp_path / "b-hf"
    assert peak("diff", a, b, "--values") - few < 1.2 * largest
