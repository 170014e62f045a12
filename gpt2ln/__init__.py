"""Official GPT-2 checkpoints on TensorFlow, exactly as published.  Importing this imports nothing heavy."""

__version__ = "0.1.0"


def __getattr__(name: str):
    if name in ("load", "Model"):
        from . import library

        return getattr(library, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
