"""The meaning of rotary positions: pairs as complex numbers, times another."""

import jax.numpy as jnp
from jax import Array, lax

from axcore.ops.rope.types import RopeInputs, RopeSpec


def rope_reference(inputs: RopeInputs, spec: RopeSpec) -> Array:
    """Return the rotated heads; see `rope`."""
    first, second = jnp.split(inputs.x.astype(jnp.float32), 2, axis=-1)
    turn = lax.complex(inputs.cos, inputs.sin)[:, :, None, :]
    turned = lax.complex(first, second) * turn
    return jnp.concatenate([turned.real, turned.imag], axis=-1).astype(inputs.x.dtype)
