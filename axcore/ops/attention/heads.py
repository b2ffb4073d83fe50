"""Grouped heads: query heads `N` as `K` key heads times `G` queries that share each."""

from jax import Array


def group_heads(x_BTNH: Array, num_key_heads: int) -> Array:
    """Return `x_BKGTH`."""
    batch, time, num_heads, width = x_BTNH.shape
    grouped = x_BTNH.reshape(batch, time, num_key_heads, num_heads // num_key_heads, width)
    return grouped.transpose(0, 2, 3, 1, 4)


def ungroup_heads(x_BKGTH: Array) -> Array:
    """Return `x_BTNH`."""
    batch, num_key_heads, group, time, width = x_BKGTH.shape
    x_BTKGH = x_BKGTH.transpose(0, 3, 1, 2, 4)
    return x_BTKGH.reshape(batch, time, num_key_heads * group, width)


def group_rows(x_BTN: Array, num_key_heads: int) -> Array:
    """Return `x_BKGT`."""
    return group_heads(x_BTN[..., None], num_key_heads)[..., 0]


def ungroup_rows(x_BKGT: Array) -> Array:
    """Return `x_BTN`."""
    return ungroup_heads(x_BKGT[..., None])[..., 0]


def swap_heads(x_BSKH: Array) -> Array:
    """Return `x_BKSH` from `x_BSKH`, or the other way round."""
    return x_BSKH.transpose(0, 2, 1, 3)


def keys_first(x_BKHS: Array) -> Array:
    """Return `x_BSKH`."""
    return x_BKHS.transpose(0, 3, 1, 2)


def group_bias(bias_BNTS: Array, num_key_heads: int) -> Array:
    """Return the bias `[B, K, G, T, S]`, where sizes of 1 stay 1."""
    batch, heads, queries, keys = bias_BNTS.shape
    groups = (1, 1) if heads == 1 else (num_key_heads, heads // num_key_heads)
    return bias_BNTS.reshape(batch, *groups, queries, keys)
