"""`generate`: continue a text."""

import base64
import secrets
import time
from collections.abc import Callable
from typing import TextIO

import click

from ..errors import UsageError
from ..prompt import Prompt
from ..sample import Sampling
from .dumping import SampleDump
from .options import Globals, Number, command
from .output import as_json, results
from .prompts import decode, prompt_options, read_prompts
from .speculating import Guesses, speculate_options


def _stops(ctx, param, values: tuple[str, ...]) -> tuple[str, ...]:
    """Stop strings as strict UTF-8; an empty one would stop everything before it begins."""
    if "" in values:
        raise click.BadParameter("empty, expected a text to stop at", ctx, param)
    return tuple(decode(value.encode("utf-8", "surrogateescape"), "--stop", one_line=True) for value in values)


SAMPLING = [
    click.option("--length", type=click.IntRange(min=1),
                 help="New tokens.  [default: half the context; all of it without a prompt]"),
    click.option("--temperature", type=Number(), default=1.0, show_default=True, help="0 is greedy."),
    click.option("--greedy", is_flag=True, help="The likeliest token each time; --temperature 0."),
    click.option("--top-k", type=click.IntRange(min=0), default=0, show_default=True,
                 help="Of the k likeliest; 0 cuts nothing."),
    click.option("--top-p", type=Number(0, 1, open_below=True), default=1.0, show_default=True,
                 help="Of those that sum to p."),
    click.option("--nucleus", type=click.Choice(["openai", "hf"]), default="openai", show_default=True,
                 help="Whether the token that crosses p is dropped (openai) or kept (hf)."),
    click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="[default: drawn, and shown on stderr]"),
    click.option("--stop", multiple=True, metavar="STR", callback=_stops,
                 help="End before this text; may be repeated."),
    click.option("--stop-eot/--no-stop-eot", default=False, show_default=True, help="End at <|endoftext|>."),
    click.option("--overflow", type=click.Choice(["error", "truncate", "slide"]), default="error", show_default=True,
                 help="When prompt + length pass the context.  slide: one pass over all of it for each new token."),
    click.option("--nsamples", type=click.IntRange(min=1), default=1, show_default=True,
                 help="Continuations of each prompt."),
    click.option("--batch-size", type=click.IntRange(1, 65536), default=1, show_default=True,
                 help="Sequences side by side; changes no text."),
]  # fmt: skip


def sampling_options(function: Callable) -> Callable:
    for option in reversed(SAMPLING):
        function = option(function)
    return function


def engine_option(function: Callable) -> Callable:
    """Which engine continues the text."""
    return click.option(
        "--engine", type=click.Choice(["auto", "exact", "fast"]), default="auto", show_default=True,
        help="auto: the prepared one (gpt2ln prepare), else exact.",
    )(function)  # fmt: skip


@command("generate", 'gpt2ln -m demo generate "ROMEO:" --length 40 --seed 1')
@prompt_options
@sampling_options
@speculate_options
@click.option(
    "--start-index", type=click.IntRange(0, 2**63), default=0, show_default=True, help="Index of the first sample."
)
@click.option("--stream/--no-stream", default=True, show_default=True, help="Print text as it comes.")
@click.option("--include-prompt", is_flag=True, help="Print the prompt before its text.")
@click.option(
    "--logprobs", type=click.IntRange(min=0), metavar="N", help="With jsonl: log-probabilities, of the N likeliest too."
)
@click.option("--format", "form", type=click.Choice(["text", "jsonl", "official"]), default="text", show_default=True)
@engine_option
@click.option("-o", "--output", metavar="FILE", help="Write there, not to stdout.")
@click.option("--dump-taps", metavar="SPEC", help="Also keep activations of prompt and text: see gpt2ln taps.")
@click.option("--dump-to", metavar="PATH", help="Where: FILE.npz, FILE.jsonl or a folder.")
@click.option("--force", is_flag=True, help="Overwrite FILE and the dump.")
def command(
    g, text, file, lines, ids, jsonl, prefix_token, form, output, dump_taps, dump_to, force, stream, include_prompt,
    engine, speculate, guesses, **options
):  # fmt: skip
    """Continue TEXT; without one, write from nothing.

    LENGTH counts new tokens.  The same seed gives the same text under any batch size, order or restart.
    """
    if dump_taps and engine == "auto":
        engine = "exact"  # what is dumped is what the text came from
    model = g.open(engine=engine)
    sources = dict(text=text, file=file, lines=lines, ids=ids, jsonl=jsonl, prefix_token=prefix_token)
    prompts = read_prompts(model.bpe, g.note, **sources)
    if not prompts:
        prompts = [Prompt((model.bpe.eot,), "")]
        options["length"] = options["length"] or model.hparams.n_ctx
    guessing = Guesses(g, model, engine, speculate, guesses)
    settings = make_settings(g, prompts, model.hparams.n_ctx, **options)
    if settings.logprobs is not None and form != "jsonl":
        g.note("note: --logprobs shows with --format jsonl alone")
    dump = SampleDump(g, model, dump_taps, dump_to, prefix_token, force)
    dump.check(prompts, settings)
    if output is not None and output == dump_to:
        raise UsageError(f"{output}: named by --output and by --dump-to; the dump needs a place of its own")
    with results(output, force) as out:
        writer = WRITERS[form](out, model, settings, prefix_token, include_prompt)
        live = stream and form == "text" and settings.batch_size == 1
        samples = run(g, model, prompts, settings, guessing, writer, live=live)
    dump.fill(samples)


def make_settings(g: Globals, prompts: list[Prompt], n_ctx: int, **options):
    """Settings of this call, seed drawn if none was given; what does not fit is refused here."""
    from ..settings import Settings, fit

    sampling = {k: options.pop(k) for k in ("temperature", "top_k", "top_p", "nucleus")}
    if options.pop("greedy"):
        sampling["temperature"] = 0.0
    if options["seed"] is None:
        options["seed"] = secrets.randbits(32) if sampling["temperature"] > 0 else 0  # greedy draws nothing
        if sampling["temperature"] > 0:
            g.note(f"seed: {options['seed']}")
    settings = Settings(sampling=Sampling(**sampling), **options)
    for prompt in prompts:
        *_, note = fit(len(prompt.ids), settings.length, n_ctx, settings.overflow)
        if note:
            g.note(f"note: {note}")
    return settings


def run(g: Globals, model, prompts: list[Prompt], settings, guessing: Guesses, writer, *, live: bool) -> list:
    """Generate and write, sample by sample, or piece by piece where `live` -> the samples."""
    from ..generate import ahead, generate

    longest = max(len(prompt.ids) for prompt in prompts) + (settings.length or model.hparams.n_ctx)
    count = settings.nsamples * len(prompts)
    together = min(settings.batch_size, count)
    together += settings.nsamples > 1 and count > together  # the cache of a prompt, kept for samples to come
    together = min(together + ahead(settings, len(prompts)) - 1, count)  # read while others are still on their way
    g.afford(model, together, min(longest, model.hparams.n_ctx))
    guessing.afford(together, longest)
    began = time.perf_counter()
    engine = g.engine(model)
    writer.load_s = time.perf_counter() - began
    on_text = writer.piece if live else lambda sample, piece: None
    samples = []
    how = dict(speculation=guessing.speculation, on_text=on_text, clock=time.perf_counter)
    for sample in generate(engine, model.bpe, prompts, settings, **how):
        writer.whole(sample, streamed=live)
        samples.append(sample)
    guessing.tell(samples)
    return samples


def prompt_text(model, prompt: Prompt) -> str:
    """The text that was given, or that of the ids that were."""
    return model.bpe.decode(prompt.ids) if prompt.text is None else prompt.text


class TextWriter:
    """The text itself, one line end after it; between several a line `---`."""

    def __init__(self, out: TextIO, model, settings, prefix_token: str, include_prompt: bool):
        self.out, self.model, self.include_prompt, self._begun, self._count = out, model, include_prompt, None, 0

    def _begin(self, sample) -> None:
        if self._begun is sample:
            return
        self._begun = sample
        if self._count:
            self.out.write("---\n")
        self._count += 1
        if self.include_prompt:
            self.out.write(prompt_text(self.model, sample.prompt))

    def piece(self, sample, piece: str) -> None:
        self._begin(sample)
        self.out.write(piece)
        self.out.flush()

    def whole(self, sample, *, streamed: bool) -> None:
        self._begin(sample)
        self.out.write("\n" if streamed else sample.text + "\n")
        self.out.flush()


class OfficialWriter(TextWriter):
    """As the official scripts print it: a ruler with the number of the sample, the text; a ruler ends each prompt."""

    def __init__(self, out: TextIO, model, settings, prefix_token: str, include_prompt: bool):
        super().__init__(out, model, settings, prefix_token, include_prompt)
        self._prompt, self._nsamples = None, settings.nsamples

    def whole(self, sample, *, streamed: bool) -> None:
        if sample.prompt is not self._prompt:
            self._prompt, self._count = sample.prompt, 0
        self._count += 1
        prompt = prompt_text(self.model, sample.prompt) if self.include_prompt else ""
        self.out.write(f"{'=' * 40} SAMPLE {self._count} {'=' * 40}\n{prompt}{sample.text}\n")
        if self._count == self._nsamples and sample.prompt.text != "":  # the unconditional script ends without
            self.out.write("=" * 80 + "\n")
        self.out.flush()


class JsonWriter:
    """One object a sample."""

    load_s = 0.0

    def __init__(self, out: TextIO, model, settings, prefix_token: str, include_prompt: bool):
        self.out, self.model, self.settings = out, model, settings
        sampling = settings.sampling
        self._settings = {
            "temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p,
            "nucleus": sampling.nucleus, "stop": list(settings.stop),
            "stop_eot": settings.stop_eot, "overflow": settings.overflow, "prefix_token": prefix_token,
        }  # fmt: skip
        self._include_prompt = include_prompt

    def whole(self, sample, *, streamed: bool) -> None:
        prompt = sample.prompt
        record = {"id": prompt.id, "index": sample.index, "prompt": prompt_text(self.model, prompt)}
        record["text"] = (record["prompt"] if self._include_prompt else "") + sample.text
        raw = self.model.bpe.decode_bytes(sample.tokens)
        if "\ufffd" in sample.text and raw.decode("utf-8", "ignore").encode() != raw:
            record["bytes_b64"] = base64.b64encode(raw).decode()
        record |= {"tokens": sample.tokens, "prompt_tokens": list(sample.context), "finish": sample.finish}
        record |= {
            "seed": sample.seed,
            "settings": self._settings | {"length": sample.length},
            "engine": self.model.engine.name,
        }
        record["model"] = {"name": self.model.place.name, "sha256": self.model.index_sha256}
        if self.settings.logprobs is not None:
            record["logprobs"] = sample.logprobs
        speed = (len(sample.tokens) - 1) / sample.decode_s if sample.decode_s and len(sample.tokens) > 1 else None
        record["timing"] = {"load_s": self.load_s, "prefill_s": sample.prefill_s, "tokens_per_s": speed}
        if sample.guesses is not None:
            record["timing"]["speculation"] = {
                "guesses": sample.guesses, "accepted": sample.accepted, "passes": sample.passes
            }  # fmt: skip
        self.out.write(as_json(record) + "\n")
        self.out.flush()


WRITERS = {"text": TextWriter, "jsonl": JsonWriter, "official": OfficialWriter}
