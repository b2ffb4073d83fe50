"""Norms behind branches and within projections, and branches and logits that are scaled."""

import jax
import jax.numpy as jnp
import numpy as np
from axl_attention.norms import (
    DividedLogits,
    NormedLinear,
    ReorderedNorm,
    SandwichNorm,
    ScaledResidual,
    with_normed_linear,
)

from axcore.config import evolve
from axcore.layers import Attention, PreNorm, RMSNorm, TransformerLayer
from axcore.models import TiedHead, UntiedHead
from axcore.modifiers import with_variant
from axcore.module import functional


def normed(x, weight):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * weight


def run(module, state, *args, method="forward"):
    args = [arg if callable(arg) else jnp.asarray(arg) for arg in args]
    return functional(module, jax.tree.map(jnp.asarray, state), *args, method=method)[0]


def test_reordered_norm_is_of_what_the_branch_returns(random):
    x, state = random(2, 3, 4), {"norm": {"weight": random(4)}}
    got = run(ReorderedNorm.Config(dim=4).build(), state, x, lambda y: y**3)
    np.testing.assert_allclose(got, x + normed(x**3, state["norm"]["weight"]), rtol=1e-4)


def test_scaled_residual_scales_what_the_branch_returns(random):
    x, state = random(2, 3, 4), {"norm": {"weight": random(4)}}
    cfg = ScaledResidual.Config(dim=4, scale=0.25)
    got = run(cfg.build(), state, x, lambda y: y**3)
    np.testing.assert_allclose(got, x + normed(x, state["norm"]["weight"]) ** 3 / 4, rtol=1e-4)


def test_normed_linear_normalises_over_its_whole_width(random):
    cfg = NormedLinear.Config(in_dim=4, out_dim=6, axes=("embed", "heads"))
    state = {"linear": {"weight": random(4, 6)}, "norm": {"weight": random(6)}}
    x = random(2, 4)
    expected = normed(x @ state["linear"]["weight"], state["norm"]["weight"])
    np.testing.assert_allclose(run(cfg.build(), state, x), expected, rtol=1e-4)


def test_only_queries_and_keys_are_normalised():
    layer = with_normed_linear(Attention.Config(num_heads=4, num_kv_heads=2)).build(dim=16)
    assert [hasattr(part, "norm") for part in (layer.q, layer.k, layer.v, layer.out)] == [
        True,
        True,
        False,
        False,
    ]
    assert layer.k.norm.config.dim == 8


def test_logits_and_loss_are_those_of_the_head_over_the_divisor(random):
    x, table, weight = random(1, 3, 4), random(7, 4), random(7, 4)
    targets, weights = np.array([[1, 0, 6]], np.int32), np.ones((1, 3), np.float32)
    for inner, state, projection in (
        (TiedHead.Config(), {}, table),
        (UntiedHead.Config(), {"inner": {"weight": weight}}, weight),
    ):
        head = DividedLogits.Config(dim=4, vocab_size=7, divisor=8.0, inner=inner).build()
        logits = x @ projection.T / 8
        np.testing.assert_allclose(run(head, state, x, table), logits, rtol=1e-5, atol=1e-6)
        losses = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(
            logits, targets[..., None], -1
        ).squeeze(-1)
        total, count = run(head, state, x, table, targets, weights, method="loss")
        np.testing.assert_allclose([total, count], [losses.sum(), 3.0], rtol=1e-5)


def sandwiched(x, weight):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * (1.0 + weight)


def test_both_norms_have_weights_of_their_own(random):
    cfg = SandwichNorm.Config(dim=4, norm=RMSNorm.Config(weight_offset=1.0))
    state = {"before": {"weight": random(4)}, "after": {"weight": random(4)}}
    x = random(2, 3, 4)
    arrays = jax.tree.map(jnp.asarray, state)
    got, _ = functional(cfg.build(), arrays, jnp.asarray(x), lambda y: y**3)
    branch = sandwiched(x, state["before"]["weight"]) ** 3
    np.testing.assert_allclose(got, x + sandwiched(branch, state["after"]["weight"]), rtol=1e-4)


def test_variant_keeps_norm_and_dropout_of_what_it_replaces():
    norm = RMSNorm.Config(epsilon=1e-3)
    layer = TransformerLayer.Config(residual=PreNorm.Config(norm=norm))
    changed = with_variant(layer, "sandwich_norm").residual
    assert isinstance(changed, SandwichNorm.Config)
    assert changed.norm == norm
    assert evolve(changed, norm=RMSNorm.Config()) == SandwichNorm.Config()
