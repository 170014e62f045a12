"""What this machine is, and what is proved on it: facts that need no TensorFlow, then each proof in its turn.

What it says is pasted in public: models by name, no paths, nobody's name.
"""

import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from . import processor, proof
from .errors import Gpt2lnError, NotFound, first_five
from .inventory import take
from .library import Model
from .locate import DEMO, Place
from .prepared import litert_version
from .proof import Proof
from .spec import RELEASED

PACKAGES = (
    *("tensorflow", "numpy", "ai-edge-litert", "tiktoken", "safetensors", "click"),
    *("google-crc32c", "requests", "tqdm"),
)
OTHERWISE = {"tensorflow": ("tensorflow-cpu", "tf-nightly", "tensorflow-macos", "tensorflow-rocm")}
_PATH = re.compile(r"""(?<![\w.*/\\])(?:[A-Za-z]:)?[\\/](?:[^\s\\/:;,'"()]+[\\/])+""")  # all but its last part


@dataclass(frozen=True)
class Package:
    """found: None where it is not installed; least: what our metadata asks for, "" where it says nothing."""

    name: str
    found: str | None
    least: str = ""

    @property
    def fits(self) -> bool:
        return self.found is not None and _numbers(self.found) >= _numbers(self.least)


def _numbers(version: str) -> list[int]:
    """2.21.0rc1 -> [2, 21, 0]"""
    return [int(n) for n in re.match(r"\d*(?:\.\d+)*", version)[0].split(".") if n]


def packages() -> list[Package]:
    """What is installed of what we need, by metadata alone: nothing is imported."""
    try:
        asked = [
            re.match(r"([\w.-]+)(?:>=([\w.]+))?", line) for line in requires("gpt2ln") or () if "extra" not in line
        ]
    except PackageNotFoundError:  # run from a folder
        asked = []
    least = {match[1]: match[2] or "" for match in asked}
    return [Package(name, _installed(name), least.get(name, "")) for name in dict.fromkeys((*PACKAGES, *least))]


def _installed(name: str) -> str | None:
    for called in (name, *OTHERWISE.get(name, ())):
        try:
            return version(called)
        except PackageNotFoundError:
            continue
    return litert_version() if name == "ai-edge-litert" else None


def versions_fit(found: Sequence[Package]) -> Proof:
    wrong = [f"{p.name} {p.found or 'missing'}, expected {p.least or 'any'}" for p in found if not p.fits]
    judged = proof.none_of(len(wrong), len(found), "missing or too old")
    return replace(judged, found=": ".join([judged.found, first_five(wrong, "; ")])) if wrong else judged


def machine() -> dict:
    """Of the system and the processor.  threads: how many cores this process may use."""
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": processor.name(),
        "features": processor.features(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def tensorflow_facts(*, threads: int | None, device: str) -> dict:
    """Settles threads and device, before the first operation.  NotFound where TensorFlow cannot be imported."""
    try:
        from . import runtime

        details = [runtime.tf.config.experimental.get_device_details(gpu) for gpu in _gpus()]
    except Gpt2lnError:
        raise
    except Exception as cause:  # it imports, and is not what it should be
        said = f"{type(cause).__name__}: {cause}".partition("\n")[0]
        how = "install it anew, run: pip install --force-reinstall tensorflow"
        raise NotFound(f"TensorFlow: does not work ({said}); {how}") from cause
    found = runtime.facts(threads=runtime.configure(threads=threads, device=device), device=device)
    gpus = [str(one.get("device_name", "GPU")) for one in details]
    return {name: value for name, value in found.items() if name != "cpu"} | {"gpus": gpus}


def _gpus() -> list:
    from .runtime import tf

    return tf.config.list_physical_devices("GPU")


def models(shelves: Sequence[Path], cache_dir: Path | None) -> list[dict]:
    """What is on this disk, by name: its state, and how far its prepared engine was from exact when it was made."""
    found = [model for shelf in take(shelves, cache_dir) for model in shelf.models]
    return [{"name": m.name, "state": m.state, "verified": m.verified, "fast": _fast(m.engine)} for m in found]


def _fast(engine) -> dict | None:
    if engine is None:
        return None
    return {"state": engine.state, "distance": engine.record["distance"] if engine.state == "ready" else None}


@dataclass(frozen=True)
class Patients:
    """The models that proofs are run on; own: the one that was asked for."""

    golden: Model
    demo: Model
    own: Model | None = None

    @classmethod
    def of(cls, own: Model | None, **how) -> "Patients":
        """how: threads, device and cache_dir of `Model`."""
        return cls(Model(proof.GOLDEN, **how), Model(Place("demo", DEMO), **how), own)


Named = Sequence[tuple[str, Callable[[], Proof]]]


def without_tensorflow(p: Patients, found: Sequence[Package]) -> Named:
    return [
        ("versions as required", lambda: versions_fit(found)),
        ("float64 pass = golden", proof.float64_is_the_golden_one),
        ("top-k, top-p = official", proof.cuts_are_the_official_ones),
        ("streamed = whole text", lambda: proof.streamed_is_whole(p.demo.bpe)),
    ]


def with_tensorflow(p: Patients, device: str) -> Named:
    """In the order in which one wants to know: the graph, the numbers, the ids, the engine of the model at hand."""
    from . import proving

    seen: dict = {}

    def run() -> Mapping:
        return seen or seen.update(proving.golden_run()) or seen

    own, gpu = p.own or p.demo, device != "cpu"
    both = [p.golden, p.demo]
    every = both if p.own is None else [*both, p.own]
    proofs = [
        ("TF32 off", proving.products_are_float32),
        ("ids out of range refused", lambda: proof.outside_is_refused(every)),
        ("graph = eager", lambda: proving.graph_is_eager(run())),
        ("norm = official steps", proving.norm_is_the_official_steps),
        ("no fused LayerNorm", proving.no_fused_norm_runs),
        ("GELU = tanh form", proving.gelu_is_the_tanh_form),
        ("future is hidden", proving.future_is_hidden),
        ("golden values", lambda: proving.golden_values_hold(run())),
        ("error against float64", lambda: proving.error_is_no_larger_than_the_official_one(run())),
        ("cached = full pass", lambda: proving.cached_is_a_full_pass(both)),
        ("batch = single", lambda: proving.batch_is_single(p.golden)),
        ("several = one by one", lambda: proving.several_are_one_by_one(p.golden)),
        ("golden greedy ids", lambda: proving.golden_ids(p.golden)),
        ("demo greedy ids", lambda: proving.demo_ids(p.demo)),
        (f"{called(own)} = float64", lambda: proving.is_close_to_float64(own)),
        (f"{called(own)} sums", lambda: proving.sums_hold(own)),
        (f"{called(own)} fast engine", lambda: proving.prepared_is_close(own)),
    ]
    return [*proofs, ("on the GPU", lambda: _on_gpu(gpu, device))]


def _on_gpu(chosen: bool, device: str) -> Proof:
    """It has no number of its own: with --device gpu:N it is where all the others ran."""
    if chosen:
        return Proof(True, f"the proofs above ran on {device}")
    return Proof(None, "--device gpu:0 runs the proofs there" if _gpus() else "no GPU")


def called(model: Model) -> str:
    """A folder may be called after somebody, or somebody's project."""
    return model.place.name if model.place.name in (*RELEASED, "demo", "golden") else "your model"


def run(proofs: Named, private: Sequence[str]) -> Iterator[tuple[str, Proof]]:
    """Each in its turn; one that cannot be ended fails, with what was said.  private: what is cut from that."""
    for name, prove in proofs:
        try:
            yield name, prove()
        except Gpt2lnError as cause:
            yield name, Proof(False, nameless(str(cause), private))
        except Exception as cause:  # TensorFlow raises its own, and a machine that is not well anything
            said = str(cause).strip().partition("\n")[0]
            yield name, Proof(False, nameless(f"{type(cause).__name__}: {said}", private))


def nameless(text: str, private: Sequence[str] = ()) -> str:
    """Without the folders of paths.  private: folders whose names may hold blanks."""
    for folder in sorted({folder.rstrip("/") for folder in private} - {"", "."}, key=len, reverse=True):
        text = text.replace(f"{folder}/", "")
    return _PATH.sub("", text)
