import gc
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import gpt2ln
from gpt2ln.generate import TextStream, generate
from gpt2ln.prompt import Prompt
from gpt2ln.sample import Sampling, log_softmax, uniform
from gpt2ln.settings import Settings

from . import tiny as made_up
from .tiny import ID

GREEDY = Sampling(temperature=0.0)
WORDS = [ID[b] for b in b"abcabdabcabd!?"] + [259, ID[ord("x")]]
SCREAM = "😨"


def made(tmp_path_factory, name, *args, **kwargs):
    return gpt2ln.load(made_up.tiny(tmp_path_factory.mktemp("generate") / name, *args, **kwargs))


@pytest.fixture(scope="module")
def t(T):
    return gpt2ln.load(T)


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    return made(tmp_path_factory, "words", made_up.says(WORDS), n_embd=16)


@pytest.fixture(scope="module")
def scream(tmp_path_factory):
    ids = [ID[b] for b in SCREAM.encode()]
    return made(tmp_path_factory, "scream", made_up.says(ids * 4), n_embd=16)


@pytest.fixture(scope="module")
def flat(tmp_path_factory):
    return made(tmp_path_factory, "flat", made_up.zeros)


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    """A context of 300: two growths of the cache, two chunks of a prompt."""
    return made(tmp_path_factory, "long", n_ctx=300)


def prompts_of(*rows, **kwargs):
    return [Prompt(tuple(row), **kwargs) for row in rows]


def run(model, prompts, on_text=None, **settings):
    more = {} if on_text is None else {"on_text": on_text}
    return list(generate(model.engine, model.bpe, prompts, Settings(**settings), **more))


def pieces_of(model, prompts, **settings):
    """Samples, and the pieces of text that each was told of."""
    pieces = {}
    samples = run(model, prompts, lambda sample, piece: pieces.setdefault(id(sample), []).append(piece), **settings)
    return samples, [pieces[id(sample)] for sample in samples]


def facts(sample):
    return sample.index, sample.seed, sample.tokens, sample.text, sample.finish, sample.logprobs


class Interrupting:
    """An engine in front of another, stopped by Ctrl-C in its nth step or prompt."""

    def __init__(self, engine, *, step=None, prefill=None):
        self._engine, self._steps, self._prefills, self.hparams = engine, step, prefill, engine.hparams

    def step(self, ids, caches):
        if self._steps is not None:
            self._steps -= 1
            if self._steps < 0:
                raise KeyboardInterrupt
        return self._engine.step(ids, caches)

    def prefill(self, ids):
        if self._prefills is not None:
            self._prefills -= 1
            if self._prefills < 0:
                raise KeyboardInterrupt
        return self._engine.prefill(ids)


def interrupted(engine, model, prompts, **settings):
    """Samples that came out before KeyboardInterrupt did, and the pieces told."""
    samples, pieces = [], []
    coming = generate(engine, model.bpe, prompts, Settings(**settings), on_text=lambda _, piece: pieces.append(piece))
    with pytest.raises(KeyboardInterrupt):
        samples.extend(coming)  # keeps what came before the error
    return samples, pieces


# --- golden: the official sampler at top_k 1 ----------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 2])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(top_k=1)], ids=["temperature 0", "top_k 1"])
@pytest.mark.parametrize("P", [1, 7, 32])
def test_greedy_ids_are_the_official_ones(golden, golden_model, P, sampling, batch_size):
    prompts = prompts_of(*golden[f"greedy/{P}/prompt"].tolist())
    samples = run(golden_model, prompts, sampling=sampling, length=32, batch_size=batch_size)
    np.testing.assert_array_equal([sample.tokens for sample in samples], golden[f"greedy/{P}/out"])
    assert [sample.finish for sample in samples] == ["length", "length"]


# --- batches and seeds --------------------------------------------------------------------------------------------


def test_a_short_prompt_in_a_batch_is_as_alone(t):
    prompts = prompts_of([64, 65, 66], range(70, 79))
    alone = [run(t, [prompt], sampling=GREEDY, length=7, logprobs=5)[0] for prompt in prompts]
    for batch_size in (1, 2, 3):
        both = run(t, prompts, sampling=GREEDY, length=7, logprobs=5, batch_size=batch_size)
        assert [facts(sample) for sample in both] == [facts(sample) for sample in alone]


@pytest.fixture(scope="module")
def alone(t):
    """Four samples of two prompts, each computed in a call of its own."""
    prompts = prompts_of([64, 65, 66], range(70, 79))
    return {
        (prompt, i): facts(run(t, [prompt], seed=11, length=7, logprobs=2, start_index=i)[0])
        for prompt in prompts
        for i in range(4)
    }


def test_each_draw_has_a_number_of_its_own(flat):
    """Of 260 equal probabilities the draw is the place of its uniform number, keyed by seed, sample and position."""
    for sample in run(flat, prompts_of([64], [65]), seed=11, nsamples=3, start_index=4, length=9, batch_size=2):
        expected = [int(uniform(11, sample.index, position) * 260) for position in range(9)]
        assert sample.tokens == expected


def test_samples_differ_from_one_another(alone):
    assert len({tuple(tokens) for _, _, tokens, *_ in alone.values()}) == 8


@pytest.mark.parametrize("batch_size", [1, 2, 3, 4, 50])
def test_sample_i_is_the_same_in_any_batch(t, alone, batch_size):
    prompts = [prompt for prompt, i in alone if i == 0]
    for order in (prompts, prompts[::-1]):
        samples = run(t, order, seed=11, length=7, logprobs=2, nsamples=4, batch_size=batch_size)
        assert [facts(sample) for sample in samples] == [alone[prompt, i] for prompt in order for i in range(4)]


@pytest.mark.parametrize(("start", "count"), [(0, 2), (1, 2), (2, 2), (3, 1)])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_sample_i_is_the_same_in_any_range(t, alone, start, count, batch_size):
    prompts = [prompt for prompt, i in alone if i == 0]
    samples = run(t, prompts, seed=11, length=7, logprobs=2, start_index=start, nsamples=count, batch_size=batch_size)
    assert [facts(s) for s in samples] == [alone[p, i] for p in prompts for i in range(start, start + count)]


def test_a_prompt_with_a_seed_of_its_own(t, alone):
    prompt = next(prompt for prompt, i in alone if i == 0)
    own = Prompt(prompt.ids, seed=11)
    samples = run(t, [own, prompt], seed=12, length=7, logprobs=2)
    assert facts(samples[0]) == alone[prompt, 0]
    assert samples[1].seed == 12
    assert samples[1].tokens != samples[0].tokens


def test_a_longer_run_begins_as_a_shorter_one(t):
    short, whole = (run(t, prompts_of([64]), seed=3, length=length)[0].tokens for length in (5, 15))
    assert short == whole[:5]


def test_samples_of_one_prompt_do_not_write_into_one_another(t):
    samples = run(t, prompts_of([64, 65]), seed=5, length=14, nsamples=3, batch_size=3, logprobs=0)
    assert len({tuple(sample.tokens) for sample in samples}) == 3
    for sample in samples:
        logp = [log_softmax(row) for row in t.logits([64, 65, *sample.tokens[:-1]])[1:]]
        expected = [row[i] for row, i in zip(logp, sample.tokens, strict=True)]
        # one position at a time against one pass: 1e-4 is what is promised
        np.testing.assert_allclose([at["logprob"] for at in sample.logprobs], expected, rtol=0, atol=1e-4)


def test_many_samples_are_not_listed_before_the_first(t):
    samples = generate(t.engine, t.bpe, prompts_of([64]), Settings(nsamples=10**15, length=1))
    assert [next(samples).index, next(samples).index] == [0, 1]


# --- graphs and memory --------------------------------------------------------------------------------------------


def test_two_traces_serve_every_length(tmp_path_factory):
    model = made(tmp_path_factory, "traced", n_ctx=300)
    for P in (1, 3, 5, 100, 230):
        run(model, prompts_of(range(P)), sampling=GREEDY, length=64, batch_size=2)
    assert model.engine.traces == 2


def test_fifty_prompts_leave_nothing_behind(tmp_path_factory):
    """A cache here is 2 MB: fifty that were kept would be 100."""
    model = made(tmp_path_factory, "fat", n_layer=4, n_embd=64, n_ctx=1024)

    def some(count):
        for n in range(count):
            run(model, prompts_of([n, *range(99), *range(250), *range(250)]), sampling=GREEDY, length=3)
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before = some(10)
    after = some(50)
    assert model.engine.traces == 2
    assert after - before < 20e6, f"{(after - before) / 1e6:.1f} MB more"


# --- length, stops, end of text -----------------------------------------------------------------------------------

X = ID[ord("x")]


def words_say(words, **settings):
    (sample,), (pieces,) = pieces_of(words, prompts_of([X], text="x"), sampling=GREEDY, **settings)
    assert "".join(pieces) == sample.text
    return sample.text, sample.finish, len(sample.tokens)


def test_length_counts_new_tokens(words):
    assert words_say(words, length=5) == ("abcab", "length", 5)
    assert words_say(words) == ("abcabdab", "length", 8)


def test_nothing_ends_at_end_of_text_unless_asked(words):
    assert words_say(words, length=15) == ("abcabdabcabd!?<|endoftext|>", "length", 15)
    assert words_say(words, length=15, stop_eot=True) == ("abcabdabcabd!?", "eot", 15)
    assert words_say(words, length=14, stop_eot=True) == ("abcabdabcabd!?", "length", 14)


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (["abd"], ("abc", "stop", 6)),  # over three tokens, after a beginning of it that led elsewhere
        (["d"], ("abcab", "stop", 6)),
        (["a"], ("", "stop", 1)),
        (["abd", "ca"], ("ab", "stop", 4)),  # the first that is complete
        (["abcabd!", "dab"], ("abcab", "stop", 8)),
        (["abcabd", "ab"], ("", "stop", 2)),
        (["abdabcabdx"], ("abcabdabcabd!?<|endoftext|>", "length", 15)),  # begins twice, never comes
        (["zebra"], ("abcabdabcabd!?<|endoftext|>", "length", 15)),
        (["?<|endoftext|>"], ("abcabdabcabd!", "stop", 15)),  # a stop may be the text of the token
        (["xa", "xabc"], ("abcabdabcabd!?<|endoftext|>", "length", 15)),  # the prompt is not searched
    ],
)
def test_text_ends_before_a_stop(words, stop, expected):
    assert words_say(words, length=15, stop=tuple(stop)) == expected


def test_what_was_held_for_a_stop_comes_out_at_the_end(words):
    assert words_say(words, length=5, stop=("abd",)) == ("abcab", "length", 5)
    assert words_say(words, length=15, stop=("?<|endoftext|>",), stop_eot=True) == ("abcabdabcabd!?", "eot", 15)


def test_a_stop_ends_one_sample_of_a_batch_alone(t):
    plain = run(t, prompts_of([64]), seed=2, nsamples=4, length=15)
    stop = next(c for full in plain for c in full.text if not all(c in other.text for other in plain))
    samples = run(t, prompts_of([64]), seed=2, nsamples=4, length=15, batch_size=4, stop=(stop,))
    for sample, full in zip(samples, plain, strict=True):
        assert sample.text == full.text.split(stop)[0]
        assert sample.finish == ("stop" if stop in full.text else "length")
        assert sample.tokens == full.tokens[: len(sample.tokens)]
    assert {sample.finish for sample in samples} == {"stop", "length"}


def test_a_character_of_four_tokens_comes_whole(scream):
    (sample,), (pieces,) = pieces_of(scream, prompts_of([64]), sampling=GREEDY, length=8)
    assert pieces == ["", "", "", SCREAM] * 2
    assert sample.text == SCREAM * 2


def test_an_unfinished_character_is_one_mark_at_the_very_end(scream):
    for length, text in [(1, "\ufffd"), (3, "\ufffd"), (7, SCREAM + "\ufffd")]:
        (sample,), (pieces,) = pieces_of(scream, prompts_of([64]), sampling=GREEDY, length=length)
        assert sample.text == "".join(pieces) == text
        assert not any("\ufffd" in piece for piece in pieces[:-1])


def test_a_stop_of_many_bytes(scream):
    (sample,) = run(scream, prompts_of([64]), sampling=GREEDY, length=16, stop=(SCREAM * 3,))
    assert (sample.text, sample.finish, len(sample.tokens)) == ("", "stop", 12)
    (sample,) = run(scream, prompts_of([64]), sampling=GREEDY, length=2, stop=("\ufffd",))
    assert (sample.text, sample.finish) == ("", "stop")


# --- TextStream ---------------------------------------------------------------------------------------------------

STREAM_IDS = st.lists(st.sampled_from([*(ID[b] for b in ("ab " + SCREAM).encode()), *range(256, 260)]), max_size=30)
STOPS = st.lists(st.text(st.sampled_from("ab the<" + SCREAM + "\ufffd"), min_size=1, max_size=4), max_size=3)


def streamed(bpe, ids, stops):
    stream, pieces = TextStream(bpe, stops), []
    for i in ids:
        pieces.append(stream.feed(i))
        if stream.stopped:
            break
    return [*pieces, stream.finish()], stream.stopped


@given(ids=STREAM_IDS, stops=STOPS)
@example(ids=[258], stops=[" the", "h"])  # of two in one token, the one that ends first
@example(ids=[258], stops=["the", "he"])  # and of two that end at once, the longer
def test_a_stream_is_the_whole_text_up_to_the_first_stop(t, ids, stops):
    """Whatever the tokens: the stop that is complete first ends it."""
    whole = t.decode(ids)
    ends = [end for end in range(1, len(whole) + 1) if any(whole[:end].endswith(stop) for stop in stops)]
    expected = whole
    if ends:
        expected = whole[: ends[0] - max(len(stop) for stop in stops if whole[: ends[0]].endswith(stop))]
    pieces, stopped = streamed(t.bpe, ids, stops)
    assert "".join(pieces) == expected
    assert stopped == bool(ends)


@given(ids=st.lists(st.integers(0, 259), max_size=40))
def test_without_stops_only_part_of_a_character_is_held(t, ids):
    pieces, _ = streamed(t.bpe, ids, [])
    assert "".join(pieces) == t.decode(ids)
    stream, told = t.bpe.stream(), 0
    for n, i in enumerate(ids):
        told += len(stream.feed(i))
        assert sum(map(len, pieces[: n + 1])) == told


def test_no_more_is_held_than_may_become_a_stop(t):
    stream = TextStream(t.bpe, ["abd", "bcc"])
    assert [stream.feed(ID[b]) for b in b"abcxab"] == ["", "", "a", "bcx", "", ""]
    assert stream.finish() == "ab"
    assert not stream.stopped


def test_a_stopped_stream_has_nothing_more(t):
    stream = TextStream(t.bpe, ["b"])
    assert [stream.feed(ID[b]) for b in b"ab"] == ["a", ""]
    assert (stream.stopped, stream.finish()) == (True, "")


# --- the edge of the context --------------------------------------------------------------------------------------


def following(model, ids, tokens):
    """The likeliest id after each step, each from a fresh pass over what the window holds, at positions 0 and up."""
    n = model.hparams.n_ctx
    return [model.logits([*ids, *tokens[:i]][-n:])[-1] for i in range(len(tokens))]


def agree(sample, rows):
    """Ids are the argmax of the rows, and log-probabilities theirs within what one pass and many may differ."""
    gaps = [np.diff(np.sort(row)[-2:])[0] for row in rows]
    assert min(gaps) > 1e-4, "a tie: choose another prompt"
    assert sample.tokens == [int(row.argmax()) for row in rows]
    ours = [at["logprob"] for at in sample.logprobs]
    np.testing.assert_allclose(ours, [log_softmax(row).max() for row in rows], rtol=0, atol=1e-4)


@pytest.mark.parametrize("P", [1, 8, 15, 16, 20, 40])
def test_slide_is_a_fresh_pass_over_the_last_tokens(t, P):
    ids = [(37 * n) % 256 for n in range(P)]
    (sample,) = run(t, prompts_of(ids), sampling=GREEDY, length=20, overflow="slide", logprobs=0)
    assert sample.context == tuple(ids[-16:])
    agree(sample, following(t, ids, sample.tokens))


def test_slide_in_a_batch_where_some_slide_and_some_do_not(t):
    rows = [[64, 65], [(37 * n) % 256 for n in range(14)], [(11 * n) % 256 for n in range(30)]]
    samples = run(t, prompts_of(*rows), sampling=GREEDY, length=9, overflow="slide", logprobs=0, batch_size=3)
    for ids, sample in zip(rows, samples, strict=True):
        agree(sample, following(t, ids, sample.tokens))


def test_truncate_reads_the_last_tokens_at_positions_from_0(t):
    ids = [(37 * n) % 256 for n in range(20)]
    (sample,) = run(t, prompts_of(ids), sampling=GREEDY, length=4, overflow="truncate", logprobs=0)
    assert sample.context == tuple(ids[7:])
    agree(sample, following(t, ids[7:], sample.tokens))
    (kept,) = run(t, prompts_of(ids[7:]), sampling=GREEDY, length=4, logprobs=0)
    assert facts(kept) == facts(sample)


def test_the_context_may_be_filled_to_one_past_its_end(t):
    (sample,) = run(t, prompts_of([64]), sampling=GREEDY, length=16, logprobs=0)
    agree(sample, following(t, [64], sample.tokens))


@pytest.mark.parametrize("P", [1, 127, 260])
def test_a_long_run_is_the_argmax_of_one_pass(long, P):
    """The cache grows at 128 and at 256, a prompt is read in chunks of 256."""
    ids = [(37 * n + n // 7) % 256 for n in range(P)]
    (sample,) = run(long, prompts_of(ids), sampling=GREEDY, length=301 - P, logprobs=0)
    agree(sample, list(long.logits([*ids, *sample.tokens[:-1]])[P - 1 :]))


# --- log-probabilities --------------------------------------------------------------------------------------------


def test_logprobs_are_those_before_temperature_and_cuts(t):
    sampling = Sampling(temperature=0.7, top_k=5)
    (sample,) = run(t, prompts_of([64, 65]), seed=1, sampling=sampling, length=9, logprobs=3)
    rows = [log_softmax(row) for row in t.logits([64, 65, *sample.tokens[:-1]])[1:]]
    assert [at["id"] for at in sample.logprobs] == sample.tokens
    for at, row in zip(sample.logprobs, rows, strict=True):
        best = np.argsort(-row)[:3]
        assert [i for i, _ in at["top"]] == best.tolist()
        np.testing.assert_allclose([p for _, p in at["top"]], row[best], rtol=0, atol=1e-4)
        np.testing.assert_allclose(at["logprob"], row[at["id"]], rtol=0, atol=1e-4)


def test_logprobs_of_equal_logits_are_in_the_order_of_ids(flat):
    (sample,) = run(flat, prompts_of([64]), seed=1, length=1, logprobs=4)
    assert [i for i, _ in sample.logprobs[0]["top"]] == [0, 1, 2, 3]
    np.testing.assert_allclose([p for _, p in sample.logprobs[0]["top"]], -np.log(260), rtol=1e-12)


def test_no_logprobs_and_none_of_the_likeliest(t):
    assert run(t, prompts_of([64]), length=2)[0].logprobs == []
    (sample,) = run(t, prompts_of([64]), length=2, logprobs=0)
    assert [at["top"] for at in sample.logprobs] == [[], []]


def test_logprobs_stay_finite_where_the_probability_is_0(tmp_path_factory):
    def sharp(w):
        w["model/wte"] *= 1000

    model = made(tmp_path_factory, "sharp", sharp)
    (sample,) = run(model, prompts_of([64]), sampling=GREEDY, length=1, logprobs=260)
    logp = np.array([p for _, p in sample.logprobs[0]["top"]])
    assert np.isfinite(logp).all()
    assert (np.exp(logp) == 0).any()


# --- Ctrl-C -------------------------------------------------------------------------------------------------------


def test_ctrl_c_in_a_step_yields_what_was_begun(t):
    full = run(t, prompts_of([64]), seed=4, nsamples=3, length=9)
    samples, pieces = interrupted(
        Interrupting(t.engine, step=3), t, prompts_of([64]), seed=4, nsamples=3, length=9, batch_size=2
    )
    assert [(sample.index, sample.finish) for sample in samples] == [(0, "interrupted"), (1, "interrupted")]
    assert [sample.tokens for sample in samples] == [sample.tokens[:4] for sample in full[:2]]
    assert sorted("".join(pieces)) == sorted("".join(sample.text for sample in samples))
    assert [sample.text for sample in samples] == [t.decode(sample.tokens) for sample in samples]


def test_ctrl_c_leaves_the_batches_before_it_whole(t):
    full = run(t, prompts_of([64]), seed=4, nsamples=3, length=5)
    samples, _ = interrupted(Interrupting(t.engine, step=5), t, prompts_of([64]), seed=4, nsamples=3, length=5)
    assert facts(samples[0]) == facts(full[0])
    assert (samples[1].finish, samples[1].tokens) == ("interrupted", full[1].tokens[:2])
    assert len(samples) == 2


def test_ctrl_c_does_not_rename_an_end_that_was_reached(t):
    prompts = prompts_of(range(12), [64])  # 5 and 8 tokens, by default
    samples, _ = interrupted(Interrupting(t.engine, step=6), t, prompts, batch_size=2)
    assert [(sample.finish, len(sample.tokens)) for sample in samples] == [("length", 5), ("interrupted", 7)]


def test_ctrl_c_releases_the_text_that_was_held(words):
    engine = Interrupting(words.engine, step=4)
    (sample,), pieces = interrupted(engine, words, prompts_of([X]), sampling=GREEDY, length=9, stop=("abd",))
    assert "".join(pieces) == sample.text == "abcab"


def test_ctrl_c_while_a_prompt_is_read(t):
    prompts = prompts_of([64], [65], [66])
    samples, _ = interrupted(Interrupting(t.engine, prefill=1), t, prompts, length=3, batch_size=3)
    assert [(sample.prompt, sample.finish, sample.tokens) for sample in samples] == [(prompts[0], "interrupted", [])]
    samples, _ = interrupted(Interrupting(t.engine, prefill=0), t, prompts, length=3)
    assert samples == []


# --- small things -------------------------------------------------------------------------------------------------


def test_each_prompt_is_read_once(t):
    read = []

    class Counting(Interrupting):
        def prefill(self, ids):
            read.append(tuple(ids))
            return super().prefill(ids)

    prompts = prompts_of([64], [65, 66])
    list(generate(Counting(t.engine), t.bpe, prompts, Settings(nsamples=3, batch_size=2, length=2)))
    assert read == [(64,), (65, 66)]


def test_seconds_come_from_the_clock_that_is_given(t):
    ticks = iter(range(100))
    (sample,) = generate(t.engine, t.bpe, prompts_of([64]), Settings(length=3), clock=lambda: float(next(ticks)))
    assert (sample.prefill_s, sample.decode_s) == (1.0, 5.0)  # three draws, two steps
    (sample,) = run(t, prompts_of([64]), length=3)
    assert (sample.prefill_s, sample.decode_s) == (0.0, 0.0)


def test_the_library_face_generates(t):
    (sample,) = t.generate("abc", length=4, seed=9)
    assert sample.tokens == run(t, prompts_of([64, 65, 66]), length=4, seed=9)[0].tokens
    assert sample.text == t.decode(sample.tokens)


def test_caches_grow_by_doubling(long):
    rooms = []

    class Watching(Interrupting):
        def step(self, ids, caches):
            out = super().step(ids, caches)
            rooms.append(caches[0].room)
            return out

    list(generate(Watching(long.engine), long.bpe, prompts_of([64]), Settings(length=300, sampling=GREEDY)))
    grown = [n + 2 for n, (a, b) in enumerate(pairwise(rooms)) if a != b]
    assert sorted(set(rooms)) == [128, 256, 300]
    assert grown == [128, 256]
