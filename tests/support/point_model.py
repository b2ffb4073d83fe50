"""A small language model whose rows have points `[3]`, each of two soft tokens."""

from typing import Any

import jax
import jax.numpy as jnp

from axcore.config import REQUIRED, PositiveInt, config
from axcore.layers import Linear
from axcore.models import multimodal, transformer
from axcore.module import Module

NUM_SOFT = 2


class PointEncoder(Module):
    """Makes two soft tokens of a point."""

    @config
    class Config(Module.Config["PointEncoder"]):
        """The config of a `PointEncoder`."""

        dim: PositiveInt = REQUIRED
        linear: Module.Config = Linear.Config(has_bias=True)

    num_tokens = NUM_SOFT
    flops_per_input = 0.0

    def setup(self, cfg: Any) -> None:
        self.linear = cfg.linear.build(in_dim=3, out_dim=NUM_SOFT * cfg.dim, axes=(None, "embed"))

    @property
    def input_spec(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((3,), jnp.float32)

    def forward(self, points: Any) -> Any:
        return self.linear(points).reshape(len(points), NUM_SOFT, self.config.dim)


def point_model(vocab_size: int) -> Any:
    """Return the config of the model."""
    text = transformer(
        vocab_size=vocab_size, dim=16, num_layers=2, num_heads=2, num_kv_heads=1, hidden_dim=16
    )
    return multimodal(text, PointEncoder.Config(), num_soft_tokens=NUM_SOFT, input_name="points")
