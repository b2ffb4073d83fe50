"""A residual connection with norms on both sides of its branch."""

import jax
import jax.numpy as jnp
import numpy as np
from axl_attention.norms import SandwichNorm

from axcore.config import evolve
from axcore.layers import PreNorm, RMSNorm, TransformerLayer
from axcore.modifiers import with_variant
from axcore.module import functional


def normed(x, weight):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * (1.0 + weight)


def test_both_norms_have_weights_of_their_own(random):
    cfg = SandwichNorm.Config(dim=4, norm=RMSNorm.Config(weight_offset=1.0))
    state = {"before": {"weight": random(4)}, "after": {"weight": random(4)}}
    x = random(2, 3, 4)
    arrays = jax.tree.map(jnp.asarray, state)
    got, _ = functional(cfg.build(), arrays, jnp.asarray(x), lambda y: y**3)
    branch = normed(x, state["before"]["weight"]) ** 3
    np.testing.assert_allclose(got, x + normed(branch, state["after"]["weight"]), rtol=1e-4)


def test_variant_keeps_norm_and_dropout_of_what_it_replaces():
    norm = RMSNorm.Config(epsilon=1e-3)
    layer = TransformerLayer.Config(residual=PreNorm.Config(norm=norm))
    changed = with_variant(layer, "sandwich_norm").residual
    assert isinstance(changed, SandwichNorm.Config)
    assert changed.norm == norm
    assert evolve(changed, norm=RMSNorm.Config()) == SandwichNorm.Config()
