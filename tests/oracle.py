"""A GPT-2 forward pass in float64 NumPy: the judge of the float32 ones.  Written from the paper, not from the graph."""

import math

import numpy as np


def normalize(x, g, b, epsilon=1e-5):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon) * g + b


def gelu(x):
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def forward(weights, ids, n_head, n_layer):
    """ids: [B, T] -> name of each norm's input and output, and `logits`: [B, T, ...], float64"""
    w = {k.removeprefix("model/"): np.asarray(v, np.float64) for k, v in weights.items()}
    B, T = ids.shape
    seen, later = {}, np.triu(np.ones((T, T), bool), 1)
    x = w["wte"][ids] + w["wpe"][:T]

    def norm(x, at):
        seen[f"{at}/in"], seen[f"{at}/out"] = x, normalize(x, w[f"{at}/g"], w[f"{at}/b"])
        return seen[f"{at}/out"]

    def linear(x, at):
        return x @ w[f"{at}/w"][0] + w[f"{at}/b"]

    def heads(x):
        return x.reshape(B, T, n_head, -1).swapaxes(1, 2)

    for i in range(n_layer):
        q, k, v = map(heads, np.split(linear(norm(x, f"h{i}/ln_1"), f"h{i}/attn/c_attn"), 3, -1))
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
        scores[..., later] = -np.inf
        x = x + linear((softmax(scores) @ v).swapaxes(1, 2).reshape(B, T, -1), f"h{i}/attn/c_proj")
        x = x + linear(gelu(linear(norm(x, f"h{i}/ln_2"), f"h{i}/mlp/c_fc")), f"h{i}/mlp/c_proj")
    seen["logits"] = norm(x, "ln_f") @ w["wte"].T
    return seen
