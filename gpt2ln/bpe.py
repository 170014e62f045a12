"""Text to token ids and back, from a folder's own `encoder.json` and `vocab.bpe`.

tiktoken does the work.  It ranks tokens by the order of the merges; `encoder.json` may number them otherwise, and then
a table translates.  `<|endoftext|>` in a text is ordinary text, as in the official encoder; its id exists all the same.
"""

import codecs
import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

from .disk import contents
from .errors import BadInput, Damaged, NotFound, first_five
from .spec import EOT_TEXT

# The official pattern, spelt so that it needs no backtracking; tiktoken's own for this vocabulary.
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""

_SHOWN = [*range(33, 127), *range(161, 173), *range(174, 256)]  # bytes that are written as themselves
BYTE_ORDER = _SHOWN + [b for b in range(256) if b not in set(_SHOWN)]  # bytes in the order of the official ids
BYTE_OF = {chr(b if b in set(_SHOWN) else 256 + i - len(_SHOWN)): b for i, b in enumerate(BYTE_ORDER)}


def _text(path: Path) -> str:
    try:
        return contents(path).decode("utf-8")
    except FileNotFoundError:
        raise NotFound(f"{path.absolute()}: no such file; it is half of the vocabulary") from None
    except UnicodeDecodeError as cause:
        raise Damaged(f"{path}: not UTF-8 at byte {cause.start}") from None


def read_encoder(path: Path) -> dict[str, int]:
    """`encoder.json`: token as written -> id; every id from 0 up exactly once."""
    try:
        encoder = json.loads(_text(path))
    except json.JSONDecodeError as cause:
        raise Damaged(f"{path}: line {cause.lineno} column {cause.colno}: {cause.msg}, expected JSON") from None
    except (RecursionError, ValueError):  # brackets without end, a number of thousands of digits
        raise Damaged(f"{path}: expected an object of token: id") from None
    if not isinstance(encoder, dict) or any(type(i) is not int for i in encoder.values()):
        raise Damaged(f"{path}: expected an object of token: id")
    wrong = sorted(set(range(len(encoder))) ^ set(encoder.values()))
    if wrong:
        raise Damaged(
            f"{path}: {len(encoder)} entries, their ids are not 0..{len(encoder) - 1} each once:"
            f" {first_five([str(i) for i in wrong])} missing or too many"
        )
    return encoder


def read_merges(path: Path) -> dict[str, bytes]:
    """`vocab.bpe`: a version line, then one merge a line.  A missing last newline or CRLF loses nothing.

    -> each token as it is written, and its bytes, in the order of ranks: the single bytes, then what each line makes.
    Each half of a merge is a byte or was made by a line before, and no line makes what is there already: a line that
    does, out of its order, gives other ids.
    """
    made = {letter: bytes([byte]) for letter, byte in BYTE_OF.items()}
    for number, line in enumerate(_text(path).split("\n"), start=1):
        merge = line.split()
        if not merge or (number == 1 and line.startswith("#version")):
            continue
        if len(merge) != 2:
            raise Damaged(f"{path}: line {number} has {len(merge)} words, a merge has 2")
        first, second = merge
        if first not in made or second not in made:
            unmade = [repr(half) for half in merge if half not in made]
            raise Damaged(f"{path}: line {number} merges {' and '.join(unmade)}, which no line before it makes")
        if (word := first + second) in made:
            raise Damaged(f"{path}: line {number} makes {word!r} a second time")
        made[word] = made[first] + made[second]
    return made


class Bpe:
    """A vocabulary.  `n_vocab` ids, `eot` the id of `<|endoftext|>`.

    as_usual: ids are in the order of bytes and merges, as in the official one; otherwise a line may have been moved.
    """

    def __init__(self, encoder_path: Path, merges_path: Path):
        encoder, made = read_encoder(encoder_path), read_merges(merges_path)
        if EOT_TEXT not in encoder:
            raise Damaged(f"{encoder_path}: {EOT_TEXT} has no id")
        if len(encoder) != len(made) + 1:
            raise Damaged(
                f"{merges_path} has {len(made) - 256} merges, {encoder_path.name} needs {max(len(encoder) - 257, 0)}"
                f" ({len(encoder)} entries less 256 bytes and {EOT_TEXT}); one of the two is cut short"
            )
        lost = [repr(word) for word in made if word not in encoder]
        if lost:
            raise Damaged(f"{encoder_path}: no id for {first_five(lost)}, which {merges_path.name} needs")
        self.n_vocab, self.eot = len(encoder), encoder[EOT_TEXT]
        self._id_of_rank = [encoder[word] for word in made]
        self._bytes_of_rank = list(made.values())
        self.as_usual = self._id_of_rank == list(range(len(made)))

    @cached_property
    def _tiktoken(self):
        import tiktoken

        ranks = {token: rank for rank, token in enumerate(self._bytes_of_rank)}
        return tiktoken.Encoding("gpt2ln", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})

    @cached_property
    def _bytes_of_id(self) -> dict[int, bytes]:
        table = dict(zip(self._id_of_rank, self._bytes_of_rank, strict=True))
        return table | {self.eot: EOT_TEXT.encode()}

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        """Token ids of `text`; with `allow_special` each `<|endoftext|>` in it becomes its one id."""
        if allow_special:
            first, *rest = text.split(EOT_TEXT)
            ids = self.encode(first)
            for part in rest:
                ids += [self.eot, *self.encode(part)]
            return ids
        try:
            text.encode()  # tiktoken would put U+FFFD in place of a lone surrogate
        except UnicodeEncodeError as cause:
            raise BadInput(f"text is not valid Unicode at character {cause.start} (a lone surrogate)") from None
        ranks = self._tiktoken.encode_ordinary(text)
        return ranks if self.as_usual else [self._id_of_rank[r] for r in ranks]

    def token_bytes(self, i: int) -> bytes:
        return self._bytes_of_id[i]

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        return b"".join(map(self._bytes_of_id.__getitem__, ids))

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`; bytes that are no UTF-8 become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def stream(self) -> "Stream":
        return Stream(self)


class Stream:
    """Decode ids as they come, never half a character: the pieces joined are `decode` of all ids."""

    def __init__(self, bpe: Bpe):
        self._bpe = bpe
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, i: int) -> str:
        return self._decoder.decode(self._bpe.token_bytes(i))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


def check_ids(ids: Sequence[int], n_vocab: int) -> None:
    """Refuse ids that no row of `wte` stands for: a gather on a GPU returns zeros for them, without an error."""
    for item, i in enumerate(ids, start=1):
        if not 0 <= i < n_vocab:
            raise BadInput(f"token id {i} outside 0..{n_vocab - 1} (item {item})")
