"""A small language model whose rows have points `[3]`, each of a few soft tokens."""

from typing import Any

import jax
import jax.numpy as jnp

from axcore.config import REQUIRED, PositiveInt, config, replace_config
from axcore.layers import Linear, MultimodalRoPE, RoPE
from axcore.models import multimodal, transformer
from axcore.module import Module

NUM_SOFT = 2


class PointEncoder(Module):
    """Makes soft tokens of a point."""

    @config
    class Config(Module.Config["PointEncoder"]):
        """The config of a `PointEncoder`."""

        dim: PositiveInt = REQUIRED
        linear: Module.Config = Linear.Config(has_bias=True)
        num_tokens: PositiveInt = NUM_SOFT

    flops_per_input = 0.0

    def setup(self, cfg: Any) -> None:
        self.num_tokens = cfg.num_tokens
        width = cfg.num_tokens * cfg.dim
        self.linear = cfg.linear.build(in_dim=3, out_dim=width, axes=(None, "embed"))

    @property
    def input_spec(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((3,), jnp.float32)

    def forward(self, points: Any) -> Any:
        return self.linear(points).reshape(len(points), self.num_tokens, self.config.dim)


def point_model(vocab_size: int, *, grid: tuple[int, int] | None = None) -> Any:
    """Return the config of the model; with a grid, its positions are those of such pictures."""
    text = transformer(
        vocab_size=vocab_size, dim=16, num_layers=2, num_heads=2, num_kv_heads=1, hidden_dim=16
    )
    count = NUM_SOFT
    if grid is not None:
        count = grid[0] * grid[1]
        text = replace_config(text, RoPE, MultimodalRoPE.Config(sections=(2, 1, 1)))
    return multimodal(
        text,
        PointEncoder.Config(num_tokens=count),
        num_soft_tokens=count,
        input_name="points",
        grid=grid,
    )
