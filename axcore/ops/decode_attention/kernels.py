"""Decode attention in plain JAX: the reference, and a loop over blocks of the cache.

The loop ends with the longest row and, under a window, begins where the first of its keys may
be: work and traffic grow with the tokens that are there, not with the capacity of the cache.
Nothing of the cache is copied but one block. A host, to which it makes no difference how many rows
a product has, computes rows of about the same length together, so that short rows do not wait for
long ones.
"""

import itertools
import math
from collections.abc import Callable

import attrs
import jax
import jax.numpy as jnp
from jax import Array, lax

from axcore.ops.attention.block_math import (
    OnlineSoftmax,
    block_logits,
    group_heads,
    swap_heads,
    ungroup_heads,
)
from axcore.ops.attention.kernels import attention_reference
from axcore.ops.attention.mask import Columns, Rows, visible
from axcore.ops.blocks import bounded_fori_loop
from axcore.ops.decode_attention.op import (
    DECODE_ATTENTION_OP,
    DecodeInputs,
    DecodeSpec,
    decode_as_attention,
    widened,
)
from axcore.ops.dispatch import Call
from axcore.ops.plan import BlockSizeTable, choose_block_sizes, power_of_two
from axcore.plugins import Hardware


def decode_attention_reference(inputs: DecodeInputs, spec: DecodeSpec) -> Array:
    """Return `o_BTNV`; copies a paged cache, and holds `[B, N, T, S]` in float32."""
    return attention_reference(*decode_as_attention(inputs, spec))[0]


FEW_QUERIES = 16
"""Queries that share a key head, up to which a product with the keys is bound by reading these."""


@attrs.frozen
class KeyBlock:
    """So many keys of each row in a block, or a page where that is more.

    Args:
        num_keys: Those.
        num_rows: Rows of a paged cache that a loop computes together, where that divides their
            number; 0 for all.
    """

    num_keys: int
    num_rows: int


def _default_block(call: Call, hardware: Hardware) -> KeyBlock:
    """Return few keys where a host reads them for few queries.

    A host copies a block to lay it out for a product; while the copy is small it stays in a core's
    own cache. Elsewhere, and with many queries, what a block costs in addition to counts for more.
    """
    is_bound_by_copies = hardware.family == "cpu" and call.shape("q")[1] <= FEW_QUERIES
    return KeyBlock(32, 4) if is_bound_by_copies else KeyBlock(256, 0)


BLOCK_SIZES = BlockSizeTable(
    kernel="decode_attention/portable",
    package="axcore.ops.decode_attention",
    default=_default_block,
    candidates=lambda call, hardware: itertools.starmap(
        KeyBlock, itertools.product((32, 64, 256), (0, 1, 4))
    ),
    bucket=lambda call: {
        "dtype": call.dtype("q"),
        "queries": power_of_two(call.shape("q")[1]),
        "width": call.shape("q")[3],
    },
)


def decode_attention_portable(inputs: DecodeInputs, spec: DecodeSpec) -> Array:
    """Return `o_BTNV`; see `decode_attention_reference` for the meaning."""
    block = choose_block_sizes(BLOCK_SIZES, DECODE_ATTENTION_OP.call(inputs, spec))
    batch = inputs.q_BTNH.shape[0]
    together = math.gcd(block.num_rows, batch)
    if inputs.page_table_BP is None or together == batch:
        return _attend(inputs, spec, block.num_keys)
    return _by_length(inputs, together, lambda some: _attend(some, spec, block.num_keys))


def _by_length(
    inputs: DecodeInputs, num_rows: int, attend: Callable[[DecodeInputs], Array]
) -> Array:
    """Return what `attend` gives of each `num_rows` rows, the longest ones first."""
    # Rows of a group share a loop, which ends with the longest of them.
    order_B = jnp.argsort(-inputs.lengths_B)
    rows = (inputs.q_BTNH, inputs.lengths_B, inputs.page_table_BP)
    groups = jax.tree.map(lambda x: x[order_B].reshape(-1, num_rows, *x.shape[1:]), rows)

    def of_group(group: tuple[Array, Array, Array]) -> Array:
        q, lengths, table = group
        return attend(inputs._replace(q_BTNH=q, lengths_B=lengths, page_table_BP=table))

    o_BTNV: Array = lax.map(of_group, groups).reshape(*inputs.q_BTNH.shape[:3], -1)
    return o_BTNV[jnp.argsort(order_B)]


def _attend(inputs: DecodeInputs, spec: DecodeSpec, block_size: int) -> Array:
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
        # The last block of a contiguous cache reaches back, and must not count its first keys
        # twice.
        mask = mask & is_new_S[None, None, None, None, :]
        # Heads are swapped in the pass over a block that a selection is anyway: compilers for CPUs
        # take four times as long for a copy that only swaps.
        is_written_BS = position_S[None, :] < lengths_B[:, None]
        k_BKSH, v_BKSV = (
            swap_heads(jnp.where(is_written_BS[..., None, None], x, 0)) for x in (k_BSKH, v_BSKV)
        )
        # With many queries the product takes most of the time. With keys first, its result, which
        # is then the larger array, would have to be transposed.
        if math.prod(q_BKGTH.shape[2:4]) > FEW_QUERIES:
            as_attention = spec.as_attention()
            logits = block_logits(q_BKGTH, k_BKSH, as_attention, bias=None, mask=mask).value
        else:
            logits = _few_logits(q_BKGTH, k_BKSH, spec, mask)
        return running.add(logits, v_BKSV)

    start = OnlineSoftmax.start(q_BKGTH.shape[:-1], inputs.v.shape[-1], inputs.sinks_N)
    first, last = _span(lengths_B, num_queries, spec.left, inputs.capacity)
    most = -(-inputs.capacity // size)
    running = bounded_fori_loop(
        first // size, (last + size - 1) // size, step, start, max_steps=most
    )
    return ungroup_heads(running.finish()[0]).astype(inputs.q_BTNH.dtype)


def _few_logits(q_BKGTH: Array, k_BKSH: Array, spec: DecodeSpec, mask: Array) -> Array:
    """Return what `block_logits` does; keys come first in the product, so they are not copied."""
    product_BKSGT = lax.dot_general(
        k_BKSH, q_BKGTH, (((3,), (4,)), ((0, 1), (0, 1))), preferred_element_type=jnp.float32
    )
    logits = spec.scale * product_BKSGT.transpose(0, 1, 3, 4, 2)
    if spec.soft_cap is not None:
        logits = spec.soft_cap * jnp.tanh(logits / spec.soft_cap)
    return jnp.where(mask, logits, -jnp.inf)


_Block = Callable[[Array], tuple[Array, Array, Array]]
"""From the number of a block to its keys, values and positions `[S]`."""


def _contiguous(inputs: DecodeInputs, block_size: int) -> tuple[int, _Block]:
    """Return the size of a block, and blocks by number; the last one may reach back."""
    size = min(block_size, inputs.capacity)

    def block(j: Array) -> tuple[Array, Array, Array]:
        # A slice that reached past the end would be moved back anyway, by JAX, and the positions
        # would be wrong.
        start = jnp.minimum(j * size, inputs.capacity - size)
        k, v = _wide(inputs, lambda x: lax.dynamic_slice_in_dim(x, start, size, axis=1))
        return k, v, start + jnp.arange(size, dtype=jnp.int32)

    return size, block


def _paged(inputs: DecodeInputs, table_BP: Array, block_size: int) -> tuple[int, _Block]:
    """Return the size of a block, and blocks by number, of as many full pages as fit in one."""
    batch, num_pages = table_BP.shape
    page_size = inputs.k.shape[1]
    count = min(num_pages, max(1, block_size // page_size))
    size = count * page_size
    # Clipped here and not for each number that is read, which takes as long as reading it.
    table_BP = jnp.clip(table_BP, 0, inputs.k.shape[0] - 1)
    padded = jnp.pad(table_BP, ((0, 0), (0, -num_pages % count)))

    def block(j: Array) -> tuple[Array, Array, Array]:
        pages = lax.dynamic_slice_in_dim(padded, j * count, count, axis=1)
        k, v = _wide(
            inputs,
            # Safe by the clipping above; any other mode compares or selects for each number.
            lambda x: x.at[pages].get(mode="promise_in_bounds").reshape(batch, size, *x.shape[2:]),
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
        # Of the shortest row, as rows share the loop; the mask hides what others do not see.
        first = jnp.maximum(jnp.min(lengths_B) - num_queries - left, 0)
    return first, jnp.minimum(jnp.max(lengths_B), capacity)
