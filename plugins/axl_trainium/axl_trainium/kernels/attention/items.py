"""An attention call as items that a NeuronCore takes one after another: the key heads of its rows.

Letters: B batch, T queries, S keys, N query heads, K key heads, G = N // K, H width; X = B * K
items, R = G * T rows of an item.
"""

from typing import Any

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
        """Returns the layout of a call."""
        batch, _, key_heads, _ = inputs.k_BSKH.shape
        return cls(batch, key_heads, inputs.q_BTNH.shape[2] // key_heads)

    def rows(self, x_BTNH: Array) -> Array:
        """Returns `[X, R, H]`."""
        batch, time, _, width = x_BTNH.shape
        grouped = x_BTNH.reshape(batch, time, self.key_heads, self.groups, width)
        return jnp.transpose(grouped, (0, 2, 3, 1, 4)).reshape(-1, self.groups * time, width)

    def from_rows(self, x_XRH: Array) -> Array:
        """Returns `[B, T, N, H]`."""
        _, rows, width = x_XRH.shape
        time = rows // self.groups
        grouped = x_XRH.reshape(self.batch, self.key_heads, self.groups, time, width)
        return jnp.transpose(grouped, (0, 3, 1, 2, 4)).reshape(self.batch, time, -1, width)

    def keys(self, x_BSKH: Array) -> Array:
        """Returns `[X, S, H]`."""
        return jnp.swapaxes(x_BSKH, 1, 2).reshape(-1, x_BSKH.shape[1], x_BSKH.shape[3])

    def from_keys(self, x_XSH: Array) -> Array:
        """Returns `[B, S, K, H]`."""
        return jnp.swapaxes(x_XSH.reshape(self.batch, self.key_heads, *x_XSH.shape[1:]), 1, 2)

    def queries(self, x_BT: Array) -> Array:
        """Returns `[X, T, 1]`: what all heads of a query share."""
        repeated = jnp.repeat(x_BT[:, None, :], self.key_heads, axis=1)
        return repeated.reshape(-1, x_BT.shape[1], 1)

    def heads(self, x_N: Array, time: int) -> Array:
        """Returns `[X, R]`: what all queries of a head share."""
        grouped = x_N.reshape(1, self.key_heads, self.groups, 1)
        shape = (self.batch, self.key_heads, self.groups, time)
        return jnp.broadcast_to(grouped, shape).reshape(-1, self.groups * time)


def static_choices(inputs: AttentionInputs, spec: AttentionSpec) -> dict[str, Any]:
    """Returns what kernels know statically; with offsets, queries' places are not known."""
    is_placed = inputs.query_offset_B is None
    return {
        "scale": spec.scale,
        "soft_cap": spec.soft_cap,
        "left": spec.left if is_placed else None,
        "right": spec.right if is_placed else None,
        "offset": spec.query_offset,
    }
