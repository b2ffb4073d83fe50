"""The online softmax: probabilities weigh values before all logits are known.

Source: Milakov and Gimelshein 2018, arXiv:1805.02867.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from axcore.ops.attention.block_math import weigh_values


class OnlineSoftmax(NamedTuple):
    """Sums over the keys seen so far, relative to the largest logit so far; float32."""

    weighted: Array
    """Values by unnormalised probability, `[..., B, K, G, T, V]`."""
    maximum: Array
    total: Array

    @classmethod
    def start(
        cls, shape: tuple[int, ...], value_width: int, sinks_N: Array | None
    ) -> "OnlineSoftmax":
        """Return the sums before the first key: nothing, or the sinks alone.

        Args:
            shape: `[..., B, K, G, T]`.
            value_width: V.
            sinks_N: One logit of each query head that has no value.
        """
        maximum, total = jnp.full(shape, -jnp.inf, jnp.float32), jnp.zeros(shape, jnp.float32)
        if sinks_N is not None:
            sinks = sinks_N.astype(jnp.float32).reshape(1, *shape[-3:-1], 1)
            maximum, total = jnp.broadcast_to(sinks, shape), jnp.ones(shape, jnp.float32)
        return cls(jnp.zeros((*shape, value_width), jnp.float32), maximum, total)

    def add(self, logits: Array, v_BKSV: Array, dropout: Array | None = None) -> "OnlineSoftmax":
        """Return the sums with a block of keys more.

        Args:
            logits: Float32 `[B, K, G, T, S]`, -inf where not visible.
            v_BKSV: Values of the block.
            dropout: Factors that multiply the probabilities, `[B, K, G, T, S]`.
        """
        maximum = jnp.maximum(self.maximum, jnp.max(logits, axis=-1))
        shift = jnp.where(jnp.isneginf(maximum), 0.0, maximum)
        exponentials = jnp.exp(logits - shift[..., None])
        decay = jnp.exp(self.maximum - shift)
        kept = exponentials if dropout is None else exponentials * dropout
        return OnlineSoftmax(
            weighted=self.weighted * decay[..., None] + weigh_values(kept, v_BKSV),
            maximum=maximum,
            total=self.total * decay + jnp.sum(exponentials, axis=-1),
        )

    def finish(self) -> tuple[Array, Array]:
        """Return the weighted means and the log-sum-exp; 0 and -inf where nothing was seen."""
        is_empty = self.total == 0.0
        total = jnp.where(is_empty, 1.0, self.total)
        lse = jnp.where(is_empty, -jnp.inf, self.maximum + jnp.log(total))
        return self.weighted / total[..., None], lse
