"""Plain JAX in place of our GPU kernels: for meshes and remat, which their interpreter lacks."""

import jax
import jax.numpy as jnp
from axl_gpu.kernels.cross_entropy import api as cross_entropy
from axl_gpu.kernels.cross_entropy.kernels import Statistics, capped, gradient, online
from axl_gpu.kernels.grouped_matmul.api import Kernels
from jax import lax

from axcore.ops import GroupedMatmulInputs
from axcore.ops.grouped_matmul.kernels import grouped_matmul_reference


def _rows_of_groups(x_RD, w, groups, *, is_transposed, block_sizes):
    w_EDF = jnp.swapaxes(w, 1, 2) if is_transposed else w
    sizes_E = groups.end_E - groups.start_E
    return grouped_matmul_reference(GroupedMatmulInputs(x_RD, w_EDF, sizes_E))


def _matrices_of_groups(x_RD, dy_RF, groups, *, block_sizes):
    row = jnp.arange(x_RD.shape[0])[None]
    is_in = (row >= groups.start_E[:, None]) & (row < groups.end_E[:, None])
    wide = (one.astype(jnp.float32) for one in (is_in, x_RD, dy_RF))
    return jnp.einsum("er,rd,rf->edf", *wide).astype(x_RD.dtype)


PLAIN_GROUPED = Kernels(_rows_of_groups, _matrices_of_groups)


def _logits(x_RD, words):
    w_DV = words.w.T if words.is_transposed else words.w
    return jnp.matmul(x_RD, w_DV, preferred_element_type=jnp.float32)


def _statistics(x_RD, words, targets_R, spec, *, block_sizes):
    value_RV, _ = capped(_logits(x_RD, words), spec)
    word = jnp.arange(value_RV.shape[1])[None]
    value_RV = jnp.where(word < words.vocabulary_size, value_RV, -jnp.inf)
    nothing = jnp.zeros(targets_R.shape)
    state = (nothing - jnp.inf, nothing, nothing)
    return Statistics(*(one[None] for one in online(state, value_RV, word == targets_R[:, None])))


def _logit_gradients(x_RD, words, tokens, spec, *, first_block, num_blocks, block_sizes):
    targets_R, *numbers = tokens
    word = jnp.arange(words.w.shape[0 if words.is_transposed else 1])[None]
    found = gradient(_logits(x_RD, words), word == targets_R[:, None], tuple(numbers), spec)
    found = jnp.where(word < words.vocabulary_size, found, 0.0).astype(x_RD.dtype)
    size = num_blocks * block_sizes.block_vocabulary
    found = jnp.pad(found, ((0, 0), (0, size)))
    return lax.dynamic_slice_in_dim(found, first_block * block_sizes.block_vocabulary, size, axis=1)


PLAIN_CROSS_ENTROPY = cross_entropy.Kernels(_statistics, _logit_gradients)


def _forward_rows(x_RD, factor_D, *, epsilon, rows):
    wide_RD = x_RD.astype(jnp.float32)
    square_R1 = jnp.mean(wide_RD * wide_RD, axis=1, keepdims=True)
    return (wide_RD * lax.rsqrt(square_R1 + epsilon) * factor_D[None]).astype(x_RD.dtype)


def _backward_rows(x_RD, factor_D, dy_RD, *, epsilon, rows):
    def forward(x_RD, factor_D):
        return _forward_rows(x_RD, factor_D, epsilon=epsilon, rows=rows)

    dx_RD, dfactor_D = jax.vjp(forward, x_RD, factor_D)[1](dy_RD)
    return dx_RD, dfactor_D[None]


PLAIN_RMS_NORM = (_forward_rows, _backward_rows)


def plain_float8_matmul(lhs_RK, rhs_NK, scale, *, dtype, block_sizes):
    """Float8 operands converted to float32, multiplied, scaled and rounded."""
    wide = (one.astype(jnp.float32) for one in (lhs_RK, rhs_NK))
    return (scale * jnp.einsum("rk,nk->rn", *wide)).astype(dtype)
