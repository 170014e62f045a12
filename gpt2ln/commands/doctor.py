"""`doctor`: what this machine is, and what is proved on it."""

import contextlib
import locale
import math
import os
import sys
import textwrap
from dataclasses import asdict
from pathlib import Path

import click

from .. import __version__
from ..errors import Different, NotFound, UsageError, first_five
from .options import command
from .output import as_json, as_table

WIDTH, CELL = 80, 40
# What moves digits, threads or letters; of nothing else is the value shown.
TELLING = (
    *("TF_ENABLE_ONEDNN_OPTS", "ONEDNN_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE", "NVIDIA_TF32_OVERRIDE"),
    *("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS", "TF_XLA_FLAGS", "XLA_FLAGS"),
    *("CUDA_VISIBLE_DEVICES", "LC_ALL", "LC_CTYPE", "LANG", "PYTHONUTF8", "PYTHONIOENCODING", "TERM", "NO_COLOR"),
)


@command("doctor", "gpt2ln doctor")
@click.option("--json", "form", is_flag=True, help="All of it, as one object.")
def command(g, form):
    """What this machine is, then proofs that it computes GPT-2 as published: each with its number and its limit.

    They run on the built-in demo and on a small checkpoint with what the official source computed on it; with -m on
    that model, too.  Paths and names of people are left out: it is meant to be pasted.  -q silences notes alone.

    Exit status: 0 all hold; 1 one does not; 3 there is no TensorFlow to prove anything with.
    """
    from .. import doctor

    if g.verbose:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "0")
    own = _own(g)
    found, machine, missing = doctor.packages(), doctor.machine() | _terminal(), None
    try:
        machine |= doctor.tensorflow_facts(threads=g.threads, device=g.device or "cpu")
    except NotFound as cause:
        missing = cause
    models = doctor.models(g.shelves, g.kept)
    if not form:
        click.echo(_facts(found, machine, models), nl=False)
        sys.stdout.flush()  # what comes now may end the process
    proofs = list(_proved(g, doctor, own, found, missing))
    if form:
        record = {"gpt2ln": __version__, "packages": [asdict(p) for p in found], "machine": machine, "models": models}
        click.echo(as_json(record | {"proofs": [_record(name, proof) for name, proof in proofs]}))
    else:
        click.echo(_table(proofs), nl=False)
    _raise(proofs, missing)


def _own(g):
    """The model that was asked for: no other is, since the 124M takes its time."""
    for option, value in (("--models-dir", g.models_dir), ("--cache-dir", g.cache_dir)):
        if value == "":
            raise UsageError(f"{option}: empty, expected a path")
    if g.model_name is None and g.checkpoint is None:
        g.note("proofs on: golden, demo (another model, too: -m NAME)")
        return None
    model = g.open()
    g.afford(model, 1, model.hparams.n_ctx)
    return model


def _terminal() -> dict:
    """Encodings that texts go through, and what is set that changes results."""
    said = [f"{name}={os.environ[name][:24]}" for name in TELLING if name in os.environ]
    return {
        "encoding": locale.getpreferredencoding(False),
        "stdout": getattr(sys.stdout, "encoding", None) or "none",
        "environment": said,
    }


def _proved(g, doctor, own, found, missing):
    """Every proof that can be tried -> name, Proof; where TensorFlow is missing, that it is."""
    from ..proof import Proof

    patients = doctor.Patients.of(own, threads=g.threads, device=g.device or "cpu", cache_dir=g.kept)
    private = [os.path.expanduser("~"), str(Path(__file__).parents[2]), sys.prefix]
    with contextlib.suppress(OSError):  # removed meanwhile
        private.append(os.getcwd())
    if own is not None:
        private += [str(own.place.folder), str(own.place.folder.absolute()), str(own.place.prefix.parent)]
    proofs = doctor.without_tensorflow(patients, found)
    if missing is None:
        proofs += doctor.with_tensorflow(patients, g.device or "cpu")
    with g.progress(len(proofs), unit=" proofs") as bar:
        for name, proof in doctor.run(proofs, private):
            yield name, proof
            bar.update(1)
    if missing is not None:
        yield "TensorFlow", Proof(False, doctor.nameless(str(missing).removeprefix("TensorFlow: "), private))


def _raise(proofs, missing) -> None:
    if missing is not None:
        raise missing
    if failed := [name for name, proof in proofs if proof.holds is False]:
        raise Different(f"{len(failed)} of {len(proofs)} proofs fail: {first_five(failed)}; expected all to hold")


def _facts(found, machine, models) -> str:
    """Three tables, a blank line after each."""
    rows = [["gpt2ln", __version__, ""]]
    rows += [[p.name, p.found or "not installed", p.least and f">= {p.least}"] for p in found]
    packages = as_table(["package", "found", "needed"], rows, left=(0, 1, 2))
    facts = as_table(["machine", "found"], [[key, text] for key, text in _machine(machine)], left=(0, 1))
    rows = [[_cut(m["name"]), m["state"], m["verified"], _fast(m["fast"])] for m in models]
    return f"{packages}\n{facts}\n{as_table(['model', 'state', 'verified', 'fast'], rows, left=(0, 1, 2, 3))}\n"


def _machine(facts: dict):
    """In words, what does not fit a line on several."""
    for key, value in facts.items():
        name, text = key.replace("_", " "), value
        if key == "memory_bytes":
            name, text = "memory", f"{value / 2**30:.1f} GiB"
        elif isinstance(value, bool):
            text = "on" if value else "off"
        elif isinstance(value, list):
            text = (", " if key == "gpus" else " ").join(value) or "none"
        for line in textwrap.wrap(str(text), WIDTH - 15, break_on_hyphens=False) or [""]:
            yield name, line
            name = ""


def _fast(engine: dict | None) -> str:
    """As `models` shows it."""
    if engine is None:
        return "-"
    return f"{engine['distance']['max_abs_dlogit']:.1e}" if engine["distance"] else engine["state"]


def _table(proofs) -> str:
    """One line a proof; what does not fit comes below, in full."""
    long = [(name, proof) for name, proof in proofs if len(proof.found) > CELL]
    rows = [[name, _holds(proof), _cut(proof.found), _limit(proof)] for name, proof in proofs]
    text = as_table(["proof", "holds", "found", "limit"], rows, left=(0, 1, 2))
    for name, proof in long:
        text += "\n" + textwrap.fill(" ".join(f"{name}: {proof.found}".split()), WIDTH) + "\n"
    counts = {word: sum(_holds(proof) == word for _, proof in proofs) for word in ("yes", "NO", "-")}
    return f"{text}\n{counts['yes']} hold, {counts['NO']} fail, {counts['-']} not tried\n"


def _holds(proof) -> str:
    return {True: "yes", False: "NO", None: "-"}[proof.holds]


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= CELL else text[: CELL - 3] + "..."


def _limit(proof) -> str:
    return "" if proof.limit is None else f"{proof.limit:g}"


def _record(name: str, proof) -> dict:
    """JSON has no NaN: the words tell."""
    number = proof.number if proof.number is None or math.isfinite(proof.number) else None
    return {"proof": name} | asdict(proof) | {"number": number}
