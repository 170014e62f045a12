"""Where results go: stdout, or a file that has its name only when it is whole; tables, JSON and CSV."""

import contextlib
import csv
import io
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, TextIO

import click

from ..disk import part_of
from ..errors import NotFound, UsageError, printable


@contextlib.contextmanager
def results(path: str | None, force: bool, *, binary: bool = False) -> Iterator[TextIO | BinaryIO]:
    """stdout, or `path`: a file is written as PATH.part and renamed at the end, a pipe or device as it comes.

    After Ctrl-C what was written stays as PATH.part; after an error nothing stays.  Nothing is overwritten without
    `force`, what an interrupted run has left neither.
    """
    if path is None or path == "-":
        yield sys.stdout.buffer if binary else sys.stdout
        return
    how = {"mode": "wb"} if binary else {"mode": "w", "encoding": "utf-8", "newline": "\n"}
    target = checked(Path(path), force)
    if target.exists() and not target.is_file():
        with target.open(**how) as file:
            yield file
        return
    target = target.resolve()  # a link stays one
    part = part_of(target)
    try:
        with part.open(**how | ({} if force else {"mode": how["mode"].replace("w", "x")})) as file:
            yield file
        part.replace(target)
    except FileExistsError:
        raise UsageError(
            f"{part}: exists, left by an interrupted run or used by another; --force overwrites it"
        ) from None
    except BaseException as cause:
        kept = isinstance(cause, KeyboardInterrupt) and part.exists() and part.stat().st_size
        if kept:
            click.echo(f"interrupted: what was written is in {part}", err=True)
        else:
            part.unlink(missing_ok=True)
        raise


def checked(target: Path, force: bool) -> Path:
    """Refuse a target that cannot be one, before anything is computed."""
    if target.is_dir():
        raise UsageError(f"{target}: is a folder, expected the name of a file")
    if not target.parent.is_dir():
        raise NotFound(f"{target.parent.absolute()}: no such folder, make it first; it is to hold {target.name}")
    if target.is_file() and not force:
        raise UsageError(f"{target}: exists; --force overwrites it")
    return target


def as_json(record: object) -> str:
    """One line; never NaN, which is not JSON.  A lone surrogate, which is not UTF-8, stays an escape."""
    line = json.dumps(record, ensure_ascii=False, allow_nan=False)
    try:
        line.encode()
    except UnicodeEncodeError:
        return json.dumps(record, allow_nan=False)
    return line


def as_csv(rows: Sequence[dict]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_table(head: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """Columns as wide as their widest cell, two blanks between; those in `left` flush left."""
    head, *rows = [[printable(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]

    def line(row):
        cells = (c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        return "  ".join(cells).rstrip()

    return "\n".join(line(row) for row in (head, *rows)) + "\n"
