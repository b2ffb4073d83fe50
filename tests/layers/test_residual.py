"""Where the norm is: `PreNorm` and `PostNorm` by their formulas."""

import jax.numpy as jnp
import numpy as np
import pytest

from axcore.config import REQUIRED, config
from axcore.layers import Dropout, PostNorm, PreNorm, RMSNorm
from axcore.module import Module


class Cubed(Module):
    """A residual connection around `x -> x^3`."""

    @config
    class Config(Module.Config):
        dim: int = REQUIRED
        residual: Module.Config = PreNorm.Config()

    def setup(self, cfg):
        self.residual = cfg.residual.build(dim=cfg.dim)

    def forward(self, x):
        return self.residual(x, lambda inner: inner**3)


def _norm(x):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)


@pytest.mark.parametrize(
    ("residual", "formula"),
    [
        (PreNorm, lambda x: x + _norm(x) ** 3),
        (PostNorm, lambda x: _norm(x + x**3)),
    ],
)
def test_norm_stands_where_its_formula_says(call, random, residual, formula):
    block = Cubed.Config(dim=4, residual=residual.Config()).build()
    x = random(2, 3, 4)
    np.testing.assert_allclose(call(block, block.init(0), x), formula(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("residual", [PreNorm, PostNorm])
def test_dropout_stands_on_the_branch_and_never_on_the_input(call, random, residual):
    dropout = Dropout.Config(rate=0.999)
    block = Cubed.Config(
        dim=4, residual=residual.Config(dropout=dropout, norm=RMSNorm.Config())
    ).build()
    x = random(2, 3, 4)
    dropped = call(block, block.init(0), x, rng=0, training=True)
    np.testing.assert_allclose(
        dropped, x if residual is PreNorm else _norm(x), rtol=1e-5, atol=1e-5
    )
    assert not np.allclose(call(block, block.init(0), jnp.asarray(x)), dropped)
