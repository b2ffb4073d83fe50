"""Gradients of queries, keys and values in one kernel: five products a block, where two take seven.

One warp group fetches queries, others have keys each, whose gradients they sum in registers. The
gradients of logits of all go to shared memory, and each group multiplies them by a part of the
width of the keys: the thread block's part of the queries' gradients, which is added in the GPU's
memory to what other thread blocks add there. The order of those sums is not fixed, so that their
last bits change from run to run.

Within a group, exponentials are computed while `v do` is multiplied, and queries' gradients are
stored while keys' are.

Source: Dao 2023, arXiv:2307.08691, section 3.1; Shah et al. 2024, arXiv:2407.08608.

Letters: B batch, T queries, S keys, N query heads, K key heads, I queries and J keys of a block,
H key width, V value width; L blocks of keys of a whole thread block.
"""

from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from axl_gpu.kernels.attention.arrays import (
    Arrays,
    Choices,
    Residuals,
    launch_with_sum,
    shape_like,
)
from axl_gpu.kernels.attention.block import (
    Keys,
    logit_gradients,
    logits,
    masked_unless,
    probabilities,
    sloped,
)
from axl_gpu.kernels.attention.matmuls import Addition, Matmuls, Ref
from axl_gpu.kernels.attention.query_loop import QueryLoop, query_scratch
from axl_gpu.kernels.attention.ring_buffer import at


def fused_gradients(
    arrays: Arrays,
    residuals: Residuals,
    spans_BL4: Array,
    choices: Choices,
    products: Matmuls,
) -> tuple[Array, Array, Array]:
    """Returns the gradients of queries, keys and values.

    That of queries is in float32 and of unscaled logits, for it is the sum of several thread
    blocks; the others are in their dtype.
    """
    batch, num_keys, num_key_heads, _ = arrays.k_BSKH.shape
    blocks = choices.blocks
    num_blocks = num_keys // (blocks.keys * blocks.num_groups)
    kernel = launch_with_sum(
        partial(_body, choices=choices, products=products),
        (shape_like(arrays.k_BSKH), shape_like(arrays.v_BSKV)),
        shape_like(arrays.q_BTNH, dtype=jnp.float32),
        name="flash_gradients",
        grid={"head": num_key_heads, "block": num_blocks, "batch": batch},
        scratch=_scratch(arrays, choices),
        interpreter=products.interpreter,
        num_threads=blocks.num_groups + 1,
    )
    dq_BTNH, dk_BSKH, dv_BSKV = kernel(arrays, residuals, spans_BL4)
    return dq_BTNH, dk_BSKH, dv_BSKV


def _scratch(arrays: Arrays, choices: Choices) -> dict[str, Any]:
    blocks, dtype = choices.blocks, arrays.q_BTNH.dtype
    num_groups, keys, width = blocks.num_groups, _keys(choices), arrays.q_BTNH.shape[3]
    has_segments = arrays.q_segments_BT is not None
    return {
        "k": plgpu.SMEM((keys, width), dtype),
        "v": plgpu.SMEM((keys, arrays.v_BSKV.shape[3]), dtype),
        "k_segments": plgpu.SMEM((keys,), jnp.int32) if has_segments else None,
        "keys_arrived": plgpu.Barrier(num_arrivals=3 if has_segments else 2),
        "ds": plgpu.SMEM((2, keys, blocks.queries), dtype),
        "ds_written": plgpu.Barrier(num_arrivals=num_groups),
        "dq": plgpu.SMEM((num_groups, blocks.queries, width // num_groups), jnp.float32),
        **query_scratch(arrays, blocks),
    }


def _keys(choices: Choices) -> int:
    """Returns how many keys a thread block has."""
    return choices.blocks.keys * choices.blocks.num_groups


def _body(
    arrays: Arrays,
    residuals: Residuals,
    spans_BL4: Ref,
    dq_BTNH: Ref,
    dk_BSKH: Ref,
    dv_BSKV: Ref,
    *,
    choices: Choices,
    products: Matmuls,
    **scratch: Any,
) -> None:
    blocks = choices.blocks
    loop = QueryLoop.of(arrays, residuals, spans_BL4, blocks, scratch)
    batch, key_head = loop.batch, loop.key_head
    width_each = arrays.q_BTNH.shape[3] // blocks.num_groups

    def consume(group: Array) -> None:
        own = pl.ds(group * blocks.keys, blocks.keys)
        part = pl.ds(group * width_each, width_each)
        first = loop.block * _keys(choices) + group * blocks.keys
        k, v, dq = scratch["k"].at[own], scratch["v"].at[own], scratch["dq"].at[group]
        keys, written = Keys(first, at(scratch["k_segments"], own)), scratch["ds_written"]
        plgpu.barrier_wait(scratch["keys_arrived"])

        def step(step: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
            dk_JH, dv_JV = sums
            q, lse, queries, do, delta = loop.slot(step)
            head, rows = loop.place(step)

            def weigh(qk_JI: Array) -> tuple[Array, Array]:
                found = logits(qk_JI, scale=choices.scale, soft_cap=choices.soft_cap)
                logits_JI = masked_unless(loop.see_whole(step), found, queries, keys, axis=1)
                p_JI = probabilities(logits_JI, lse[...], axis=1)
                weights_JI = sloped(p_JI, logits_JI, choices.soft_cap)
                return p_JI.astype(do.dtype), weights_JI.astype(do.dtype)  # half the registers

            loop.q_ring.wait(step)
            loop.do_ring.wait(step)
            (p_JI, weights_JI), dp_JI = products.both_transposed(k, q, v, do, weigh)
            weights_JI = weights_JI.astype(jnp.float32)
            ds_JI = logit_gradients(weights_JI, dp_JI, delta[...], axis=1).astype(q.dtype)
            # Of two slots, all groups are done with this one once the other has been written.
            ds = scratch["ds"].at[lax.rem(step, 2)]
            ds[own] = ds_JI
            plgpu.commit_smem()
            plgpu.barrier_arrive(written)

            def gradients_and_keys() -> tuple[Ref, Ref]:
                plgpu.barrier_wait(written)
                return ds, scratch["k"].at[:, part]

            def add(dq_IH: Array) -> None:
                loop.do_ring.release(step)
                plgpu.wait_smem_to_gmem(0, wait_read_only=True)
                dq[...] = dq_IH
                plgpu.commit_smem()
                products.accumulated(dq, dq_BTNH.at[batch, rows, head, part])

            dv_JV, dk_JH = products.both_added(
                Addition(dv_JV, p_JI, do), Addition(dk_JH, ds_JI, q), gradients_and_keys, add
            )
            loop.q_ring.release(step)
            return dk_JH, dv_JV

        nothing = jnp.zeros(k.shape, jnp.float32), jnp.zeros(v.shape, jnp.float32)
        dk_JH, dv_JV = lax.fori_loop(0, loop.num_steps, step, nothing)
        plgpu.barrier_arrive(written)  # other groups read these keys in the last step
        plgpu.barrier_wait(written)
        k[...] = (dk_JH * choices.scale).astype(k.dtype)
        v[...] = dv_JV.astype(v.dtype)
        plgpu.commit_smem()
        columns = pl.ds(first, blocks.keys)
        plgpu.copy_smem_to_gmem(k, dk_BSKH.at[batch, columns, key_head])
        plgpu.copy_smem_to_gmem(v, dv_BSKV.at[batch, columns, key_head])
        plgpu.wait_smem_to_gmem(0)

    def fetch_keys() -> None:
        columns = pl.ds(loop.block * _keys(choices), _keys(choices))
        copies = [
            (arrays.k_BSKH.at[batch, columns, key_head], scratch["k"]),
            (arrays.v_BSKV.at[batch, columns, key_head], scratch["v"]),
        ]
        if arrays.k_segments_BS is not None:
            copies.append((arrays.k_segments_BS.at[batch, columns], scratch["k_segments"]))
        for source, target in copies:
            plgpu.copy_gmem_to_smem(source, target, scratch["keys_arrived"])

    loop.run(consume, fetch_keys)
