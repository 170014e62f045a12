"""`score`: log-probability, rank and entropy of every token of a text."""

import math
from collections.abc import Iterator, Sequence
from typing import TextIO

import click

from ..errors import BadInput, UsageError, first_five
from ..prompt import ABREAST, CHUNK, Prompt
from .options import Globals, command
from .output import as_json, as_table, results
from .prompts import prompt_options, read_prompts


@command("score", 'gpt2ln -m demo score "To be, or not to be" --per-token')
@prompt_options
@click.option("--window", type=click.IntRange(min=1), metavar="N", help="Tokens read at once.  [default: the context]")
@click.option("--stride", type=click.IntRange(min=1), metavar="N",
              help="How much further the next window is.  [default: half a window]")  # fmt: skip
@click.option("--per-token", is_flag=True, help="Also each token.")
@click.option("--top", type=click.IntRange(min=0), default=0, show_default=True, metavar="N",
              help="With --per-token: also the N likeliest tokens there.")  # fmt: skip
@click.option("--format", "form", type=click.Choice(["table", "jsonl", "json"]), default="table", show_default=True,
              help="jsonl or json: one object a line.")  # fmt: skip
@click.option("-o", "--output", metavar="FILE", help="Write there, not to stdout.")
@click.option("--force", is_flag=True, help="Overwrite FILE.")
def command(g, window, stride, per_token, top, form, output, force, **sources):
    """How likely the model holds TEXT: nats, bits a byte, perplexity of tokens and of words.

    A text of up to window + 1 tokens is one pass.  A longer one is read in windows, each token scored once: after the
    first window each has at least window - stride + 1 tokens before it.  The first token of a text has none and is not
    scored, nor are its bytes and words counted, unless --prefix-token eot stands before it.  Later windows begin
    without a prefix.

    With --lines and --jsonl, a text with nothing to score, such as an empty line, has 0 tokens and no other number; a
    note counts such texts, and the last line leaves them out.

    Rank 1 is the likeliest token; of equals the smaller id comes first.  Words are what whitespace parts.
    """
    from ..score import Scoring, Totals

    model = g.open()
    how = dict(window=window, stride=stride, prefix_token=sources["prefix_token"], top=top if per_token else 0)
    scoring = Scoring.within(model.hparams.n_ctx, **how)
    if top and not per_token:
        g.note("note: --top shows with --per-token alone")
    documents = _documents(g, model, scoring, sources)
    longest = min(max(len(d.ids) for d in documents), scoring.window)
    g.afford(model, ABREAST, longest, held=ABREAST * 2 * min(CHUNK, longest) * model.hparams.n_vocab * 4)
    with results(output, force) as out:
        writer, totals = WRITERS[form](out, model, scoring, documents, per_token), Totals()
        for n, scores in enumerate(_scored(g, model, documents, scoring)):
            writer.document(n, scores)
            totals += scores.totals
        writer.end(totals)


def _documents(g: Globals, model, scoring, sources: dict) -> list[Prompt]:
    """Texts, one at least with something to score; where there is none, all are told of at once."""
    from ..score import check_length

    documents = read_prompts(model.bpe, g.note, **sources, blank_lines=True)
    if not documents:
        raise UsageError("score: nothing to read; give a TEXT, --file, --lines, --ids or --jsonl")
    short = [str(n) for n, document in enumerate(documents) if not _scorable(document)]
    where = f" (documents {first_five(short)})" if len(documents) > 1 else ""
    if len(short) == len(documents):
        try:
            check_length(max(documents, key=lambda d: len(d.ids)).ids, scoring.prefix_token)
        except BadInput as cause:
            what, *more = str(cause).split("; ")
            raise BadInput("; ".join([what + where, *more])) from None
    if short:
        g.note(f"note: nothing to score in {len(short)} of {len(documents)} texts{where}; totals leave them out")
    return documents


def _scorable(document: Prompt) -> bool:
    return len(document.ids) > 1


def _scored(g: Globals, model, documents: Sequence[Prompt], scoring) -> Iterator:
    engine = model.exact
    from ..observe import in_order
    from ..score import score, unscored

    todo = sum(one.stop - one.start for d in documents for one in scoring.passes(len(d.ids)))
    with g.progress(todo) as bar:
        how = dict(mapped=in_order, progress=bar.update)
        scored = score(engine, model.bpe, [d.ids for d in documents if _scorable(d)], scoring, **how)
        for document in documents:
            yield next(scored) if _scorable(document) else unscored(scoring)


def tokens(scores, bpe) -> Iterator[dict]:
    """A record each.  i: its position, the first token of the text, or the prefix, is 0."""

    def spelt(i: int) -> str:
        return bpe.token_bytes(i).decode("utf-8", "backslashreplace")

    names = ("positions", "ids", "logprobs", "ranks", "entropies", "contexts", "top_ids", "top_logprobs")
    for i, own, logprob, rank, entropy, context, *top in zip(
        *(getattr(scores, n).tolist() for n in names), strict=True
    ):
        record = {"i": i, "id": own, "text": spelt(own), "logprob": logprob, "rank": rank}
        record |= {"entropy": entropy, "context": context}
        if scores.scoring.top:
            record["top"] = [{"id": j, "text": spelt(j), "logprob": other} for j, other in zip(*top, strict=True)]
        yield record


def measures(totals) -> dict:
    """As JSON takes them: null where nothing is scored, there is no word to divide by, or a perplexity is past
    float64."""
    found = {name: getattr(totals, name) for name in ("tokens", "bytes", "words")}
    found["nats"] = totals.nats if totals.tokens else None
    for name in ("bits_a_byte", "token_perplexity", "word_perplexity"):
        value = getattr(totals, name)
        found[name] = value if math.isfinite(value) else None
    return found


class Lines:
    """An object a token, if asked for, one a document where there are several, one of all: as they come."""

    def __init__(self, out: TextIO, model, scoring, documents: Sequence[Prompt], per_token: bool):
        self.out, self.model, self.scoring, self.documents, self.per_token = out, model, scoring, documents, per_token

    def _line(self, record: dict) -> None:
        self.out.write(as_json(record) + "\n")

    def _named(self, n: int) -> dict:
        own = self.documents[n].id
        return {"doc": n} if own is None else {"doc": n, "doc_id": own}

    def document(self, n: int, scores) -> None:
        if self.per_token:
            for token in tokens(scores, self.model.bpe):
                self._line({**self._named(n), **token})
        if len(self.documents) > 1:
            self._line({"document": {**self._named(n), **measures(scores.totals)}})
        self.out.flush()

    def end(self, totals) -> None:
        model = {"name": self.model.place.name, "sha256": self.model.index_sha256}
        record = {"documents": totals.documents, **measures(totals), **settings(self.scoring)}
        self._line({"summary": {**record, "engine": self.model.exact.name, "model": model}})


def settings(scoring) -> dict:
    return {"window": scoring.window, "stride": scoring.stride, "prefix_token": scoring.prefix_token}


class Tables:
    """The same for people, when all is known."""

    def __init__(self, out: TextIO, model, scoring, documents: Sequence[Prompt], per_token: bool):
        self.out, self.model, self.scoring, self.documents, self.per_token = out, model, scoring, documents, per_token
        self._tokens: list[list[str]] = []
        self._documents: list[list[str]] = []

    def document(self, n: int, scores) -> None:
        own = self.documents[n].id
        doc = str(n) if own is None else own if isinstance(own, str) else as_json(own)
        doc = doc if len(doc) <= 24 else doc[:21] + "..."
        if self.per_token:
            self._tokens += [[doc, *_row(token)] for token in tokens(scores, self.model.bpe)]
        self._documents.append([doc, *_measured(scores.totals)])

    def end(self, totals) -> None:
        """Without the document's name where there is one alone."""
        first = 0 if len(self.documents) > 1 else 1
        if self._tokens:
            head = ["doc", "i", "id", "logprob", "rank", "entropy", "context", "text", "likeliest"]
            head = head[: len(self._tokens[0])]
            left = [n - first for n, name in enumerate(head) if name in ("doc", "text", "likeliest")]
            self.out.write(as_table(head[first:], [row[first:] for row in self._tokens], left=left) + "\n")
        rows = [*self._documents, ["all", *_measured(totals)]] if not first else self._documents
        head = ["doc", "tokens", "bytes", "words", "nats", "bits a byte", "token ppl", "word ppl"]
        self.out.write(as_table(head[first:], [row[first:] for row in rows], left=() if first else (0,)))
        how = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in settings(self.scoring).items())
        self.out.write(f"\n{how}\n")


def _row(token: dict) -> list[str]:
    numbers = [_nats(token[name]) for name in ("logprob", "entropy")]
    row = [str(token["i"]), str(token["id"]), numbers[0], str(token["rank"]), numbers[1], str(token["context"])]
    row.append(f"'{token['text']}'")
    if "top" in token:
        row.append("  ".join(f"'{one['text']}' {one['logprob']:.3f}" for one in token["top"]))
    return row


def _measured(totals) -> list[str]:
    counts = [str(n) for n in (totals.tokens, totals.bytes, totals.words)]
    rest = (totals.bits_a_byte, totals.token_perplexity, totals.word_perplexity)
    nats = _nats(totals.nats) if totals.tokens else "-"
    return [*counts, nats, *("-" if math.isnan(x) else f"{x:.6g}" for x in rest)]


def _nats(x: float) -> str:
    return f"{x:.6f}" if abs(x) < 1e9 else f"{x:.6g}"


WRITERS = {"table": Tables, "jsonl": Lines, "json": Lines}
