# ruff: noqa: N815 - fields carry shape letters
"""What a thread block that goes over queries does: where it is, and what it fetches.

It has the keys and values of one head of keys, and rings of blocks of the queries of all heads that
share them, and of the gradients of their outputs.

Letters: B batch, T queries, S keys, N query heads, K key heads, I queries of a block, H key width,
V value width; L blocks of keys of a whole thread block.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import attrs
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from axl_gpu.kernels.attention.arrays import Arrays, ForwardBlockSizes, Residuals
from axl_gpu.kernels.attention.block import Queries
from axl_gpu.kernels.attention.matmuls import Ref
from axl_gpu.kernels.attention.ring_buffer import (
    Copy,
    Ring,
    at,
    fetch_all,
    ring_barriers,
    specialised,
)


class Fetched(NamedTuple):
    """What belongs to the queries of a block, in shared memory."""

    q_IH: Ref
    lse_I: Ref
    seen: Queries
    do_IV: Ref
    delta_I: Ref


def query_scratch(arrays: Arrays, blocks: ForwardBlockSizes) -> dict[str, Any]:
    """Returns the shared memory and barriers of a `QueryLoop`."""
    dtype, fetched = arrays.q_BTNH.dtype, (blocks.num_stages, blocks.queries)
    has_segments = arrays.q_segments_BT is not None
    whole, real = plgpu.SMEM(fetched, jnp.int32), plgpu.SMEM(fetched, jnp.float32)
    ring = partial(ring_barriers, num_groups=blocks.num_groups, num_stages=blocks.num_stages)
    return {
        "fetched": Fetched(
            plgpu.SMEM((*fetched, arrays.q_BTNH.shape[3]), dtype),
            real,
            Queries(whole, whole, whole if has_segments else None),
            plgpu.SMEM((*fetched, arrays.v_BSKV.shape[3]), dtype),
            real,
        ),
        "q_ring": ring(5 if has_segments else 4),
        "do_ring": ring(2),
    }


@attrs.frozen(eq=False)
class QueryLoop:
    """One thread block's walk over the query blocks that may see its keys, of all heads.

    Args:
        batch: Row of the batch.
        key_head: Head of keys.
        heads_each: Query heads that share it.
        block: Block of keys.
        span: First query block, first and end of those that see all keys, and the end.
        blocks: Sizes.
        fetched: Slots of both rings.
        q_ring: Queries, with what they see.
        do_ring: Gradients of outputs.
    """

    batch: Array
    key_head: Array
    heads_each: int
    block: Array
    span: tuple[Array, Array, Array, Array]
    blocks: ForwardBlockSizes
    fetched: Fetched
    q_ring: Ring
    do_ring: Ring

    @classmethod
    def of(
        cls,
        arrays: Arrays,
        residuals: Residuals,
        spans_BL4: Ref,
        blocks: ForwardBlockSizes,
        scratch: dict[str, Any],
    ) -> "QueryLoop":
        """Returns the walk of the thread block that this runs in."""
        batch, block, key_head = (lax.axis_index(name) for name in ("batch", "block", "head"))
        heads_each = arrays.q_BTNH.shape[2] // arrays.k_BSKH.shape[2]
        begin, full_begin, full_end, end = (spans_BL4[batch, block, i] for i in range(4))
        slots: Fetched = scratch["fetched"]

        def query_copies(step: Array) -> list[Copy]:
            head, rows = loop.place(step)
            copies = [
                (arrays.q_BTNH.at[batch, rows, head], slots.q_IH),
                (residuals.lse_BNT.at[batch, head, rows], slots.lse_I),
                (arrays.low_BT.at[batch, rows], slots.seen.low_I),
                (arrays.high_BT.at[batch, rows], slots.seen.high_I),
            ]
            if arrays.q_segments_BT is not None:
                copies.append((arrays.q_segments_BT.at[batch, rows], slots.seen.segments_I))
            return copies

        def gradient_copies(step: Array) -> list[Copy]:
            head, rows = loop.place(step)
            return [
                (residuals.do_BTNV.at[batch, rows, head], slots.do_IV),
                (residuals.delta_BNT.at[batch, head, rows], slots.delta_I),
            ]

        loop = cls(
            batch,
            key_head,
            heads_each,
            block,
            (begin, full_begin, full_end, end),
            blocks,
            slots,
            Ring(query_copies, *scratch["q_ring"], blocks.num_stages),
            Ring(gradient_copies, *scratch["do_ring"], blocks.num_stages),
        )
        return loop

    @property
    def num_steps(self) -> Array:
        """How many query blocks it goes over, those of all heads together."""
        return self.heads_each * self._blocks_of_a_head

    @property
    def _blocks_of_a_head(self) -> Array:
        begin, _, _, end = self.span
        return end - begin

    def _query_block(self, step: Array) -> Array:
        return self.span[0] + lax.rem(step, self._blocks_of_a_head)

    def place(self, step: Array) -> tuple[Array, Any]:
        """Returns the head and the queries of a step."""
        head = self.key_head * self.heads_each + lax.div(step, self._blocks_of_a_head)
        return head, pl.ds(self._query_block(step) * self.blocks.queries, self.blocks.queries)

    def see_whole(self, step: Array) -> Array:
        """Returns whether all queries of a step see all keys."""
        _, full_begin, full_end, _ = self.span
        i = self._query_block(step)
        return (i >= full_begin) & (i < full_end)

    def slot(self, step: Array) -> Fetched:
        """Returns where the blocks of a step are."""
        slot = self.q_ring.slot(step)
        q, lse, seen, do, delta = self.fetched
        return Fetched(
            q.at[slot],
            lse.at[slot],
            Queries(*(at(numbers, slot) for numbers in seen)),
            do.at[slot],
            delta.at[slot],
        )

    def run(
        self, consume: Callable[[Array], None], first: Callable[[], None] = lambda: None
    ) -> None:
        """Runs `consume(group)` in the warp groups that compute, while another fetches for them.

        Args:
            consume: What they do.
            first: What the fetching group does before.
        """

        def fetch() -> None:
            first()
            fetch_all((self.q_ring, self.do_ring), self.num_steps)

        specialised(self.blocks.num_groups, consume=consume, fetch=fetch)
