"""`Dropout`."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.config import config
from axcore.errors import ConfigError
from axcore.module import Module


class Dropout(Module):
    """Zeroes elements with probability `rate` in training, and scales the others up.

    Source: Srivastava et al. 2014, JMLR 15, section 10 (inverted form).
    """

    @config
    class Config(Module.Config):
        """Describes a `Dropout`; a rate of 0 does nothing and draws no random key."""

        rate: float = 0.0

    def setup(self, cfg: Config) -> None:
        """Checks the rate."""
        if not 0.0 <= cfg.rate < 1.0:
            raise ConfigError(f"rate is {cfg.rate}; a dropout rate is at least 0 and below 1")

    def forward(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """Returns the input with elements dropped, or as it is outside of training."""
        rate = self.config.rate
        if rate == 0.0 or not self.training:
            return x
        keep = jax.random.bernoulli(self.rng("dropout"), 1.0 - rate, x.shape)
        return jnp.where(keep, x / jnp.asarray(1.0 - rate, x.dtype), jnp.zeros((), x.dtype))
