"""Normalisation over the last dimension, computed in float32."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveFloat, PositiveInt, config
from axcore.layers.broadcast import as_row
from axcore.module import Module, Param
from axcore.ops import rms_norm


class RMSNorm(Module):
    """`x / sqrt(mean(x^2) + epsilon) * weight`.

    Source: Zhang and Sennrich 2019, arXiv:1910.07467, eq. 4. Slot protocol: the parent fills `dim`.
    """

    @config
    class Config(Module.Config["RMSNorm"]):
        """Describes an `RMSNorm`.

        Args:
            dim: Size of the last dimension.
            epsilon: Added to the mean square.
            weight_offset: Added to the stored weight; 1 stores the difference from one.
        """

        dim: PositiveInt = REQUIRED
        epsilon: PositiveFloat = 1e-6
        weight_offset: float = 0.0

    def setup(self, cfg: Config) -> None:
        """Declares the weight, which is one at first."""
        init = 1.0 - cfg.weight_offset
        self.weight = Param((cfg.dim,), axes=("norm",), init=init, cast=False)

    def forward(self, x: Float[Array, "*batch dim"]) -> Float[Array, "*batch dim"]:
        """Returns the normalised input in the input's dtype."""
        cfg = self.config
        return rms_norm(x, self.weight, epsilon=cfg.epsilon, scale_offset=cfg.weight_offset)


class LayerNorm(Module):
    """`(x - mean) / sqrt(variance + epsilon) * weight + bias`.

    Source: Ba et al. 2016, arXiv:1607.06450, eq. 4. Slot protocol: the parent fills `dim`.
    """

    @config
    class Config(Module.Config["LayerNorm"]):
        """Describes a `LayerNorm`.

        Args:
            dim: Size of the last dimension.
            epsilon: Added to the variance.
            has_bias: Whether a bias is added.
        """

        dim: PositiveInt = REQUIRED
        epsilon: PositiveFloat = 1e-5
        has_bias: bool = True

    def setup(self, cfg: Config) -> None:
        """Declares the weight, one at first, and the bias, zero."""
        self.weight = Param((cfg.dim,), axes=("norm",), init=1.0, cast=False)
        if cfg.has_bias:
            self.bias = Param((cfg.dim,), axes=("norm",), init=0.0, cast=False)

    def forward(self, x: Float[Array, "*batch dim"]) -> Float[Array, "*batch dim"]:
        """Returns the normalised input in the input's dtype."""
        wide = x.astype(jnp.float32)
        centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
        normed = centred * jax.lax.rsqrt(variance + self.config.epsilon)
        normed = normed * as_row(self.weight.astype(jnp.float32), x.ndim)
        if self.config.has_bias:
            normed = normed + as_row(self.bias.astype(jnp.float32), x.ndim)
        return normed.astype(x.dtype)
