"""The library face and the one way to open a model: `load("124M")`.

Opening checks the whole folder at once and reads no weights.  `bpe` and the engines come when they are first asked for;
only `exact` needs TensorFlow.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from .bpe import Bpe, check_ids
from .checkpoint import Bundle, bad_sum, read_index
from .checkpoint import load as load_arrays
from .disk import sha256
from .errors import BadInput, Damaged, Gpt2lnError, NotFound, UsageError, first_five
from .locate import Place, default_shelves, find, missing_files
from .prepared import Prepared, command
from .prepared import check as check_prepared
from .prepared import find as find_prepared
from .prompt import CHUNK, Prompt
from .published import advised, again
from .spec import RELEASED, variables
from .taps import choose, norm_scopes
from .tensors import foreign
from .weights import check, read_hparams

ENGINES = ("exact", "fast", "auto")


class Model:
    """A GPT-2 on disk.  `notes` are remarks for people; more may come with the engine."""

    def __init__(
        self,
        place: Place,
        *,
        threads: int | None = None,
        device: str = "cpu",
        engine: str = "exact",
        cache_dir: Path | None = None,
    ):
        """engine: exact | fast | auto, which is fast where it was prepared; cache_dir: where else that may be."""
        if engine not in ENGINES:
            raise UsageError(f"engine {engine!r}, expected {', '.join(ENGINES)}")
        if missing := missing_files(place):
            how = f"run: gpt2ln download {place.name}" if place.name in RELEASED else "put them into that folder"
            if foreign(place.folder):
                how = f"the official layout comes of it by: gpt2ln import {place.folder} -o NEW"
            raise NotFound(f"{place.folder.absolute()}: {first_five(missing)} missing; {how}")
        self.place, self._threads, self._device = place, threads, device
        self._wanted, self._cache_dir = engine, cache_dir
        with advised(place.folder):
            self.bundle: Bundle = read_index(place.prefix)
            self.hparams, self.notes = read_hparams(place.file("hparams.json"))
            findings = check(self.bundle, self.hparams)
            if findings.problems:
                more = f"; {again(place.prefix.parent)}" if findings.cut_short else ""
                raise Damaged(f"{place.prefix}: {first_five(findings.problems, '; ')}{more}")
        self.notes = self.notes + findings.notes

    @cached_property
    def bpe(self) -> Bpe:
        with advised(self.place.folder):
            bpe = Bpe(self.place.file("encoder.json"), self.place.file("vocab.bpe"))
        if bpe.n_vocab != self.hparams.n_vocab:
            raise Damaged(
                f"{self.place.folder}: encoder.json has {bpe.n_vocab} entries,"
                f" hparams.json says n_vocab {self.hparams.n_vocab}"
            )
        return bpe

    @cached_property
    def engine(self):
        """The one that was asked for; under `auto` a note says why it is not the prepared one, if one is expected."""
        if self._wanted == "exact":
            return self.exact
        if self._wanted == "auto" and self.prepared.state == "none":
            if self._cache_dir is not None:
                self.notes.append(self.prepared.why)
            return self.exact
        try:
            fast = self.fast
        except Gpt2lnError as cause:
            if self._wanted == "fast":
                raise
            self.notes.append(f"warning: the prepared engine is not used: {cause}")
            return self.exact
        self.notes.append(f"engine: fast ({self.prepared.distance}; --engine exact is the official graph itself)")
        return fast

    @cached_property
    def exact(self):
        """Every weight with its sum checked, in TensorFlow's memory, behind the `exact` engine."""
        from .engine import Exact, to_tensors
        from .runtime import configure

        self._threads = configure(threads=self._threads, device=self._device)
        weights = to_tensors(load_arrays(self.bundle, variables(self.hparams)))
        return Exact(self.hparams, weights, threads=self._threads)

    @cached_property
    def prepared(self) -> Prepared:
        """The fast engine as it lies on disk, beside the checkpoint or in the folder for such."""
        folders = [self.place.prefix.parent] if self._cache_dir is None else [self._cache_dir, self.place.prefix.parent]
        return find_prepared(self.index_sha256, self.hparams, folders, run=command(self.place, self._cache_dir))

    def prepare(self, *, force: bool = False, on_file: Callable[[str], object] = lambda name: None) -> Prepared:
        """Make the fast engine, where there is none that is whole; force: though there is.

        Different where it is too far from exact.  on_file: called with the name of each step, if there are any.
        """
        if not force and self._is_prepared():
            return self.prepared
        from .distance import TEXT
        from .litert import interpreter_class

        interpreter_class()
        probe = self.encode(TEXT)
        from .prepare import prepare
        from .runtime import configure

        self._threads = configure(threads=self._threads)
        if not force and self._is_prepared():  # by another process, meanwhile
            return self.prepared
        parent = self._cache_dir or self.place.prefix.parent
        how = dict(index_sha256=self.index_sha256, threads=self._threads, run=self.prepared.run, on_file=on_file)
        prepare(
            self.bundle, self.hparams, probe, parent, force=force or self.prepared.state in ("ready", "damaged"), **how
        )
        del self.prepared
        return self.prepared

    def _is_prepared(self) -> bool:
        """Whether it lies there now, and all of it is as it was written."""
        self.__dict__.pop("prepared", None)
        try:
            check_prepared(self.prepared)
        except Gpt2lnError:
            return False
        return True

    @cached_property
    def fast(self):
        """The prepared engine, every byte of it checked; no TensorFlow."""
        if self._device != "cpu":
            raise UsageError(
                f"--engine fast: runs on the processor alone, not on {self._device}; choose --engine exact"
            )
        check_prepared(self.prepared)
        with advised(self.place.folder):
            if problems := [p for p in map(self._bad_sum, ("wte", "wpe")) if p]:
                raise Damaged(f"{self.bundle.prefix}: damaged: {first_five(problems)}; {again(self.place.folder)}")
        from .fast import Fast

        threads = self._threads or len(os.sched_getaffinity(0))
        return Fast(self.hparams, self.prepared.folder, self.bundle, threads=threads)

    def _bad_sum(self, name: str) -> str | None:
        return bad_sum(self.bundle, self.bundle.entries[f"model/{name}"])

    @cached_property
    def index_sha256(self) -> str:
        """Digest of the index file, which holds the sums of all weights: it names them."""
        return sha256(self.place.prefix.with_name(self.place.prefix.name + ".index"))

    def provenance(self) -> dict:
        """What the numbers of a run depend on.  The model's name and place are no part of it: its digests are."""
        from . import __version__
        from .runtime import facts

        engine = self.exact
        files = {name: sha256(self.place.file(name)) for name in ("encoder.json", "vocab.bpe")}
        return {
            "gpt2ln": __version__,
            "model": {"index_sha256": self.index_sha256, "hparams": self.hparams.as_dict()},
            "tokenizer_sha256": files,
            "engine": engine.name,
            "chunk": CHUNK,
            **facts(threads=self._threads, device=self._device),
        }

    @cached_property
    def weights(self) -> dict:
        """Every variable as it is mapped, its sum checked: `model/...` -> array."""
        return dict(load_arrays(self.bundle, variables(self.hparams)))

    def reference(self, text_or_ids: str | Sequence[int], **how):
        """The float64 forward pass of a text, tap by tap; no TensorFlow.  how: as `reference.Reference` takes it."""
        from .reference import Reference

        return Reference(self.hparams, self._fitting(text_or_ids), self.weights, **how)

    def gains(self) -> dict[str, dict]:
        """`g` and `b` of every LayerNorm, as the checkpoint has them: [C] float32."""
        wanted = {name: shape for name, shape in variables(self.hparams).items() if "/ln_" in name}
        out: dict[str, dict] = {norm: {} for norm in norm_scopes(self.hparams)}
        for name, array in load_arrays(self.bundle, wanted):
            norm, leaf = name.removeprefix("model/").rsplit("/", 1)
            out[norm][leaf] = array.copy()
        return out

    def bytes_needed(self, sequences: int, positions: int) -> int:
        """Weights, and keys and values of that many sequences of that many positions."""
        hp = self.hparams
        weights = sum(self.bundle.entries[name].size for name in variables(hp))
        return weights + sequences * hp.n_layer * 2 * hp.n_embd * positions * 4

    def encode(self, text: str) -> list[int]:
        return self.bpe.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        check_ids(ids, self.hparams.n_vocab)
        return self.bpe.decode(ids)

    def ids(self, text_or_ids: str | Sequence[int]) -> list[int]:
        """Token ids of either, at least one, checked against the vocabulary."""
        ids = self.encode(text_or_ids) if isinstance(text_or_ids, str) else list(text_or_ids)
        check_ids(ids, self.hparams.n_vocab)
        if not ids:
            raise BadInput("0 tokens, expected at least 1")
        return ids

    def observe(
        self,
        text_or_ids: str | Sequence[int],
        taps: str = "@ln-stats",
        *,
        layers: str | None = None,
        ln_from: Mapping | None = None,
    ) -> dict:
        """Activations by name: {"h0/ln_1/mean": [T, 1], "h0/out": [T, C], "h0/attn/probs": [T, H, T], ...} float32.

        ln_from: what `observe` or `dump` gave for `<norm>/mean` and `<norm>/rstd`, put in place of what those norms
        would compute.  NonFinite names the first tap that is not finite.
        """
        ids = self._fitting(text_or_ids)
        wanted = [tap.name for tap in choose(taps, self.hparams, layers=layers)]
        from .observe import observe
        from .replay import frozen_from

        frozen = None if ln_from is None else frozen_from(ln_from, len(ids), norm_scopes(self.hparams))
        return observe(self.exact, ids, wanted, frozen=frozen)

    def logits(self, text_or_ids: str | Sequence[int]):
        """-> [T, V] float32: row t scores the token after position t.  NonFinite names the first tap that is not."""
        return self.observe(text_or_ids, "logits")["logits"]

    def score(self, text_or_ids: str | Sequence[int], **how):
        """-> `score.Scores`, of a text of any length.  how: `window`, `stride`, `prefix_token`, `top`, as `Scoring`."""
        from .observe import in_order
        from .score import Scoring, score

        scoring = Scoring.within(self.hparams.n_ctx, **how)
        prefix = [self.bpe.eot] if scoring.prefix_token == "eot" else []
        return next(score(self.exact, self.bpe, [[*prefix, *self.ids(text_or_ids)]], scoring, mapped=in_order))

    def _fitting(self, text_or_ids: str | Sequence[int]) -> list[int]:
        ids = self.ids(text_or_ids)
        if len(ids) > self.hparams.n_ctx:
            raise BadInput(f"{len(ids)} tokens, expected 1..{self.hparams.n_ctx}")
        return ids

    def generate(self, text_or_ids: str | Sequence[int], *, speculation=None, **settings) -> Iterator:
        """`generate.Sample`s; settings are those of `generate.Settings`, and of `sample.Sampling` in `sampling`.

        speculation: a `speculate.Speculation`, with the prepared engine.
        """
        from .generate import generate
        from .settings import Settings

        prompt = Prompt(tuple(self.ids(text_or_ids)))
        return generate(self.engine, self.bpe, [prompt], Settings(**settings), speculation=speculation)


def load(
    name: str | None = None,
    *,
    models_dir: str | Path | None = None,
    checkpoint: str | Path | None = None,
    threads: int | None = None,
    device: str = "cpu",
    engine: str = "exact",
    cache_dir: str | Path | None = None,
) -> Model:
    """Open a model by name, alias, folder or prefix; without a name the 124M where it is there, else the demo.

    engine, for `generate`: exact | fast | auto; what is observed is always exact's.
    """
    shelves = default_shelves(models_dir, os.environ)
    place = find(None if name is None else str(name), shelves, None if checkpoint is None else Path(checkpoint))
    kept = None if cache_dir is None else Path(cache_dir)
    return Model(place, threads=threads, device=device, engine=engine, cache_dir=kept)
