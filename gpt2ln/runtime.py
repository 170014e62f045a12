"""The one door to TensorFlow.

Every other module takes `tf` from here, so that log level, threads, device and graph rewrites are settled before the
first operation.  Importing this module costs the 2-3 s of TensorFlow's own import; commands do so as late as they can.
"""

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from . import processor
from .errors import NotFound, UsageError
from .hush import stderr_held

SUPPORTED = "tensorflow >= 2.16"


@contextlib.contextmanager
def _keras_later() -> Iterator[None]:
    """TensorFlow's last act is to import Keras, a second of work that nothing here needs; `tf.keras` still loads it."""
    if "keras" in sys.modules:
        yield
        return
    sys.modules["keras"] = None  # what is None cannot be imported, which TensorFlow takes as it is
    try:
        yield
    finally:
        sys.modules.pop("keras", None)


def _import_tensorflow():
    if processor.lacks_avx():
        raise NotFound("TensorFlow: its published builds need a processor with AVX, which this one does not have")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        with stderr_held(), _keras_later():
            import tensorflow
    except Exception as cause:  # a broken install raises anything, not only ImportError
        try:
            found = f"version {version('tensorflow')} is installed"
        except PackageNotFoundError:
            found = "it is not installed"
        raise NotFound(
            f"TensorFlow: cannot be imported ({type(cause).__name__}: {str(cause).split(chr(10))[0]});"
            f" {found}, {SUPPORTED} is needed; run: pip install '{SUPPORTED.replace(' ', '')}'"
        ) from cause
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    return tensorflow


tf = _import_tensorflow()


def keep_the_order_of_operations() -> None:
    """Switch off the passes that rewrite a graph: some compute the same function with other roundings.

    The arithmetic pass turns `((x-u)*r)*g + b` into `(x-u)*(r*g) + b`; the remapper fuses products with their bias and
    can replace a LayerNorm by a kernel with epsilon 0.001.  Without them a graph gives, bit for bit, what the same
    operations give one by one.  The others change no number and make the first run of a graph last twice as long.
    """
    rewriting = {"arithmetic_optimization": False, "remapping": False, "disable_meta_optimizer": True}
    tf.config.optimizer.set_experimental_options(rewriting)
    tf.config.experimental.enable_tensor_float_32_execution(False)


keep_the_order_of_operations()


def configure(*, threads: int | None = None, device: str = "cpu") -> int:
    """Choose threads and device (`cpu` or `gpu:N`), before the first operation -> threads in use."""
    if threads and threads != tf.config.threading.get_intra_op_parallelism_threads():
        try:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(threads)
        except RuntimeError:
            raise UsageError(
                f"threads {threads}: TensorFlow is at work in this process, its threads are fixed"
            ) from None
    gpus = tf.config.list_physical_devices("GPU")
    chosen = [gpus[n] for n in _gpu_numbers(device) if n < len(gpus)]
    if device != "cpu" and not chosen:
        raise UsageError(f"--device {device}: this machine has {len(gpus)} GPUs that TensorFlow sees; choose cpu")
    tf.config.set_visible_devices(chosen, "GPU")
    for gpu in chosen:
        tf.config.experimental.set_memory_growth(gpu, True)
    return threads or len(os.sched_getaffinity(0))


def facts(*, threads: int, device: str) -> dict:
    """What the digits of a result depend on beside the model and the text."""
    return {
        "tensorflow": tf.__version__,
        "onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1") != "0",
        "tf32": tf.config.experimental.tensor_float_32_execution_enabled(),
        "threads": threads,
        "device": device,
        "cpu": processor.name(),
    }


def _gpu_numbers(device: str) -> list[int]:
    if device == "cpu":
        return []
    kind, _, number = device.partition(":")
    if kind != "gpu" or not (number or "0").isdecimal():
        raise UsageError(f"--device {device}: expected cpu or gpu:N")
    return [int(number or 0)]
