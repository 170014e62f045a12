"""The official files: where they are, how large, and their digests where somebody has published one.

This is the one place that names a host.  124M is known to the last byte; of the larger models no digest of index and
data is public, and the sizes of the largest two follow from their shapes (`sure=False`: a mismatch is a warning).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .errors import Damaged, NotFound

MODELS = "https://openaipublic.blob.core.windows.net/gpt-2/models"
HUGGING_FACE = "https://huggingface.co/openai-community/{repository}/resolve/{revision}"

AGAIN = "fetch the file again; the official ones: gpt2ln download NAME --force"

INDEX, DATA, META = "model.ckpt.index", "model.ckpt.data-00000-of-00001", "model.ckpt.meta"
# In this order they get their names: without its index a folder is no checkpoint.
NEEDED = (DATA, "encoder.json", "vocab.bpe", "hparams.json", "checkpoint", INDEX)


@dataclass(frozen=True)
class File:
    """What is known of a file.  size in bytes; others: (size, sha256) of other true copies.  None: not even that."""

    size: int | None = None
    sha256: str | None = None
    sure: bool = True
    others: tuple[tuple[int, str], ...] = ()

    @property
    def digests(self) -> tuple[str, ...]:
        return (() if self.sha256 is None else (self.sha256,)) + tuple(digest for _, digest in self.others)

    def size_fits(self, size: int) -> bool:
        return self.size is None or size == self.size or any(size == other for other, _ in self.others)


_SAME = {
    "encoder.json": File(1042301, "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"),
    "vocab.bpe": File(456318, "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"),
    "checkpoint": File(77, "dd1b025d2e155283f5e300ce95bf6d5b6bc0f7fe010db73daa6975eb896ab9cb"),
}
_WITHOUT_NEWLINE = (89, "097db6ed93a3d9b8a32532fca9e564c703bed00c73908ecc49d1b05db2199606")  # a copy of 2019

FILES: dict[str, dict[str, File]] = {
    "124M": {
        **_SAME,
        "hparams.json": File(
            90, "d9d56e4121c427164e0c55c6f03c08e1daf9002b9b672825112d19097b680318", others=(_WITHOUT_NEWLINE,)
        ),
        DATA: File(497759232, "2060c885360cc0cf41d7a6dbc4d24b5127aae20260c8b5ae521b5a6578407118"),
        INDEX: File(5215, "71916f763f9746f9b2a06b12d91996cf1084ae008d0424543d39391c5f2dc687"),
        META: File(471155, "4668c448fa11531fd6700460487f73e82d3272960cea942252f8744bf225c77b"),
    },
    "355M": {
        **_SAME,
        "hparams.json": File(91, "310dfdb1f0c786b79d93459eaa470f3978d873bdc3e1f9fed1cad24d9dd0b1f6", sure=False),
        DATA: File(1419292672),
        INDEX: File(10399),
        META: File(926519, sure=False),
    },
    "774M": {
        **_SAME,
        "hparams.json": File(91, "55485135775c1ed186dd09e372e74d2617ee7dc2cf7b54de26960fb5192dbacf", sure=False),
        DATA: File(3096120320),
        INDEX: File(15535, sure=False),
        META: File(sure=False),
    },
    "1558M": {
        **_SAME,
        "hparams.json": File(91, "647420ef8cf586f8933899000aa50c1996eaca50e4dc6fbd25bfdc64f4207bbf", sure=False),
        DATA: File(6230444800),
        INDEX: File(20724, sure=False),
        META: File(sure=False),
    },
}


@dataclass(frozen=True)
class Converted:
    """A copy of a model in Hugging Face's layout, at one revision."""

    repository: str
    revision: str
    files: dict[str, File]


CONVERTED = {
    "124M": Converted(
        "gpt2",
        "607a30d783dfa663caf39e06633721c8d4cfcd7e",
        {
            "model.safetensors": File(548105171, "248dfc3911869ec493c76e65bf2fcf7f615828b0254c12b473182f0f81d3a707"),
            "config.json": File(665, "0daed7749b4f02b8f76240d5444551d7b08712dab4d0adb8239c56ba823bb7b4", sure=False),
            "vocab.json": _SAME["encoder.json"],
            "merges.txt": _SAME["vocab.bpe"],
        },
    )
}


def again(folder: Path) -> str:
    """What to type about a damaged file of a folder."""
    name = folder.absolute().name
    return f"fetch the file again: gpt2ln download {name} --force" if name in FILES else AGAIN


@contextmanager
def advised(folder: Path) -> Iterator[None]:
    """What is wrong with a model's files gets the next command to type, where it names none."""
    try:
        yield
    except (Damaged, NotFound) as cause:
        if "gpt2ln " in str(cause):
            raise
        run = again(folder) if folder.absolute().name in FILES else f"each file is looked at by: gpt2ln verify {folder}"
        raise type(cause)(f"{cause}; {run}") from cause
