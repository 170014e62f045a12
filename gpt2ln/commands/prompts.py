"""Texts as commands take them: TEXT, `-f`, `--lines`, `--ids`, `--jsonl` -> prompts, before TensorFlow is imported.

A text is taken as it is, blanks and last newline included.  What is not UTF-8 is refused with its place.
"""

import json
import math
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import click

from ..bpe import Bpe, check_ids
from ..errors import BadInput, DiskError, NotFound, UsageError
from ..prompt import Prompt
from ..spec import EOT_TEXT

_WHOLE = re.compile("[+-]?[0-9]+")

SOURCES = [
    click.option("-f", "--file", metavar="FILE", help="The whole content is one text; - is stdin."),
    click.option("--lines", metavar="FILE", help="One text a line."),
    click.option("--ids", metavar="IDS", help='Token ids, "464 3290", in place of a text.'),
    click.option("--jsonl", metavar="FILE", help='One object a line: {"id":..., "prompt": text} or {"tokens": ids}.'),
    click.option(
        "--prefix-token",
        type=click.Choice(["none", "eot"]),
        default="none",
        show_default=True,
        help="Put <|endoftext|> before each text.",
    ),
]


def prompt_options(function: Callable) -> Callable:
    return click.argument("text", required=False)(source_options(function))


def source_options(function: Callable) -> Callable:
    """All but TEXT."""
    for option in reversed(SOURCES):
        function = option(function)
    return function


def read_prompts(
    bpe: Bpe, note: Callable[[str], None], *, text, file, lines, ids, jsonl, prefix_token, blank_lines: bool = False
) -> list[Prompt]:
    """The prompts given, in order; none when no source is named.

    blank_lines: an empty text among lines is a prompt without tokens.  BadInput with the place of a text that is no
    UTF-8, empty where it may not be, or of an id out of range.
    """
    given = {"TEXT": text, "--file": file, "--lines": lines, "--ids": ids, "--jsonl": jsonl}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise UsageError(f"{' and '.join(named)}: give one of them")
    if not named:
        return []
    if text is not None:
        if os.path.isfile(text):
            note(f"note: {text} is a file, and here a text; its content is read with -f")
        records = [("prompt", {"prompt": argument(text)})]
    elif file is not None:
        records = [(called(file), {"prompt": read_text(file)})]
    elif ids is not None:
        records = [("--ids", {"tokens": parse_ids(ids.split())})]
    else:
        records = _records(lines, jsonl)
    may_be_empty = blank_lines and (lines, jsonl) != (None, None)
    prompts = [_prompt(bpe, where, record, prefix_token == "eot", may_be_empty) for where, record in records]
    if any(EOT_TEXT in (prompt.text or "") for prompt in prompts):
        note(
            f"note: {EOT_TEXT} in a text is plain text, as in the official encoder;"
            " for the token: --prefix-token eot, --ids"
        )
    return prompts


def _prompt(bpe: Bpe, where: str, record: dict, prefix: bool, may_be_empty: bool) -> Prompt:
    text = record.get("prompt")
    if text is None:
        tokens = record["tokens"]
    else:
        try:
            tokens = bpe.encode(text)
        except BadInput as cause:
            raise BadInput(f"{where}: {cause}") from None
    if not tokens and not prefix and not may_be_empty:
        raise BadInput(f"{where}: empty prompt, expected at least one token; --prefix-token eot starts from {EOT_TEXT}")
    try:
        check_ids(tokens, bpe.n_vocab)
    except BadInput as cause:
        raise BadInput(f"{where}: {cause}" if where not in ("prompt", "--ids") else str(cause)) from None
    start = (bpe.eot,) if prefix else ()
    return Prompt((*start, *tokens), text, record.get("id"), record.get("seed"))


def read_file(name: str) -> bytes:
    """Bytes of a file; `-` is stdin."""
    if name == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except (FileNotFoundError, IsADirectoryError, PermissionError) as cause:
        raise NotFound(f"{Path(name).absolute()}: {cause.strerror}") from None
    except OSError as cause:
        raise DiskError(f"{Path(name).absolute()}: {cause.strerror}") from None


def called(name: str) -> str:
    """A file in a message."""
    return "stdin" if name == "-" else name


def read_text(name: str) -> str:
    """The whole content of a file, as it is."""
    return decode(read_file(name), called(name))


def argument(text: str) -> str:
    """An argument, its bytes taken as strict UTF-8 whatever the locale."""
    try:
        data = os.fsencode(text)
    except UnicodeEncodeError as cause:
        raise BadInput(f"prompt is not valid Unicode at character {cause.start} (a lone surrogate)") from None
    return decode(data, "prompt", one_line=True)


def decode(data: bytes, where: str, *, one_line: bool = False) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as cause:
        line = "" if one_line else f" (line {data[: cause.start].count(10) + 1})"
        raise BadInput(f"{where} is not valid UTF-8 at byte {cause.start} (0x{data[cause.start]:02x}){line}") from None


def parse_ids(words: list[str]) -> list[int]:
    """Whole numbers, in plain digits; UsageError for anything else.  BadInput for one that no vocabulary reaches."""
    for item, word in enumerate(words, start=1):
        if not _WHOLE.fullmatch(word):
            raise UsageError(f"token id {word!r} is not a whole number (item {item}); ids have blanks between them")
        if len(word) > 20:
            raise BadInput(f"token id {word[:20]}... is outside every vocabulary (item {item})")
    return [int(word) for word in words]


def _records(lines: str | None, jsonl: str | None) -> list[tuple[str, dict]]:
    """One record a line of either kind of file; a last line end begins no line."""
    name = lines if lines is not None else jsonl
    rows = read_file(name).split(b"\n")
    if not rows[-1]:
        rows.pop()
    if not rows:
        raise BadInput(f"{called(name)}: empty, expected one text a line")
    out = []
    for number, row in enumerate(rows, start=1):
        where = f"{called(name)} line {number}"
        text = decode(row.removesuffix(b"\r"), where, one_line=True)
        out.append((where, {"prompt": text} if lines is not None else _record(text, where)))
    return out


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


def _finite(number: str) -> float:
    return float(number) if math.isfinite(float(number)) else _refuse(number)


def _record(line: str, where: str) -> dict:
    try:
        record = json.loads(line, parse_constant=_refuse, parse_float=_finite)
    except json.JSONDecodeError as cause:
        raise BadInput(f"{where}: not JSON: {cause.msg} at column {cause.colno}") from None
    except (RecursionError, ValueError) as cause:  # brackets without end, NaN, a number of thousands of digits
        raise BadInput(f"{where}: not JSON: {cause}") from None
    if not isinstance(record, dict) or ("prompt" in record) == ("tokens" in record):
        raise BadInput(f'{where}: expected an object with either "prompt" or "tokens"')
    if "prompt" in record and not isinstance(record["prompt"], str):
        raise BadInput(f'{where}: "prompt" is not a text')
    tokens = record.get("tokens", [])
    if not isinstance(tokens, list) or any(type(i) is not int for i in tokens):
        raise BadInput(f'{where}: "tokens" is not a list of whole numbers')
    seed = record.get("seed")
    if seed is not None and (type(seed) is not int or not 0 <= seed < 2**64):
        raise BadInput(f'{where}: "seed" is {json.dumps(seed)}, expected a whole number from 0 below 2**64')
    return record
