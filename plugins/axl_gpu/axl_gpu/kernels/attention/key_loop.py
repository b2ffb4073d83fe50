"""What a thread block of the tuned form does that goes over keys: where it is, and what it fetches.

It has the queries of one block of one head, and rings of blocks of keys and of values.

Letters: B batch, T queries, S keys, N query heads, K key heads; Q blocks of queries of a whole
thread block.
"""

from collections.abc import Callable
from typing import Any

import attrs
from jax import Array, lax
from jax.experimental import pallas as pl

from axl_gpu.kernels.attention.arrays import Arrays, ForwardBlockSizes
from axl_gpu.kernels.attention.matmuls import Ref
from axl_gpu.kernels.attention.ring_buffer import Copy, Ring, fetch_all, specialised


@attrs.frozen(eq=False)
class KeyLoop:
    """One thread block's walk over the key blocks that its queries may see.

    Args:
        batch: Row of the batch.
        head: Query head.
        block: Block of queries.
        span: First key block, first and end of those that are seen whole, and the end.
        blocks: Sizes.
        k_ring: Keys, with their segments.
        v_ring: Values.
    """

    batch: Array
    head: Array
    block: Array
    span: tuple[Array, Array, Array, Array]
    blocks: ForwardBlockSizes
    k_ring: Ring
    v_ring: Ring

    @classmethod
    def of(
        cls,
        arrays: Arrays,
        spans_BQ4: Ref,
        blocks: ForwardBlockSizes,
        scratch: dict[str, Any],
        *,
        item: Array | None = None,
        first: Array | int = 0,
    ) -> "KeyLoop":
        """Return one walk; causal: the longest come first.

        Args:
            arrays: Of the call.
            spans_BQ4: Of the queries of each walk.
            blocks: Sizes.
            scratch: With both rings.
            item: Which of all walks; None for that of the thread block that this runs in.
            first: How many steps both rings were used for before.
        """
        if item is None:
            batch, head, place = (lax.axis_index(name) for name in ("batch", "head", "block"))
        else:
            num_rows, num_heads = spans_BQ4.shape[0], arrays.q_BTNH.shape[2]
            # Heads vary fastest, so that those that share keys run at the same time and find them
            # in the L2 cache; blocks slowest, so that all rows' longest walks are dealt out
            # first.
            head, batch = lax.rem(item, num_heads), lax.rem(lax.div(item, num_heads), num_rows)
            place = lax.div(item, num_heads * num_rows)
        # Under causality the last queries see the most keys. Begun first, they are not what the
        # GPU is left waiting for at the end.
        block = spans_BQ4.shape[1] - 1 - place
        key_head = lax.div(head, arrays.q_BTNH.shape[2] // arrays.k_BSKH.shape[2])
        begin, full_begin, full_end, end = (spans_BQ4[batch, block, i] for i in range(4))

        def columns(step: Array) -> Any:
            return pl.ds((begin + step) * blocks.keys, blocks.keys)

        def key_copies(step: Array) -> list[Copy]:
            copies = [(arrays.k_BSKH.at[batch, columns(step), key_head], scratch["k"])]
            if arrays.k_segments_BS is not None:
                segments = arrays.k_segments_BS.at[batch, columns(step)]
                copies.append((segments, scratch["k_segments"]))
            return copies

        def value_copies(step: Array) -> list[Copy]:
            return [(arrays.v_BSKV.at[batch, columns(step), key_head], scratch["v"])]

        return cls(
            batch,
            head,
            block,
            (begin, full_begin, full_end, end),
            blocks,
            Ring(key_copies, *scratch["k_ring"], blocks.num_stages, first),
            Ring(value_copies, *scratch["v_ring"], blocks.num_stages, first),
        )

    @property
    def num_steps(self) -> Array:
        """How many key blocks it goes over."""
        begin, _, _, end = self.span
        return end - begin

    def key_block(self, step: Array) -> Array:
        """Return the key block of a step."""
        return self.span[0] + step

    def sees_whole(self, step: Array) -> Array:
        """Return whether all queries see all keys of a step."""
        _, full_begin, full_end, _ = self.span
        j = self.key_block(step)
        return (j >= full_begin) & (j < full_end)

    def rows(self, group: Array) -> Any:
        """Return the queries of one of its warp groups."""
        num_queries = self.blocks.queries
        return pl.ds((self.block * self.blocks.num_groups + group) * num_queries, num_queries)

    def run(self, consume: Callable[[Array], None]) -> None:
        """Run `consume(group)` in the warp groups that compute, while another fetches for them."""
        specialised(
            self.blocks.num_groups,
            consume=consume,
            fetch=lambda: fetch_all((self.k_ring, self.v_ring), self.num_steps),
        )
