"""The benchmark's judgement: ratios, targets, tables, the picture; on figures that are made up here."""

import copy
import importlib
import json

import numpy as np
import pytest

from gpt2ln.spec import HParams, variables

from .conftest import ROOT


@pytest.fixture(autouse=True)
def beside_each_other(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")


@pytest.fixture
def report():
    return importlib.import_module("bench_report")


@pytest.fixture
def bench():
    return importlib.import_module("bench")


@pytest.fixture
def formats():
    return importlib.import_module("bench_formats")


def row(unit, **values):
    return {"unit": unit, "values": {name.replace("_", " "): held for name, held in values.items()}}


FOUND = {
    "date": "2026-11-30T10:00:00+00:00",
    "machine": {"processor": "A Processor", "cores": 2, "memory_bytes": 1, "threads": 2},
    "rounds": 3,
    "shape": {"n_vocab": 50257, "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12},
    "systems": ["gpt2ln exact", "gpt2ln fast", "transformers", "CTranslate2"],
    "left_out": {"llama.cpp": ["llama-cpp-python", "gguf"]},
    "rows": {
        # of the fast one: medians 20 and 20, and yet slower than the peer in two rounds of three
        "decode, context 32-160": row(
            "tokens/s", gpt2ln_exact=[9, 9, 9], gpt2ln_fast=[10, 20, 30],
            transformers=[5, 5, 5], CTranslate2=[20, 40, 15],
        ),
        "decode, context 900-1020": row("tokens/s", gpt2ln_fast=[8, 16, 24], CTranslate2=[8, 16, 24]),
        "decode, a repeated prompt": row("tokens/s", gpt2ln_fast=[10, 10, 10]),
        "the same, --speculate lookup": row("tokens/s", gpt2ln_fast=[18, 19, 20]),
        "cold process, 40 tokens": row("s", gpt2ln_exact=[9, 9, 9], gpt2ln_fast=[3, 3, 3], transformers=[10, 10, 10]),
        "peak memory, all of the rows above": row("bytes", gpt2ln_fast=[660e6], transformers=[1190e6]),
        "weights": row("bytes", checkpoint=[500e6]),
    },
    "greedy": {
        "decode, context 32-160": {"gpt2ln fast": [129, 129], "CTranslate2": [100, 129]},
        "decode, context 900-1020": {"gpt2ln fast": [121, 121]},
        "decode, a repeated prompt": {},
    },
    "speculation": {"guesses": 12, "accepted": 7, "passes": 30},
    "distance": {"kl": 1e-12},
    "load_average": [0.3, 3.2],
}  # fmt: skip


def found():
    return copy.deepcopy(FOUND)


def reached(report, found):
    return {(it["row"], it["system"], it["target"]): (it["reached"], it["held"]) for it in report.judged(found)}


def test_a_ratio_is_the_median_of_those_of_single_rounds(report):
    it = reached(report, found())
    early = "decode, context 32-160", "gpt2ln fast", "at least 1x CTranslate2"
    assert it[early] == (0.5, False)  # the ratio of the medians is 1
    assert it["decode, context 900-1020", "gpt2ln fast", "at least 1x CTranslate2"] == (1.0, True)


def test_bounds_of_both_kinds(report):
    it = reached(report, found())
    cold = "cold process, 40 tokens"
    assert it[cold, "gpt2ln fast", "at most 0.35x transformers"] == (0.3, True)
    assert it[cold, "gpt2ln exact", "at most 0.9x transformers"] == (0.9, True)
    assert it["the same, --speculate lookup", "gpt2ln fast", "at least 1.8x decode, a repeated prompt"] == (1.9, True)
    peak = "peak memory, all of the rows above"
    assert it[peak, "gpt2ln fast", "at most 1.3x weights"] == (1.32, False)
    assert it["decode, context 900-1020", "gpt2ln fast", "at least 0.8x decode, context 32-160"] == (0.8, True)


@pytest.mark.parametrize(("value", "held"), [(15.9e9, True), (16.1e9, False)])
def test_a_bound_of_its_own(report, value, held):
    it = found()
    it["rows"]["1558M: prepare, peak memory"] = row("bytes", gpt2ln_fast=[value])
    key = "1558M: prepare, peak memory", "gpt2ln fast", "at most 16.00 GB"
    assert reached(report, it)[key] == (value, held)


def test_what_was_not_measured_is_not_held(report):
    it = reached(report, found())
    assert it["decode, context 32-160", "gpt2ln fast", "at least 0.95x llama.cpp"] == (None, None)
    assert not any(name.startswith(("1558M", "batch", "prefill")) for name, *_ in it)


def test_rounds_that_are_missing_are_noticed(report):
    it = found()
    it["rows"]["decode, context 32-160"]["values"]["CTranslate2"].pop()
    with pytest.raises(ValueError, match="zip"):
        report.judged(it)


def test_tables_say_medians_with_units(report):
    it = found()
    it["targets"] = report.judged(it)
    header, *rows = report.table(it)
    assert header == ("", "gpt2ln exact", "gpt2ln fast", "transformers", "CTranslate2")
    assert rows[0] == ("decode, context 32-160", "9.0 tokens/s", "20.0 tokens/s", "5.0 tokens/s", "20.0 tokens/s")
    assert rows[1][1:] == ("-", "16.0 tokens/s", "-", "16.0 tokens/s")
    assert rows[-1] == ("peak memory, all of the rows above", "-", "0.66 GB", "1.19 GB", "-")
    verdicts = list(report.verdicts(it))
    assert verdicts[1] == ("decode, context 32-160", "gpt2ln fast", "at least 1x CTranslate2", "0.50x", "MISSED")
    assert verdicts[2][2:] == ("at least 0.95x llama.cpp", "-", "not measured")
    assert verdicts[3][2:] == ("at least 1x CTranslate2", "1.00x", "held")


def test_figures_of_every_size(report):
    said = [report.said("tokens/s", 99.94), report.said("tokens/s", 1234.6), report.said("s", 0.126)]
    assert said == ["99.9 tokens/s", "1235 tokens/s", "0.13 s"]


def test_remarks_say_what_is_missing_and_what_differs(report):
    assert list(report.remarks(found())) == [
        "llama.cpp was not measured: not installed (llama-cpp-python, gguf)",
        "greedy ids, decode, context 32-160: equal but CTranslate2's for the first 100 of 129",
        "greedy ids, decode, context 900-1020: equal",
        "speculation: 7 of 12 guesses accepted, 30 passes over the weights",
        "fast from exact: kl 1e-12",
        "load average up to 3.2: other processes ran at the same time",
    ]
    quiet = found() | {"load_average": [2.4], "left_out": {}, "greedy": {}, "speculation": None, "distance": None}
    assert list(report.remarks(quiet)) == []


def test_markdown_is_two_tables(report):
    it = found()
    it["targets"] = report.judged(it)
    first, second = report.markdown(it).strip().split("\n\n")
    for block, columns in ((first, 5), (second, 5)):
        assert {line.count("|") for line in block.splitlines()} == {columns + 1}
        assert block.splitlines()[1] == "| " + " | ".join(["---"] * columns) + " |"
    assert first.startswith("| 2026-11-30 | gpt2ln exact | gpt2ln fast |")
    assert "llama.cpp" not in second


def test_the_picture_has_a_bar_for_each_system(report, tmp_path):
    image = pytest.importorskip("matplotlib.image")
    figure = report.picture(found())
    assert [panel.get_title().split("\n") for panel in figure.axes if panel.axison] == [
        ["decode, context 32-160", "more is better"],
        ["decode, context 900-1020", "more is better"],
        ["cold process, 40 tokens", "less is better"],
        ["peak memory, all of the rows above", "less is better"],
    ]
    assert [label.get_text() for label in figure.axes[2].texts] == ["9.00 s", "3.00 s", "10.00 s"]
    figure.savefig(tmp_path / "it.png", dpi=130)
    pixels = image.imread(tmp_path / "it.png")[..., :3]
    for system in FOUND["systems"]:
        code = report.COLOURS[system]
        colour = [int(code[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        assert 500 < (np.abs(pixels - colour).max(axis=-1) < 0.01).sum() < pixels.shape[0] * pixels.shape[1] / 4, system


def test_ids_are_counted_up_to_the_first_that_differs(bench):
    it = bench.Found()
    it.ids = {
        "a": {"gpt2ln exact": [[1, 2], [4, 5, 6]], "gpt2ln fast": [[1, 2], [4, 5, 6]], "peer": [[1, 0], [0, 5, 6]]},
        bench.REPEATED: {"gpt2ln fast": [[7, 8]]},
        bench.LOOKUP: {"gpt2ln fast": [[7, 9]]},
    }  # fmt: skip
    assert it.greedy() == {
        "a": {"gpt2ln fast": [5, 5], "peer": [1, 5]},
        bench.REPEATED: {},
        bench.LOOKUP: {"gpt2ln fast": [1, 2]},
    }
    with pytest.raises(ValueError, match="zip"):
        bench.before_apart([1, 2], [1, 2, 3])


def test_tasks_fit_the_context_and_the_vocabulary(bench):
    every = {task.row: task.call for task in bench.tasks(1024, 50257)}
    assert [len(ids) for ids in (every["decode, context 32-160"][1], every["decode, context 900-1020"][1])] == [32, 900]
    assert len(every["prefill, 1,023 tokens"][1]) == 1023
    prompts = every["batch of 8, 32 + 64 tokens each"][1]
    assert [len(ids) for ids in prompts] == [32] * 8
    assert len({tuple(ids) for ids in prompts}) == 8
    repeated = every["decode, a repeated prompt"][1]
    assert repeated == repeated[:16] * 8
    assert every["the same, --speculate lookup"] == ("lookup", repeated, 128)
    for task in bench.tasks(256, 3):
        if task.call[0] in ("decode", "lookup"):
            assert len(task.call[1]) + task.call[2] <= 256
    assert set(bench.text(500, 3)) == {0, 1}


def test_a_peer_that_is_not_installed_is_named(formats, bench, monkeypatch, capsys, T):
    monkeypatch.setitem(formats.PACKAGES, "llama.cpp", ("numpy", "no-such-package-a", "no-such-package-b"))
    monkeypatch.setattr(bench, "prepare", lambda folder: None)
    systems, left_out, record = bench.chosen(str(T), ["llama.cpp"])
    assert systems == ["gpt2ln exact"]
    assert left_out == {"llama.cpp": ["no-such-package-a", "no-such-package-b"]}
    assert record is None
    assert capsys.readouterr().err == "llama.cpp is left out: not installed (no-such-package-a, no-such-package-b)\n"


def test_another_checkpoint_has_models_of_its_own(formats, tmp_path, monkeypatch):
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "model.ckpt.index").write_bytes(b"a")
    first = formats.kept(str(folder), "llama.cpp")
    assert (first.name, first.parent.parent) == ("llama.cpp", tmp_path / "m.bench")
    assert formats.kept(f"{folder}/", "llama.cpp") == first
    monkeypatch.chdir(folder)
    assert formats.kept(".", "llama.cpp") == first
    (folder / "model.ckpt.index").write_bytes(b"b")
    assert formats.kept(str(folder), "llama.cpp") != first


def test_every_variable_has_a_name_in_gguf(formats):
    names = [formats.to_gguf(name) for name in variables(HParams(300, 64, 32, 4, 12))]
    assert len(set(names)) == len(names) == 12 * 12 + 4
    assert {"token_embd.weight", "position_embd.weight", "output_norm.weight", "output_norm.bias"} < set(names)
    of_11 = {name.removeprefix("blk.11.") for name in names if name.startswith("blk.11.")}
    parts = ("attn_norm", "attn_qkv", "attn_output", "ffn_norm", "ffn_up", "ffn_down")
    assert of_11 == {f"{part}.{leaf}" for part in parts for leaf in ("weight", "bias")}


@pytest.mark.parametrize("argv", [["--rounds", "0"], ["--peers", "transformers,vllm"]])
def test_what_makes_no_sense_is_refused(bench, monkeypatch, capsys, argv):
    monkeypatch.setattr("sys.argv", ["bench", *argv])
    with pytest.raises(SystemExit) as ended:
        bench.main()
    assert ended.value.code == 2
    assert "expected 1 or more, and of transformers, CTranslate2, llama.cpp" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["bench.png", "no/such/folder.json"])
def test_figures_that_could_not_be_written_are_not_measured(bench, monkeypatch, capsys, here, name):
    monkeypatch.setattr("sys.argv", ["bench", "-o", name])
    with pytest.raises(SystemExit) as ended:
        bench.main()
    assert ended.value.code == 2
    assert f"-o {name}: expected a name in .json, in a folder that is there" in capsys.readouterr().err


def test_a_context_that_is_too_short_is_refused(bench, T):
    with pytest.raises(SystemExit, match="context 16, expected 256 or more"):
        bench.measure(str(T), [], 1)


def test_what_is_written_names_date_machine_and_versions(bench, tmp_path):
    bench.write(str(tmp_path / "a.json"), {"figure": 1}, ("numpy", "no-such-package"))
    it = json.loads((tmp_path / "a.json").read_text())
    assert it["versions"] == {"numpy": np.__version__}
    assert it["machine"]["processor"]
    assert it["machine"]["memory_bytes"] > 1e8
    assert it["date"][4] == it["date"][7] == "-"
