"""The parts of speculation: when to guess, what to guess, and whose guesses fit into a pass."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2ln.errors import NonFinite, UsageError
from gpt2ln.speculate import LONGEST_REST, MOST, SIZES, Draft, Lookup, Pace, Speculation, append, check, shared

from .guessing import Noisy, Stepwise

# --- pace ---------------------------------------------------------------------------------------------------------


def guessed(accepted, passes):
    """Which of the next passes are guessed, if each that is has as many accepted as `accepted` says for it."""
    pace, found = Pace(), []
    for n in range(passes):
        if pace.due:
            found.append(n)
            pace.learn(accepted(n))
        else:
            pace.rest()
    return found


def test_guesses_that_pay_go_on():
    assert guessed(lambda n: 1, 50) == list(range(50))
    assert guessed(lambda n: n % 2 * 2, 50) == list(range(50))  # one a pass on average


def test_guesses_that_are_never_right_rest_for_longer_and_longer():
    """.75 and .5625: the second is below .6.  Then rests of 1, 2, 4, 8, 16, 32, 32."""
    assert guessed(lambda n: 0, 110) == [0, 1, 3, 6, 11, 20, 37, 70, 103]
    assert LONGEST_REST == 32


def test_what_pays_again_is_guessed_again():
    """From pass 20 on all is right: found at 20, and never left again."""
    found = guessed(lambda n: 6 if n >= 20 else 0, 40)
    assert found == [0, 1, 3, 6, 11, *range(20, 40)]


def test_after_guesses_that_paid_the_first_rest_is_short_again():
    """Six right ones in pass 3 carry over five that are wrong; then rests of 1, 2, 4."""
    assert guessed(lambda n: 6 * (n == 3), 22) == [0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18]


def test_a_pass_without_guesses_is_no_debt():
    """Where there was nothing to go by."""
    pace = Pace()
    pace.rest()
    assert pace.due


def test_less_than_what_pays_is_not_enough():
    """Half a guess a pass: most passes go without."""
    assert 10 < len(guessed(lambda n: n % 2, 400)) < 100


# --- lookup -------------------------------------------------------------------------------------------------------


def rescanned(ids, most):
    """The longest end of the text that stood before, looked for from behind; then copied, over its own copy too."""
    for size in SIZES:
        for at in range(len(ids) - 1, size - 1, -1):
            if ids[at - size : at] == ids[-size:]:
                out = []
                for n in range(most):
                    out.append(ids[at + n] if at + n < len(ids) else out[at + n - len(ids)])
                return out
    return []


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(0, 9), st.integers(0, 40))
def test_lookup_is_what_a_rescan_finds(ids, most, cut):
    text = Lookup(ids[:cut])
    text.extend(ids[cut:])
    assert text.guess(most) == rescanned(ids, most)


def test_lookup_guesses_what_followed():
    assert Lookup([1, 2, 3, 4, 5, 9, 1, 2, 3]).guess(3) == [4, 5, 9]
    assert Lookup([1, 2, 7, 5, 1, 2, 8, 5, 1, 2]).guess(2) == [8, 5]  # the last time, not the first
    assert Lookup([0, 1, 2, 7, 5, 1, 2, 8, 0, 1, 2]).guess(1) == [7]  # but the longest end
    assert Lookup([5, 6, 5, 6]).guess(5) == [5, 6, 5, 6, 5]  # round and round


@pytest.mark.parametrize("ids", [[], [1], [1, 2], [1, 1], [1, 2, 1], [1, 2, 3, 4, 5, 1]])
def test_nothing_to_go_by_is_no_guess(ids):
    """One token that stood before says too little."""
    assert Lookup(ids).guess(6) == []


def test_no_guesses_are_none():
    assert Lookup([1, 2, 1, 2]).guess(0) == []
    assert Lookup([1, 2, 1, 2]).guess(-1) == []


def test_a_copy_learns_alone():
    text = Lookup([1, 2, 3])
    other = text.copy()
    other.extend([1, 2])
    assert (text.guess(1), other.guess(1)) == ([], [3])
    text.extend([4, 1, 2])
    assert (text.guess(3), other.guess(3)) == ([3, 4, 1], [3, 1, 2])


def test_each_token_costs_the_same():
    """Dictionary writes, counted: the index grows with the text and is never made anew."""
    text, writes = Lookup(), 0

    class Counting(dict):
        def __setitem__(self, key, value):
            nonlocal writes
            writes += 1
            super().__setitem__(key, value)

    text._after = Counting()
    for n in range(2000):
        text.extend([n % 7])
        text.guess(6)
    assert writes == sum(2000 - size for size in SIZES)


# --- drafts -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine(small):
    return small.engine


def last_row(engine, ids):
    """Read one by one from the first on: what a step gives."""
    row, cache = engine.prefill(ids[:1])
    for i in ids[1:]:
        (row,) = engine.step([i], [cache])
    return row


@pytest.mark.parametrize("several", [False, True])
def test_append_is_step_by_step(engine, several):
    by = Stepwise(engine) if several else engine
    texts = [[5, 6, 7], [1], [*range(10, 20)]]
    caches = [engine.prefill([64])[1] for _ in texts]
    for row, ids, cache in zip(append(by, texts, caches), texts, caches, strict=True):
        np.testing.assert_array_equal(row, last_row(engine, [64, *ids]))
        assert cache.ids == [64, *ids]
    if several:
        assert by.severals == [[3, 1, 7], [3]]


@given(st.data())
def test_a_draft_reads_what_it_has_not(engine, data):
    """Whatever it guessed and whatever came: the cache holds a beginning of the text, and the rest is to be read."""
    ids = st.lists(st.integers(0, 1), min_size=1, max_size=5)
    text = data.draw(ids)
    draft = Draft(text, engine.prefill(text)[1])
    for _ in range(data.draw(st.integers(1, 2))):
        came = data.draw(ids)
        text = text + came
        draft.extend(came)
        unread = draft.unread()
        assert unread
        assert draft.cache.ids + unread == text
        append(engine, [unread], [draft.cache])
        for i in data.draw(st.lists(st.integers(0, 1), max_size=2)):
            if draft.cache.length < 16:
                engine.step([i], [draft.cache])


def test_a_draft_keeps_what_was_right(engine):
    draft = Draft([1, 2], engine.prefill([1, 2])[1])
    draft.extend([3])
    append(engine, [draft.unread()], [draft.cache])
    for i in (4, 5, 6):
        engine.step([i], [draft.cache])
    draft.extend([4, 5, 9])
    assert draft.unread() == [9]
    assert draft.cache.ids == [1, 2, 3, 4, 5]
    append(engine, [[9]], [draft.cache])
    draft.extend([7])
    assert draft.unread() == [7]


def test_a_copied_draft_goes_its_own_way(engine):
    draft = Draft([1, 2], engine.prefill([1, 2])[1])
    other = draft.copy()
    other.extend([3])
    append(engine, [other.unread()], [other.cache])
    assert (draft.cache.ids, other.cache.ids) == ([1, 2], [1, 2, 3])
    draft.extend([4, 5])
    late = draft.copy()
    assert (draft.unread(), late.unread()) == ([4, 5], [4, 5])


def greedy(row, ahead):
    return int(row.argmax())


@pytest.mark.parametrize("several", [False, True])
def test_a_guesser_guesses_what_it_would_write(engine, several):
    """Each text as many as asked, drawn with the place of each guess."""
    speculation = Speculation(6, Stepwise(engine) if several else engine)
    prompts = [[1, 2, 3], [9], [*range(12)]]
    texts = [speculation.read(prompt) for prompt in prompts]
    for prompt, text in zip(prompts, texts, strict=True):
        prompt.append(40)
        text.extend([40])
    places = [[], [], []]
    draws = [lambda row, ahead, seen=seen: seen.append(ahead) or greedy(row, ahead) for seen in places]
    found = speculation.guess(texts, [1, 0, 9], draws)
    assert [len(ids) for ids in found] == [1, 0, 3]  # 7 rows in all, of which 3 are the texts' own
    assert places == [[0], [], [0, 1, 2]]
    for prompt, ids in zip(prompts, found, strict=True):
        for n, i in enumerate(ids):
            assert i == last_row(engine, [*prompt, *ids[:n]]).argmax()


def test_a_guesser_ends_with_its_context(engine):
    """16 positions: of a text of 15 it can guess two more, the last unread; of 16 one; of 17 none."""
    for length, guesses in [(14, 3), (15, 2), (16, 1), (17, 0), (18, 0)]:
        text = Speculation(6, engine).read([5] * 13)
        text.extend([5] * (length - 13))
        (found,) = Speculation(6, engine).guess([text], [6], [greedy])
        assert len(found) == guesses, length


def test_a_prompt_longer_than_its_context_is_not_read(engine):
    speculation = Speculation(6, engine)
    assert speculation.read([5] * 16).cache.length == 16
    assert speculation.read([5] * 17) is None
    assert speculation.guess([None], [6], [greedy]) == [[]]


def test_what_is_not_finite_is_said_to_be_the_guessers(broken):
    import gpt2ln

    speculation = Speculation(6, gpt2ln.load(broken).engine)
    with pytest.raises(NonFinite, match=r"^--speculate, in the model that guesses: h1/ln_2/out: NaN or Inf"):
        speculation.read([1, 2, 3])


# --- how many -----------------------------------------------------------------------------------------------------


def test_a_share_for_each():
    assert shared([6], 6) == [6]
    assert shared([6, 6], 5) == [3, 2]
    assert shared([1, 6, 0, 6], 6) == [1, 3, 0, 2]
    assert shared([2, 1], 9) == [2, 1]
    assert shared([3, 3], 0) == [0, 0]
    assert shared([-1, 2], 5) == [0, 2]
    assert shared([], 5) == []


@given(st.lists(st.integers(-2, 13), max_size=20), st.integers(0, 13))
def test_shares_are_fair(wanted, total):
    given = shared(wanted, total)
    assert sum(given) == min(total, sum(max(w, 0) for w in wanted))
    for got, want in zip(given, wanted, strict=True):
        assert got <= max(want, 0)
        assert got == max(want, 0) or got >= max(given) - 1


@pytest.mark.parametrize(
    ("guesses", "texts", "in_all"),
    [
        *[(6, 1, 6), (6, 2, 5), (6, 6, 1), (6, 7, 0), (6, 8, 6), (6, 13, 1), (6, 14, 0)],
        *[(13, 1, 13), (13, 2, 12), (13, 7, 7), (13, 13, 1), (13, 14, 0), (13, 15, 6)],
        *[(2, 1, 2), (2, 3, 2), (2, 6, 1), (1, 1, 1), (1, 8, 1)],
    ],
)
def test_guesses_fill_the_rows_of_a_pass(guesses, texts, in_all):
    """The rows that are worked on at once, 7, 14, ..., or one more than the guesses; never more than asked."""
    speculation = Speculation(guesses)
    found = speculation.guess([Lookup([1, 2] * 9) for _ in range(texts)], [20] * texts, [greedy] * texts)
    assert sum(map(len, found)) == in_all


@pytest.mark.parametrize("guesses", [0, -1, MOST + 1])
def test_guesses_are_checked(guesses):
    with pytest.raises(UsageError, match=f"guesses {guesses}, expected 1 to 13"):
        Speculation(guesses)


def test_an_engine_that_rounds_otherwise_is_refused(engine):
    check(Stepwise(engine))
    with pytest.raises(UsageError) as refused:
        check(engine, "gpt2ln prepare demo")
    assert str(refused.value) == (
        "--speculate: the exact engine computes several tokens at once with other roundings than one by one, which"
        " could change a text, expected --engine fast; run: gpt2ln prepare demo"
    )
    with pytest.raises(UsageError, match=r"prepare NAME$"):
        check(Noisy(engine, 1))
