"""Norms, dropout, and the residual connections that are made of them."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.config import REQUIRED, Fraction, PositiveFloat, PositiveInt, config
from axcore.layers.linear import as_row
from axcore.module import Module, Param
from axcore.ops import rms_norm


class RMSNorm(Module):
    """`x / sqrt(mean(x^2) + epsilon) * weight`.

    Source: Zhang and Sennrich 2019, arXiv:1910.07467, eq. 4. Slot protocol: the parent fills `dim`.
    """

    @config
    class Config(Module.Config["RMSNorm"]):
        """The config of an `RMSNorm`.

        Args:
            dim: Size of the last dimension.
            epsilon: Added to the mean square.
            weight_offset: Added to the stored weight; 1 stores the difference from one.
        """

        dim: PositiveInt = REQUIRED
        epsilon: PositiveFloat = 1e-6
        weight_offset: float = 0.0

    def setup(self, cfg: Config) -> None:
        """Declare the weight, which is one at first."""
        init = 1.0 - cfg.weight_offset
        self.weight = Param((cfg.dim,), axes=("norm",), init=init, cast=False)

    def forward(self, x: Float[Array, "*batch dim"]) -> Float[Array, "*batch dim"]:
        """Return the normalised input in the input's dtype."""
        cfg = self.config
        return rms_norm(x, self.weight, epsilon=cfg.epsilon, scale_offset=cfg.weight_offset)


class LayerNorm(Module):
    """`(x - mean) / sqrt(variance + epsilon) * weight + bias`.

    Source: Ba et al. 2016, arXiv:1607.06450, eq. 4. Slot protocol: the parent fills `dim`.
    """

    @config
    class Config(Module.Config["LayerNorm"]):
        """The config of a `LayerNorm`.

        Args:
            dim: Size of the last dimension.
            epsilon: Added to the variance.
            has_bias: Whether a bias is added.
        """

        dim: PositiveInt = REQUIRED
        epsilon: PositiveFloat = 1e-5
        has_bias: bool = True

    def setup(self, cfg: Config) -> None:
        """Declare the weight, one at first, and the bias, zero."""
        self.weight = Param((cfg.dim,), axes=("norm",), init=1.0, cast=False)
        if cfg.has_bias:
            self.bias = Param((cfg.dim,), axes=("norm",), init=0.0, cast=False)

    def forward(self, x: Float[Array, "*batch dim"]) -> Float[Array, "*batch dim"]:
        """Return the normalised input in the input's dtype."""
        # In 16 bits a sum over a long row would lose most of its digits.
        x32 = x.astype(jnp.float32)
        centred = x32 - jnp.mean(x32, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
        normed = centred * jax.lax.rsqrt(variance + self.config.epsilon)
        normed = normed * as_row(self.weight.astype(jnp.float32), x.ndim)
        if self.config.has_bias:
            normed = normed + as_row(self.bias.astype(jnp.float32), x.ndim)
        return normed.astype(x.dtype)


class Dropout(Module):
    """Zero elements with probability `rate` in training, and scale the others up.

    Source: Srivastava et al. 2014, JMLR 15, section 10 (inverted form).
    """

    @config
    class Config(Module.Config["Dropout"]):
        """The config of a `Dropout`; a rate of 0 does nothing and uses no random key."""

        rate: Fraction = 0.0

    def forward(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return the input with elements dropped, or as it is outside of training."""
        rate = self.config.rate
        if rate == 0.0 or not self.training:
            return x
        keep = jax.random.bernoulli(self.rng("dropout"), 1.0 - rate, x.shape)
        return jnp.where(keep, x / jnp.asarray(1.0 - rate, x.dtype), jnp.zeros((), x.dtype))


Hidden = Float[Array, "batch time dim"]
_Branch = Callable[[Hidden], Hidden]


class Residual(Module):
    """A norm, a dropout, and a branch between them. Slot protocol: the parent fills `dim`.

    A subclass says in which order: `forward(x, branch)`.
    """

    @config
    class Config(Module.Config["Residual"]):
        """The config of a residual connection."""

        dim: PositiveInt = REQUIRED
        norm: Module.Config = RMSNorm.Config()
        dropout: Dropout.Config = Dropout.Config()

    def setup(self, cfg: Config) -> None:
        """Build the norm and the dropout."""
        self.norm = cfg.norm.build(dim=cfg.dim)
        self.dropout = cfg.dropout.build()


class PreNorm(Residual):
    """`x + dropout(branch(norm(x)))`.

    Source: Xiong et al. 2020, arXiv:2002.04745, figure 1b.
    """

    def forward(self, x: Hidden, branch: _Branch) -> Hidden:
        """Return the input with what the branch makes of it added."""
        return x + self.dropout(branch(self.norm(x)))


class PostNorm(Residual):
    """`norm(x + dropout(branch(x)))`.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.1.
    """

    def forward(self, x: Hidden, branch: _Branch) -> Hidden:
        """Return the normalised sum of the input and what the branch makes of it."""
        return self.norm(x + self.dropout(branch(x)))
