"""Files of other programs: names, axes and types; each step is said, and what is not clear is refused."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from gpt2ln.errors import BadInput, Damaged
from gpt2ln.readings import read

from .ports import IDS, equal, lens, saved, transformers


@pytest.fixture(scope="module")
def taps(small):
    return small.observe(IDS, "**")


@pytest.fixture
def file(tmp_path):
    return lambda arrays: saved(tmp_path / "p.npz", arrays)


def one(found):
    (document,) = found.documents
    assert len(IDS) == document.T
    return document


def test_our_names(small, taps, file):
    found = read(file(taps | {"tokens": np.array(IDS)}))
    equal(one(found).taps, taps)
    assert (found.documents[0].ids, found.notes, found.record) == (IDS, (), None)
    equal(one(read(file(taps))).taps, taps)
    assert one(read(file(taps))).ids is None


def test_our_names_as_file_names(small, taps, tmp_path):
    """Dots, two underlines, folders; `model/` in front."""
    for name, x in taps.items():
        np.save(tmp_path / f"{name.replace('/', '.')}.npy", x)
    found = read(tmp_path)
    equal(one(found).taps, taps)
    assert "names: embed" not in found.notes[0]
    assert found.notes[0].startswith("names: h*.attn.k -> h*/attn/k, h*.attn.out -> h*/attn/out, ")
    few = {name: taps[name] for name in ("h0/ln_1/out", "h1/in", "ln_f/norm")}
    (tmp_path / "sub" / "h0" / "ln_1").mkdir(parents=True)
    np.save(tmp_path / "sub" / "h0" / "ln_1" / "out.npy", few["h0/ln_1/out"])
    np.save(tmp_path / "sub" / "model.h1.in.npy", few["h1/in"])
    np.save(tmp_path / "sub" / "ln_f__norm.npy", few["ln_f/norm"])
    equal(one(read(tmp_path / "sub", small.hparams)).taps, few)
    equal(one(read(tmp_path / "sub" / "ln_f__norm.npy", small.hparams)).taps, {"ln_f/norm": few["ln_f/norm"]})


def test_transformer_lens(small, taps, tmp_path):
    arrays = {name: np.ascontiguousarray(x) for name, x in lens(taps).items()} | {"tokens": np.array([IDS])}
    save_file(arrays, tmp_path / "tl.safetensors")
    found = read(tmp_path / "tl.safetensors", small.hparams)
    document = one(found)
    assert document.ids == IDS
    rstd = {name for name in document.taps if name.endswith("rstd")}
    assert len(rstd) == 5
    for name, x in document.taps.items():
        if name in rstd:
            np.testing.assert_array_max_ulp(x, taps[name], 1)
        else:
            np.testing.assert_array_equal(x, taps[name], err_msg=name)
    norms = [f"h{i}/ln_{k}" for i in (0, 1) for k in (1, 2)] + ["ln_f"]
    assert set(document.either) == {(f"{norm}/norm", f"{norm}/out") for norm in norms}
    assert set(taps) - set(document.taps) == {"embed"} | {
        f"{n}/{leaf}" for n in norms for leaf in ("mean", "var", "norm")
    }
    for said in (
        "blocks.*.ln1.hook_scale: 1/x taken as h*/ln_1/rstd",
        "blocks.*.attn.hook_attn_scores: -inf and what is below -1e30 taken as -1e10",
        "h*/attn/z: axes 1,T,H,D -> T,C",
        "h*/attn/scores, h*/attn/probs: axes 1,H,T,S -> T,H,S",
    ):
        assert said in found.notes


def test_hugging_face(small, taps, file):
    found = read(file(transformers(taps) | {"input_ids": np.array([IDS])}))
    of_blocks = [f"h{i}/attn/{leaf}" for i in (0, 1) for leaf in ("probs", "k", "v")]
    named = ["h0/in", "h1/in", "ln_f/out", "logits", *of_blocks]
    equal(one(found).taps, {name: taps[name] for name in named})
    assert "h*/attn/k, h*/attn/v: axes 1,H,T,D -> T,H,D" in found.notes


@pytest.mark.parametrize("name", ["hidden_states[{}]", "hidden_states_{}", "hidden_states.{}"])
def test_one_array_an_entry_of_a_tuple(small, taps, file, name):
    """The last of them is behind ln_f, whether the model is known or not."""
    arrays = {name.format(i): x for i, x in enumerate(transformers(taps)["hidden_states"])}
    for hparams in (small.hparams, None):
        equal(one(read(file(arrays), hparams)).taps, {n: taps[n] for n in ("h0/in", "h1/in", "ln_f/out")})


def test_names_of_modules(small, taps, file):
    """With and without `transformer.`; c_attn is split in three, and each into heads."""
    flat = np.concatenate([taps[f"h1/attn/{leaf}"].reshape(len(IDS), -1) for leaf in "qkv"], -1)
    arrays = {"transformer.h.1.attn.c_attn": flat[None], "h.0.mlp.act": taps["h0/mlp/gelu"], "ln_f": taps["ln_f/out"]}
    found = read(file(arrays), small.hparams)
    names = ["h1/attn/q", "h1/attn/k", "h1/attn/v", "h0/mlp/gelu", "ln_f/out"]
    equal(one(found).taps, {name: taps[name] for name in names})
    assert "h*/attn/q, h*/attn/k, h*/attn/v: axes 1,T,C -> T,H,D" in found.notes
    with pytest.raises(BadInput, match=r"c_attn: into how many heads it is to be split is not known; .* -m"):
        read(file(arrays))


def test_two_texts_in_a_batch(small, file):
    texts = (IDS, IDS[::-1])
    both = [small.observe(ids, "h0/out,h1/attn/probs,wpe/out,h0/ln_1/mean") for ids in texts]
    arrays = {name: np.stack([x[name] for x in both]) for name in both[0]} | {"tokens": np.array(texts)}
    arrays["h1/attn/probs"] = arrays["h1/attn/probs"].swapaxes(1, 2)
    arrays["wpe/out"] = arrays["wpe/out"][:1]
    arrays["h0/ln_1/mean"] = arrays["h0/ln_1/mean"][..., 0]
    found = read(file(arrays), small.hparams)
    assert [document.ids for document in found.documents] == list(texts)
    for document, right in zip(found.documents, both, strict=True):
        equal(document.taps, right)
    assert "wpe/out: the same for each of 2 texts" in found.notes


def test_half_precision(small, taps, tmp_path):
    """bfloat16 as torch writes it: the upper half of a float32."""
    bits = (taps["h0/out"].view("u4") >> 16).astype("u2")
    header = '{"h0/out":{"dtype":"BF16","shape":[7,8],"data_offsets":[0,112]}}'
    (tmp_path / "b.safetensors").write_bytes(len(header).to_bytes(8, "little") + header.encode() + bits.tobytes())
    found = read(tmp_path / "b.safetensors", small.hparams)
    right = (taps["h0/out"].view("u4") & 0xFFFF0000).view("f4")
    equal(one(found).taps, {"h0/out": right})
    assert found.dtypes == {"h0/out": "bfloat16"}
    found = read(saved(tmp_path / "h.npz", {"h0/out": right.astype("f2")}), small.hparams)
    assert found.dtypes == {"h0/out": "float16"}


def test_as_many_tokens_as_heads(small, file):
    """[2, 2, n] may lie either way: another tap of the file decides, or TransformerLens's name; else it is refused."""
    taps = small.observe(IDS[:2], "h0/attn/*,h0/out")
    q = {"h0/attn/q": taps["h0/attn/q"]}
    with pytest.raises(
        BadInput, match=r"h0/attn/q \[2, 2, 4\] fits \[T, H, D\] and \[H, T, D\]; take a text of a length"
    ):
        read(file(q), small.hparams)
    found = read(file({"blocks.0.attn.hook_q": taps["h0/attn/q"]}), small.hparams)
    equal(found.documents[0].taps, q)
    found = read(file({"attentions": taps["h0/attn/probs"].swapaxes(0, 1)[None, None].repeat(2, 0)}), small.hparams)
    np.testing.assert_array_equal(found.documents[0].taps["h1/attn/probs"], taps["h0/attn/probs"])
    mixed = {"attentions": np.stack([taps["h0/attn/probs"].swapaxes(0, 1)[None]] * 2), "h1/attn/q": taps["h0/attn/q"]}
    found = read(file(mixed), small.hparams)
    np.testing.assert_array_equal(found.documents[0].taps["h1/attn/q"], taps["h0/attn/q"].swapaxes(0, 1))
    one_token = small.observe(IDS[:1], "h0/attn/q")
    equal(read(file(one_token), small.hparams).documents[0].taps, one_token)


def test_shapes_that_fit_nothing(small, taps, file):
    bad = {"h0/out": taps["h0/out"][:, :5], "h1/attn/q": taps["h1/attn/q"][:, :, :3], "h0/in": np.zeros((3, 8), "f4")}
    with pytest.raises(
        BadInput, match=r"h0/out is \[7, 5\], expected \[T, 8\]; h1/attn/q is \[7, 2, 3\], expected \[T, 2, 4\]"
    ):
        read(file(bad), small.hparams)
    with pytest.raises(BadInput, match=r"h0/in \[3, 8\], h1/in \[7, 8\]: not the same positions in all"):
        read(file({"h0/in": bad["h0/in"], "h1/in": taps["h1/in"]}), small.hparams)
    with pytest.raises(BadInput, match=r"token ids: 1 x 5, h1/in \[7, 8\]: not the same positions"):
        read(file({"h1/in": taps["h1/in"], "tokens": np.array(IDS[:5])}), small.hparams)
    with pytest.raises(BadInput, match=r"hidden_states: \[2, 1, 7, 8\], expected 3 in front: this model has 2 blocks"):
        read(file({"hidden_states": np.zeros((2, 1, 7, 8), "f4")}), small.hparams)


def test_two_names_of_one_tap(small, taps, file):
    x = taps["h0/mlp/out"]
    found = read(file({"h.0.mlp": x, "h.0.mlp.c_proj": x}), small.hparams)
    assert "h.*.mlp.c_proj: the same as h.*.mlp" in found.notes
    with pytest.raises(BadInput, match=r"h\.0\.mlp and h\.0\.mlp\.c_proj are both h0/mlp/out, and differ"):
        read(file({"h.0.mlp": x, "h.0.mlp.c_proj": x + 1}), small.hparams)


def test_names_that_are_no_taps(small, taps, file, tmp_path):
    found = read(
        file(taps | {"epoch": np.zeros(3), "blocks.0.attn.hook_result": np.zeros((1, 7, 2, 8))}), small.hparams
    )
    equal(found.documents[0].taps, taps)
    assert found.notes == ("left out: epoch, blocks.*.attn.hook_result (is h*/attn/out by heads, before the bias)",)
    with pytest.raises(BadInput, match=r"holds epoch; no name of a tap: see gpt2ln taps"):
        read(file({"epoch": np.zeros(3)}))
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match=r"holds no dump, no \.npy and no \.safetensors"):
        read(tmp_path / "empty")
    (tmp_path / "x.pt").write_bytes(b"PK")
    with pytest.raises(BadInput, match=r"x\.pt: is no file that compare reads; expected \.npz"):
        read(tmp_path / "x.pt")


def test_values_that_are_no_activations(small, taps, file, tmp_path):
    with pytest.raises(BadInput, match=r"h0/out holds Python objects, which only a pickle reads"):
        read(file({"h0/out": np.array([object()])}))
    np.save(tmp_path / "h0.out.npy", np.array([{}]))
    with pytest.raises(BadInput, match=r"h0\.out\.npy holds Python objects"):
        read(tmp_path / "h0.out.npy")
    for x, dtype in ((np.zeros((7, 8), "c8"), "complex64"), (np.zeros((7, 8), "i4"), "int32")):
        with pytest.raises(BadInput, match=rf"h0/out is {dtype}, expected float16, bfloat16, float32, float64"):
            read(file({"h0/out": x}))
    with pytest.raises(BadInput, match=r"h0/out is \[0, 8\], which holds nothing"):
        read(file({"h0/out": np.zeros((0, 8), "f4")}))
    with pytest.raises(BadInput, match=r"tokens is float64 \[7\], expected token ids"):
        read(file(taps | {"tokens": np.arange(7.0)}))
    (tmp_path / "cut.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(Damaged, match=r"cut\.npy: no whole npy file"):
        read(tmp_path / "cut.npy")
    (tmp_path / "cut.npz").write_bytes(b"PK")
    with pytest.raises(Damaged, match="no whole npz file"):
        read(tmp_path / "cut.npz")
