"""The one door to LiteRT, TensorFlow's small runtime: a file with a graph in it, run without TensorFlow.

Each file holds the products of one part of the model, with the number of rows open.  XNNPACK packs the weights when
the file is opened, into memory of this process; the file's own pages are given back after that.
"""

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from . import processor
from .errors import Damaged, NotFound
from .hush import stderr_held

SUPPORTED = "ai-edge-litert >= 1.2"
_DONTNEED = 4  # madvise(2)


def interpreter_class():
    """NotFound, saying how to get it, where LiteRT cannot be had."""
    if processor.lacks_avx():
        raise NotFound("--engine fast: was never tried on a processor without AVX, as this one is")
    try:
        with stderr_held():
            from ai_edge_litert.interpreter import Interpreter
    except Exception as cause:  # a broken install raises anything
        raise NotFound(
            f"LiteRT: cannot be imported ({type(cause).__name__}: {str(cause).split(chr(10))[0]}); {SUPPORTED} is"
            f" needed by --engine fast; run: pip install '{SUPPORTED.replace(' ', '')}'"
        ) from cause
    return Interpreter


class Part:
    """One graph.  Called with its inputs by name, any number of rows -> its one output."""

    def __init__(self, path: Path, *, threads: int):
        with stderr_held():
            try:
                self._interpreter = interpreter_class()(model_path=str(path), num_threads=threads)
            except (ValueError, RuntimeError) as cause:
                raise Damaged(f"{path}: not a graph of LiteRT ({str(cause).split(chr(10))[0]})") from None
            self._inputs = {
                _plain(d["name"]): (d["index"], tuple(d["shape"])) for d in self._interpreter.get_input_details()
            }
            (self._output,) = (d["index"] for d in self._interpreter.get_output_details())
            self._shapes: dict[str, tuple[int, ...]] = {}
            self._reshape({name: shape for name, (_, shape) in self._inputs.items()})
        give_back(path)

    def _reshape(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Once for each new number of rows: half a millisecond for a whole model; packed weights stay."""
        for name, shape in shapes.items():
            self._interpreter.resize_tensor_input(self._inputs[name][0], shape)
        self._interpreter.allocate_tensors()
        self._shapes = dict(shapes)

    def __call__(self, **inputs: np.ndarray) -> np.ndarray:
        shapes = {name: x.shape for name, x in inputs.items()}
        if shapes != self._shapes:
            self._reshape(shapes)
        for name, x in inputs.items():
            self._interpreter.tensor(self._inputs[name][0])()[...] = x
        self._interpreter.invoke()
        return self._interpreter.get_tensor(self._output)


def _plain(name: str) -> str:
    """`serving_default_h:0` -> `h`; `h` where the converter found no room for a saved model on its way."""
    return name.partition(":")[0].removeprefix("serving_default_")


def give_back(path: Path) -> None:
    """Give the mapped pages of a file back to the system, which counts them as memory of this process."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        madvise = ctypes.CDLL(None, use_errno=True).madvise
    except (OSError, AttributeError):  # another system: they are given back when somebody needs them
        return
    for line in lines:
        place, *_, name = line.split(maxsplit=5)
        if name == os.path.realpath(path):
            start, stop = (int(edge, 16) for edge in place.split("-"))
            madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), _DONTNEED)
