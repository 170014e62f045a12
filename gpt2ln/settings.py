"""What a continuation depends on beside its prompt, and whether it fits the context.  No TensorFlow."""

from dataclasses import dataclass, field

from .errors import BadInput, UsageError
from .sample import Sampling

OVERFLOWS = ("error", "truncate", "slide")


@dataclass(frozen=True)
class Settings:
    """What a continuation depends on beside its prompt.  `length` None: n_ctx // 2, or what fits."""

    sampling: Sampling = field(default_factory=Sampling)
    length: int | None = None
    seed: int = 0
    nsamples: int = 1
    start_index: int = 0
    batch_size: int = 1
    stop: tuple[str, ...] = ()
    stop_eot: bool = False
    overflow: str = "error"
    logprobs: int | None = None

    def __post_init__(self):
        at_least = {"length": 1, "seed": 0, "nsamples": 1, "start_index": 0, "batch_size": 1, "logprobs": 0}
        for name, least in at_least.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"{name} {value}, expected {least} or more")
        if isinstance(self.stop, str) or "" in self.stop:
            raise UsageError(f"stop {self.stop!r}, expected texts to stop at, in a tuple")
        if self.overflow not in OVERFLOWS:
            raise UsageError(f"overflow {self.overflow!r}, expected {', '.join(OVERFLOWS)}")


def fit(prompt: int, length: int | None, n_ctx: int, overflow: str) -> tuple[int, int, str | None]:
    """Decide, in tokens, what is read and how much is written -> prompt tokens kept, length, note.

    The note tells of every departure from what was asked.  BadInput when it does not fit under `error`, or under
    `truncate` where not one prompt token would stay.
    """
    takes = n_ctx + 1
    wanted = max(n_ctx // 2, 1) if length is None else length
    if overflow == "slide":
        note = f"past {n_ctx} tokens each step reads the last {n_ctx} alone (--overflow slide)"
        return min(prompt, n_ctx), wanted, note if prompt + wanted > takes else None
    if prompt + wanted <= takes:
        return prompt, wanted, None
    if overflow == "truncate" and wanted < takes:
        kept = takes - wanted
        return kept, wanted, f"the first {prompt - kept} of {prompt} prompt tokens were dropped (--overflow truncate)"
    if length is None and prompt < takes:
        return (
            prompt,
            takes - prompt,
            f"--length is {takes - prompt}: prompt {prompt} tokens, the context takes {takes}",
        )
    way_out = "lower --length or pass --overflow slide"
    if overflow == "error":
        way_out = "shorten the prompt, lower --length or pass --overflow truncate|slide"
    raise BadInput(
        f"prompt {prompt} tokens + length {wanted} = {prompt + wanted}, the context takes {takes}; {way_out}"
    )
