"""Grouped heads: query heads `N` as `K` key heads times `G` queries that share each."""

from jax import Array


def group_heads(x_BTNH: Array, num_key_heads: int) -> Array:
    """Return `x_BTKGH`."""
    batch, time, num_heads, width = x_BTNH.shape
    return x_BTNH.reshape(batch, time, num_key_heads, num_heads // num_key_heads, width)


def ungroup_heads(x_BTKGH: Array) -> Array:
    """Return `x_BTNH`."""
    batch, time, num_key_heads, group, width = x_BTKGH.shape
    return x_BTKGH.reshape(batch, time, num_key_heads * group, width)
