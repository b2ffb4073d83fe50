"""`GroupedRMSNorm`: RMS normalisation of parts of the last dimension, each by itself."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveFloat, PositiveInt, config
from axcore.module import Module, Param


class GroupedRMSNorm(Module):
    """`RMSNorm` over each of `num_groups` parts. Slot protocol: the parent fills both sizes."""

    @config
    class Config(Module.Config["GroupedRMSNorm"]):
        """The config of a `GroupedRMSNorm`.

        Args:
            dim: Size of the last dimension.
            num_groups: Number of parts.
            epsilon: Added to the mean square.
        """

        dim: PositiveInt = REQUIRED
        num_groups: PositiveInt = REQUIRED
        epsilon: PositiveFloat = 1e-5

    def setup(self, cfg: Config) -> None:
        """Declare the weight, which is one at first."""
        self.weight = Param((cfg.dim,), axes=("norm",), init=1.0, cast=False)

    def forward(self, x: Float[Array, "batch time dim"]) -> Float[Array, "batch time dim"]:
        """Return the normalised input in the input's dtype; computed in float32."""
        cfg = self.config
        parts = x.astype(jnp.float32).reshape(*x.shape[:-1], cfg.num_groups, -1)
        mean_square = jnp.mean(jnp.square(parts), axis=-1, keepdims=True)
        normed = (parts * jax.lax.rsqrt(mean_square + cfg.epsilon)).reshape(x.shape)
        return (normed * self.weight.astype(jnp.float32)[None, None]).astype(x.dtype)
