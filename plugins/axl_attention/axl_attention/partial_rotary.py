"""`PartialRotary`: positions for a part of each head."""

from typing import Any

import jax.numpy as jnp

from axcore.config import REQUIRED, PositiveInt, config
from axcore.errors import ConfigError
from axcore.layers import RoPE
from axcore.module import Module
from axl_attention.wrapping import refuse_second


class PartialRotary(Module):
    """Gives the first `fraction` of each head's dimensions positions, and the others none.

    Source: Black et al. 2022, arXiv:2204.06745, section 2. Slot protocol: the parent fills
    `head_dim`.
    """

    @config
    class Config(Module.Config["PartialRotary"]):
        """The config of a `PartialRotary`.

        Args:
            head_dim: Size of a head.
            fraction: Share of its dimensions that get positions: an even number of them.
            inner: The positions that they get.
        """

        head_dim: PositiveInt = REQUIRED
        fraction: float = 0.5
        inner: Module.Config = RoPE.Config()

    def setup(self, cfg: Config) -> None:
        """Build the positions for their part of the head."""
        refuse_second(PartialRotary, cfg.inner)
        self.width = int(cfg.head_dim * cfg.fraction)
        if not 0 < self.width <= cfg.head_dim or self.width % 2:
            raise ConfigError(
                f"fraction is {cfg.fraction}, which gives {self.width} of {cfg.head_dim} "
                "dimensions positions; expected an even number from 2 on",
                hint=f"set fraction to an even number / {cfg.head_dim}",
            )
        self.inner = cfg.inner.build(head_dim=self.width)

    def forward(self, q: Any, k: Any, positions: Any) -> tuple[Any, Any]:
        """Return queries and keys, rotated in their first dimensions."""
        width = self.width
        transposed_q, transposed_k = self.inner(q[..., :width], k[..., :width], positions)
        q = jnp.concatenate([transposed_q, q[..., width:]], axis=-1)
        return q, jnp.concatenate([transposed_k, k[..., width:]], axis=-1)


def in_place_of(old: Any) -> PartialRotary.Config:
    """Return the config that takes the place of positions for the whole head."""
    return PartialRotary.Config(inner=old)
