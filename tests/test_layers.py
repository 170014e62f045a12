"""Who may import whom: a module imports only modules of a smaller rank, and one alone opens TensorFlow."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gpt2ln

PACKAGE = Path(gpt2ln.__file__).parent
TOP = "commands"
RANK = {
    "errors": 0,
    "abreast": 1,
    "bodies": 1,
    "disk": 1,
    "hush": 1,
    "marks": 1,
    "mistakes": 1,
    "processor": 1,
    "prompt": 1,
    "published": 1,
    "spec": 1,
    "table": 1,
    "tally": 1,
    "unbroken": 1,
    "aliases": 2,
    "answers": 2,
    "apart": 2,
    "bpe": 2,
    "checkpoint": 2,
    "claim": 2,
    "extents": 2,
    "finding": 2,
    "hf": 2,
    "litert": 2,
    "locate": 2,
    "provenance": 2,
    "request": 2,
    "runtime": 2,
    "sample": 2,
    "shards": 2,
    "stats": 2,
    "stump": 2,
    "whole": 2,
    "distance": 3,
    "fetch": 3,
    "model": 3,
    "official": 3,
    "pins": 3,
    "prepared": 3,
    "settings": 3,
    "speculate": 3,
    "summary": 3,
    "sums": 3,
    "taps": 3,
    "tensors": 3,
    "weights": 3,
    "convert": 4,
    "diff": 4,
    "engine": 4,
    "export": 4,
    "fast": 4,
    "figure": 4,
    "foreign": 4,
    "gains": 4,
    "layouts": 4,
    "plan": 4,
    "reference": 4,
    "replay": 4,
    "restore": 4,
    "runs": 4,
    "verify": 4,
    "wanted": 4,
    "download": 5,
    "dump": 5,
    "folder": 5,
    "gains_figure": 5,
    "generate": 5,
    "hypothesis": 5,
    "inventory": 5,
    "noise": 5,
    "page": 5,
    "prepare": 5,
    "proof": 5,
    "readings": 5,
    "variants": 5,
    "case": 6,
    "observe": 6,
    "pairing": 6,
    "score": 6,
    "study": 6,
    "wrong_blocks": 6,
    "wrong_norms": 6,
    "evidence": 7,
    "library": 7,
    "rewritings": 7,
    "rowwise": 7,
    "study_figure": 7,
    "causes": 8,
    "proving": 8,
    "compare": 9,
    "doctor": 9,
    TOP: 10,
}
# Within commands/: one file a command, which imports no other command, but for the few that are made of one.
SHARED = {
    "options": 0,
    "output": 0,
    "shells": 0,
    "signals": 0,
    "offers": 1,
    "prompts": 1,
    "ln_tables": 1,
    "study_tables": 1,
    "speculating": 1,
    "variables": 1,
    "comparing": 1,
    "documents": 2,
    "dumping": 2,
    "gain_tables": 2,
    "talking": 2,
}
MADE_OF = {"interact": {"generate"}, "download": {"prepare", "verify"}}
FACE = {"__init__": {"library", "commands"}, "__main__": {"commands"}}

FLAT = sorted(path for path in PACKAGE.glob("*.py"))
COMMANDS = sorted((PACKAGE / TOP).glob("*.py"))
ALL = sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Dotted names that a file imports, anywhere in it; relative ones with the package's name in front."""
    package = ["gpt2ln", *path.relative_to(PACKAGE).parts[:-1]]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, *([node.module] if node.module else [])]
            found |= {".".join([*base, alias.name]) for alias in node.names}
    return found


def modules(path: Path) -> set[str]:
    """Modules of this package that a file imports: `errors`, `commands`, ..."""
    within = [name.split(".")[1] for name in imports(path) if name.startswith("gpt2ln.")]
    return {name for name in within if name in RANK}


def test_the_table_names_every_module_and_no_other():
    assert sorted(RANK) == sorted({path.stem for path in FLAT} - set(FACE) | {TOP})


@pytest.mark.parametrize("path", FLAT, ids=lambda path: path.stem)
def test_a_module_imports_only_smaller_ranks(path):
    used = modules(path)
    if path.stem in FACE:
        assert used <= FACE[path.stem]
    else:
        assert {name: RANK[name] for name in used if RANK[name] >= RANK[path.stem]} == {}


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.stem)
def test_a_command_imports_no_other_command(path):
    beside = {name.split(".")[2] for name in imports(path) if name.startswith(f"gpt2ln.{TOP}.")}
    beside = {name for name in beside if (PACKAGE / TOP / f"{name}.py").exists()}
    if path.stem in SHARED:
        assert {name for name in beside if SHARED.get(name, 9) >= SHARED[path.stem]} == set()
    else:
        assert beside <= set(SHARED) | MADE_OF.get(path.stem, set())


def test_imports_are_seen():
    """The reader of imports itself: absolute, relative, from within functions, one and two levels up."""
    assert {"checkpoint", "locate", "engine", "runtime", "generate"} <= modules(PACKAGE / "library.py")
    assert {"taps", "weights", "locate"} <= modules(PACKAGE / TOP / "taps.py")
    assert "gpt2ln.commands.output.as_json" in imports(PACKAGE / TOP / "taps.py")
    assert modules(PACKAGE / "__init__.py") == {"library"}


def test_the_design_says_the_same():
    rows = re.findall(r"^\| (\d+) \| (`.*?) \|", (PACKAGE.parent / "docs/design.md").read_text(), re.MULTILINE)
    said = {name.rstrip("/"): int(rank) for rank, names in rows for name in re.findall(r"`([\w/]+)`", names)}
    assert said == RANK


@pytest.mark.parametrize(
    "path", [p for p in FLAT if p.stem not in ("hush", "runtime", "library")], ids=lambda path: path.stem
)
def test_no_environment_and_no_clock_below_the_commands(path):
    source = path.read_text(encoding="utf-8")
    assert not re.findall(
        r"\bos\.(?:environ|getenv)|^import time|\btime\.(?:time|perf_counter)|\bdatetime\b", source, re.MULTILINE
    )


# TensorFlow


def test_one_module_opens_tensorflow():
    using = {path.stem for path in ALL if any(name.split(".")[0] == "tensorflow" for name in imports(path))}
    assert using == {"runtime"}


def test_nothing_of_tensorflow_1_and_nothing_of_keras():
    for path in ALL:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node).startswith(("tf.", "tensorflow.")):
                assert not {"compat", "contrib", "keras"} & set(ast.unparse(node).split(".")), (path, ast.unparse(node))
        assert [name for name in imports(path) if {"compat", "contrib", "keras"} & set(name.split("."))] == [], path


def loaded(code: str) -> set[str]:
    """Top-level modules after `code` in a fresh interpreter."""
    report = "; import json, sys; print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    run = subprocess.run([sys.executable, "-W", "error", "-c", code + report], capture_output=True, cwd=PACKAGE.parent)
    assert run.returncode == 0, run.stderr.decode()
    return set(json.loads(run.stdout))


def test_importing_the_package_imports_nothing_heavy():
    heavy = {"numpy", "tensorflow", "click", "tiktoken", "requests", "safetensors", "tqdm", "google_crc32c"}
    assert loaded("import gpt2ln; gpt2ln.__version__") & heavy == set()
    assert loaded("import gpt2ln; gpt2ln.load") & heavy == {"google_crc32c"}


def test_light_modules_stay_light():
    assert loaded("import gpt2ln.taps, gpt2ln.spec, gpt2ln.locate, gpt2ln.prompt") & {"numpy", "tensorflow"} == set()
    assert loaded("import gpt2ln.bpe") & {"numpy", "tensorflow", "tiktoken"} == set()
    assert (
        loaded("import gpt2ln.commands.options, gpt2ln.commands.prompts") & {"numpy", "tensorflow", "tiktoken"} == set()
    )


# house style that a machine can hold


@pytest.mark.parametrize("path", [p for p in FLAT if p.stem != "__main__"], ids=lambda path: path.stem)
def test_no_printing_below_the_commands(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert called & {"print", "input", "exit", "quit", "sys.exit", "sys.stdout.write", "sys.stderr.write"} == set()


@pytest.mark.parametrize("path", ALL, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_file_over_300_lines_and_each_says_what_it_is(path):
    text = path.read_text(encoding="utf-8")
    assert 0 < len(text.splitlines()) <= 300
    if path.stem != "__main__":
        assert ast.get_docstring(ast.parse(text))
