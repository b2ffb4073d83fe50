"""`GatedAttention`: every token says how much of what it has gathered it keeps."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveInt, config, evolve
from axcore.layers import DotProductAttention, Linear, TokenInfo
from axcore.module import Module
from axl_attention.wrapping import refuse_second

GATE = "attention_gate"
"""The shared value with the gates, `[batch, time, width of all heads]`."""


class GatedCore(Module):
    """Another core's output times the gates. Slot protocol: the parent fills `num_heads`."""

    @config
    class Config(Module.Config["GatedCore"]):
        """Describes a `GatedCore`.

        Args:
            num_heads: Number of query heads.
            core: Weighs the values.
        """

        num_heads: PositiveInt = REQUIRED
        core: Module.Config = DotProductAttention.Config()

    def setup(self, cfg: Config) -> None:
        """Builds the core."""
        refuse_second(GatedCore, cfg.core)
        self.core = cfg.core.build(num_heads=cfg.num_heads)

    def forward(self, q: Any, k: Any, v: Any, info: TokenInfo, **options: Any) -> Any:
        """Returns each query's weighted mean of values, gated dimension by dimension."""
        mixed = self.core(q, k, v, info, **options)
        return mixed * self.get_shared(GATE).reshape(mixed.shape)


class GatedAttention(Module):
    """An attention whose heads are multiplied by a sigmoid of the token, before they are projected.

    Source: Qiu et al. 2025, arXiv:2505.06708, section 2.2, at the place that they call G1. Slot
    protocol: the parent fills `dim`.
    """

    @config
    class Config(Module.Config["GatedAttention"]):
        """Describes a `GatedAttention`.

        Args:
            dim: Size of the last dimension of input and output.
            linear: From the token to its gates.
            inner: The attention, with a `GatedCore`.
        """

        dim: PositiveInt = REQUIRED
        linear: Module.Config = Linear.Config()
        inner: Module.Config = REQUIRED

    def setup(self, cfg: Config) -> None:
        """Builds the attention and its gates."""
        refuse_second(GatedAttention, cfg.inner)
        self.inner = cfg.inner.build(dim=cfg.dim)
        width = self.inner.out.config.in_dim
        self.gate = cfg.linear.build(in_dim=cfg.dim, out_dim=width, axes=("embed", "heads"))

    def forward(
        self, x: Float[Array, "batch time dim"], info: TokenInfo
    ) -> Float[Array, "batch time dim"]:
        """Returns each token's mixture of the tokens that it sees."""
        gate = jax.nn.sigmoid(self.gate(x).astype(jnp.float32)).astype(x.dtype)
        with self.with_shared(GATE, gate):
            mixed: Float[Array, "batch time dim"] = self.inner(x, info)
        return mixed


def in_place_of(old: Any) -> GatedAttention.Config:
    """Returns the config that takes the place of an attention whose output is not gated."""
    return GatedAttention.Config(inner=evolve(old, core=GatedCore.Config(core=old.core)))
