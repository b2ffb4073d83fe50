"""`Dropout`."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.config import Fraction, config
from axcore.module import Module


class Dropout(Module):
    """Zeroes elements with probability `rate` in training, and scales the others up.

    Source: Srivastava et al. 2014, JMLR 15, section 10 (inverted form).
    """

    @config
    class Config(Module.Config["Dropout"]):
        """Describes a `Dropout`; a rate of 0 does nothing and draws no random key."""

        rate: Fraction = 0.0

    def forward(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """Returns the input with elements dropped, or as it is outside of training."""
        rate = self.config.rate
        if rate == 0.0 or not self.training:
            return x
        keep = jax.random.bernoulli(self.rng("dropout"), 1.0 - rate, x.shape)
        return jnp.where(keep, x / jnp.asarray(1.0 - rate, x.dtype), jnp.zeros((), x.dtype))
