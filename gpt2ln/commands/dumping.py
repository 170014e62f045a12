"""Filling a dump, as `dump` and `generate --dump-taps` do: where it goes, whether it fits, what is said at the end."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ..disk import check_room, part_of
from ..errors import BadInput, UsageError
from ..plan import Plan
from ..prompt import Prompt
from ..settings import fit
from ..taps import choose
from .output import checked, results

FORMATS = ("npz", "dir", "jsonl")
SHARD_MB = 512
MB = 1_000_000


def form_of(output: str | None, form: str | None) -> str:
    """The format asked for, or the one that the name of the output says."""
    form = form or (
        "jsonl" if output in (None, "-") else {".npz": "npz", ".jsonl": "jsonl"}.get(Path(output).suffix, "dir")
    )
    if form != "jsonl" and output in (None, "-"):
        raise UsageError(f"--format {form}: give a name with -o; to stdout goes jsonl alone")
    return form


def check_target(plan: Plan, output: str | None, form: str, *, limit: int, resume: bool, force: bool) -> None:
    """Refuse, before anything is computed, a target that is not ours or a disk that is too small."""
    if resume and form != "dir":
        raise UsageError(f"--resume: only a folder goes on where it stopped, this is {form}; pass --format dir")
    if form == "jsonl":
        if output not in (None, "-"):
            checked(Path(output), force)
        return
    target = Path(output)
    if form == "npz":
        checked(target, force)
        if target.exists() and not target.is_file():
            raise UsageError(f"{target}: is no plain file; to a pipe or device goes jsonl alone")
        if (part := part_of(target)).exists() and not force:
            raise UsageError(f"{part}: exists, left by an interrupted run or used by another; --force overwrites it")
        need, held = 2 * plan.file_bytes(plan.tap_bytes), 0  # rows first, then the npz
    else:
        from ..folder import check_folder, held_bytes

        check_folder(target, resume=resume, force=force)
        need, held = plan.file_bytes(limit), held_bytes(target)
    check_room(target.absolute().parent, need - held, "fewer --taps, --positions or --dtype float16 take less")


@contextlib.contextmanager
def sink(
    plan: Plan, provenance: dict, output: str | None, form: str, *, limit: int, resume: bool, force: bool
) -> Iterator:
    """Where rows go; whole at the end, and nothing that looks whole after an error or Ctrl-C."""
    from ..dump import Lines, Npz

    if form == "jsonl":
        with results(output, force) as out:
            lines = Lines(out, plan, provenance)
            yield lines
            lines.finish()
        return
    if form == "npz":
        opened = Npz(Path(output).resolve(), plan, provenance)
    else:
        from ..folder import Folder

        opened = Folder(Path(output), plan, provenance, limit=limit, resume=resume, force=force)
    try:
        yield opened
        opened.finish()
    except BaseException:
        opened.abandon()
        raise


def fill(g, engine, plan: Plan, opened: Callable, replay: Callable = lambda n: None) -> None:
    """Compute and write.  NonFinite at the very end: the dump is whole then, with what was not finite counted."""
    from ..observe import dump

    with opened as into:
        todo = sum(len(plan.documents[n].ids) for group in into.pending() for n in group)
        if todo < plan.n_tokens:
            g.note(f"note: {into.state}, {todo} of {plan.n_tokens} tokens are left")
        try:
            with g.progress(plan.n_tokens, plan.n_tokens - todo) as bar:
                dump(engine, into, replay=replay, progress=bar.update)
        except KeyboardInterrupt:
            if getattr(into, "whole", 0):
                g.note(f"interrupted: {into.state}; --resume goes on")
            raise
    if bad := into.bad():
        raise engine.not_finite(plan.documents[bad[0]].ids, replay(bad[0]))
    for name, count in into.nonfinite().items():
        g.note(f"warning: {name}: {count} values are past {plan.dtype} and became Inf")


class SampleDump:
    """Activations of generated texts: one clean pass over prompt and text, each position once, the last token too.

    What the steps of decoding saw differs from it in the last digits, and lacks the last token, which is never fed.
    """

    def __init__(self, g, model, spec: str | None, output: str | None, prefix_token: str, force: bool):
        self.g, self.model, self.output = g, model, output
        if output == "-" or (spec is not None and output is None):
            raise UsageError("--dump-taps: give a place with --dump-to, FILE.npz, FILE.jsonl or a folder")
        self.taps = tuple(choose(spec or "@ln-stats", model.hparams)) if output is not None else ()
        self._where = dict(limit=SHARD_MB * MB, resume=False, force=force)
        self._stated = {"prefix_token": prefix_token}

    def _plan(self, documents: Sequence[Prompt]) -> Plan:
        return Plan(self.taps, tuple(documents), self.model.bpe.token_bytes)

    def check(self, prompts: Sequence[Prompt], settings) -> None:
        """Refuse before anything is generated; sizes are those of the longest texts possible."""
        if self.output is None:
            return
        n_ctx = self.model.hparams.n_ctx
        longest = []
        for prompt in prompts:
            kept, length, _ = fit(len(prompt.ids), settings.length, n_ctx, settings.overflow)
            if kept + length > n_ctx + 1:
                raise BadInput(
                    f"--dump-to: {kept} prompt tokens + length {length} slide past the context of {n_ctx}, where a"
                    " position has several activations; lower --length"
                )
            longest += [Prompt((0,) * min(kept + length, n_ctx))] * settings.nsamples
        check_target(self._plan(longest), self.output, form_of(self.output, None), **self._where)

    def fill(self, samples: Sequence) -> None:
        if self.output is None:
            return
        n_ctx = self.model.hparams.n_ctx
        documents = [Prompt((*s.context, *s.tokens)[:n_ctx], None, s.prompt.id) for s in samples]
        if any(len(s.context) + len(s.tokens) > n_ctx for s in samples):
            self.g.note(f"note: token {n_ctx + 1} has no position and so no activations")
        plan = self._plan(documents)
        provenance = self.model.provenance() | self._stated | {"command": self.g.command_line("--force", "-q")}
        fill(
            self.g,
            self.model.engine,
            plan,
            sink(plan, provenance, self.output, form_of(self.output, None), **self._where),
        )
