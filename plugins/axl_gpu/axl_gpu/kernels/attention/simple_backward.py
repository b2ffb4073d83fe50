"""Gradients of flash attention, the simple form: one warp group, one block after another.

Two kernels, each with its sums in registers and no atomics: one goes through the keys of a block
of queries, the other through the queries of a block of keys, of all heads that share the keys.

Source: Dao 2023, arXiv:2307.08691.

Letters: B batch, T queries, S keys, N query heads, K key heads, I queries and J keys of a block,
H key width, V value width; Q blocks of queries, L blocks of keys.
"""

from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from axl_gpu.kernels.attention.arrays import Arrays, Choices, Residuals, launch, shape_like
from axl_gpu.kernels.attention.block import (
    Keys,
    Queries,
    logit_gradients,
    logits,
    masked_unless,
    probabilities,
    sloped,
)
from axl_gpu.kernels.attention.matmuls import Matmuls, Ref


def simple_query_gradients(
    arrays: Arrays,
    residuals: Residuals,
    spans_BQ4: Array,
    choices: Choices,
    products: Matmuls,
) -> Array:
    """Return the gradient `[B, T, N, H]` of queries, in their dtype."""
    batch, num_queries, num_heads, _ = arrays.q_BTNH.shape
    kernel = launch(
        partial(_query_body, choices=choices, products=products),
        shape_like(arrays.q_BTNH),
        name="flash_query_gradients_simple",
        grid={"head": num_heads, "block": num_queries // choices.blocks.queries, "batch": batch},
        scratch=_scratch(arrays, choices),
        interpreter=products.interpreter,
    )
    dq_BTNH: Array = kernel(arrays, residuals, spans_BQ4)
    return dq_BTNH


def simple_key_gradients(
    arrays: Arrays,
    residuals: Residuals,
    spans_BL4: Array,
    choices: Choices,
    products: Matmuls,
) -> tuple[Array, Array]:
    """Return the gradients `[B, S, K, H]` and `[B, S, K, V]` of keys and values, in their dtype.

    Sums over query heads are in float32, in registers.
    """
    batch, num_keys, num_key_heads, _ = arrays.k_BSKH.shape
    kernel = launch(
        partial(_key_body, choices=choices, products=products),
        (shape_like(arrays.k_BSKH), shape_like(arrays.v_BSKV)),
        name="flash_key_gradients_simple",
        grid={"head": num_key_heads, "block": num_keys // choices.blocks.keys, "batch": batch},
        scratch=_scratch(arrays, choices),
        interpreter=products.interpreter,
    )
    dk_BSKH, dv_BSKV = kernel(arrays, residuals, spans_BL4)
    return dk_BSKH, dv_BSKV


def _scratch(arrays: Arrays, choices: Choices) -> dict[str, Any]:
    queries, keys = choices.blocks.queries, choices.blocks.keys
    dtype, width, value_width = arrays.q_BTNH.dtype, arrays.q_BTNH.shape[3], arrays.v_BSKV.shape[3]
    has_segments = arrays.q_segments_BT is not None
    return {
        "q": plgpu.SMEM((queries, width), dtype),
        "do": plgpu.SMEM((queries, value_width), dtype),
        "k": plgpu.SMEM((keys, width), dtype),
        "v": plgpu.SMEM((keys, value_width), dtype),
        "low": plgpu.SMEM((queries,), jnp.int32),
        "high": plgpu.SMEM((queries,), jnp.int32),
        "lse": plgpu.SMEM((queries,), jnp.float32),
        "delta": plgpu.SMEM((queries,), jnp.float32),
        "q_segments": plgpu.SMEM((queries,), jnp.int32) if has_segments else None,
        "k_segments": plgpu.SMEM((keys,), jnp.int32) if has_segments else None,
        "arrived": plgpu.Barrier(),
    }


class _Fetcher:
    """Copies blocks to shared memory, one at a time."""

    def __init__(self, arrays: Arrays, residuals: Residuals, scratch: dict[str, Any]) -> None:
        self.arrays, self.residuals, self.scratch = arrays, residuals, scratch

    def _fetch(self, source: Ref, name: str) -> None:
        arrived = self.scratch["arrived"]
        plgpu.copy_gmem_to_smem(source, self.scratch[name], arrived)
        plgpu.barrier_wait(arrived)

    def queries(self, batch: Array, rows: Any, head: Array) -> Queries:
        """Fetch all that belongs to a block of queries."""
        arrays, residuals, scratch = self.arrays, self.residuals, self.scratch
        self._fetch(arrays.q_BTNH.at[batch, rows, head], "q")
        self._fetch(residuals.do_BTNV.at[batch, rows, head], "do")
        self._fetch(residuals.lse_BNT.at[batch, head, rows], "lse")
        self._fetch(residuals.delta_BNT.at[batch, head, rows], "delta")
        self._fetch(arrays.low_BT.at[batch, rows], "low")
        self._fetch(arrays.high_BT.at[batch, rows], "high")
        if arrays.q_segments_BT is not None:
            self._fetch(arrays.q_segments_BT.at[batch, rows], "q_segments")
        return Queries(scratch["low"], scratch["high"], scratch["q_segments"])

    def keys(self, batch: Array, columns: Any, head: Array) -> Keys:
        """Fetch all that belongs to a block of keys."""
        arrays, scratch = self.arrays, self.scratch
        self._fetch(arrays.k_BSKH.at[batch, columns, head], "k")
        self._fetch(arrays.v_BSKV.at[batch, columns, head], "v")
        if arrays.k_segments_BS is not None:
            self._fetch(arrays.k_segments_BS.at[batch, columns], "k_segments")
        return Keys(columns.start, scratch["k_segments"])


def _query_body(
    arrays: Arrays,
    residuals: Residuals,
    spans_BQ4: Ref,
    dq_BTNH: Ref,
    *,
    choices: Choices,
    products: Matmuls,
    **scratch: Any,
) -> None:
    q, k, v, do = (scratch[name] for name in ("q", "k", "v", "do"))
    block_q, block_k = choices.blocks.queries, choices.blocks.keys
    batch, block, head = (lax.axis_index(name) for name in ("batch", "block", "head"))
    key_head = lax.div(head, arrays.q_BTNH.shape[2] // arrays.k_BSKH.shape[2])
    rows = pl.ds(block * block_q, block_q)
    fetcher = _Fetcher(arrays, residuals, scratch)
    queries = fetcher.queries(batch, rows, head)
    begin, full_begin, full_end, end = (spans_BQ4[batch, block, i] for i in range(4))

    def step(j: Array, dq_IH: Array) -> Array:
        keys = fetcher.keys(batch, pl.ds(j * block_k, block_k), key_head)
        found = logits(products.transposed(q, k), scale=choices.scale, soft_cap=choices.soft_cap)
        logits_IJ = masked_unless((j >= full_begin) & (j < full_end), found, queries, keys, axis=0)
        p_IJ = probabilities(logits_IJ, scratch["lse"][...], axis=0)
        weights_IJ = sloped(p_IJ, logits_IJ, choices.soft_cap)
        dp_IJ = products.transposed(do, v)
        ds_IJ = logit_gradients(weights_IJ, dp_IJ, scratch["delta"][...], axis=0)
        return products.added(dq_IH, ds_IJ.astype(k.dtype), k)

    dq_IH = lax.fori_loop(begin, end, step, jnp.zeros(q.shape, jnp.float32))
    q[...] = (dq_IH * choices.scale).astype(q.dtype)
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(q, dq_BTNH.at[batch, rows, head])
    plgpu.wait_smem_to_gmem(0)


def _key_body(
    arrays: Arrays,
    residuals: Residuals,
    spans_BL4: Ref,
    dk_BSKH: Ref,
    dv_BSKV: Ref,
    *,
    choices: Choices,
    products: Matmuls,
    **scratch: Any,
) -> None:
    q, k, v, do = (scratch[name] for name in ("q", "k", "v", "do"))
    block_q, block_k = choices.blocks.queries, choices.blocks.keys
    batch, block, key_head = (lax.axis_index(name) for name in ("batch", "block", "head"))
    group = arrays.q_BTNH.shape[2] // arrays.k_BSKH.shape[2]
    columns = pl.ds(block * block_k, block_k)
    fetcher = _Fetcher(arrays, residuals, scratch)
    keys = fetcher.keys(batch, columns, key_head)
    begin, full_begin, full_end, end = (spans_BL4[batch, block, i] for i in range(4))

    def step(i: Array, sums: tuple[Array, Array], head: Array) -> tuple[Array, Array]:
        dk_JH, dv_JV = sums
        queries = fetcher.queries(batch, pl.ds(i * block_q, block_q), head)
        found = logits(products.transposed(k, q), scale=choices.scale, soft_cap=choices.soft_cap)
        logits_JI = masked_unless((i >= full_begin) & (i < full_end), found, queries, keys, axis=1)
        p_JI = probabilities(logits_JI, scratch["lse"][...], axis=1)
        weights_JI = sloped(p_JI, logits_JI, choices.soft_cap)
        weights_JI = weights_JI.astype(do.dtype)  # rounded, they take half the registers
        dv_JV = products.added(dv_JV, p_JI.astype(do.dtype), do)
        dp_JI = products.transposed(v, do)
        ds_JI = logit_gradients(
            weights_JI.astype(jnp.float32), dp_JI, scratch["delta"][...], axis=1
        )
        return products.added(dk_JH, ds_JI.astype(q.dtype), q), dv_JV

    # Queries of all heads of this key head, one after another: their sums stay in registers.
    def of_head(g: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
        return lax.fori_loop(begin, end, partial(step, head=key_head * group + g), sums)

    nothing = jnp.zeros(k.shape, jnp.float32), jnp.zeros(v.shape, jnp.float32)
    dk_JH, dv_JV = lax.fori_loop(0, group, of_head, nothing)
    k[...] = (dk_JH * choices.scale).astype(k.dtype)
    v[...] = dv_JV.astype(v.dtype)
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(k, dk_BSKH.at[batch, columns, key_head])
    plgpu.copy_smem_to_gmem(v, dv_BSKV.at[batch, columns, key_head])
    plgpu.wait_smem_to_gmem(0)
