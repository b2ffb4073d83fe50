"""Rows of an array as tiles for the partitions of a NeuronCore. Letters: M tiles of P rows, D."""

import jax.numpy as jnp
from jax import Array

from axl_trainium.limits import PARTITIONS


def tiled(x: Array, height: int = PARTITIONS) -> Array:
    """Return the rows of the last dimension in tiles `[M, P, D]`, P at most `height`.

    Rows of zeros fill the last tile.
    """
    rows = x.reshape(-1, x.shape[-1])
    height = min(len(rows), height)
    padded = jnp.pad(rows, ((0, -len(rows) % height), (0, 0)))
    return padded.reshape(-1, height, x.shape[-1])


def untiled(x_MPD: Array, shape: tuple[int, ...], *, num_rows: int) -> Array:
    """Return the first rows in a shape, without those that filled the last tile."""
    return x_MPD.reshape(-1, x_MPD.shape[-1])[:num_rows].reshape(shape)
