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
H key width, V value width; L blocks of keys of a full thread block.
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
from axl_gpu.kernels.attention.block import logit_gradients
from axl_gpu.kernels.attention.matmuls import Addition, Matmuls, Ref
from axl_gpu.kernels.attention.query_loop import QueryLoop, launch_options


def fused_gradients(
    arrays: Arrays,
    residuals: Residuals,
    spans_BL4: Array,
    choices: Choices,
    products: Matmuls,
) -> tuple[Array, Array, Array]:
    """Return the gradients of queries, keys and values.

    That of queries is in float32 and of unscaled logits, for it is the sum of several thread
    blocks; the others are in their dtype.
    """
    blocks, width = choices.blocks, arrays.q_BTNH.shape[3]
    # Two slots, so that a group may write the next gradients while another still multiplies by
    # these.
    all_logits = (2, blocks.keys * blocks.num_groups, blocks.queries)
    parts = (blocks.num_groups, blocks.queries, width // blocks.num_groups)
    kernel = launch_with_sum(
        partial(_body, choices=choices, products=products),
        (shape_like(arrays.k_BSKH), shape_like(arrays.v_BSKV)),
        shape_like(arrays.q_BTNH, dtype=jnp.float32),
        name="flash_gradients",
        **launch_options(
            arrays,
            choices,
            products,
            ds=plgpu.SMEM(all_logits, arrays.q_BTNH.dtype),
            ds_written=plgpu.Barrier(num_arrivals=blocks.num_groups),
            dq=plgpu.SMEM(parts, jnp.float32),
        ),
    )
    dq_BTNH, dk_BSKH, dv_BSKV = kernel(arrays, residuals, spans_BL4)
    return dq_BTNH, dk_BSKH, dv_BSKV


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
    loop = QueryLoop.of(arrays, residuals, spans_BL4, choices, scratch)
    batch, key_head = loop.batch, loop.key_head
    width_each = arrays.q_BTNH.shape[3] // blocks.num_groups

    def consume(group: Array) -> None:
        own = pl.ds(group * blocks.keys, blocks.keys)
        # Each group sums a part of the width of the queries' gradients over the keys of all
        # groups. Parts by keys would add into the same elements of memory once a group, and not
        # once a thread block.
        part = pl.ds(group * width_each, width_each)
        dq, written = scratch["dq"].at[group], scratch["ds_written"]
        k, v, keys = loop.arrived(group)

        def step(step: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
            dk_JH, dv_JV = sums
            q, _, _, do, delta = loop.slot(step)
            head, rows = loop.place(step)
            loop.q_ring.wait(step)
            loop.do_ring.wait(step)
            weigh = partial(loop.weigh, step, keys)
            (p_JI, weights_JI), dp_JI = products.both_transposed(k, q, v, do, weigh)
            weights_JI = weights_JI.astype(jnp.float32)
            ds_JI = logit_gradients(weights_JI, dp_JI, delta[...], axis=1).astype(q.dtype)
            # Of two slots, all groups are done with this one once the other has been written.
            ds = scratch["ds"].at[lax.rem(step, 2)]
            ds[own] = ds_JI
            plgpu.commit_smem()
            plgpu.barrier_arrive(written)

            def gradients_and_keys() -> tuple[Ref, Ref]:
                # Here and not before `dv`: the product `p do` runs while the slower group
                # finishes its gradients.
                plgpu.barrier_wait(written)
                return ds, loop.own.k_CH.at[:, part]

            def add(dq_IH: Array) -> None:
                # `use` runs when the first product, that of `do`, is done.
                loop.do_ring.release(step)
                # The copy of the step before must have read `dq`, which is overwritten; it need
                # not have added it.
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
        columns = pl.ds(keys.first, blocks.keys)
        plgpu.copy_smem_to_gmem(k, dk_BSKH.at[batch, columns, key_head])
        plgpu.copy_smem_to_gmem(v, dv_BSKV.at[batch, columns, key_head])
        plgpu.wait_smem_to_gmem(0)

    loop.run(consume)
