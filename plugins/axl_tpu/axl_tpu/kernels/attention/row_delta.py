"""The kernel for what gradients of logits are measured from: `sum(do * o)` of each query and head.

It reads heads where they lie side by side, of which the compiler would make copies turned around.
Its result is in rows, as the kernels after it read them.

Letters: B batch, T queries, N heads, V width of a head; a block is C queries of one head.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from axl_tpu.kernels.attention.block_schedule import LANES
from axl_tpu.kernels.attention.operands import Heads

BLOCK = 2048
"""Queries of a block: half a MiB of bfloat16 at a width of 128."""


def row_delta_of(o: Array, do: Array, heads: Heads, *, interpret: Any) -> Array:
    """Returns float32 `[B, N, 1, T]` from two arrays of heads side by side, `[B, T, N * V]`."""
    batch, tokens, _ = o.shape
    size = min(BLOCK, -(-tokens // LANES) * LANES)
    block = pl.BlockSpec(heads.block(size), lambda b, n, i: heads.place(b, n, i))
    delta_BN1T: Array = pl.pallas_call(
        _kernel,
        out_shape=jax.ShapeDtypeStruct((batch, heads.num, 1, tokens), jnp.float32),
        grid=(batch, heads.num, -(-tokens // size)),
        in_specs=[block, block],
        out_specs=pl.BlockSpec((None, None, 1, size), lambda b, n, i: (b, n, 0, i)),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",) * 3),
        interpret=interpret,
        name="tpu_row_delta",
    )(o, do)
    return delta_BN1T


def _kernel(o_ref: Any, do_ref: Any, delta_ref: Any) -> None:
    products_CV = do_ref[...].astype(jnp.float32) * o_ref[...].astype(jnp.float32)
    delta_ref[...] = jnp.sum(products_CV.T, axis=0, keepdims=True)
