"""Every error a user can meet, one exit status a branch.

    Gpt2lnError            70  a bug of ours, when nothing narrower fits
    ├── Different           1  checked, and not equal
    ├── UsageError          2  an option, tap, variable or value that does not exist
    ├── NotFound            3  a model, a file or TensorFlow is not there
    ├── Damaged             4  a checkpoint or vocabulary is cut short, garbled or not a GPT-2
    ├── BadInput            5  a text or token ids that cannot be taken
    ├── NetworkError        6
    ├── DiskError           7  full, read-only, locked
    └── NonFinite           8  NaN or Inf in the forward pass

A message is one line: where, what was found, what was expected; the next step.
"""

import json
from collections.abc import Sequence


class Gpt2lnError(Exception):
    status = 70


class Different(Gpt2lnError):
    status = 1


class UsageError(Gpt2lnError):
    status = 2


class NotFound(Gpt2lnError):
    status = 3


class Damaged(Gpt2lnError):
    status = 4


class BadInput(Gpt2lnError):
    status = 5


class NetworkError(Gpt2lnError):
    status = 6


class DiskError(Gpt2lnError):
    status = 7


class NonFinite(Gpt2lnError):
    status = 8


def first_five(items: Sequence[str], between: str = ", ") -> str:
    """Join problems into one line: the first five, then how many more."""
    more = [f"and {len(items) - 5} more"] if len(items) > 5 else []
    return between.join([*items[:5], *more])


def in_short(value: object) -> str:
    """A value as JSON, cut where a message would get too long."""
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def printable(text: str) -> str:
    """Names and texts of a file that may be anybody's: what would move a cursor or colour a terminal is spelt out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
