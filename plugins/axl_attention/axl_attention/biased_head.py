"""`BiasedHead`: logits by a matrix and a bias."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.config import config
from axcore.errors import ConfigError
from axcore.models import UntiedHead
from axcore.module import Param

Hidden = Float[Array, "batch time dim"]
Table = Float[Array, "vocab dim"]

WIDTH = 128
"""Columns that the bias adds to the matrix, as kernels take widths that are multiples of it."""


class BiasedHead(UntiedHead):
    """Projects by a matrix of its own, and adds a bias.

    A loss never has all logits in memory, so there the bias is a column of the matrix and hidden
    vectors end in a one.

    Source: Wang and Komatsuzaki 2021, "GPT-J-6B".
    """

    @config
    class Config(UntiedHead.Config):
        """The config of a `BiasedHead`; its fields are those of `UntiedHead`."""

    def setup(self, cfg: Config) -> None:
        """Declare the projection and the bias."""
        super().setup(cfg)
        if cfg.soft_cap is not None:
            raise ConfigError(
                f"soft_cap is {cfg.soft_cap}, and the head has a bias; no model has both",
                where="soft_cap",
                hint="set soft_cap=None, or take an UntiedHead",
            )
        self.bias = Param((cfg.vocab_size,), axes=("vocab",), init=0.0)

    def factors(self, x: Hidden, table: Table) -> tuple[Hidden, Table]:
        """Return hidden vectors that end in a one, and the matrix with the bias."""
        first = jnp.arange(WIDTH) == 0
        one = jnp.broadcast_to(first.astype(x.dtype), (*x.shape[:-1], WIDTH))
        bias = jnp.where(first[None, :], self.bias[:, None], 0).astype(self.weight.dtype)
        return jnp.concatenate([x, one], axis=-1), jnp.concatenate([self.weight, bias], axis=-1)

    def products(
        self, rows: Float[Array, "*rows dim"], table: Table
    ) -> Float[Array, "*rows vocab"]:
        """Return the products with the projection, and the bias added in float32."""
        # Not by `factors`: each token that is sampled would copy the matrix.
        y = super().products(rows, table).astype(jnp.float32)
        return y + self.bias.astype(jnp.float32)[(None,) * (y.ndim - 1)]
