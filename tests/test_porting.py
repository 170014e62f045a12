"""The recipes of docs/porting.md run as they stand, and `compare` reads what they write."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from gpt2ln.compare import EQUAL, ROUNDING, Measure, compare
from gpt2ln.readings import read

from .conftest import ROOT
from .ports import IDS, reading

PAGE = (ROOT / "docs/porting.md").read_text(encoding="utf-8")


def recipes(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def against_float64(m, taps):
    """What `compare` says of taps that stand beside the real ones."""
    return compare(reading(m.observe(IDS, "**")), taps, Measure(m.hparams, m.weights))


def test_pytorch(small, hf):
    torch = pytest.importorskip("torch", reason="the [bench] extra is not installed")
    transformers = pytest.importorskip("transformers", reason="the [bench] extra is not installed")
    net = transformers.GPT2LMHeadModel.from_pretrained(hf, attn_implementation="eager").eval()
    scope: dict = {}
    exec(recipes("python")[0], scope)
    scope["dump"](net, list(IDS), hf / "port.npz")
    found = read(hf / "port.npz", small.hparams)
    report = against_float64(small, found)
    assert (report.verdict, report.causes, report.only[1]) == (ROUNDING, (), ())
    leaves = ["ln_1/out", "attn/q", "attn/k", "attn/v", "attn/out", "ln_2/out", "mlp/fc", "mlp/gelu", "mlp/out", "out"]
    blocks = [f"h{i}/{leaf}" for i in (0, 1) for leaf in leaves]
    assert [row.tap for row in report.rows] == ["wte/out", "wpe/out", "embed", *blocks, "ln_f/out", "logits"]
    with torch.no_grad():
        out = net(torch.tensor([IDS]), output_hidden_states=True, output_attentions=True)
    arrays = {f"hidden_states[{i}]": x.numpy() for i, x in enumerate(out.hidden_states)}
    arrays |= {f"attentions[{i}]": x.numpy() for i, x in enumerate(out.attentions)}
    np.savez(hf / "outputs.npz", **arrays)
    report = against_float64(small, read(hf / "outputs.npz", small.hparams))
    assert report.verdict == ROUNDING
    assert {row.tap for row in report.rows} == {"h0/in", "h1/in", "ln_f/out", "h0/attn/probs", "h1/attn/probs"}


def test_jax(small, here):
    """What it needs of JAX, NumPy has too."""
    scope: dict = {}
    exec(recipes("python")[1].replace("import jax.numpy as jnp", "import numpy as jnp"), scope)
    see: dict = {}
    x = small.observe(IDS, "h1/mid")["h1/mid"]
    g, b = (small.weights[f"model/h1/ln_2/{leaf}"] for leaf in "gb")
    scope["norm"](x, g, b, see, "h1/ln_2")
    scope["save"]("port.npz", IDS, see)
    report = against_float64(small, read(Path("port.npz")))
    assert report.verdict in (EQUAL, ROUNDING)
    assert [row.tap for row in report.rows] == [f"h1/ln_2/{leaf}" for leaf in ("mean", "var", "rstd", "out")]


def test_c(small, here):
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    main = """
    int main(void) {
        static float x[56], q[56];
        fread(x, 4, 56, stdin), fread(q, 4, 56, stdin);
        dump("port/h0.ln_1.out.npy", x, 7, 8), dump("port/h0.attn.q.npy", q, 7, 8);
        return 0;
    }
    """
    Path("port.c").write_text(recipes("c")[0] + main)
    Path("port").mkdir()
    taps = small.observe(IDS, "h0/ln_1/out,h0/attn/q")
    subprocess.run([compiler, "-Werror=format", "port.c", "-o", "a.out"], check=True)
    subprocess.run(["./a.out"], input=b"".join(x.tobytes() for x in taps.values()), check=True)
    report = against_float64(small, read(Path("port"), small.hparams))
    assert (report.verdict, len(report.rows)) == (EQUAL, 2)


def test_the_commands_of_the_page(cli, T, here, warm, small):
    """The two lines at its top, of the tiny model."""
    lines = re.findall(r"^    gpt2ln (.*)$", PAGE, re.MULTILINE)
    assert [line.split()[0] for line in lines] == ["dump", "compare"]
    assert cli("dump", "-m", T, "To be", "-t", "**", "-o", "right.npz").status == 0
    np.savez("port.npz", tokens=np.array(small.encode("To be")), **small.observe("To be", "**"))
    ran = cli(*lines[1].split(), "-m", T)
    assert (ran.status, "55 taps in both: 55 equal" in ran.out) == (0, True)
