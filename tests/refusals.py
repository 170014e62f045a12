"""What a refusal looks like: nothing on stdout, one `error:` line on stderr, the exit status, and these words in it."""


def refused(ran, status: int, *words: object) -> str:
    """-> the error line.  Other lines on stderr are notes and never errors."""
    lines = ran.err.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    assert (ran.status, ran.out, len(errors)) == (status, "", 1), ran
    assert lines[-1] == errors[0], ran
    assert not [line for line in lines if "Traceback" in line or "bug in gpt2ln" in line], ran
    for word in words:
        assert str(word) in errors[0], f"{word!r} is not in: {errors[0]}"
    return errors[0]


def done(ran) -> str:
    """-> stdout of a command that succeeded."""
    assert ran.status == 0, ran
    assert "error:" not in ran.err, ran
    return ran.out
