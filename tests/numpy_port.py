"""Somebody's port of GPT-2 in float32 NumPy, with a switch for every mistake that ports make; no code of ours.

`run(weights, ids, n_head, **switches)` -> taps [T, ...], positions first, under our names.
"""

import math

import numpy as np

F = np.float32


def layer_norm(x, g, b, *, eps=1e-5):
    u = x.mean(-1, keepdims=True)
    s = ((x - u) ** 2).mean(-1, keepdims=True)
    r = F(1) / np.sqrt(s + F(eps))
    n = (x - u) * r
    return dict(mean=u, var=s, rstd=r, norm=n, out=n * g + b)


def epsilon(eps):
    return lambda x, g, b: layer_norm(x, g, b, eps=eps)


def _norm(formula, out=lambda n, g, b: n * g + b):
    def norm(x, g, b):
        u, s, r = formula(x)
        n = (x - u) * r
        return dict(mean=u, var=s, rstd=r, norm=n, out=out(n, g, b))

    return norm


def _moments(x):
    u = x.mean(-1, keepdims=True)
    return u, ((x - u) ** 2).mean(-1, keepdims=True)


def _sample(x):
    u, s = _moments(x)
    return u, s * F(x.shape[-1] / (x.shape[-1] - 1))


def _right(x):
    u, s = _moments(x)
    return u, s, 1 / np.sqrt(s + F(1e-5))


def _one_pass(x):
    u = x.mean(-1, keepdims=True)
    s = (x * x).mean(-1, keepdims=True) - u * u
    return u, s, 1 / np.sqrt(s + F(1e-5))


def _rms(x):
    s = (x * x).mean(-1, keepdims=True)
    return 0 * s, s, 1 / np.sqrt(s + F(1e-5))


bessel = _norm(lambda x: (*_sample(x), 1 / np.sqrt(_sample(x)[1] + F(1e-5))))
hidden_bessel = _norm(lambda x: (*_moments(x), 1 / np.sqrt(_sample(x)[1] + F(1e-5))))
outside = _norm(lambda x: (*_moments(x), 1 / (np.sqrt(_moments(x)[1]) + F(1e-5))))
no_root = _norm(lambda x: (*_moments(x), 1 / (_moments(x)[1] + F(1e-5))))
annotated = _norm(lambda x: (*_sample(x), 1 / (np.sqrt(_sample(x)[1]) + F(1e-5))))
one_pass, rms = _norm(_one_pass), _norm(_rms)
no_gain, no_bias = _norm(_right, lambda n, g, b: n + b), _norm(_right, lambda n, g, b: n * g)
swapped, plain = _norm(_right, lambda n, g, b: n * b + g), _norm(_right, lambda n, g, b: n)
plus_one = _norm(_right, lambda n, g, b: n * (1 + g) + b)


def hidden_rms(x, g, b):
    """Reports the statistics, and does not use them."""
    n = x / np.sqrt((x * x).mean(-1, keepdims=True) + F(1e-5))
    return layer_norm(x, g, b) | dict(norm=n, out=n * g + b)


def tanh_gelu(x, by=0.044715):
    return F(0.5) * x * (1 + np.tanh(F(math.sqrt(2 / math.pi)) * (x + F(by) * x**3)))


def erf_gelu(x):
    return (x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2).astype(x.dtype)


def sigmoid_gelu(x):
    return x / (1 + np.exp(F(-1.702) * x))


def split(c, H):
    """[T, C] -> [H, T, D]"""
    return c.reshape(len(c), H, -1).transpose(1, 0, 2)


def split_inner(c, H):
    return c.reshape(len(c), -1, H).transpose(2, 0, 1)


def split_flat(c, H):
    return c.reshape(H, len(c), -1)


def merge(a):
    """[H, T, D] -> [T, C]"""
    return a.transpose(1, 0, 2).reshape(a.shape[1], -1)


def merge_inner(a):
    return a.transpose(1, 2, 0).reshape(a.shape[1], -1)


def merge_flat(a):
    return a.reshape(a.shape[1], -1)


def put_mask(value):
    return lambda w: np.where(np.triu(np.ones(w.shape[1:], bool), 1), F(value), w)


def add_mask(value):
    return lambda w: w + np.triu(np.full(w.shape[1:], value, F), 1)


def near_mask(k):
    return lambda w: np.where(np.triu(np.ones(w.shape[1:], bool), k), F(-1e10), w)


def softmax(w):
    e = np.exp(w - w.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def softmax_queries(w):
    return softmax(w.swapaxes(1, 2)).swapaxes(1, 2)


def folded(weights):
    """TransformerLens fold_ln: gain and bias of ln_1 and ln_2 moved into what follows them."""
    w = dict(weights)
    for name in [name for name in w if name.endswith(("ln_1/g", "ln_2/g"))]:
        norm = name[:-2]
        follows = norm.replace("ln_1", "attn/c_attn").replace("ln_2", "mlp/c_fc")
        g, b, m = (np.asarray(w[key], np.float64) for key in (name, f"{norm}/b", f"{follows}/w"))
        w[f"{follows}/b"] = w[f"{follows}/b"] + b @ m[0]
        w[f"{follows}/w"], w[name], w[f"{norm}/b"] = m * g[:, None], np.ones_like(g), np.zeros_like(b)
    return w


def centred(weights):
    """TransformerLens center_writing_weights; the head keeps the wte that was."""
    writing = ("wte", "wpe", "c_proj/w", "c_proj/b")
    return {k: v - v.mean(-1, keepdims=True) if k.endswith(writing) else v for k, v in weights.items()}


def same(x):
    return x


def fewer_bits(bits):
    """Round to float32 with that many bits behind the leading one."""

    def less(x):
        m, e = np.frexp(np.asarray(x, F))
        return np.ldexp(np.rint(np.ldexp(m, bits + 1)), e - bits - 1).astype(F)

    return less


def in_rows(rows, wrong, right):
    """A function of [.., T, ...] in these rows alone; what a norm gives is a dictionary."""

    def pick(x, y, axis):
        return np.where(rows.reshape(-1, *[1] * (x.ndim - 1 - axis)), x, y)

    def either(x, *more):
        y, z = wrong(x, *more), right(x, *more)
        return {k: pick(y[k], z[k], 0) for k in y} if isinstance(y, dict) else pick(y, z, y.ndim - 2)

    return either


def seen_by(cache, x, y, axis):
    """[H, T, n] @ [H, n, m], each row with what a cache holds for it; axis: of y, along which the positions lie."""
    if cache is None:
        return x @ y
    held = cache(y if axis == 1 else y.swapaxes(1, 2))
    held = held if axis == 1 else [h.swapaxes(1, 2) for h in held]
    return np.concatenate([x[:, t : t + 1] @ h for t, h in enumerate(held)], 1)


def run(
    weights, ids, n_head, *, norm=layer_norm, gelu=tanh_gelu, order=(0, 1, 2), interleaved=False, split=split,
    merge=merge, scale=None, mask=put_mask(-1e10), softmax=softmax, turned=None, no_bias=None, wpe_at=0, wte_scale=1.0,
    residual=True, parallel=False, post=False, ends="once", r=same, factor=same, layers=None, reuse=None, head=None,
    later=None, cache=None,
):  # fmt: skip
    """r: applied to the result of every operation; factor: to both sides of every product.

    turned, no_bias: the end of the name of a conv1d; layers: whose weights each block has; reuse: norm -> whose rstd.
    later: rows in which alone norm, gelu, mask, scale and wpe_at are what is said; cache: keys or values [H, T, D] ->
    for each row those that it sees.
    """
    if later is not None:
        later = later[: len(ids)]
        norm, gelu, mask = (
            in_rows(later, *f) for f in ((norm, layer_norm), (gelu, tanh_gelu), (mask, put_mask(-1e10)))
        )
    w = {k.removeprefix("model/"): r(np.asarray(v, F).reshape(v.shape[-2:])) for k, v in weights.items()}
    L, T, seen = 1 + max(int(k[1:].split("/")[0]) for k in w if k[0] == "h"), len(ids), {}
    if layers:
        own = {
            f"h{n}/{k.split('/', 1)[1]}": v for n in range(L) for k, v in w.items() if k.startswith(f"h{layers[n]}/")
        }
        w |= own

    def see(at, **values):
        seen.update({f"{at}/{leaf}" if at else leaf: x for leaf, x in values.items()})

    def linear(x, at):
        m, b = w[f"{at}/w"], w[f"{at}/b"]
        m = m.reshape(m.shape[::-1]).T if turned and at.endswith(turned) else m
        y = r(factor(x) @ factor(m))
        return y if no_bias and at.endswith(no_bias) else r(y + b)

    def normed(x, at):
        out = {k: r(v) for k, v in norm(x, w[f"{at}/g"][None], w[f"{at}/b"][None]).items()}
        if reuse and at in reuse:
            out["rstd"] = seen[f"{reuse[at]}/rstd"]
            out["norm"] = (x - out["mean"]) * out["rstd"]
            out["out"] = out["norm"] * w[f"{at}/g"] + w[f"{at}/b"]
        see(at, **out)
        return out["out"]

    def attention(x, at, layer):
        c = linear(x, f"{at}/c_attn")
        if interleaved:
            c = c.reshape(T, n_head, 3, -1)
            q, k, v = (c[:, :, n].transpose(1, 0, 2) for n in range(3))
        else:
            thirds = np.split(c, 3, -1)
            q, k, v = (split(thirds[n], n_head) for n in order)
        right = by = F(1 / math.sqrt(q.shape[-1]))
        if scale is not None:
            by = F(scale(q.shape[-1], q.shape[-1] * n_head, layer))
            by = by if later is None else np.where(later, by, right)[:, None]
        s = mask(r(r(seen_by(cache, factor(q), factor(k).swapaxes(1, 2), 2)) * by))
        p = r(softmax(s))
        z = merge(r(seen_by(cache, factor(p), factor(v), 1)))
        see(at, **{n: x.swapaxes(0, 1) for n, x in dict(q=q, k=k, v=v, scores=s, probs=p).items()}, z=z)
        out = linear(z, f"{at}/c_proj")
        see(at, out=out)
        return out

    def mlp(x, at):
        fc = linear(x, f"{at}/c_fc")
        act = r(gelu(fc))
        out = linear(act, f"{at}/c_proj")
        see(at, fc=fc, gelu=act, out=out)
        return out

    def add(x, y):
        return r(x + y) if residual else y

    at = np.arange(T)
    got = at + wpe_at if isinstance(wpe_at, int) else wpe_at(at)
    got = np.clip(got if later is None else np.where(later, got, at), 0, len(w["wpe"]) - 1)
    wte, wpe = w["wte"][list(ids)] * F(wte_scale), w["wpe"][got]
    x = r(wte + wpe)
    see("", **{"wte/out": wte, "wpe/out": wpe, "embed": x})
    for i in range(L):
        at = f"h{i}"
        see(at, **{"in": x})
        if post:
            mid = add(x, attention(x, f"{at}/attn", i))
            y = normed(mid, f"{at}/ln_1")
            x = normed(add(y, mlp(y, f"{at}/mlp")), f"{at}/ln_2")
        else:
            mid = add(x, attention(normed(x, f"{at}/ln_1"), f"{at}/attn", i))
            x = add(mid, mlp(normed(x if parallel else mid, f"{at}/ln_2"), f"{at}/mlp"))
        see(at, mid=mid, out=x)
    y = normed(x, "ln_f")
    if ends == "missing":
        y = x
    elif ends == "twice":
        y = norm(y, w["ln_f/g"][None], w["ln_f/b"][None])["out"]
    see("ln_f", out=y)
    see("", logits=r(factor(y) @ factor(w["wte"] if head is None else head).T))
    return {name: np.asarray(x, F) for name, x in seen.items()}
