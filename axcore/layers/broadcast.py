"""Vectors over the last dimension, made ready to meet arrays of more dimensions.

jax broadcasts ranks on its own, but not where a user forbids it (`jax_numpy_rank_promotion`).
"""

import jax.numpy as jnp
from jaxtyping import Array, Float


def as_row(vector: Float[Array, " dim"], ndim: int) -> Float[Array, "... dim"]:
    """Returns the vector with `ndim` dimensions, all but the last of size 1."""
    return jnp.expand_dims(vector, tuple(range(ndim - 1)))
