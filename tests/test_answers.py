"""The published answers: whole, taken from the right sources, and judged as strictly as they are sure."""

import json
import zipfile
from copy import deepcopy

import numpy as np
import pytest

from gpt2ln import published
from gpt2ln.answers import PUBLISHED, check, read_answers
from gpt2ln.bpe import Bpe
from gpt2ln.sample import Sampling
from gpt2ln.spec import RELEASED, HParams

from . import tiny
from .conftest import ROOT
from .findings import found_bad
from .refusals import done, refused
from .vocabulary import official_files

GREEDY = Sampling(temperature=0.0)


def asked(model, *answers):
    return list(check(model, answers, greedy=GREEDY))


def one(model, answer):
    (held,) = asked(model, answer)
    return held


# --- the table ----------------------------------------------------------------------------------------------------


def test_every_released_model_is_in_the_table():
    """How many each has; of the larger two, none."""
    answers = read_answers()
    assert {model: len(some) for model, some in answers.items()} == {"124M": 27, "355M": 2, "774M": 0, "1558M": 0}
    assert list(answers) == list(RELEASED)
    assert [a["name"] for a in answers["124M"] if a["sure"]] == [
        "I enjoy walking with my cute dog", "Every effort moves you", "The dog",
        'THIS SOFTWARE IS PROVIDED "AS IS", WITHOUT',
    ]  # fmt: skip
    assert [a["sure"] for a in answers["124M"] if a["sure"]] == [43, 15, 18, True]
    for some in answers.values():
        assert len({a["name"] for a in some}) == len(some)
        for answer in some:
            assert answer["sources"]
            assert ("atol" in answer) + ("rtol" in answer) == ("why" in answer)


def test_prompts_and_continuations_are_the_official_encoders():
    """Each prompt gives its ids; together with its continuation it is as long as both."""
    bpe = Bpe(official_files() / "encoder.json", official_files() / "vocab.bpe")
    for answer in [a for some in read_answers().values() for a in some if "prompt" in a]:
        assert bpe.encode(answer["prompt"], allow_special=True) == answer["ids"]
        if "next" in answer:
            text = bpe.decode(answer["ids"] + answer["next"])
            assert bpe.encode(text, allow_special=True) == answer["ids"] + answer["next"]


def test_the_table_is_that_of_the_facts():
    """Number for number, where the facts are here."""
    path = ROOT.parent / "shared" / "facts.json"
    if not path.is_file():
        pytest.skip("shared/facts.json is not here: it is where the answers come from")
    facts = json.loads(path.read_text())
    ours = read_answers()
    for model, some in facts["greedy_answers"].items():
        if model not in RELEASED:
            continue
        for theirs in some:
            (answer,) = [a for a in ours[model] if a.get("prompt") == theirs["prompt"]]
            assert answer["ids"] == theirs["prompt_ids"]
            assert answer.get("next", theirs["continuation_ids"]) == theirs["continuation_ids"]
            assert answer.get("contains", theirs["continuation"]) == theirs["continuation"]
            sure = theirs.get("n_tokens_sure", theirs["n_tokens"]) if theirs["confidence"] == "sure" else 0
            assert answer["sure"] == sure or "contains" in answer
            assert answer["sources"] == [facts["sources"][s] for s in theirs["sources"]] or theirs["sources"] == [
                "rasbt"
            ]
    numbers = json.dumps([a for a in ours["124M"] if a["kind"] not in ("greedy", "text")])
    for fact in facts["numeric_answers"].values():
        for key in ("values", "logit", "top5_logits", "value", "logprobs", "sum", "logprob"):
            for number in np.ravel(fact.get(key, [])):
                assert json.dumps(float(number)) in numbers
        for case in fact.get("cases", ()):
            assert json.dumps(case["sum_logprob"]) in numbers


@pytest.mark.slow
def test_the_table_is_in_the_wheel(tmp_path):
    build = pytest.importorskip("hatchling.build", reason="hatchling is not installed: it builds the wheel")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        name = build.build_wheel(str(tmp_path))
    with zipfile.ZipFile(tmp_path / name) as wheel:
        assert wheel.read("gpt2ln/answers.json") == PUBLISHED.read_bytes()


# --- held against the official source -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def answers(golden):
    """What the official source computed on the golden checkpoint, in the form of the table; by kind."""
    ids, logits = golden["ids"].tolist(), golden["f32/logits"]
    prompt, out = golden["greedy/7/prompt"][0].tolist(), golden["greedy/7/out"][0].tolist()
    logp = logits.astype("f8") - np.log(np.exp(logits.astype("f8")).sum(-1, keepdims=True))
    given = [[logp[b, t, i] for t, i in enumerate(row[1:])] for b, row in enumerate(ids)]
    top = np.argsort(-logits[1, -1])[:5].tolist()
    both = {"sources": ["golden"], "sure": True, "atol": 1e-4, "why": "float32"}
    table = [
        {"kind": "greedy", "ids": prompt, "next": out, "sure": len(out)},
        {"kind": "values", "tap": "logits", "ids": ids[0], "rows": [1, 4], "columns": [2, 5],
         "values": logits[0, 1:4, 2:5].tolist()},
        {"kind": "values", "tap": "ln_f/out", "ids": ids[1], "rows": [0, 1], "columns": [0, 5],
         "values": golden["f32/ln_f/out"][1, 0:1, 0:5].tolist()},
        {"kind": "top", "ids": ids[1], "top": top, "logits": logits[1, -1, top].tolist()},
        {"kind": "logprobs", "context": ids[0][:3], "ids": ids[0][3:], "values": given[0][2:]},
        {"kind": "sum", "context": ids[0][:1], "ids": ids[0][1:], "values": [sum(given[0])]},
        {"kind": "loss", "rows": ids, "last": 7,
         "values": [-np.mean([*given[0], logp[0, -1, ids[1][0]], *given[1], logp[1, -1, 7]])]},
    ]  # fmt: skip
    return [{"name": f"{i} {a['kind']}"} | both | a for i, a in enumerate(table)]


def test_what_the_official_source_computed_holds(golden_model, answers):
    held = asked(golden_model, *answers)
    assert [(h.name, h.holds, h.sure) for h in held] == [(a["name"], True, True) for a in answers]
    assert held[0].found == "tokens 1 to 32 as published"
    for h in held[1:]:
        assert 0 <= h.difference <= h.tolerance == 1e-4
        assert h.found == f"off by {h.difference:.2g} at most, allowed 0.0001 (float32)"


@pytest.mark.parametrize("kind", range(1, 7))
def test_a_number_that_is_off_does_not_hold(golden_model, answers, kind):
    """Either way, and by how much."""
    key = "logits" if answers[kind]["kind"] == "top" else "values"
    for off in (0.01, -0.01):
        answer = answers[kind] | {key: (np.array(answers[kind][key]) + off).tolist()}
        held = one(golden_model, answer)
        assert not held.holds
        np.testing.assert_allclose(held.difference, 0.01, atol=1e-4)
        assert one(golden_model, answer | {"atol": 0.0102}).holds
        one_off = np.array(answers[kind][key])
        one_off.reshape(-1)[-1] += off
        assert not one(golden_model, answers[kind] | {key: one_off.tolist()}).holds


def test_a_relative_tolerance_is_of_the_number_published(golden_model, answers):
    answer = {k: v for k, v in answers[5].items() if k != "atol"}
    (value,) = answer["values"]
    for off, rtol, holds in ((0.9e-3, 1e-3, True), (1.1e-3, 1e-3, False), (-1.1e-3, 1e-3, False)):
        held = one(golden_model, answer | {"values": [value * (1 + off)], "rtol": rtol})
        assert held.holds is holds
        np.testing.assert_allclose(held.tolerance, abs(value) * (1 + off) * rtol)


def test_the_largest_difference_is_the_one_that_breaks_the_rule(golden_model, answers):
    """Under a relative tolerance a small number may break it by less than a large one keeps it."""
    answer = {k: v for k, v in answers[1].items() if k != "atol"}
    values = np.array(answer["values"])
    small, large = (np.unravel_index(find(np.abs(values)), values.shape) for find in (np.argmin, np.argmax))
    assert abs(values[large]) > 3 * abs(values[small])
    values[small] *= 1.02
    values[large] *= 1.009
    held = one(golden_model, answer | {"values": values.tolist(), "rtol": 0.01})
    assert not held.holds
    assert held.difference > held.tolerance


def test_other_ids_are_largest(golden_model, answers):
    answer = deepcopy(answers[3])
    for key in ("top", "logits"):
        answer[key][0], answer[key][1] = answer[key][1], answer[key][0]
    held = one(golden_model, answer)
    assert (held.holds, held.found.split(";")[0]) == (False, f"other ids than {answer['top']} are largest")


def test_tokens_that_differ(golden_model, answers):
    """The sure part decides; what comes after it is an answer of its own, and none of it holds past a difference."""
    right = answers[0]["next"]
    for at, holds, found in (
        (3, (False, False), ("token 4 is {}, expected {}", "what comes before token 16 differs already")),
        (15, (True, False), ("tokens 1 to 15 as published", "token 16 is {}, expected {}")),
        (None, (True, True), ("tokens 1 to 15 as published", "tokens 16 to 32 as published")),
    ):
        wrong = [(i + 1) % 256 if n == at else i for n, i in enumerate(right)]
        held = asked(golden_model, answers[0] | {"next": wrong, "sure": 15})
        assert [(h.sure, h.holds) for h in held] == list(zip((True, False), holds, strict=True))
        both = () if at is None else (right[at], wrong[at])
        assert [h.found for h in held] == [text.format(*both) for text in found]
    assert [h.sure for h in asked(golden_model, answers[0] | {"sure": 0})] == [False]


def test_a_text_within_so_many_tokens(golden_model, answers):
    text = golden_model.decode(answers[0]["next"])
    answer = answers[0] | {"kind": "text", "contains": text[5:9], "within": 9}
    assert one(golden_model, answer).found == f"9 tokens with {text[5:9]!r}"
    held = one(golden_model, answer | {"contains": text[5:20]})
    assert (held.holds, held.found) == (False, f"9 tokens without {text[5:20]!r}")


def test_the_prompt_in_the_folders_own_vocabulary(golden_model, answers):
    """Where it gives other ids, that is said, and the ids are asked for all the same."""
    other = golden_model.encode("other")
    held = asked(golden_model, answers[0] | {"prompt": "other", "sure": 0})
    said = f"the prompt is 5 ids {other[:4]}"[:-1] + f", ...], expected {answers[0]['ids'][:4]}"[:-1] + ", ...]"
    assert [(h.sure, h.holds, h.found) for h in held] == [(True, False, said), (False, True, held[1].found)]
    answer = answers[0] | {"prompt": "other", "ids": other, "next": [1]}
    assert [h.found[:5] for h in asked(golden_model, answer)] == ["token"]
    eot = answer | {"prompt": "<|endoftext|>", "ids": [256]}
    assert [h.found[:5] for h in asked(golden_model, eot)] == ["token"]


def test_what_the_model_cannot_take_does_not_hold(small, answers):
    """Ids past its vocabulary, also one that is only scored; texts past its context; a slice it has not."""
    for answer, found in (
        ({**answers[0], "ids": [464, 3290]}, "token id 464 outside 0..259 (item 1)"),
        ({**answers[3], "ids": [1], "top": [300], "logits": [0]}, "token id 300 outside 0..259 (item 1)"),
        ({**answers[4], "context": [1], "ids": [300], "values": [0]}, "token id 300 outside 0..259 (item 2)"),
        ({**answers[1], "ids": [1] * 17}, "17 tokens, expected 1..16"),
        ({**answers[0], "ids": [1] * 17, "next": [1]}, "the context takes 17"),
        ({**answers[1], "ids": [1]}, "[0, 3] numbers, expected [3, 3]"),
    ):
        held = one(small, answer)
        assert not held.holds
        assert found in held.found


def test_what_is_not_finite_does_not_hold(broken, answers):
    import gpt2ln

    held = one(gpt2ln.load(broken), {**answers[1], "ids": [1, 2, 3, 4]})
    assert not held.holds
    assert "h1/ln_2" in held.found


# --- the command --------------------------------------------------------------------------------------------------


@pytest.fixture
def shelf(tmp_path):
    """A made-up model under a released name."""
    tiny.tiny(tmp_path / "124M")
    return tmp_path


def test_a_made_up_model_under_that_name(shelf, cli):
    """Neither its files nor its answers are the published ones: both are said, and nothing crashes."""
    ran = cli("verify", "124M", "--models-dir", shelf, "--answers")
    told = found_bad(ran, 1, "5 of 6 files different: ", " sure answers do not hold: ", "gpt2ln download 124M --force")
    assert "The dog" in ran.out
    assert "note: of the answers that one source alone gives, 23 do not hold: " in ran.err
    assert "the prompt is 32 ids [40, 220, 68, 77, ...], expected [40, 2883, 6155, 351, ...]" in told
    ran = cli("verify", "124M", "--models-dir", shelf, "--answers", "--json")
    *_, last, summary = [json.loads(line) for line in ran.out.splitlines()]
    assert list(last) == ["answer", "sure", "holds", "found", "difference", "tolerance", "sources"]
    assert summary["summary"]["others"] == {"answers": 23, "hold": 0}
    assert summary["summary"]["sure"]["hold"] == 0


def test_the_sure_ones_decide(T, cli, tmp_path, monkeypatch):
    """Files whole, one sure answer that holds, one of one source that does not: 0.  One sure that does not: 1."""
    ids = [40, 41]
    right = list(check_next(T, ids))
    sure = {"name": "a", "kind": "greedy", "ids": ids, "next": right, "sure": 3, "sources": []}
    other = sure | {"name": "b", "next": [*right[:2], right[2] ^ 1], "sure": 0}
    monkeypatch.setitem(published.FILES, "tiny", {})
    monkeypatch.setitem(RELEASED, "tiny", HParams(n_vocab=260, n_ctx=16, n_embd=8, n_head=2, n_layer=2))
    monkeypatch.setattr("gpt2ln.answers.read_answers", lambda: {"tiny": [sure, other]})
    ran = cli("verify", T, "--answers", "--fast")
    assert done(ran).split("\n\n")[1] == (
        "answer  sure  holds  found\n"
        "a       yes   yes    tokens 1 to 3 as published\n"
        f"b       no    no     token 3 is {right[2]}, expected {right[2] ^ 1}\n"
    )
    assert "note: of the answers that one source alone gives, 1 do not hold: b" in ran.err
    monkeypatch.setattr("gpt2ln.answers.read_answers", lambda: {"tiny": [other | {"sure": 3}]})
    found_bad(cli("verify", T, "--answers"), 1, "1 of 1 sure answers do not hold: b: token 3 is ")


def check_next(folder, ids):
    import gpt2ln

    (sample,) = gpt2ln.load(folder).generate(ids, length=3, sampling=GREEDY)
    return sample.tokens


def test_no_answers_for_damaged_files(shelf, cli, no_weights):
    (shelf / "124M" / "model.ckpt.data-00000-of-00001").write_bytes(bytes(15872))
    ran = cli("verify", "124M", "--models-dir", shelf, "--answers")
    found_bad(ran, 4, "28 of 28 tensors damaged")
    assert "The dog" not in ran.out


def test_none_published(T, shelf, cli, no_weights):
    (shelf / "124M").rename(shelf / "774M")
    for name in (T, "774M", "gpt2-large"):
        refused(cli("verify", name, "--models-dir", shelf, "--answers"), 2, "none are published", "for 124M and 355M")
