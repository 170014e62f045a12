"""What the body of an answer looks like: a page about an error is never taken for a file of the model."""

import codecs
import re

INDEX_END = bytes.fromhex("57fb808b247547db")
# ending of the name -> how such a file begins, what it is
_BEGINNINGS = (
    (".json", b"{", "JSON"),
    (".bpe", b"#version", "a list of merges"),
    ("merges.txt", b"#version", "a list of merges"),
    ("checkpoint", b"model_checkpoint_path", "the state of a checkpoint"),
)
_PAGES = {b"<?xml": "an XML", b"<error": "an XML", b"<!doctype": "an HTML", b"<html": "an HTML"}


def first_bytes(name: str, head: bytes) -> str | None:
    """What came in place of the file `name`, and what it is not; None where it may be that file."""
    beginning, what = next((known[1:] for known in _BEGINNINGS if name.endswith(known[0])), (b"", None))
    if what is None:
        what = "a checkpoint index" if name.endswith(".index") else "weights"
    stripped = head.removeprefix(codecs.BOM_UTF8).lstrip()
    for mark, page in _PAGES.items():
        if stripped[: len(mark)].lower() == mark:
            code = re.search(rb"<Code>\s*([\w.-]{1,60})\s*</Code>", stripped)
            return f"{page} page{f' ({code[1].decode()})' if code else ''}, not {what}"
    if not head.startswith(beginning):
        return f"{head[:20]!r}, not {what}"
    return None


def last_bytes(name: str, tail: bytes) -> str | None:
    """What is wrong with how the file ends."""
    if name.endswith(".index") and tail != INDEX_END:
        return f"an index that ends with {tail.hex()}, expected {INDEX_END.hex()}"
    return None
