"""The processor, as the system describes it."""

from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


def name() -> str:
    """As the system names it."""
    if said := _said("model name"):
        return said[0]
    import platform  # starts a process, where the file above does not tell

    return platform.processor() or platform.machine()


def lacks_avx() -> bool:
    """Whether it is one that published builds of TensorFlow end on, without a word; False where nothing is known."""
    return any("avx" not in flags.split() for flags in _said("flags"))


def _said(field: str) -> list[str]:
    return [value.strip() for key, _, value in _lines(CPUINFO) if key.strip() == field]


@cache
def _lines(path: Path) -> list[tuple[str, str, str]]:
    """Read once: on a machine of many cores the file is long, and the system takes its time to write it."""
    try:
        return [line.partition(":") for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        return []
