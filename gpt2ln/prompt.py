"""A text as token ids, with what its record is to show."""

from dataclasses import dataclass

CHUNK = 256  # positions of a prompt computed at once: half of the scores of a long prompt lie above the diagonal
ABREAST = 2  # texts watched side by side


@dataclass(frozen=True)
class Prompt:
    """ids: what is read, a prefix token included.  text None: given as ids, or none at all."""

    ids: tuple[int, ...]
    text: str | None = None
    id: object = None
    seed: int | None = None
