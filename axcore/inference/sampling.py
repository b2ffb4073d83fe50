"""`Sampling`: how the next token is drawn from logits."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from axcore.config import config
from axcore.errors import ConfigError


@config
class Sampling:
    """Describes how tokens are drawn.

    Args:
        temperature: Divides the logits; 0 takes the likeliest token.
        top_k: Number of likeliest tokens to draw from; None draws from all.
    """

    temperature: float = 0.8
    top_k: int | None = None

    def check(self) -> None:
        """Raises ConfigError where a value makes no sense."""
        if self.temperature < 0:
            raise ConfigError(f"temperature is {self.temperature}; expected 0 or more")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"top_k is {self.top_k}; expected 1 or more")

    def sample(self, logits: Float[Array, "batch vocab"], keys: Array) -> Int[Array, " batch"]:
        """Returns a token a row, each row drawn with its own key of `keys`, `[batch]`."""
        if self.temperature == 0:
            return jnp.argmax(logits, axis=-1).astype(jnp.int32)
        scaled = logits / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            lowest = jax.lax.top_k(scaled, self.top_k)[0][:, -1:]
            scaled = jnp.where(scaled < lowest, -jnp.inf, scaled)
        return jax.vmap(jax.random.categorical)(keys, scaled).astype(jnp.int32)
