"""What the system says of the processor."""

import platform

import pytest

from gpt2ln import processor

TWO = (
    "processor\t: 0\nmodel name\t: A  CPU\nflags\t\t: fpu avx avx2\n\nprocessor\t: 1\nmodel name\t: B\nflags\t\t: {}\n"
)


@pytest.fixture
def says(tmp_path, monkeypatch):
    def say(text: str, name="cpuinfo"):
        (tmp_path / name).write_bytes(text.encode("latin-1"))
        monkeypatch.setattr(processor, "CPUINFO", tmp_path / name)

    return say


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        (TWO.format("fpu avx"), False),
        (TWO.format("fpu avx2 sse"), True),  # a whole word, and every core
        ("flags: fpu sse\n", True),
        ("Features\t: fp asimd\n", False),  # not of this family
        ("", False),
        ("\xff\xfe", False),
    ],
)
def test_avx(says, text, lacks):
    says(text)
    assert processor.lacks_avx() is lacks


def test_name(says, monkeypatch):
    says(TWO.format(""))
    assert processor.name() == "A  CPU"
    monkeypatch.setattr(processor, "CPUINFO", processor.CPUINFO / "gone")
    assert not processor.lacks_avx()
    monkeypatch.setattr(platform, "processor", lambda: "")
    assert processor.name() == platform.machine()
    monkeypatch.setattr(platform, "processor", lambda: "x64")
    assert processor.name() == "x64"


def test_nothing_is_started_where_the_file_tells(says, monkeypatch):
    says(TWO.format(""))
    monkeypatch.setattr(platform, "processor", lambda: pytest.fail("asked"))
    processor.name()


def test_read_once(says):
    says(TWO.format("avx"))
    assert not processor.lacks_avx()
    processor.CPUINFO.unlink()
    assert processor.name() == "A  CPU"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (TWO.format("avx512f fma avx"), ["avx"]),  # of every core, in our order
        ("flags: fpu fma avx2 avx\n", ["avx", "avx2", "fma"]),
        ("Features\t: fp asimd sve2x\n", ["asimd"]),
        ("flags:\n", []),
        ("", []),
    ],
)
def test_features(says, text, names):
    says(text)
    assert processor.features() == names
