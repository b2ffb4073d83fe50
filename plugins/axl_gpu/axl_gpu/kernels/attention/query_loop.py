"""What a thread block that goes over queries does: where it is, and what it fetches.

It has the keys and values of one head of keys, a block for each warp group, and rings of blocks of
the queries of all heads that share them, and of the gradients of their outputs.

Letters: B batch, T queries, S keys, N query heads, K key heads, I queries and J keys of a block,
H key width, V value width; L blocks of keys of a full thread block, C its keys.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import attrs
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from axl_gpu.kernels.attention.arrays import Arrays, Choices, Residuals
from axl_gpu.kernels.attention.block import (
    Keys,
    Queries,
    logits,
    masked_unless,
    probabilities,
    sloped,
)
from axl_gpu.kernels.attention.matmuls import Matmuls, Ref
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


class Own(NamedTuple):
    """The keys of a thread block, those of one warp group after another, in shared memory."""

    k_CH: Ref
    v_CV: Ref
    segments_C: Ref | None


def launch_options(
    arrays: Arrays, choices: Choices, products: Matmuls, **scratch: Any
) -> dict[str, Any]:
    """Return how kernels are launched whose thread blocks have keys each.

    Args:
        arrays: Of the call.
        choices: Static.
        products: The instructions that multiply.
        scratch: What they need in addition to a `QueryLoop`.
    """
    batch, num_keys, num_key_heads, _ = arrays.k_BSKH.shape
    blocks = choices.blocks
    num_blocks = num_keys // (blocks.keys * blocks.num_groups)
    return {
        # Heads vary fastest: thread blocks that run together read the same bounds and segments of
        # queries, and have the same spans, so that they take about as long.
        "grid": {"head": num_key_heads, "block": num_blocks, "batch": batch},
        "scratch": {**_scratch(arrays, choices), **scratch},
        "interpreter": products.interpreter,
        "num_threads": blocks.num_groups + 1,
    }


def _scratch(arrays: Arrays, choices: Choices) -> dict[str, Any]:
    blocks, dtype = choices.blocks, arrays.q_BTNH.dtype
    keys, fetched = blocks.keys * blocks.num_groups, (blocks.num_stages, blocks.queries)
    width, value_width = arrays.q_BTNH.shape[3], arrays.v_BSKV.shape[3]
    has_segments = arrays.q_segments_BT is not None
    whole, real = plgpu.SMEM(fetched, jnp.int32), plgpu.SMEM(fetched, jnp.float32)
    ring = partial(ring_barriers, num_groups=blocks.num_groups, num_stages=blocks.num_stages)
    return {
        "own": Own(
            plgpu.SMEM((keys, width), dtype),
            plgpu.SMEM((keys, value_width), dtype),
            plgpu.SMEM((keys,), jnp.int32) if has_segments else None,
        ),
        # One barrier for the keys of all groups, whose places differ only in rows: one group
        # fetches them in one copy each, and every group waits.
        "own_arrived": plgpu.Barrier(num_arrivals=3 if has_segments else 2),
        "fetched": Fetched(
            plgpu.SMEM((*fetched, width), dtype),
            real,
            Queries(whole, whole, whole if has_segments else None),
            plgpu.SMEM((*fetched, value_width), dtype),
            real,
        ),
        # Two rings: queries of the next step are waited for in the middle of this one, gradients
        # of outputs at its start; and the fused kernel frees the latter earlier.
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
        choices: Static.
        own: The keys.
        own_arrived: Barrier of these.
        own_copies: From where they come.
        fetched: Slots of both rings.
        q_ring: Queries, with what they see.
        do_ring: Gradients of outputs.
    """

    batch: Array
    key_head: Array
    heads_each: int
    block: Array
    span: tuple[Array, Array, Array, Array]
    choices: Choices
    own: Own
    own_arrived: Ref
    own_copies: list[Copy]
    fetched: Fetched
    q_ring: Ring
    do_ring: Ring

    @classmethod
    def of(
        cls,
        arrays: Arrays,
        residuals: Residuals,
        spans_BL4: Ref,
        choices: Choices,
        scratch: dict[str, Any],
    ) -> "QueryLoop":
        """Return the walk of the thread block that this runs in."""
        batch, block, key_head = (lax.axis_index(name) for name in ("batch", "block", "head"))
        heads_each = arrays.q_BTNH.shape[2] // arrays.k_BSKH.shape[2]
        begin, full_begin, full_end, end = (spans_BL4[batch, block, i] for i in range(4))
        slots: Fetched = scratch["fetched"]
        own: Own = scratch["own"]
        num_keys, num_stages = own.k_CH.shape[0], choices.blocks.num_stages
        columns = pl.ds(block * num_keys, num_keys)
        own_copies = [
            (arrays.k_BSKH.at[batch, columns, key_head], own.k_CH),
            (arrays.v_BSKV.at[batch, columns, key_head], own.v_CV),
        ]
        if arrays.k_segments_BS is not None:
            own_copies.append((arrays.k_segments_BS.at[batch, columns], own.segments_C))

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
            choices,
            own,
            scratch["own_arrived"],
            own_copies,
            slots,
            Ring(query_copies, *scratch["q_ring"], num_stages),
            Ring(gradient_copies, *scratch["do_ring"], num_stages),
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
        """Return the head and the queries of a step."""
        # All blocks of one head, then those of the next: a group keeps its sums over heads in
        # registers, so that gradients of shared keys need no atomics and no pass that adds heads
        # up.
        head = self.key_head * self.heads_each + lax.div(step, self._blocks_of_a_head)
        num_queries = self.choices.blocks.queries
        return head, pl.ds(self._query_block(step) * num_queries, num_queries)

    def arrived(self, group: Array) -> tuple[Ref, Ref, Keys]:
        """Return a warp group's own keys and values, and what is known of them, once there."""
        plgpu.barrier_wait(self.own_arrived)
        num_keys = self.choices.blocks.keys
        part = pl.ds(group * num_keys, num_keys)
        first = self.block * self.own.k_CH.shape[0] + group * num_keys
        k, v = self.own.k_CH.at[part], self.own.v_CV.at[part]
        return k, v, Keys(first, at(self.own.segments_C, part))

    def weigh(self, step: Array, keys: Keys, products_JI: Array) -> tuple[Array, Array]:
        """Return the probabilities of a step, and those times the slope of its logits.

        Both are rounded to the dtype of queries, in which they take half the registers.
        """
        choices, (q, lse, queries, _, _) = self.choices, self.slot(step)
        found_JI = logits(products_JI, scale=choices.scale, soft_cap=choices.soft_cap)
        logits_JI = masked_unless(self._see_whole(step), found_JI, queries, keys, axis=1)
        p_JI = probabilities(logits_JI, lse[...], axis=1)
        weights_JI = sloped(p_JI, logits_JI, choices.soft_cap)
        return p_JI.astype(q.dtype), weights_JI.astype(q.dtype)

    def _see_whole(self, step: Array) -> Array:
        """Return whether all queries of a step see all keys."""
        _, full_begin, full_end, _ = self.span
        i = self._query_block(step)
        return (i >= full_begin) & (i < full_end)

    def slot(self, step: Array) -> Fetched:
        """Return where the blocks of a step are."""
        slot = self.q_ring.slot(step)
        q, lse, seen, do, delta = self.fetched
        return Fetched(
            q.at[slot],
            lse.at[slot],
            Queries(*(at(numbers, slot) for numbers in seen)),
            do.at[slot],
            delta.at[slot],
        )

    def run(self, consume: Callable[[Array], None]) -> None:
        """Run `consume(group)` in the warp groups that compute, while another fetches for them."""

        def fetch() -> None:
            for source, target in self.own_copies:
                plgpu.copy_gmem_to_smem(source, target, self.own_arrived)
            fetch_all((self.q_ring, self.do_ring), self.num_steps)

        specialised(self.choices.blocks.num_groups, consume=consume, fetch=fetch)
