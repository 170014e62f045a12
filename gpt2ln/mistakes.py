"""The wrong LayerNorms by name: which there are, and what each does in a line; their formulas are in `variants`.

No TensorFlow here: names are checked, and help is printed, before it is paid for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from .errors import UsageError, first_five


@dataclass(frozen=True)
class Mistake:
    """group: epsilon, statistics (of x), place (where norms stand), or spelling (right, with other roundings)."""

    name: str
    group: str
    what: str


MISTAKES = (
    Mistake("eps-1e-6", "epsilon", "epsilon 1e-6 in place of 1e-5"),
    Mistake("eps-1e-12", "epsilon", "epsilon 1e-12, BERT's"),
    Mistake("eps-1e-3", "epsilon", "epsilon 1e-3, the default of Keras"),
    Mistake("eps-outside", "epsilon", "1 / (sqrt(s) + 1e-5): epsilon outside the root"),
    Mistake("bessel", "statistics", "variance divided by C - 1"),
    Mistake("rms", "statistics", "RMSNorm: no mean is taken off"),
    Mistake("one-pass", "statistics", "variance as E[x^2] - E[x]^2, in float32"),
    Mistake("float16", "statistics", "mean, variance and rstd in float16"),
    Mistake("bfloat16", "statistics", "mean, variance and rstd in bfloat16"),
    Mistake("post-norm", "place", "norms after the sums, as in the first transformer"),
    Mistake("no-ln-f", "place", "no norm before the logits"),
    Mistake("keras", "spelling", "x * inv + (b - u * inv), inv = r * g, as Keras 3 has it"),
    Mistake("keras-1e-3", "epsilon", "the same with its default epsilon, 1e-3"),
    Mistake("division", "spelling", "(x - u) / sqrt(s + 1e-5) * g + b"),
    Mistake("folded", "spelling", "(x - u) * (r * g) + b, what a graph optimizer makes of it"),
)
GROUPS = tuple(dict.fromkeys(mistake.group for mistake in MISTAKES))


def choose(spec: str | None) -> tuple[Mistake, ...]:
    """`eps-1e-6,rms` -> these, in our order; None: all.  UsageError names all that do not exist."""
    if spec is None:
        return MISTAKES
    wanted, known = [name.strip() for name in spec.split(",")], [mistake.name for mistake in MISTAKES]
    if unknown := list(dict.fromkeys(name for name in wanted if name not in known)):
        raise UsageError(
            f"--only: {first_five([_near(name, known) for name in unknown])}; there are {', '.join(known)}"
        )
    return tuple(mistake for mistake in MISTAKES if mistake.name in wanted)


def _near(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, 1)
    return f"{name!r}" + (f" (nearest: {near[0]})" if near else "")
