"""`--speculate`: who guesses, whether its guesses mean anything to the model, and how many were right."""

from collections.abc import Callable, Sequence
from functools import cached_property

import click

from ..errors import UsageError
from .options import Globals

LOOKUP, MOST = "lookup", 13

OPTIONS = [
    click.option("--speculate", metavar="lookup|MODEL",
                 help="Guess the next tokens from prompt and text, or by a smaller model; faster, changes no text."),
    click.option("--guesses", type=click.IntRange(1, MOST), metavar="N",
                 help="With --speculate: guesses in a pass, of all its sequences.  [default: 6]"),
]  # fmt: skip


def speculate_options(function: Callable) -> Callable:
    for option in reversed(OPTIONS):
        function = option(function)
    return function


class Guesses:
    """What `--speculate` asks for; refused here, before any weight is read, where that can be told."""

    def __init__(self, g: Globals, model, engine: str, speculate: str | None, guesses: int | None):
        """engine: what `--engine` says."""
        self.asked, self._g, self._model, self._most = speculate is not None, g, model, guesses
        if guesses is not None and not self.asked:
            g.note("note: --guesses counts with --speculate alone")
        if self.asked and (engine == "exact" or (engine == "auto" and model.prepared.state != "ready")):
            from ..speculate import one_by_one

            raise one_by_one("exact", model.prepared.run)
        self._guesser = None if speculate in (None, LOOKUP) else self._named(speculate)

    def _named(self, name: str):
        if not name:
            raise UsageError("--speculate: empty, expected lookup or the name of a model")
        from ..library import Model

        place, ours = self._g.place(name), self._model
        if place.prefix == ours.place.prefix:
            self._g.note(f"note: --speculate {name}: a model that guesses for itself saves no time")
            return ours
        how = dict(threads=self._g.threads, device=self._g.device or "cpu", cache_dir=self._g.kept)
        guesser = Model(place, engine="auto", **how)
        if other := _first_other(ours.bpe, guesser.bpe):
            raise UsageError(
                f"--speculate {name}: another vocabulary, {other}, expected that of {ours.place.name};"
                f" choose a smaller model of its family, or {LOOKUP}"
            )
        return guesser

    def afford(self, sequences: int, positions: int) -> None:
        if self._guesser is not None:
            self._g.afford(self._guesser, sequences, min(positions, self._guesser.hparams.n_ctx))

    @cached_property
    def speculation(self):
        """As the library takes it; reads the weights of the model that guesses."""
        if not self.asked:
            return None
        from ..speculate import GUESSES, Speculation, check

        check(self._model.engine, self._model.prepared.run)
        most = GUESSES if self._most is None else self._most
        return Speculation(most, None if self._guesser is None else self._loaded(self._guesser))

    def _loaded(self, guesser):
        """Its engine: the prepared one, or exact, which is right as often and slower."""
        engine = guesser.engine
        slower = "" if engine.name == "fast" else f"; {guesser.prepared.run} makes a faster one"
        self._g.note(f"speculation: {guesser.place.name} guesses, on its {engine.name} engine{slower}")
        return engine

    def tell(self, samples: Sequence) -> None:
        if self.asked:
            self._g.note(f"speculation: {summary(samples)}")


def _first_other(ours, theirs) -> str | None:
    """The first id that stands for other bytes, or how many there are; None where all are the same."""
    if theirs.n_vocab != ours.n_vocab:
        return f"{theirs.n_vocab} ids for {ours.n_vocab}"
    ids = range(ours.n_vocab)
    first = next((i for i in ids if ours.token_bytes(i) != theirs.token_bytes(i)), None)
    return None if first is None else f"id {first} is {theirs.token_bytes(first)} for {ours.token_bytes(first)}"


def summary(samples: Sequence) -> str:
    """Of all samples: `61 of 84 guesses accepted, 2.9 tokens a pass`; the first token of each comes with its prompt."""
    guesses, accepted, passes = (sum(getattr(s, name) for s in samples) for name in ("guesses", "accepted", "passes"))
    said = f"{accepted} of {guesses} guesses accepted" if guesses else "no guesses"
    drawn = sum(max(len(sample.tokens) - 1, 0) for sample in samples)
    return f"{said}, {drawn / passes:.1f} tokens a pass" if passes else said
