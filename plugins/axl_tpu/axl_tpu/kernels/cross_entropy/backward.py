"""Cross-entropy's backward kernel: the gradient of the output projection, from logits that are
computed again a block at a time.

Logits are computed with the vocabulary in rows, so both products read their operands as stored.

Letters: R tokens, V vocabulary, D width, C tokens of a block, W words of a block.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from axcore.ops import CrossEntropySpec
from axl_tpu.kernels.cross_entropy.block_sizes import CrossEntropyBlockSizes, Products
from axl_tpu.kernels.cross_entropy.forward import capped, column_chunks, matmul


def projection_gradient(
    x_RD: Array,
    w_VD: Array,
    targets_R: Array,
    lse_R: Array,
    weights_R: Array,
    spec: CrossEntropySpec,
    block_sizes: CrossEntropyBlockSizes,
    *,
    vocabulary_size: int,
    dtype: DTypeLike,
    interpret: Any,
) -> Array:
    """Return the gradient of the weighted sum of losses, `[V, D]` or `[D, V]` as the spec says.

    Args:
        x_RD: Tokens, in full blocks.
        w_VD: Output projection of x's dtype, in full blocks.
        targets_R: Where among the rows of `w_VD` a target is; any other number if it is not.
        lse_R: Log-sum-exp over the full vocabulary, on all devices.
        weights_R: Float32 weights; 0 for padding.
        spec: The call's choices.
        block_sizes: How tokens and the vocabulary are divided into blocks.
        vocabulary_size: Rows of `w_VD` that are vocabulary; those after are padding.
        dtype: Of the result; sums are float32.
        interpret: Runs the kernel by an interpreter, on any device.
    """
    num_tokens, width = x_RD.shape
    rows, vocabulary = block_sizes.rows, block_sizes.vocabulary
    row = pl.BlockSpec((1, rows), lambda j, i: (0, i))
    if spec.vocabulary_first:
        shape, block = (
            (vocabulary_size, width),
            pl.BlockSpec((vocabulary, width), lambda j, i: (j, 0)),
        )
    else:
        shape, block = (
            (width, vocabulary_size),
            pl.BlockSpec((width, vocabulary), lambda j, i: (0, j)),
        )
    dw: Array = pl.pallas_call(
        partial(_kernel, spec=spec),
        out_shape=jax.ShapeDtypeStruct(shape, dtype),
        # Words outside, tokens inside: a block of the gradient is summed over all tokens in VMEM,
        # and written once. That is why logits are computed again and not in the forward kernel,
        # whose order is the other one.
        grid=(w_VD.shape[0] // vocabulary, num_tokens // rows),
        in_specs=[
            pl.BlockSpec((rows, width), lambda j, i: (i, 0)),
            pl.BlockSpec((vocabulary, width), lambda j, i: (j, 0)),
            *[row] * 3,
        ],
        out_specs=block,
        scratch_shapes=[pltpu.VMEM((vocabulary, width), jnp.float32)],
        compiler_params=block_sizes.compiler_params(x_RD),
        cost_estimate=Products(2).cost(x_RD, w_VD, block_sizes, is_by_word=True),
        interpret=interpret,
        name="tpu_cross_entropy_backward",
    )(x_RD, w_VD, *(one[None, :] for one in (targets_R, lse_R, weights_R)))
    return dw


def _kernel(
    x_ref: Any,
    w_ref: Any,
    targets_ref: Any,
    lse_ref: Any,
    weights_ref: Any,
    dw_ref: Any,
    sum_ref: Any,
    *,
    spec: CrossEntropySpec,
) -> None:
    j, i = pl.program_id(0), pl.program_id(1)

    @pl.when(i == 0)
    def _() -> None:
        sum_ref[...] = jnp.zeros(sum_ref.shape, jnp.float32)

    logits_WC, slope_WC = capped(matmul(w_ref[...], x_ref[...], ((1,), (1,))), spec)
    word_WC = j * w_ref.shape[0] + lax.broadcasted_iota(jnp.int32, logits_WC.shape, 0)
    lse_1C, weights_1C = lse_ref[...], weights_ref[...]
    factor_1C = weights_1C * (1.0 + 2.0 * spec.z_loss * lse_1C)
    gradient_WC = factor_1C * jnp.exp(logits_WC - lse_1C)
    gradient_WC -= jnp.where(word_WC == targets_ref[...], weights_1C, 0.0)
    gradient_WC = gradient_WC if slope_WC is None else gradient_WC * slope_WC
    # For the product; the difference from 1 at the target was taken in float32.
    gradient_WC = gradient_WC.astype(x_ref.dtype)
    for part in column_chunks(sum_ref.shape[1]):
        sum_ref[:, part] += matmul(gradient_WC, x_ref[:, part], ((1,), (0,)))

    @pl.when(i == pl.num_programs(1) - 1)
    def _() -> None:
        for part in column_chunks(sum_ref.shape[1]):
            dw_WP = sum_ref[:, part]
            if spec.vocabulary_first:
                dw_ref[:, part] = dw_WP.astype(dw_ref.dtype)
            else:
                # Transposed once a block, in VMEM, and not as a copy of the full gradient by
                # XLA.
                dw_ref[part, :] = dw_WP.T.astype(dw_ref.dtype)
