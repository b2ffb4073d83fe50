"""Decode attention for every platform, in plain JAX: a loop over blocks of the cache.

The loop ends with the longest row and, under a window, begins where the first of its keys may
be: work and traffic grow with the tokens that are there, not with the room for them. Nothing of
the cache is copied but one block.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax

from axcore.ops.attention.block_math import block_logits
from axcore.ops.attention.heads import group_heads, swap_heads, ungroup_heads
from axcore.ops.attention.mask import Columns, Rows, visible
from axcore.ops.attention.online_softmax import OnlineSoftmax
from axcore.ops.control_flow import bounded_fori_loop
from axcore.ops.decode.types import DecodeInputs, DecodeSpec
from axcore.ops.decode.widening import widened

BLOCK_SIZE = 256
"""Keys of a block: logits and values of a block stay in a processor's cache."""


def decode_attention_portable(
    inputs: DecodeInputs, spec: DecodeSpec, *, block_size: int = BLOCK_SIZE
) -> Array:
    """Return `o_BTNV`; see `decode_attention_reference` for the meaning."""
    table_BP = inputs.page_table_BP
    if table_BP is None:
        size, block = _contiguous(inputs, block_size)
    else:
        size, block = _paged(inputs, table_BP, block_size)
    q_BKGTH = group_heads(inputs.q_BTNH, inputs.k.shape[2])
    num_queries = inputs.q_BTNH.shape[1]
    lengths_B = inputs.lengths_B.astype(jnp.int32)
    query_T = jnp.arange(num_queries, dtype=jnp.int32) - num_queries
    rows = Rows(lengths_B[:, None] + query_T[None, :], None, None, None)

    def step(j: Array, running: OnlineSoftmax) -> OnlineSoftmax:
        k_BSKH, v_BSKV, position_S = block(j)
        is_new_S = (position_S >= j * size) & (position_S < inputs.capacity)
        mask = visible(spec.as_attention(), rows, Columns(position_S[None, :], None))
        assert mask is not None
        mask = mask & is_new_S[None, None, None, None, :]
        logits = block_logits(
            q_BKGTH, swap_heads(k_BSKH), spec.as_attention(), bias=None, mask=mask
        )
        is_written_BS = position_S[None, :] < lengths_B[:, None]
        v_BSKV = jnp.where(is_written_BS[..., None, None], v_BSKV, 0)
        return running.add(logits.value, swap_heads(v_BSKV))

    start = OnlineSoftmax.start(q_BKGTH.shape[:-1], inputs.v.shape[-1], inputs.sinks_N)
    first, last = _span(lengths_B, num_queries, spec.left, inputs.capacity)
    most = -(-inputs.capacity // size)
    running = bounded_fori_loop(first // size, (last + size - 1) // size, step, start, most=most)
    return ungroup_heads(running.finish()[0]).astype(inputs.q_BTNH.dtype)


_Block = Callable[[Array], tuple[Array, Array, Array]]
"""From the number of a block to its keys, values and positions `[S]`."""


def _contiguous(inputs: DecodeInputs, block_size: int) -> tuple[int, _Block]:
    """Return the size of a block, and blocks by number; the last one may reach back."""
    size = min(block_size, inputs.capacity)

    def block(j: Array) -> tuple[Array, Array, Array]:
        start = jnp.minimum(j * size, inputs.capacity - size)
        k, v = _wide(inputs, lambda x: lax.dynamic_slice_in_dim(x, start, size, axis=1))
        return k, v, start + jnp.arange(size, dtype=jnp.int32)

    return size, block


def _paged(inputs: DecodeInputs, table_BP: Array, block_size: int) -> tuple[int, _Block]:
    """Return the size of a block, and blocks by number, of as many whole pages as fit in one."""
    batch, num_pages = table_BP.shape
    page_size = inputs.k.shape[1]
    count = min(num_pages, max(1, block_size // page_size))
    size = count * page_size
    padded = jnp.pad(table_BP, ((0, 0), (0, -num_pages % count)))

    def block(j: Array) -> tuple[Array, Array, Array]:
        pages = lax.dynamic_slice_in_dim(padded, j * count, count, axis=1)
        k, v = _wide(
            inputs,
            lambda x: jnp.take(x, pages, axis=0, mode="clip").reshape(batch, size, *x.shape[2:]),
        )
        return k, v, j * size + jnp.arange(size, dtype=jnp.int32)

    return size, block


def _wide(inputs: DecodeInputs, part: Callable[[Array], Array]) -> tuple[Array, Array]:
    """Return a part of the keys and of the values, in q's dtype."""
    kept = ("k", "v", "key_scale_MCK", "value_scale_MCK")
    parts = {name: jax.tree.map(part, getattr(inputs, name)) for name in kept}
    of_part = widened(inputs._replace(**parts))
    return of_part.k, of_part.v


def _span(
    lengths_B: Array, num_queries: int, left: int | None, capacity: int
) -> tuple[Array, Array]:
    """Return the range from the first to behind the last key that any query sees."""
    first = jnp.zeros((), jnp.int32)
    if left is not None:
        first = jnp.maximum(jnp.min(lengths_B) - num_queries - left, 0)
    return first, jnp.minimum(jnp.max(lengths_B), capacity)
