"""The processor, as the system describes it."""

from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
# What kernels are chosen by, of x86 and of ARM, as the system spells it.
TELLING = (
    *("avx", "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_bf16"),
    *("asimd", "fphp", "asimddp", "bf16", "sve", "sve2"),
)


def name() -> str:
    """As the system names it."""
    if said := _said("model name"):
        return said[0]
    import platform  # starts a process, where the file above does not tell

    return platform.processor() or platform.machine()


def lacks_avx() -> bool:
    """Whether it is one that published builds of TensorFlow end on, without a word; False where nothing is known."""
    return any("avx" not in flags.split() for flags in _said("flags"))


def features() -> list[str]:
    """Those that every core has, and that kernels are chosen by."""
    cores = [set(flags.split()) for flags in _said("flags") or _said("Features")]
    return [name for name in TELLING if cores and all(name in flags for flags in cores)]


def _said(field: str) -> list[str]:
    return [value.strip() for key, _, value in _lines(CPUINFO) if key.strip() == field]


@cache
def _lines(path: Path) -> list[tuple[str, str, str]]:
    """Read once: on a machine of many cores the file is long, and the system takes its time to write it."""
    try:
        return [line.partition(":") for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        return []
