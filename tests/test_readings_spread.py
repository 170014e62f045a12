"""Padded, packed and partial files of other programs hold what the program had of each text, and no row more."""

from dataclasses import replace

import numpy as np
import pytest

from gpt2ln.compare import BUG, ROUNDING, Measure, compare
from gpt2ln.errors import BadInput
from gpt2ln.pairing import settled
from gpt2ln.readings import Document, Reading, read

from . import numpy_port as port
from .ports import equal, saved
from .spreads import FORMS, ROWS, ids_of, mask_of, partial, whole

LENGTHS = (9, 5, 12)
KEPT = ("w", "h0/", "h1/attn/", "h2/out", "ln_f/", "logits")


@pytest.fixture(scope="module")
def texts(golden):
    return [golden["ids"][n % 2].tolist()[n : n + length] for n, length in enumerate(LENGTHS)]


@pytest.fixture(scope="module")
def right(golden_model, texts):
    """A: each text in float64, rounded once."""
    documents = []
    for ids in texts:
        found = dict(golden_model.reference(ids)).items()
        taps = {name: x.astype(np.float32) for name, x in found if name.startswith(KEPT)}
        documents.append(Document(len(ids), np.arange(len(ids)), taps, tuple(ids)))
    return Reading("right", tuple(documents), dtypes=dict.fromkeys(taps, "float32"))


@pytest.fixture(scope="module")
def ported(golden_model, texts):
    """`ported(**switches)`: some taps of a port, of each text."""

    def run(**how):
        taps = [port.run(golden_model.weights, ids, golden_model.hparams.n_head, **how) for ids in texts]
        return [{name: x for name, x in one.items() if name.startswith(KEPT)} for one in taps]

    return run


@pytest.fixture(scope="module")
def clean(ported):
    return ported()


@pytest.mark.parametrize("form", FORMS)
def test_whole_texts(golden_model, right, texts, clean, tmp_path, form):
    """The rows are the port's own, bit for bit; a right port is rounding, and a wrong one has its name."""
    found = read(saved(tmp_path / "p.npz", whole(form, texts, clean)), golden_model.hparams)
    assert [document.ids for document in found.documents] == [tuple(ids) for ids in texts]
    for document, taps in zip(found.documents, clean, strict=True):
        equal(document.taps, taps)
        assert document.whole
    report = compare(right, found, Measure(golden_model.hparams, golden_model.weights))
    assert (report.verdict, report.causes, report.only) == (ROUNDING, (), ((), ()))
    assert max(row.ratio for row in report.rows) < 8
    padding = "padding: 10 of 36 rows left out, and keys as many"
    packing = f"packed: 3 texts of 9, 5, 12 tokens, as {form} says"
    assert found.notes[-1] == (packing if form in ("doc_ptr", "cu_seqlens") else padding)


@pytest.mark.parametrize("form", FORMS)
def test_a_mistake_is_named_through_each_form(golden_model, right, texts, ported, tmp_path, form):
    taps = ported(norm=port.epsilon(1e-6))
    found = read(saved(tmp_path / "p.npz", whole(form, texts, taps)), golden_model.hparams)
    report = compare(right, found, Measure(golden_model.hparams, golden_model.weights))
    assert (report.verdict, [cause.name for cause in report.causes]) == (BUG, ["epsilon 1e-06"])


def test_positions_that_padding_moved(golden_model, right, texts, clean, tmp_path):
    """A port whose position_ids do not come from the mask is wrong from wpe on, and is not helped out of it."""
    wpe = golden_model.weights["model/wpe"].reshape(64, 48)
    moved = [taps | {"wpe/out": wpe[12 - len(ids) : 12]} for taps, ids in zip(clean, texts, strict=True)]
    arrays = whole("left", texts, moved) | {"position_ids": np.arange(12)[None]}
    found = read(saved(tmp_path / "p.npz", arrays), golden_model.hparams)
    said = "position_ids of text 0 is 3, 4, 5, ...: its tokens are taken as positions 0, 1, 2, ... all the same"
    assert said in found.notes
    report = compare(right, found, Measure(golden_model.hparams, golden_model.weights))
    assert (report.verdict, report.first.tap) == (BUG, "wpe/out")
    mask = mask_of(LENGTHS, left=True)
    own = np.where(mask == 1, mask.cumsum(1) - 1, 1)  # as transformers makes them
    notes = read(saved(tmp_path / "q.npz", arrays | {"position_ids": own}), golden_model.hparams).notes
    assert not [note for note in notes if "position_ids" in note]


def test_padding_that_attention_sees(golden_model, right, texts, clean, tmp_path):
    """The keys of padding are cut away, but not what they took from the others."""
    dull = [taps | {"h1/attn/probs": taps["h1/attn/probs"] * np.float32(0.9)} for taps in clean]
    found = read(saved(tmp_path / "p.npz", whole("left", texts, dull)), golden_model.hparams)
    report = compare(right, found, Measure(golden_model.hparams, golden_model.weights))
    assert report.first.tap == "h1/attn/probs"


def rows_of(taps: dict, rows=ROWS) -> dict:
    return {name: x[rows] for name, x in taps.items()}


@pytest.mark.parametrize("form", FORMS)
def test_some_positions_of_each_text(golden_model, right, texts, clean, ported, tmp_path, form):
    found = read(saved(tmp_path / "p.npz", partial(form, texts, clean)), golden_model.hparams)
    for document, taps, ids in zip(found.documents, clean, texts, strict=True):
        assert (document.ids, document.rows.tolist(), document.whole) == (tuple(ids), ROWS, False)
        equal(document.taps, rows_of(taps))
    by = Measure(golden_model.hparams, golden_model.weights)
    report = compare(right, found, by)
    assert (report.verdict, len(report.rows), report.only) == (ROUNDING, len(clean[0]), ((), ()))
    wrong = partial(form, texts, ported(norm=port.epsilon(1e-6)))
    report = compare(right, read(saved(tmp_path / "q.npz", wrong), golden_model.hparams), by)
    assert (report.verdict, report.first.tap) == (BUG, "h0/ln_1/rstd")
    by_name = {"left": "position_ids", "doc_ptr": "rows", "cu_seqlens": "rows"}.get(form, "positions")
    assert f"rows are positions 1, 4 of each text, as {by_name} says" in found.notes


def test_the_last_token_of_each_padded_text(golden_model, right, texts, clean, tmp_path):
    """As `generate` of transformers has them: logits of the last place, and padding in front."""
    lasts = [len(ids) - 1 for ids in texts]
    taps = [rows_of(taps, [last]) for taps, last in zip(clean, lasts, strict=True)]
    arrays = {name: np.stack([one[name] for one in taps]) for name in ("logits", "h2/out", "h1/attn/q")}
    arrays["h1/attn/probs"] = last_keys(taps)
    arrays |= {"tokens": ids_of(texts, left=True), "attention_mask": mask_of(LENGTHS, left=True)}
    found = read(saved(tmp_path / "p.npz", arrays | {"position_ids": np.array(lasts)[:, None]}), golden_model.hparams)
    assert [document.rows.tolist() for document in found.documents] == [[last] for last in lasts]
    for document, one in zip(found.documents, taps, strict=True):
        equal(document.taps, {name: one[name] for name in document.taps})
    assert found.notes[-2:] == (
        "padding: 10 of 36 tokens left out",
        "rows are the positions of each text, as position_ids says",
    )
    assert compare(right, found, Measure(golden_model.hparams, golden_model.weights)).verdict == ROUNDING


def last_keys(taps):
    """[B, 1, H, W], padded in front"""
    probs = [one["h1/attn/probs"] for one in taps]
    return np.stack([np.pad(x, [(0, 0), (0, 0), (12 - x.shape[-1], 0)], constant_values=7e3) for x in probs])


def one_text(golden_model, path, arrays):
    found = read(saved(path / "p.npz", arrays), golden_model.hparams)
    (document,) = found.documents
    return found, document


def test_the_last_token_alone(golden_model, right, texts, clean, tmp_path):
    """With all tokens, with its own, and with none; the other side tells how long the text is."""
    ids, last = texts[0], rows_of(clean[0], [8])
    alone = Reading("right", right.documents[:1], dtypes=right.dtypes)
    by = Measure(golden_model.hparams, golden_model.weights)
    found, document = one_text(golden_model, tmp_path, last | {"tokens": np.array([ids]), "positions": np.array([8])})
    assert (document.T, document.ids, document.open) == (9, tuple(ids), False)
    assert found.notes == ("rows are position 8, as positions says",)
    assert compare(alone, found, by).verdict == ROUNDING
    few = {name: x for name, x in last.items() if "/attn/" not in name}
    own = few | {"input_ids": np.array([[ids[8]]]), "position_ids": np.array([[8]])}
    found, document = one_text(golden_model, tmp_path, own)
    assert (document.T, document.ids, document.some, document.open) == (9, None, (ids[8],), True)
    assert found.notes[-1].startswith("token ids are those of the rows alone; save the whole text as tokens")
    assert (compare(alone, found, by).verdict, compare(found, found, by).verdict) == (ROUNDING, "equal")
    found, document = one_text(golden_model, tmp_path, few | {"position_ids": np.array([8])})
    assert (document.ids, document.some, document.open) == (None, None, True)
    assert found.notes[-1] == "no token ids: rows are paired by position alone"
    assert compare(alone, found, by).verdict == ROUNDING
    assert compare(found, alone, by).referred


def test_a_normalized_is_decided_by_the_rows_that_both_hold(right):
    """Rows of its own say nothing, nor does a text of which the other side has no row."""
    pair = ("h0/ln_2/norm", "h0/ln_2/out")
    few, b = [], []
    for one, rows in zip(right.documents, ([], [1, 4], []), strict=True):
        taps = rows_of({name: one.taps[name] for name in pair}, rows)
        few.append(Document(one.T, np.array(rows, int), taps, one.ids))
        b.append(Document(one.T, one.rows, {}, one.ids, None, {pair: one.taps[pair[1]]}))
    named = Reading("B", tuple(b), dtypes=dict.fromkeys(pair, "float32"))
    _, decided, notes = settled(Reading("A", tuple(few)), named)
    assert (decided.taps, notes) == (
        [pair[1]],
        ["note: B: normalized is after gain and bias: there it agrees with the other side"],
    )
    wrong = tuple(replace(one, either={pair: one.either[pair] + 5}) for one in b)
    with pytest.raises(BadInput, match=r"a normalized is h0/ln_2/norm or h0/ln_2/out, and here it agrees with neither"):
        settled(Reading("A", tuple(few)), replace(named, documents=wrong))


def test_a_text_that_may_go_on(golden_model, right, texts, clean, tmp_path):
    """Rows 0, 1, 2 with their ids are the beginning of any text that begins so; another is told of."""
    begun = rows_of({name: x for name, x in clean[0].items() if "/attn/" not in name}, [0, 1, 2])
    alone = Reading("right", right.documents[:1], dtypes=right.dtypes)
    by = Measure(golden_model.hparams, golden_model.weights)
    named = begun | {"rows": np.arange(3)}
    found, document = one_text(golden_model, tmp_path, named | {"tokens": np.array(texts[0][:3])})
    assert (document.ids, document.open) == (tuple(texts[0][:3]), True)
    assert (compare(alone, found, by).verdict, compare(found, alone, by).verdict) == (ROUNDING, ROUNDING)
    found, _ = one_text(golden_model, tmp_path, named | {"tokens": np.array([texts[0][0], 7, 8])})
    assert compare(alone, found, by).tokens.startswith("token ids differ at position 1 (244 vs 7); dump the same text")
    found, _ = one_text(golden_model, tmp_path, begun | {"rows": np.arange(1, 4), "tokens": np.array(texts[0][:3])})
    assert "(244 vs 73); its tokens are those from position 0 on: is the first row position 1, or 0?" in (
        compare(alone, found, by).tokens
    )
    found, _ = one_text(golden_model, tmp_path, begun | {"rows": np.array([0, 1, 9])})
    assert compare(alone, found, by).tokens == ("9 tokens in A, at least 10 on the other side; dump the same text")
