"""A disk of a test's own."""

import subprocess
from contextlib import contextmanager

import pytest


@contextmanager
def mounted(folder, options: str):
    """A disk of its own; needs the right to mount."""
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", folder], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no disk can be mounted: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)  # even where a failed test holds a file open
