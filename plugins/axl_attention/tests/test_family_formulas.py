"""Two families written out in numpy in float64 from their papers, compared with toy models."""

import math

import numpy as np
import pytest
from axl_attention.models import gemma2, gpt2

TOKENS = np.array([[5, 9, 2, 6, 5, 3, 5, 8], [9, 7, 9, 3, 2, 3, 8, 4]], np.int32)
TIME = TOKENS.shape[1]


def layers_of(stack, count):
    """Yield the states of scanned layers, one after the other."""
    for i in range(count):
        yield at(stack, i)


def at(tree, i):
    if isinstance(tree, dict):
        return {name: at(below, i) for name, below in tree.items()}
    return np.asarray(tree[i], np.float64)


def gelu_tanh(x):
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def attended(q, k, v, *, seen, cap=None):
    """Softmax attention of heads `[batch, time, heads, width]`."""
    logits = np.einsum("btnh,bsnh->bnts", q, k) / math.sqrt(q.shape[-1])
    if cap is not None:
        logits = cap * np.tanh(logits / cap)
    weights = np.exp(logits) * seen
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("bnts,bsnh->btnh", weights, v).reshape(*TOKENS.shape, -1)


def layer_normed(x, norm):
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return scaled * norm["weight"] + norm["bias"]


def affine(x, linear):
    return x @ linear["weight"] + linear["bias"]


def gpt2_logits(state):
    decoder = state["decoder"]
    table = np.asarray(decoder["embedding"]["embedding"]["weight"], np.float64)
    x = table[TOKENS] + decoder["embedding"]["positions"][:TIME]
    for layer in layers_of(decoder["stack"]["layer"], 2):
        normed = layer_normed(x, layer["attention_residual"]["norm"])
        heads = [
            affine(normed, layer["attention"][name]).reshape(*TOKENS.shape, 4, 16) for name in "qkv"
        ]
        mixed = attended(*heads, seen=np.tril(np.ones((TIME, TIME))))
        x = x + affine(mixed, layer["attention"]["out"])
        normed = layer_normed(x, layer["feed_forward_residual"]["norm"])
        hidden = gelu_tanh(affine(normed, layer["feed_forward"]["up"]))
        x = x + affine(hidden, layer["feed_forward"]["down"])
    return layer_normed(x, decoder["norm"]) @ table.T


@pytest.mark.slow
def test_gpt2_is_its_formula(run_model):
    state, run = run_model(gpt2("toy"))
    np.testing.assert_allclose(run(state, TOKENS)[2], gpt2_logits(state), rtol=1e-3, atol=1e-3)


def gemma_normed(x, weight):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * (1.0 + weight)


def sandwiched(x, norms, branch):
    inner = branch(gemma_normed(x, norms["before"]["weight"]))
    return x + gemma_normed(inner, norms["after"]["weight"])


def turned(x):
    """RoPE of base 10,000 on halves, by complex numbers."""
    half = x.shape[-1] // 2
    frequencies = 10_000.0 ** (-np.arange(half) / half)
    pairs = x[..., :half] + 1j * x[..., half:]
    pairs = pairs * np.exp(1j * np.arange(TIME)[:, None, None] * frequencies)
    return np.concatenate([pairs.real, pairs.imag], -1)


def gemma2_logits(state):
    decoder = state["decoder"]
    table = np.asarray(decoder["embedding"]["weight"], np.float64)
    x = table[TOKENS] * math.sqrt(64)
    turn = at(decoder["stack"]["layer"], 0)["layer"]
    distance = np.arange(TIME)[:, None] - np.arange(TIME)
    for layer, window in ((turn["0"], 4), (turn["1"], TIME)):
        seen = (distance >= 0) & (distance < window)

        def attention(normed, attention=layer["attention"], seen=seen):
            q, k, v = (
                (normed @ attention[name]["weight"]).reshape(*TOKENS.shape, -1, 32)
                for name in "qkv"
            )
            k, v = np.repeat(turned(k), 2, axis=2), np.repeat(v, 2, axis=2)
            return attended(turned(q), k, v, seen=seen, cap=50.0) @ attention["out"]["weight"]

        def feed_forward(normed, weights=layer["feed_forward"]):
            gate = gelu_tanh(normed @ weights["gate"]["weight"])
            return (gate * (normed @ weights["up"]["weight"])) @ weights["down"]["weight"]

        x = sandwiched(x, layer["attention_residual"], attention)
        x = sandwiched(x, layer["feed_forward_residual"], feed_forward)
    logits = gemma_normed(x, decoder["norm"]["weight"]) @ table.T
    return 30.0 * np.tanh(logits / 30.0)


@pytest.mark.slow
def test_gemma2_is_its_formula(run_model):
    """A local layer with a window of 4, then a global one."""
    state, run = run_model(gemma2("toy"))
    np.testing.assert_allclose(run(state, TOKENS)[2], gemma2_logits(state), rtol=1e-3, atol=1e-3)
