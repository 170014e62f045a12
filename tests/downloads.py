"""What the tests of `download` share: the made-up model, its manifest, and `Get`, which fetches it from a server."""

import json
import os
from pathlib import Path

from gpt2ln.disk import sha256

from .conftest import GOLDEN

DATA, INDEX = "model.ckpt.data-00000-of-00001", "model.ckpt.index"
MODEL = GOLDEN / "model"
NAMES = sorted(os.listdir(MODEL))
WHOLE = sorted([*NAMES, "gpt2ln.json"])


def manifest(path: Path, *, sizes=True, digests=True, **more) -> Path:
    """Of the made-up model; sizes and digests may be left out: True, False or the names that have them."""

    def has(which, name):
        return which if isinstance(which, bool) else name in which

    files = {
        name: ({"size": (MODEL / name).stat().st_size} if has(sizes, name) else {})
        | ({"sha256": sha256(MODEL / name)} if has(digests, name) else {})
        for name in NAMES
    }
    path.write_text(json.dumps({"files": files | more}))
    return path


class Get:
    """`get(...)` is `download tiny` with a manifest, from the server, into models/tiny."""

    def __init__(self, cli, server, folder: Path):
        self.cli, self.server, self.above = cli, server, folder
        self.models, self.folder = folder / "models", folder / "models/tiny"

    def argv(self, *more, retries=0, **what) -> list:
        path = manifest(self.above / "manifest.json", **what)
        return ["download", "tiny", "--manifest", path, "--mirror", self.server.url, "--models-dir", self.models,
                "--retries", retries, "--timeout", "5", *more]  # fmt: skip

    def __call__(self, *more, **what):
        return self.cli(*self.argv(*more, **what))

    def by_hand(self, *names: str) -> None:
        """Files that lie there before."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in names or NAMES:
            (self.folder / name).write_bytes((MODEL / name).read_bytes())


def left(folder: Path) -> list[str]:
    return sorted(os.listdir(folder)) if folder.exists() else []


def is_whole(folder: Path) -> None:
    assert left(folder) == WHOLE
    for name in NAMES:
        assert (folder / name).read_bytes() == (MODEL / name).read_bytes(), name


def no_names(folder: Path) -> None:
    """Nothing has a final name."""
    assert [name for name in left(folder) if not name.endswith((".part", ".part.json"))] == []
