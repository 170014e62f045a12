"""Where results go: stdout, or a file that has its name only when it is whole; tables, JSON and CSV."""

import contextlib
import csv
import io
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

import click

from ..errors import UsageError


@contextlib.contextmanager
def results(path: str | None, force: bool) -> Iterator[TextIO]:
    """stdout, or `path`, written beside its name and renamed at the end.

    After Ctrl-C what was written stays as PATH.part; after an error nothing stays.
    """
    if path is None or path == "-":
        yield sys.stdout
        return
    target = Path(path)
    if target.exists() and not force:
        raise UsageError(f"{target}: exists; --force overwrites it")
    part = target.with_name(target.name + ".part")
    try:
        with part.open("w", encoding="utf-8", newline="\n") as file:
            yield file
    except KeyboardInterrupt:
        click.echo(f"interrupted: what was written is in {part}", err=True)
        raise
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    part.replace(target)


def as_json(record: object) -> str:
    """One line; never NaN, which is not JSON."""
    return json.dumps(record, ensure_ascii=False, allow_nan=False)


def as_csv(rows: Sequence[dict]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_table(head: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """Columns as wide as their widest cell, two blanks between; those in `left` flush left."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]

    def line(row):
        cells = (c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        return "  ".join(cells).rstrip()

    return "\n".join(line(row) for row in (head, *rows)) + "\n"
