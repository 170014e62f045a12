"""What ports get wrong, shown by what a dump holds: epsilon, variance, mask, cached steps, what digits depend on."""

import json
import os
from importlib.metadata import version

import numpy as np
import pytest

import gpt2ln
from gpt2ln.taps import FORMULAS_VERSION

from . import tiny as made_up
from .refusals import done

TEXT = "abc the abd"


def dumped(cli, tmp_path, model, *argv) -> dict[str, np.ndarray]:
    out = tmp_path / "d.npz"
    done(cli("dump", "-m", model, *argv, "-o", out, "-q", "--force"))
    with np.load(out, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def exact_norm(x, epsilon=1e-5, ddof=0, inside=True):
    """float64, from the input that the dump itself holds."""
    x = x.astype(np.float64)
    centred = x - x.mean(-1, keepdims=True)
    var = (centred**2).sum(-1, keepdims=True) / (x.shape[-1] - ddof)
    return centred / (np.sqrt(var + epsilon) if inside else np.sqrt(var) + epsilon)


@pytest.fixture
def faint(tmp_path):
    """T with embeddings a thousandth as large: variances of 1e-7, where epsilon decides."""

    def edit(w):
        w["model/wte"] *= np.float32(1e-3)
        w["model/wpe"] *= np.float32(1e-3)

    return made_up.tiny(tmp_path / "faint", edit)


def test_epsilon_is_1e_5_inside_the_root_and_the_variance_biased(faint, tmp_path, cli):
    """Rows of small variance tell every other formula apart: 1e-6 is what float32 leaves, the next wrong one 2e-4."""
    seen = dumped(cli, tmp_path, faint, TEXT, "-t", "h0/in,h0/ln_1/*")
    x, norm = seen["h0/in"], seen["h0/ln_1/norm"]
    assert seen["h0/ln_1/var"].max() < 1e-6
    np.testing.assert_allclose(norm, exact_norm(x), rtol=0, atol=1e-6)
    wrong = [{"epsilon": e} for e in (1e-6, 1e-12, 1e-3)] + [{"ddof": 1}, {"inside": False}]
    for formula in wrong:
        assert np.abs(norm - exact_norm(x, **formula)).max() > 2e-4, formula
    solved = seen["h0/ln_1/rstd"].astype(np.float64) ** -2 - seen["h0/ln_1/var"]
    np.testing.assert_allclose(solved, 1e-5, rtol=1e-5)  # rstd is rounded to 24 bits, its square to 23


def test_ln_stats_counts_where_epsilon_matters(faint, T, cli):
    rows = [
        json.loads(line) for line in done(cli("ln-stats", "-m", faint, TEXT, "--format", "json", "-q")).splitlines()
    ]
    small = {row["norm"]: row["small"] for row in rows}
    assert small["h0/ln_1"] == rows[0]["count"]
    rows = [json.loads(line) for line in done(cli("ln-stats", "-m", T, TEXT, "--format", "json", "-q")).splitlines()]
    assert {row["small"] for row in rows} == {0}


def test_a_large_mean_leaves_the_variance_two_passes(tmp_path, cli):
    """wpe + 1000: one pass loses all digits of a variance of 0.2; two lose those that the mean's rounding takes."""
    folder = made_up.tiny(tmp_path / "high", lambda w: w["model/wpe"].__iadd__(1000))
    seen = dumped(cli, tmp_path, folder, TEXT, "-t", "h0/in,h0/ln_1/{mean,var,norm}")
    x = seen["h0/in"].astype(np.float64)
    var = x.var(-1, keepdims=True)
    assert (seen["h0/ln_1/var"] > 0).all()
    np.testing.assert_allclose(seen["h0/ln_1/var"], var, rtol=1e-3)  # a mean of 1000 is rounded to 6e-5
    np.testing.assert_allclose(seen["h0/ln_1/norm"], exact_norm(seen["h0/in"]), rtol=0, atol=1e-3)
    single = seen["h0/in"]
    one_pass = (single * single).mean(-1, keepdims=True) - single.mean(-1, keepdims=True) ** 2
    assert np.abs(one_pass - var).max() > 1e-2


def test_a_constant_row_is_what_the_official_steps_make_of_it(tmp_path, cli):
    """The rounded mean of eight equal numbers is that number: the norm is exactly b, its variance exactly 0."""

    def edit(w):
        w["model/wte"][:], w["model/wpe"][:] = np.float32(3.3), 0

    folder = made_up.tiny(tmp_path / "flat", edit)
    seen = dumped(cli, tmp_path, folder, "abc", "-t", "h0/in,h0/ln_1/*")
    u = seen["h0/ln_1/mean"]
    np.testing.assert_array_equal(seen["h0/ln_1/norm"], (seen["h0/in"] - u) * seen["h0/ln_1/rstd"])
    np.testing.assert_allclose(seen["h0/ln_1/rstd"], 1e-5**-0.5, rtol=4e-6)


def test_the_future_is_hidden_at_any_scale(tmp_path, cli):
    """c_attn/w x 1000, another last token: every tap of every earlier position has the same bits."""

    def edit(w):
        for i in (0, 1):
            w[f"model/h{i}/attn/c_attn/w"] *= 1000

    folder = made_up.tiny(tmp_path / "loud", edit)
    a, b = (dumped(cli, tmp_path, folder, "--ids", f"64 65 66 67 {last}", "-t", "**") for last in (68, 90))
    for name in a:
        if name in ("tokens", "doc_ptr", "meta", "token_bytes", "token_ptr"):
            continue
        np.testing.assert_array_equal(a[name][:4], b[name][:4], err_msg=name)
        if name.endswith("/probs"):
            np.testing.assert_array_equal(np.triu(a[name][:, 0], 1), 0)
            np.testing.assert_allclose(a[name].sum(-1), 1, rtol=1e-6)
    assert not np.array_equal(a["logits"][4], b["logits"][4])


def test_greedy_ids_are_the_argmax_of_dumped_logits(T, tmp_path, cli):
    """Cached steps against one clean pass: ids equal, log-probabilities within 1e-4."""
    ran = done(cli("generate", "-m", T, "abc", "--length", 8, "--greedy", "--format", "jsonl", "--logprobs", 1, "-q"))
    sample = json.loads(ran)
    ids = gpt2ln.load(T).encode("abc") + sample["tokens"]
    logits = dumped(cli, tmp_path, T, "--ids", " ".join(map(str, ids)), "-t", "logits")["logits"].astype(np.float64)
    rows = logits[2:10]
    np.testing.assert_array_equal(rows.argmax(-1), sample["tokens"])
    logp = rows.max(-1) - np.log(np.exp(rows - rows.max(-1, keepdims=True)).sum(-1)) - rows.max(-1)
    np.testing.assert_allclose([step["logprob"] for step in sample["logprobs"]], logp, rtol=0, atol=1e-4)


def test_a_dump_says_what_its_digits_depend_on(T, tmp_path, cli):
    meta = json.loads(str(dumped(cli, tmp_path, T, "abc")["meta"]))
    assert meta["tensorflow"] == version("tensorflow")
    assert (meta["tf32"], meta["device"], meta["engine"]) == (False, "cpu", "exact")
    assert isinstance(meta["onednn"], bool)
    assert meta["threads"] == len(os.sched_getaffinity(0))
    assert meta["cpu"]
    assert meta["formulas_version"] == FORMULAS_VERSION
    assert meta["model"]["hparams"]["n_embd"] == 8
    assert set(meta["tokenizer_sha256"]) == {"encoder.json", "vocab.bpe"}


def test_norms_of_real_width_are_the_official_steps(tmp_path, cli):
    """Width 768 through the whole pass: out is ((x - u) * r) * g + b of the dumped values, not one bit else."""
    folder = made_up.tiny(tmp_path / "wide", n_embd=768, n_head=12, n_layer=1)
    seen = dumped(cli, tmp_path, folder, TEXT, "-t", "h0/{in,mid},h0/ln_*/*")
    gains = gpt2ln.load(folder).gains()
    for norm, of in (("h0/ln_1", "h0/in"), ("h0/ln_2", "h0/mid")):
        u, r = seen[f"{norm}/mean"], seen[f"{norm}/rstd"]
        g, b = gains[norm]["g"], gains[norm]["b"]
        np.testing.assert_array_equal(seen[f"{norm}/out"], ((seen[of] - u) * r) * g + b)
        folded = (seen[of] - u) * (r * g) + b
        assert (folded != seen[f"{norm}/out"]).mean() > 0.05
