"""What `verify` finds of a folder, by file, and what tests hold it against."""

import hashlib
from pathlib import Path

from gpt2ln.finding import Finding
from gpt2ln.locate import Place
from gpt2ln.pins import Pin, write_pins
from gpt2ln.published import DATA, INDEX
from gpt2ln.verify import verify

NAMES = ["hparams.json", "encoder.json", "vocab.bpe", "checkpoint", INDEX, DATA]


def looked(folder: Path, **how) -> dict[str, Finding]:
    return {finding.file: finding for finding in verify(Place(folder.name, folder), **how)}


def states(findings: dict[str, Finding]) -> dict[str, str]:
    """All that is not ok."""
    return {name: finding.state for name, finding in findings.items() if finding.state != "ok"}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def pin_all(folder: Path, source: str | None = None) -> dict[str, Pin]:
    pins = {name: Pin(f.size, f.sha256, f.mtime_ns) for name, f in looked(folder, digests=True).items()}
    write_pins(folder, pins, model=folder.name, source=source)
    return pins


def found_bad(ran, status: int, *words: object) -> str:
    """-> the one error line, which comes after what was found."""
    errors = [line for line in ran.err.splitlines() if line.startswith("error: ")]
    assert (ran.status, len(errors), bool(ran.out)) == (status, 1, True), ran
    assert "Traceback" not in ran.err, ran
    for word in words:
        assert str(word) in errors[0], f"{word!r} is not in: {errors[0]}"
    return errors[0]
