"""Rotary positions in plain JAX, which compilers fuse into what surrounds it."""

import jax.numpy as jnp
from jax import Array

from axcore.ops.rope.types import RopeInputs, RopeSpec


def rope_portable(inputs: RopeInputs, spec: RopeSpec) -> Array:
    """Return the rotated heads; see `rope`."""
    x, cos, sin = inputs.x, inputs.cos[:, :, None, :], inputs.sin[:, :, None, :]
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x.dtype)
