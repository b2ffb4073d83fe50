"""An attention call as a NeuronCore takes it: items one after another, and ranges of keys.

An item is the key heads of a row. Causality, windows, offsets, key ranges and documents in one
piece are ranges of keys for each query, and so is what they have in common.

Letters: B batch, T queries, S keys, N query heads, K key heads, G = N // K, H width; X = B * K
items, R = G * T rows of an item.
"""

from typing import Any, NamedTuple

import attrs
import jax.numpy as jnp
from jax import Array

from axcore.ops import AttentionInputs, AttentionSpec


@attrs.frozen
class Items:
    """How a call's heads are laid out.

    Args:
        batch: B.
        key_heads: K.
        groups: G.
    """

    batch: int
    key_heads: int
    groups: int

    @classmethod
    def of(cls, inputs: AttentionInputs) -> "Items":
        """Return the layout of a call."""
        batch, _, key_heads, _ = inputs.k_BSKH.shape
        return cls(batch, key_heads, inputs.q_BTNH.shape[2] // key_heads)

    def rows(self, x_BTNH: Array) -> Array:
        """Return `[X, R, H]`."""
        batch, time, _, width = x_BTNH.shape
        grouped = x_BTNH.reshape(batch, time, self.key_heads, self.groups, width)
        return jnp.transpose(grouped, (0, 2, 3, 1, 4)).reshape(-1, self.groups * time, width)

    def from_rows(self, x_XRH: Array) -> Array:
        """Return `[B, T, N, H]`."""
        _, rows, width = x_XRH.shape
        time = rows // self.groups
        grouped = x_XRH.reshape(self.batch, self.key_heads, self.groups, time, width)
        return jnp.transpose(grouped, (0, 3, 1, 2, 4)).reshape(self.batch, time, -1, width)

    def keys(self, x_BSKH: Array) -> Array:
        """Return `[X, S, H]`."""
        return jnp.swapaxes(x_BSKH, 1, 2).reshape(-1, x_BSKH.shape[1], x_BSKH.shape[3])

    def from_keys(self, x_XSH: Array) -> Array:
        """Return `[B, S, K, H]`."""
        return jnp.swapaxes(x_XSH.reshape(self.batch, self.key_heads, *x_XSH.shape[1:]), 1, 2)

    def queries(self, x_BT: Array) -> Array:
        """Return `[X, T, 1]`: what all heads of a query share."""
        repeated = jnp.repeat(x_BT[:, None, :], self.key_heads, axis=1)
        return repeated.reshape(-1, x_BT.shape[1], 1)

    def heads(self, x_N: Array, time: int) -> Array:
        """Return `[X, R]`: what all queries of a head share."""
        grouped = x_N.reshape(1, self.key_heads, self.groups, 1)
        shape = (self.batch, self.key_heads, self.groups, time)
        return jnp.broadcast_to(grouped, shape).reshape(-1, self.groups * time)


def static_choices(inputs: AttentionInputs, spec: AttentionSpec) -> dict[str, Any]:
    """Return what kernels know statically; with offsets, queries' places are not known."""
    # Bounds that the kernel does not know are in the ranges of keys, which hide the same, but
    # skip nothing.
    is_placed = inputs.query_offset_B is None
    return {
        "scale": spec.scale,
        "soft_cap": spec.soft_cap,
        "left": spec.left if is_placed else None,
        "right": spec.right if is_placed else None,
        "offset": spec.query_offset,
    }


class KeyRanges(NamedTuple):
    """Which keys each query sees.

    `start_BT` and `end_BT` are float32, which the Vector Engine compares in. `is_exact_BT` is false
    for queries of a document that is not in one piece; None where there are no documents.
    """

    start_BT: Array
    end_BT: Array
    is_exact_BT: Array | None


def key_ranges(inputs: AttentionInputs, spec: AttentionSpec) -> KeyRanges:
    """Return the ranges of a call: `[start, end)`, empty where a query sees nothing."""
    batch, num_queries = inputs.q_BTNH.shape[:2]
    num_keys = inputs.k_BSKH.shape[1]
    place = jnp.arange(num_queries, dtype=jnp.int32)[None, :] + spec.query_offset
    if inputs.query_offset_B is not None:
        place = place + inputs.query_offset_B[:, None].astype(jnp.int32)
    # One range for all there is: the Vector Engine compares a tile with two bounds in one
    # instruction, and any other mask would be an array of its own.
    starts, ends = [jnp.zeros_like(place)], [jnp.full_like(place, num_keys)]
    if spec.left is not None:
        starts.append(place - spec.left)
    if spec.right is not None:
        ends.append(place + (spec.right + 1))
    if inputs.k_start_BT is not None and inputs.k_end_BT is not None:
        starts.append(inputs.k_start_BT.astype(jnp.int32))
        ends.append(inputs.k_end_BT.astype(jnp.int32))
    is_exact = None
    if inputs.q_segments_BT is not None and inputs.k_segments_BS is not None:
        first, last, is_exact = _document(inputs.q_segments_BT, inputs.k_segments_BS)
        starts.append(first)
        ends.append(last + 1)
    shape = (batch, num_queries)
    start, end = starts[0], ends[0]
    for other in starts[1:]:
        start = jnp.maximum(start, other)
    for other in ends[1:]:
        end = jnp.minimum(end, other)
    return KeyRanges(
        jnp.broadcast_to(start, shape).astype(jnp.float32),
        jnp.broadcast_to(end, shape).astype(jnp.float32),
        is_exact,
    )


def _document(q_segments_BT: Array, k_segments_BS: Array) -> tuple[Array, Array, Array]:
    """Return the first and last key of each query's document, and whether all between are its.

    The comparison of all pairs is fused into the reductions; it is never stored.
    """
    num_keys = k_segments_BS.shape[1]
    is_own = q_segments_BT[:, :, None] == k_segments_BS[:, None, :]
    is_own &= (k_segments_BS != 0)[:, None, :]
    place = jnp.arange(num_keys, dtype=jnp.int32)[None, None, :]
    first = jnp.min(jnp.where(is_own, place, num_keys), axis=-1)
    last = jnp.max(jnp.where(is_own, place, -1), axis=-1)
    count = jnp.sum(is_own, axis=-1, dtype=jnp.int32)
    return first, last, (count == 0) | (count == last - first + 1)
