"""Rotary positions in plain JAX: the reference, and a form that compilers fuse with the rest."""

import jax.numpy as jnp
from jax import Array, lax

from axcore.ops.rope.op import RopeInputs, RopeSpec


def rope_reference(inputs: RopeInputs, spec: RopeSpec) -> Array:
    """Return the rotated heads; see `rope`."""
    first, second = jnp.split(inputs.x.astype(jnp.float32), 2, axis=-1)
    turn = lax.complex(inputs.cos, inputs.sin)[:, :, None, :]
    turned = lax.complex(first, second) * turn
    return jnp.concatenate([turned.real, turned.imag], axis=-1).astype(inputs.x.dtype)


def rope_portable(inputs: RopeInputs, spec: RopeSpec) -> Array:
    """Return the rotated heads; see `rope`."""
    x, cos, sin = inputs.x, inputs.cos[:, :, None, :], inputs.sin[:, :, None, :]
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x.dtype)
