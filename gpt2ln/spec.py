"""What a GPT-2 is made of: hyperparameters, variables with their shapes, and the released models.

The one idea: `variables(hparams)` is the whole contract between a checkpoint and the graph.
"""

from dataclasses import asdict, dataclass

EOT_TEXT = "<|endoftext|>"
EPSILON = 1e-5  # of every LayerNorm, inside the root
MODEL_FILES = ("hparams.json", "encoder.json", "vocab.bpe")


@dataclass(frozen=True)
class HParams:
    """The five numbers of `hparams.json`, under their official names."""

    n_vocab: int
    n_ctx: int
    n_embd: int
    n_head: int
    n_layer: int

    def as_dict(self) -> dict[str, int]:
        return asdict(self)

    @property
    def head_dim(self) -> int:
        return self.n_embd // self.n_head


HPARAM_NAMES = tuple(HParams.__dataclass_fields__)

RELEASED = {
    "124M": HParams(50257, 1024, 768, 12, 12),
    "355M": HParams(50257, 1024, 1024, 16, 24),
    "774M": HParams(50257, 1024, 1280, 20, 36),
    "1558M": HParams(50257, 1024, 1600, 25, 48),
}

ALIASES = {
    "117M": "124M",
    "gpt2": "124M",
    "gpt2-small": "124M",
    "345M": "355M",
    "gpt2-medium": "355M",
    "762M": "774M",
    "gpt2-large": "774M",
    "1542M": "1558M",
    "1.5B": "1558M",
    "gpt2-xl": "1558M",
}


def canonical(name: str) -> str:
    """The released name an alias stands for; any other name unchanged."""
    return ALIASES.get(name, name)


def block_variables(n_embd: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of one block, without the `model/h<l>/` before them.

    `conv1d` weights are `[1, in, out]`, as the official code stores them.
    """
    C = n_embd
    shapes: dict[str, tuple[int, ...]] = {}
    for ln in ("ln_1", "ln_2"):
        shapes |= {f"{ln}/g": (C,), f"{ln}/b": (C,)}
    for scope, nx, nf in (
        ("attn/c_attn", C, 3 * C),
        ("attn/c_proj", C, C),
        ("mlp/c_fc", C, 4 * C),
        ("mlp/c_proj", 4 * C, C),
    ):
        shapes |= {f"{scope}/w": (1, nx, nf), f"{scope}/b": (nf,)}
    return shapes


def variables(hparams: HParams) -> dict[str, tuple[int, ...]]:
    """`name -> shape` of all `12 * n_layer + 4` variables, in the order of the forward pass."""
    C = hparams.n_embd
    shapes = {"model/wte": (hparams.n_vocab, C), "model/wpe": (hparams.n_ctx, C)}
    for layer in range(hparams.n_layer):
        shapes |= {f"model/h{layer}/{k}": s for k, s in block_variables(C).items()}
    return shapes | {"model/ln_f/g": (C,), "model/ln_f/b": (C,)}
