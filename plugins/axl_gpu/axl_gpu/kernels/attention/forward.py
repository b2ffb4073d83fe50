"""Flash attention forward, the tuned form: one warp group fetches, two multiply in turns.

A thread block has the queries of one block of one head, or goes through several of them, those with
the most keys first; keys of the next are fetched while it finishes the last.

A group multiplies probabilities by values while it computes those of the next keys.

The arithmetic is that of `block`, in the order of `simple_forward`.

Source: Shah et al. 2024, arXiv:2407.08608.

Letters: B batch, T queries, S keys, N query heads, K key heads, I queries and J keys of a block,
H key width, V value width; Q blocks of queries of a full thread block.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from axl_gpu.kernels.attention.arrays import Arrays, Choices, launch, shape_like
from axl_gpu.kernels.attention.block import (
    Keys,
    Queries,
    Running,
    advance,
    along,
    finish,
    logits,
    masked_unless,
    start,
)
from axl_gpu.kernels.attention.key_loop import KeyLoop
from axl_gpu.kernels.attention.matmuls import Addition, Matmuls, Ref
from axl_gpu.kernels.attention.ring_buffer import (
    WarpGroupTurns,
    at,
    fetch_more,
    ring_barriers,
    specialised,
    wait_until_free,
)


def tuned_forward(
    arrays: Arrays, spans_BQ4: Array, sinks_N: Array, choices: Choices, products: Matmuls
) -> tuple[Array, Array]:
    """Return the output `[B, T, N, V]` and the log-sum-exp `[B, N, T]`, float32.

    Args:
        arrays: Of the call.
        spans_BQ4: Of the queries of each thread block.
        sinks_N: Float32 logits without values; -inf where there are none.
        choices: Static.
        products: The instructions that multiply.
    """
    batch, num_queries, num_heads, _ = arrays.q_BTNH.shape
    blocks, value_width = choices.blocks, arrays.v_BSKV.shape[3]
    outputs = (
        shape_like(arrays.q_BTNH, shape=(batch, num_queries, num_heads, value_width)),
        shape_like(sinks_N, shape=(batch, num_heads, num_queries)),
    )
    num_items = batch * num_heads * (num_queries // (blocks.queries * blocks.num_groups))
    num_programs = min(num_items, blocks.num_programs or num_items)
    kernel = launch(
        partial(_body, num_items=num_items, choices=choices, products=products),
        outputs,
        name="flash_forward",
        grid={"program": num_programs},
        scratch=_scratch(arrays, choices),
        interpreter=products.interpreter,
        num_threads=blocks.num_groups + 1,
    )
    o_BTNV, lse_BNT = kernel(arrays, spans_BQ4, sinks_N)
    return o_BTNV, lse_BNT


def _scratch(arrays: Arrays, choices: Choices) -> dict[str, Any]:
    blocks, dtype = choices.blocks, arrays.q_BTNH.dtype
    own, fetched = (blocks.num_groups, blocks.queries), (blocks.num_stages, blocks.keys)
    width, value_width = arrays.q_BTNH.shape[3], arrays.v_BSKV.shape[3]
    has_segments = arrays.q_segments_BT is not None
    numbers = plgpu.SMEM(own, jnp.int32)
    ring = partial(ring_barriers, num_groups=blocks.num_groups, num_stages=blocks.num_stages)
    return {
        "q": plgpu.SMEM((*own, width), dtype),
        # Nobody reads the queries after the last key, so the output leaves by their place. That
        # saves 16 KiB a group at heads of 128.
        "o": None if width == value_width else plgpu.SMEM((*own, value_width), dtype),
        "lse": plgpu.SMEM(own, jnp.float32),
        "seen": Queries(numbers, numbers, numbers if has_segments else None),
        # As many arrivals as `_own_queries` begins copies.
        "own_arrived": plgpu.Barrier(
            num_arrivals=4 if has_segments else 3, num_barriers=blocks.num_groups
        ),
        "k": plgpu.SMEM((*fetched, width), dtype),
        "v": plgpu.SMEM((*fetched, value_width), dtype),
        "k_segments": plgpu.SMEM(fetched, jnp.int32) if has_segments else None,
        "k_ring": ring(2 if has_segments else 1),
        "v_ring": ring(1),
        "turn": plgpu.Barrier(num_arrivals=blocks.num_groups),
    }


def _body(
    arrays: Arrays,
    spans_BQ4: Ref,
    sinks_N: Ref,
    o_BTNV: Ref,
    lse_BNT: Ref,
    *,
    num_items: int,
    choices: Choices,
    products: Matmuls,
    **scratch: Any,
) -> None:
    blocks = choices.blocks
    program, num_programs = lax.axis_index("program"), lax.axis_size("program")
    # `lax.div`, here and below, and not `//`: of signed numbers that is a division with
    # corrections, for signs that never occur.
    num_own = lax.div(num_items - 1 - program, num_programs) + 1

    def for_each_walk(act: Callable[[KeyLoop], None]) -> Array:
        """Acts on the thread block's walks, one after another, and returns their steps in all."""

        def one(i: Array, first: Array) -> Array:
            item = program + i * num_programs
            walk = KeyLoop.of(arrays, spans_BQ4, blocks, scratch, item=item, first=first)
            act(walk)
            return first + walk.num_steps

        num_steps: Array = lax.fori_loop(0, num_own, one, jnp.int32(0))
        return num_steps

    def consume(group: Array) -> None:
        turns = WarpGroupTurns(scratch["turn"], group, blocks.num_groups)

        def attend(walk: KeyLoop) -> None:
            batch, head, k_ring, v_ring = walk.batch, walk.head, walk.k_ring, walk.v_ring
            rows = walk.rows(group)
            q, seen = _own_queries(arrays, scratch, batch, rows, head, group)

            def weigh(step: Array, running: Running, qk_IJ: Array) -> tuple[Array, Running, Array]:
                """Return probabilities of a step in their dtype, and the sums with it."""
                found = logits(qk_IJ, scale=choices.scale, soft_cap=choices.soft_cap)
                segments = at(scratch["k_segments"], k_ring.slot(step))
                keys = Keys(walk.key_block(step) * blocks.keys, segments)
                logits_IJ = masked_unless(walk.sees_whole(step), found, seen, keys, axis=0)
                # Not as soon as the product is there: segments are in the same slot, and the mask
                # reads them.
                k_ring.release(step)
                new = advance(running, logits_IJ)
                # The left operand of the next product comes from registers, in 16 bits. The sum
                # above took them in float32: it is the softmax's denominator, where roundings
                # would add up.
                return new.exponentials_IJ.astype(q.dtype), new.running, new.decay_I

            def step(
                step: Array, carry: tuple[Array, Array, Running]
            ) -> tuple[Array, Array, Running]:
                weighted_IV, p_IJ, running = carry
                k = scratch["k"].at[k_ring.slot(step + 1)]
                v = scratch["v"].at[v_ring.slot(step)]
                # For keys before the turn: a group that waited for memory with the turn in hand
                # would keep the other one from multiplying.
                k_ring.wait(step + 1)
                turns.give()

                def weigh_next(qk_IJ: Array) -> tuple[Array, Running, Array]:
                    new = weigh(step + 1, running, qk_IJ)
                    # The loop needs these values only in its next round. The wait is here because
                    # NVIDIA's assembler moves exponentials behind a wait for a product, whatever
                    # order the source has, but not behind one for a copy, which is a loop.
                    # Without it they run after the product that they are to overlap.
                    v_ring.wait(step + 1)
                    return new

                (p_IJ, running, decay_I), weighted_IV = products.transposed_and_added(
                    q, k, Addition(weighted_IV, p_IJ, v), weigh_next, turns.give
                )
                v_ring.release(step)
                # After the addition, where the simple form shrinks before it: the values just
                # added belong to the step before, whose maximum the sums had until now.
                return weighted_IV * along(decay_I, weighted_IV.shape, 0), p_IJ, running

            # Peeled: the first keys have no older probabilities to multiply meanwhile, and the
            # last have no next logits.
            def all_steps() -> tuple[Array, Running]:
                k_ring.wait(0)
                qk_IJ = products.transposed(q, scratch["k"].at[k_ring.slot(0)])
                p_IJ, running, _ = weigh(0, start(blocks.queries), qk_IJ)
                v_ring.wait(0)
                last = walk.num_steps - 1
                weighted_IV, p_IJ, running = lax.fori_loop(
                    0, last, step, (nothing_IV, p_IJ, running)
                )
                weighted_IV = products.added(weighted_IV, p_IJ, scratch["v"].at[v_ring.slot(last)])
                v_ring.release(last)
                return weighted_IV, running

            nothing_IV = jnp.zeros((blocks.queries, arrays.v_BSKV.shape[3]), jnp.float32)
            turns.begin()
            # A block that sees no key has nothing fetched for it; waiting for its first keys
            # would hang.
            weighted_IV, running = lax.cond(
                walk.num_steps > 0, all_steps, lambda: (nothing_IV, start(blocks.queries))
            )
            turns.end()  # of each walk: no group waits here for values that the other holds
            finished = finish(running, sinks_N[head])
            o = q if scratch["o"] is None else scratch["o"].at[group]
            lse = scratch["lse"].at[group]
            o[...] = (weighted_IV * along(finished.factor_I, weighted_IV.shape, 0)).astype(o.dtype)
            lse[...] = finished.lse_I
            # The copy engine reads shared memory by another path than threads write it.
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(o, o_BTNV.at[batch, rows, head])
            plgpu.copy_smem_to_gmem(lse, lse_BNT.at[batch, head, rows])
            # The next walk's queries are copied to where the output is read from.
            plgpu.wait_smem_to_gmem(0)

        for_each_walk(attend)

    def fetch() -> None:
        def fetch_for(walk: KeyLoop) -> None:
            fetch_more((walk.k_ring, walk.v_ring), walk.num_steps)

        num_steps = for_each_walk(fetch_for)
        wait_until_free((scratch["k_ring"][1], scratch["v_ring"][1]), blocks.num_stages, num_steps)

    specialised(blocks.num_groups, consume=consume, fetch=fetch)


def _own_queries(
    arrays: Arrays, scratch: dict[str, Any], batch: Array, rows: Any, head: Array, group: Array
) -> tuple[Ref, Queries]:
    """Return a warp group's own queries and what they see, once they are in shared memory."""
    q, arrived = scratch["q"].at[group], scratch["own_arrived"].at[group]
    seen = Queries(*(at(numbers, group) for numbers in scratch["seen"]))
    copies = [
        (arrays.q_BTNH.at[batch, rows, head], q),
        (arrays.low_BT.at[batch, rows], seen.low_I),
        (arrays.high_BT.at[batch, rows], seen.high_I),
    ]
    if arrays.q_segments_BT is not None:
        copies.append((arrays.q_segments_BT.at[batch, rows], seen.segments_I))
    for source, target in copies:
        plgpu.copy_gmem_to_smem(source, target, arrived)
    plgpu.barrier_wait(arrived)
    return q, seen
