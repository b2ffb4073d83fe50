"""`Embedding`: a table of one vector a token."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from axcore.config import REQUIRED, PositiveInt, config
from axcore.layers.tokens import TokenInfo
from axcore.module import Initializer, Module, Normal, Param
from axcore.parallel import shard


class Embedding(Module):
    """Look tokens up in a table `[vocab_size, dim]`.

    Slot protocol: the parent fills `vocab_size` and `dim`, calls it with the tokens and their info,
    and reads `weight`, the table, which a tied head projects by.
    """

    @config
    class Config(Module.Config["Embedding"]):
        """The config of an `Embedding`.

        Args:
            vocab_size: Number of rows.
            dim: Size of a row.
            scale: Factor on the vectors that are looked up.
            weight_init: First value of the table.
        """

        vocab_size: PositiveInt = REQUIRED
        dim: PositiveInt = REQUIRED
        scale: float = 1.0
        weight_init: Initializer = Normal(std=0.02)

    def setup(self, cfg: Config) -> None:
        """Declare the table."""
        self.weight = Param(
            (cfg.vocab_size, cfg.dim), axes=("vocab", "embed"), init=cfg.weight_init
        )
        # A lookup multiplies nothing, so the count of FLOPs leaves the table out.
        self.inactive_params = cfg.vocab_size * cfg.dim

    def forward(
        self, tokens: Int[Array, "*batch"], info: TokenInfo | None = None
    ) -> Float[Array, "*batch dim"]:
        """Return the tokens' vectors in the compute dtype; their positions change nothing."""
        # Rows are read whole: split along `embed`, as it is stored, the result would first have to
        # be gathered on every device.
        table = shard(self.weight, "vocab", "embed")
        x = jnp.take(table, tokens, axis=0)
        return x if self.config.scale == 1.0 else x * jnp.asarray(self.config.scale, x.dtype)
