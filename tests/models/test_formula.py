"""The full model against one written out in numpy, in float64."""

import jax
import numpy as np


def _rms(x, weight):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * weight


def _rotated(x, positions):
    half = x.shape[-1] // 2
    angles = positions[:, :, None, None] * 10_000.0 ** -(np.arange(half) / half)
    first, second = x[..., :half], x[..., half:]
    return np.concatenate(
        [
            first * np.cos(angles) - second * np.sin(angles),
            second * np.cos(angles) + first * np.sin(angles),
        ],
        -1,
    )


def _attention(x, layer, batch, *, num_heads, num_kv_heads):
    shape = (*x.shape[:2], -1, x.shape[-1] // num_heads)
    q, k, v = ((x @ layer["attention"][name]["weight"]).reshape(shape) for name in "qkv")
    q, k = _rotated(q, batch["positions"]), _rotated(k, batch["positions"])
    k, v = (np.repeat(part, num_heads // num_kv_heads, axis=2) for part in (k, v))
    logits = np.einsum("btnh,bsnh->bnts", q, k) / np.sqrt(q.shape[-1])
    segments = batch["segment_ids"]
    time = np.arange(x.shape[1])
    seen = (time[:, None] >= time) & (segments[:, :, None] == segments[:, None, :])
    seen &= segments[:, None, :] != 0
    weights = np.exp(np.where(seen[:, None], logits, -np.inf).clip(-1e9))
    weights = np.where(seen[:, None], weights, 0.0)
    total = weights.sum(-1, keepdims=True)
    weights = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    mixed = np.einsum("bnts,bsnh->btnh", weights, v)
    return mixed.reshape(x.shape) @ layer["attention"]["out"]["weight"]


def _feed_forward(x, layer):
    weight = {name: layer["feed_forward"][name]["weight"] for name in ("gate", "up", "down")}
    gate = x @ weight["gate"]
    return (gate / (1 + np.exp(-gate)) * (x @ weight["up"])) @ weight["down"]


def _logits(state, batch, *, num_layers, **heads):
    x = state["decoder"]["embedding"]["weight"][batch["tokens"]]
    for i in range(num_layers):
        layer = _at(state["decoder"]["stack"]["layer"], i)
        norm = layer["attention_residual"]["norm"]["weight"]
        x = x + _attention(_rms(x, norm), layer, batch, **heads)
        norm = layer["feed_forward_residual"]["norm"]["weight"]
        x = x + _feed_forward(_rms(x, norm), layer)
    return _rms(x, state["decoder"]["norm"]["weight"]) @ state["head"]["weight"].T


def _at(tree, i):
    if isinstance(tree, dict):
        return {name: _at(below, i) for name, below in tree.items()}
    return np.asarray(tree[i], np.float64)


def test_logits_and_loss_are_their_formulas(run, cfg, batch):
    state = run.state(cfg)
    got = run(cfg, state, batch)
    logits = _logits(state, batch, num_layers=2, num_heads=4, num_kv_heads=2)
    np.testing.assert_allclose(got["logits"], logits, rtol=1e-4, atol=1e-4)
    log_normaliser = np.log(np.exp(logits).sum(-1))
    picked = np.take_along_axis(logits, batch["targets"][..., None], -1)[..., 0]
    expected = (batch["loss_weights"] * (log_normaliser - picked)).sum()
    np.testing.assert_allclose(got["pair"], (expected, batch["loss_weights"].sum()), rtol=1e-5)
    np.testing.assert_allclose(got["total"], expected / batch["loss_weights"].sum(), rtol=1e-5)


def test_gradient_is_the_slope_of_the_loss(run, cfg, batch):
    """Central differences along a random direction of all parameters at once."""
    state = run.state(cfg)
    generator = np.random.default_rng(1)
    direction = jax.tree.map(lambda x: generator.normal(size=x.shape).astype(x.dtype), state)
    moved = lambda step: jax.tree.map(lambda x, d: x + step * d, state, direction)  # noqa: E731
    step = 1e-3
    slope = (
        float(run(cfg, moved(step), batch)["total"]) - float(run(cfg, moved(-step), batch)["total"])
    ) / (2 * step)
    gradient = run(cfg, state, batch)["gradient"]
    told = sum(
        float((g * d).sum())
        for g, d in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True)
    )
    np.testing.assert_allclose(told, slope, rtol=2e-2, atol=2e-2)
