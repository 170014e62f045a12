"""A checkpoint in other people's formats: a folder that Hugging Face's transformers opens, or one npz.

Values pass through untouched: the way back gives the same files, bit for bit.  Every sum is checked before the first
value is written, and one variable is in memory at a time.
"""

import json
import os
import zipfile
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from .checkpoint import AT_ONCE, Bundle, load
from .disk import BLOCK, check_room, replace
from .errors import UsageError
from .hf import VOCABULARY, config, to_hf
from .shards import Shard
from .spec import EOT_TEXT, HParams, variables
from .tensors import SINGLE
from .whole import whole_file, whole_folder

if TYPE_CHECKING:
    import numpy as np

NAMES = (SINGLE, "config.json", "tokenizer_config.json", *VOCABULARY.values(), "hparams.json")
_MARGIN = 1 << 22  # room for headers and the small files beside the weights


def export_folder(bundle: Bundle, hparams: HParams, beside: Path, eot: int, out: Path, *, force: bool = False) -> None:
    """Weights with Hugging Face's names, configuration and vocabulary into the folder `out`, whole or not there.

    beside: the folder with the vocabulary and hparams.json; the latter goes along, so that the way back is exact.
    """
    _check_room(out, hparams)
    texts = {theirs: (beside / ours).read_bytes() for ours, theirs in VOCABULARY.items()}
    texts["hparams.json"] = (beside / "hparams.json").read_bytes()
    texts["config.json"] = _json(config(hparams, eot))
    texts["tokenizer_config.json"] = _json(_tokenizer_config(hparams))
    with whole_folder(out, NAMES, force=force) as part:
        shapes = {to_hf(name): ("float32", shape[-2:]) for name, shape in variables(hparams).items()}
        shard = Shard(part / SINGLE, shapes, {"format": "pt"})  # transformers wants to be told of whom it is
        try:
            shard.begin()
            for name, array in load(bundle, variables(hparams)):
                x = array.reshape(array.shape[-2:])
                rows = max(1, AT_ONCE * len(x) // x.nbytes)
                for row in range(0, len(x), rows):
                    shard.write(to_hf(name), row, x[row : row + rows])
                    bundle.release(bundle.entries[name])
            shard.finish()
        except BaseException:
            shard.abandon()
            raise
        for name, content in texts.items():
            replace(part / name, content)


def export_npz(bundle: Bundle, hparams: HParams, out: Path) -> None:
    """float32 arrays as stored, under their official names; `out` has its name when it is whole."""
    out = Path(os.path.realpath(out))  # a link stays one
    if out.exists() and not out.is_file():
        raise UsageError(f"{out}: is no regular file, expected the name of one")
    _check_room(out, hparams)
    with whole_file(out) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in load(bundle, variables(hparams)):
            _add(archive, name, array, bundle)


def _add(archive: zipfile.ZipFile, name: str, array: "np.ndarray", bundle: Bundle) -> None:
    """One array, without a copy of it; it bears no date: the same weights are the same bytes."""
    import numpy as np

    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        np.lib.format.write_array_header_1_0(member, np.lib.format.header_data_from_array_1_0(array))
        raw = memoryview(array).cast("B")
        for start in range(0, len(raw), BLOCK):
            member.write(raw[start : start + BLOCK])
            bundle.release(bundle.entries[name])


def _check_room(out: Path, hparams: HParams) -> None:
    check_room(
        Path(os.path.realpath(out)).parent, _MARGIN + sum(4 * prod(shape) for shape in variables(hparams).values())
    )


def _json(record: dict) -> bytes:
    return (json.dumps(record, indent=2) + "\n").encode()


def _tokenizer_config(hparams: HParams) -> dict:
    """One token for beginning, end and what is unknown, as in Hugging Face's own copy."""
    special = dict.fromkeys(("bos_token", "eos_token", "unk_token"), EOT_TEXT)
    return {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False, "model_max_length": hparams.n_ctx, **special}
