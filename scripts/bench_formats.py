"""The same weights as each system reads them: made once, kept beside the checkpoint in `FOLDER.bench`.

A peer that is not installed is named, never left out in silence.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

# peer -> the packages that it takes
PACKAGES = {
    "transformers": ("transformers", "torch"),
    "CTranslate2": ("ctranslate2", "transformers", "torch"),  # the last two for its converter
    "llama.cpp": ("llama-cpp-python", "gguf"),
}
FAST = "gpt2ln fast"


def missing(peer: str) -> list[str]:
    """Packages that a peer lacks here."""
    return [name for name in PACKAGES[peer] if name not in versions(PACKAGES[peer])]


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Of those that are installed."""
    found = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def kept(folder: str, system: str) -> Path:
    """Where the model of a system lies, by the digest of the checkpoint's index: another's is never taken for it."""
    beside = Path(folder).resolve()
    (index,) = beside.glob("*.index")
    digest = hashlib.sha256(index.read_bytes()).hexdigest()[:12]
    return beside.with_name(beside.name + ".bench") / digest / system


def prepare(folder: str) -> dict | None:
    """By `gpt2ln prepare`, which leaves alone what is there and fits -> its record; None, said, where it cannot."""
    out = kept(folder, FAST)
    out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "gpt2ln", "--cache-dir", str(out), "prepare", folder, "--json"]
    ran = subprocess.run(command, stdout=subprocess.PIPE)
    if ran.returncode:
        print(f"gpt2ln prepare ended with {ran.returncode}: {FAST} is left out", file=sys.stderr)
        return None
    return json.loads(ran.stdout)


def convert(folder: str, peer: str) -> None:
    """Unless it is there; in a process of its own, under its name when whole."""
    out = kept(folder, peer)
    if out.exists():
        return
    part = out.with_name(out.name + ".part")
    _remove(part)
    part.parent.mkdir(parents=True, exist_ok=True)
    print(f"converting for {peer}: {out}", file=sys.stderr)
    code = f"from bench_formats import {CONVERTERS[peer].__name__} as convert; convert({folder!r}, {str(part)!r})"
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parent), "HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, env=env, stdout=sys.stderr)
    part.rename(out)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def to_transformers(folder: str, out: str) -> None:
    """Our own `export`: model.safetensors and config.json."""
    subprocess.run([sys.executable, "-m", "gpt2ln", "-q", "-m", folder, "export", out], check=True)


def to_ctranslate2(folder: str, out: str) -> None:
    """From the copy for transformers; its converter of the official layout no longer works (4.8)."""
    from ctranslate2.converters import TransformersConverter

    convert(folder, "transformers")
    TransformersConverter(str(kept(folder, "transformers"))).convert(out, quantization="float32")


def to_llama(folder: str, out: str) -> None:
    """A float32 gguf.  Matrices lie [out, in] there; `wte` serves as the output matrix too."""
    import gguf

    import gpt2ln
    from gpt2ln.checkpoint import load as arrays
    from gpt2ln.spec import variables

    model = gpt2ln.load(folder)
    hp = model.hparams
    writer = gguf.GGUFWriter(out, "gpt2")
    writer.add_context_length(hp.n_ctx)
    writer.add_embedding_length(hp.n_embd)
    writer.add_block_count(hp.n_layer)
    writer.add_feed_forward_length(4 * hp.n_embd)
    writer.add_head_count(hp.n_head)
    writer.add_layer_norm_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    _vocabulary(writer, model.place.folder, model.bpe.eot)
    for name, array in arrays(model.bundle, variables(hp)):
        array = array.reshape(array.shape[-2:])
        writer.add_tensor(to_gguf(name), array.T.copy() if name.endswith("/w") else array.copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _vocabulary(writer, folder: Path, eot: int) -> None:
    encoder = json.loads((folder / "encoder.json").read_text(encoding="utf-8"))
    merges = (folder / "vocab.bpe").read_text(encoding="utf-8").split("\n")[1:-1]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(sorted(encoder, key=encoder.get))
    writer.add_token_types([3 if i == eot else 1 for i in range(len(encoder))])  # 3: control, 1: normal
    writer.add_token_merges(merges)
    writer.add_bos_token_id(eot)
    writer.add_eos_token_id(eot)


_LEAF = {"g": "weight", "w": "weight", "b": "bias"}
_SCOPE = {
    "ln_1": "attn_norm",
    "attn/c_attn": "attn_qkv",
    "attn/c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp/c_fc": "ffn_up",
    "mlp/c_proj": "ffn_down",
}


def to_gguf(name: str) -> str:
    """`model/h3/ln_1/g` -> `blk.3.attn_norm.weight`"""
    name = name.removeprefix("model/")
    if name in ("wte", "wpe"):
        return {"wte": "token_embd", "wpe": "position_embd"}[name] + ".weight"
    scope, leaf = name.rsplit("/", 1)
    if scope == "ln_f":
        return f"output_norm.{_LEAF[leaf]}"
    block, scope = scope.split("/", 1)
    return f"blk.{block[1:]}.{_SCOPE[scope]}.{_LEAF[leaf]}"


CONVERTERS = {"transformers": to_transformers, "CTranslate2": to_ctranslate2, "llama.cpp": to_llama}
