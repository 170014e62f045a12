import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2ln.errors import BadInput, UsageError
from gpt2ln.sample import Sampling
from gpt2ln.settings import Settings, fit

POLICIES = ["error", "truncate", "slide"]


def oracle(prompt, length, n_ctx, overflow):
    """prompt kept, length, what is said of it: by trying, one token at a time."""

    def takes(prompt, length):  # the last new token is drawn and never fed back
        return prompt + length - 1 <= n_ctx

    wanted = length or max(n_ctx // 2, 1)
    if overflow == "slide":
        return min(prompt, n_ctx), wanted, "said" if not takes(prompt, wanted) else None
    if takes(prompt, wanted):
        return prompt, wanted, None
    if overflow == "truncate":
        fitting = [kept for kept in range(1, prompt) if takes(kept, wanted)]
        if fitting:
            return max(fitting), wanted, f"{prompt - max(fitting)} of {prompt}"
    if length is None:
        fitting = [less for less in range(1, wanted) if takes(prompt, less)]
        if fitting:
            return prompt, max(fitting), f"--length is {max(fitting)}"
    return None


@pytest.mark.parametrize("overflow", POLICIES)
@pytest.mark.parametrize("n_ctx", [1, 2, 3, 5, 16])
def test_fit_is_what_trying_gives(n_ctx, overflow):
    for prompt in range(1, 2 * n_ctx + 3):
        for length in (None, *range(1, 2 * n_ctx + 4)):
            expected, case = oracle(prompt, length, n_ctx, overflow), (prompt, length)
            if expected is None:
                with pytest.raises(BadInput):
                    fit(prompt, length, n_ctx, overflow)
                continue
            kept, new, said = expected
            ours = fit(prompt, length, n_ctx, overflow)
            assert ours[:2] == (kept, new), case
            assert (ours[2] is None) == (said is None), case
            assert said in (None, "said") or said in ours[2], case


@given(
    st.integers(1, 3000), st.one_of(st.none(), st.integers(1, 3000)), st.integers(1, 1024), st.sampled_from(POLICIES)
)
def test_what_is_read_is_never_more_than_the_prompt_or_the_context(prompt, length, n_ctx, overflow):
    try:
        kept, new, _ = fit(prompt, length, n_ctx, overflow)
    except BadInput:
        assert overflow != "slide"
        return
    assert 1 <= kept <= min(prompt, n_ctx)
    assert new == length or (length is None and 1 <= new <= max(n_ctx // 2, 1))
    assert overflow == "slide" or kept + new <= n_ctx + 1


@pytest.mark.parametrize(
    ("prompt", "length", "expected"), [(10, 6, (10, 6)), (10, 7, (10, 7)), (16, 1, (16, 1)), (1, 16, (1, 16))]
)
def test_what_just_fits(prompt, length, expected):
    assert fit(prompt, length, 16, "error") == (*expected, None)


@pytest.mark.parametrize(("prompt", "length", "total"), [(10, 8, 18), (17, 1, 18), (1, 17, 18), (17, None, 25)])
def test_what_just_does_not_fit(prompt, length, total):
    with pytest.raises(BadInput) as refused:
        fit(prompt, length, 16, "error")
    assert str(refused.value) == (
        f"prompt {prompt} tokens + length {length or 8} = {total}, the context takes 17;"
        " shorten the prompt, lower --length or pass --overflow truncate|slide"
    )
    assert refused.value.status == 5


def test_a_default_length_shrinks_to_what_fits_and_says_so():
    assert fit(9, None, 16, "error") == (9, 8, None)
    assert fit(12, None, 16, "error") == (12, 5, "--length is 5: prompt 12 tokens, the context takes 17")
    assert fit(16, None, 16, "error")[:2] == (16, 1)


def test_truncate_keeps_the_last_tokens_and_says_how_many_went():
    note = "the first 7 of 20 prompt tokens were dropped (--overflow truncate)"
    assert fit(20, 4, 16, "truncate") == (13, 4, note)
    assert fit(20, 16, 16, "truncate")[:2] == (1, 16)
    assert fit(13, 4, 16, "truncate") == (13, 4, None)


def test_truncate_cannot_make_room_for_a_length_as_long_as_all():
    with pytest.raises(BadInput) as refused:
        fit(20, 17, 16, "truncate")
    assert str(refused.value) == (
        "prompt 20 tokens + length 17 = 37, the context takes 17; lower --length or pass --overflow slide"
    )


def test_slide_takes_any_length_and_says_that_it_slides():
    note = "past 16 tokens each step reads the last 16 alone (--overflow slide)"
    assert fit(8, 20, 16, "slide") == (8, 20, note)
    assert fit(20, 4, 16, "slide") == (16, 4, note)
    assert fit(8, 9, 16, "slide") == (8, 9, None)
    assert fit(8, 10, 16, "slide") == (8, 10, note)


def test_settings_by_default():
    s = Settings()
    assert (s.sampling.temperature, s.sampling.top_k, s.sampling.top_p, s.sampling.nucleus) == (1.0, 0, 1.0, "openai")
    assert (s.length, s.nsamples, s.batch_size, s.stop, s.stop_eot, s.overflow) == (None, 1, 1, (), False, "error")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"length": 0}, "length 0, expected 1 or more"),
        ({"seed": -1}, "seed -1, expected 0 or more"),
        ({"nsamples": 0}, "nsamples 0"),
        ({"batch_size": 0}, "batch_size 0"),
        ({"start_index": -1}, "start_index -1"),
        ({"logprobs": -1}, "logprobs -1"),
        ({"stop": "the end"}, "in a tuple"),
        ({"stop": ("a", "")}, "texts to stop at"),
        ({"overflow": "wrap"}, "expected error, truncate, slide"),
    ],
)
def test_settings_are_checked_for_python_too(wrong, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        Settings(**wrong)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"temperature": -1}, "temperature -1"),
        ({"temperature": math.nan}, "temperature nan"),
        ({"temperature": math.inf}, "temperature inf"),
        ({"top_k": -5}, "top_k -5"),
        ({"top_p": 0}, "top_p 0"),
        ({"top_p": 1.1}, "top_p 1.1"),
        ({"nucleus": "HF"}, "expected openai or hf"),
    ],
)
def test_sampling_is_checked_for_python_too(wrong, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        Sampling(**wrong)
