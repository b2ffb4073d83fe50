"""Gradients of keys and values, the tuned form: one warp group fetches queries, two multiply.

A thread block goes through the queries of all heads that share its keys, so sums over them stay in
registers. A group computes exponentials while it multiplies `v do`. The arithmetic is that of
`block`, in the order of `simple_backward`.

Source: Dao 2023, arXiv:2307.08691; Shah et al. 2024, arXiv:2407.08608.

Letters: B batch, T queries, S keys, N query heads, K key heads, I queries and J keys of a block,
H key width, V value width; L blocks of keys of a full thread block.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from axl_gpu.kernels.attention.arrays import Arrays, Choices, Residuals, launch, shape_like
from axl_gpu.kernels.attention.block import logit_gradients
from axl_gpu.kernels.attention.matmuls import Matmuls, Ref
from axl_gpu.kernels.attention.query_loop import QueryLoop, launch_options


def tuned_key_gradients(
    arrays: Arrays,
    residuals: Residuals,
    spans_BL4: Array,
    choices: Choices,
    products: Matmuls,
) -> tuple[Array, Array]:
    """Return the gradients `[B, S, K, H]` and `[B, S, K, V]` of keys and values, in their dtype.

    Sums over query heads are in float32, in registers. Where those of both do not fit, there is a
    kernel for each.
    """
    like = Gradients(arrays.k_BSKH, arrays.v_BSKV)
    # Logits are computed twice then, as the sums of both would spill.
    if like.keys.shape[3] + like.values.shape[3] <= MAX_WIDTH_OF_BOTH:
        both = _launched(arrays, residuals, spans_BL4, choices, products, like)
        return both.keys, both.values
    keys = _launched(arrays, residuals, spans_BL4, choices, products, Gradients(like.keys, None))
    values = _launched(
        arrays, residuals, spans_BL4, choices, products, Gradients(None, like.values)
    )
    return keys.keys, values.values


# 64 rows of 256 in float32 are 128 registers of each thread, of 240; logits and the product `v
# do` of 64 x 64 take 32 each, and what is left holds addresses and a query's numbers.
MAX_WIDTH_OF_BOTH = 256
"""Of a head's keys and values together, whose sums fit the registers of one warp group."""


class Gradients(NamedTuple):
    """Gradients of keys and values, or references or sums of them; None for one not computed."""

    keys: Any
    values: Any


def _launched(
    arrays: Arrays,
    residuals: Residuals,
    spans_BL4: Array,
    choices: Choices,
    products: Matmuls,
    like: Gradients,
) -> Gradients:
    """Return those gradients that `like` has arrays for."""
    wanted = [name for name, array in like._asdict().items() if array is not None]
    kernel = launch(
        partial(_body, wanted=wanted, choices=choices, products=products),
        tuple(shape_like(getattr(like, name)) for name in wanted),
        name="flash_key_gradients",
        **launch_options(arrays, choices, products),
    )
    outputs = kernel(arrays, residuals, spans_BL4)
    return Gradients(None, None)._replace(**dict(zip(wanted, outputs, strict=True)))


def _body(
    arrays: Arrays,
    residuals: Residuals,
    spans_BL4: Ref,
    *outputs: Ref,
    wanted: Sequence[str],
    choices: Choices,
    products: Matmuls,
    **scratch: Any,
) -> None:
    loop = QueryLoop.of(arrays, residuals, spans_BL4, choices, scratch)

    def consume(group: Array) -> None:
        k, v, keys = loop.arrived(group)

        def step(step: Array, sums: Gradients) -> Gradients:
            dk_JH, dv_JV = sums
            q, _, _, do, delta = loop.slot(step)
            loop.do_ring.wait(step)

            def weigh(kq_JI: Array) -> tuple[Array, Array]:
                weights = loop.weigh(step, keys, kq_JI)
                # Queries of the next step, to keep exponentials before the wait for `v do`: see
                # `forward`.
                loop.q_ring.wait_within(step + 1, loop.num_steps)
                return weights

            if dk_JH is None:
                p_JI, _ = weigh(products.transposed(k, q))
            else:
                (p_JI, weights_JI), dp_JI = multiply(k, q, v, do, weigh)
            if dv_JV is not None:
                dv_JV = products.added(dv_JV, p_JI, do)
            if dk_JH is not None:
                # They were rounded so as to wait for the product in half the registers.
                weights_JI = weights_JI.astype(jnp.float32)
                ds_JI = logit_gradients(weights_JI, dp_JI, delta[...], axis=1)
                dk_JH = products.added(dk_JH, ds_JI.astype(q.dtype), q)
            # Both were operands of products until here, and `added` returns when its own is done.
            loop.do_ring.release(step)
            loop.q_ring.release(step)
            return Gradients(dk_JH, dv_JV)

        # Comparing segments takes the registers that a second product would.
        has_segments = arrays.k_segments_BS is not None
        multiply = products.each_transposed if has_segments else products.both_transposed
        loop.q_ring.wait_within(0, loop.num_steps)
        shared = {"keys": k, "values": v}
        nothing = {name: jnp.zeros(shared[name].shape, jnp.float32) for name in wanted}
        sums = lax.fori_loop(0, loop.num_steps, step, Gradients(None, None)._replace(**nothing))
        factor = {"keys": choices.scale, "values": 1.0}
        for name in wanted:
            # Over this group's own keys, which no other group reads. The scale comes here, once,
            # and not at each block's gradients of logits.
            shared[name][...] = (getattr(sums, name) * factor[name]).astype(k.dtype)
        plgpu.commit_smem()
        columns = pl.ds(keys.first, choices.blocks.keys)
        for name, output in zip(wanted, outputs, strict=True):
            plgpu.copy_smem_to_gmem(shared[name], output.at[loop.batch, columns, loop.key_head])
        plgpu.wait_smem_to_gmem(0)

    loop.run(consume)
