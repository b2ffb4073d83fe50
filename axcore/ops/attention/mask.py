"""Which query sees which key, for the whole score matrix or any block of it.

`Rows` and `Columns` hold what visibility depends on, per query and per key. Both are pytrees of
arrays whose last axis is queries or keys, so that a block is a slice of every part. Positions are
places along the key axis; masks are boolean `[B or 1, 1, 1, T, S]`, `True` where visible.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from axcore.ops.attention.types import AttentionInputs, AttentionSpec


class Rows(NamedTuple):
    """What visibility needs of each query; leading axis of size B or 1."""

    position: Array
    segments: Array | None
    k_start: Array | None
    k_end: Array | None


class Columns(NamedTuple):
    """What visibility needs of each key; leading axis of size B or 1."""

    position: Array
    segments: Array | None


def rows(inputs: AttentionInputs, spec: AttentionSpec) -> Rows:
    """Return the rows of a call."""
    position = jnp.arange(inputs.q_BTNH.shape[1], dtype=jnp.int32)[None, :] + spec.query_offset
    if inputs.query_offset_B is not None:
        position = position + inputs.query_offset_B[:, None]
    return Rows(position, inputs.q_segments_BT, inputs.k_start_BT, inputs.k_end_BT)


def columns(inputs: AttentionInputs) -> Columns:
    """Return the columns of a call."""
    position = jnp.arange(inputs.k_BSKH.shape[1], dtype=jnp.int32)[None, :]
    return Columns(position, inputs.k_segments_BS)


def visible(
    spec: AttentionSpec, rows: Rows, columns: Columns, *, num_keys: int | None = None
) -> Array | None:
    """Return the mask of a block, or `None` when every query sees every key.

    Args:
        spec: The bounds of the window.
        rows: Of the block's queries.
        columns: Of the block's keys.
        num_keys: Keys at or after this position are padding; `None` when there is none.
    """
    query = _as_query(rows.position)
    key = _as_key(columns.position)
    conditions = []
    if spec.left is not None:
        conditions.append(key >= query - spec.left)
    if spec.right is not None:
        conditions.append(key <= query + spec.right)
    if num_keys is not None:
        conditions.append(key < num_keys)
    if rows.segments is not None and columns.segments is not None:
        q_segments, k_segments = _as_query(rows.segments), _as_key(columns.segments)
        conditions.append((q_segments == k_segments) & (k_segments != 0))
    if rows.k_start is not None and rows.k_end is not None:
        conditions.append((key >= _as_query(rows.k_start)) & (key < _as_query(rows.k_end)))
    if not conditions:
        return None
    mask = conditions[0]
    for condition in conditions[1:]:
        mask = mask & condition
    return mask


def _as_query(x_BT: Array) -> Array:
    return x_BT[:, None, None, :, None]


def _as_key(x_BS: Array) -> Array:
    return x_BS[:, None, None, None, :]
