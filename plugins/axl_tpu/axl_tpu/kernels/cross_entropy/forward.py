"""Cross-entropy's forward kernel: what each token needs of all logits, of which a block at a time
is in VMEM, and nothing in memory.

The gradient of `x` needs no second look at the logits but for a factor: the mean of the output
projection's rows by probability is summed up online, as attention sums values. The target's own row
is left out of it, so that its coefficient, which may be near zero, is not a difference of rounded
numbers.

Letters: R tokens, V vocabulary, D width, C tokens of a block, W words of a block.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from axcore.ops import CrossEntropySpec
from axl_tpu.kernels.cross_entropy.block_sizes import CrossEntropyBlockSizes, Products

# Full products of a wide row would be held in VMEM before they are added to the sum.
CHUNK = 512
"""Columns of the mean that are computed at once."""


class TokenParts(NamedTuple):
    """What the vocabulary, or a device's part of it, gives each token; float32 but the mean.

    `target` is 0 where the target is not in that part. `mean` is the mean of the other entries'
    rows by their probability in that part, times the soft cap's slope, in x's dtype.
    """

    lse_R: Array
    target_R: Array
    maximum_R: Array
    mean_RD: Array | None


def token_parts(
    x_RD: Array,
    w_VD: Array,
    targets_R: Array,
    spec: CrossEntropySpec,
    block_sizes: CrossEntropyBlockSizes,
    *,
    vocabulary_size: int,
    with_mean: bool,
    interpret: Any,
) -> TokenParts:
    """Return the parts of all tokens.

    Args:
        x_RD: Tokens, in full blocks.
        w_VD: Output projection of x's dtype, in full blocks.
        targets_R: Where among the rows of `w_VD` a target is; any other number if it is not.
        spec: The call's choices.
        block_sizes: How tokens and the vocabulary are divided into blocks.
        vocabulary_size: Rows of `w_VD` that are vocabulary; those after are padding.
        with_mean: Whether the mean is wanted.
        interpret: Runs the kernel by an interpreter, on any device.
    """
    num_tokens, width = x_RD.shape
    rows, vocabulary = block_sizes.rows, block_sizes.vocabulary
    num_blocks = w_VD.shape[0] // vocabulary
    column = pl.BlockSpec((rows, 1), lambda i, j: (i, 0))
    by_token = pl.BlockSpec((rows, width), lambda i, j: (i, 0))
    number = jax.ShapeDtypeStruct((num_tokens, 1), jnp.float32)
    lse, target, maximum, *mean = pl.pallas_call(
        partial(
            _kernel,
            spec=spec,
            vocabulary_size=vocabulary_size,
            is_padded=vocabulary_size < w_VD.shape[0],
        ),
        out_shape=[*[number] * 3, *[jax.ShapeDtypeStruct(x_RD.shape, x_RD.dtype)] * with_mean],
        grid=(num_tokens // rows, num_blocks),
        in_specs=[by_token, pl.BlockSpec((vocabulary, width), lambda i, j: (j, 0)), column],
        out_specs=[*[column] * 3, *[by_token] * with_mean],
        scratch_shapes=[
            *[pltpu.VMEM((rows, 1), jnp.float32)] * 3,
            *[pltpu.VMEM((rows, width), jnp.float32)] * with_mean,
        ],
        compiler_params=block_sizes.compiler_params(x_RD),
        cost_estimate=Products(1 + with_mean).cost(x_RD, w_VD, block_sizes, is_by_word=False),
        interpret=interpret,
        name="tpu_cross_entropy",
    )(x_RD, w_VD, targets_R[:, None])
    return TokenParts(lse[:, 0], target[:, 0], maximum[:, 0], mean[0] if mean else None)


def _kernel(
    x_ref: Any,
    w_ref: Any,
    targets_ref: Any,
    lse_ref: Any,
    target_ref: Any,
    maximum_ref: Any,
    *refs: Any,
    spec: CrossEntropySpec,
    vocabulary_size: int,
    is_padded: bool,
) -> None:
    has_mean = len(refs) > 3
    mean_ref, (top_ref, total_ref, own_ref, *sum_ref) = refs[:has_mean], refs[has_mean:]
    j = pl.program_id(1)

    @pl.when(j == 0)
    def _() -> None:
        top_ref[...] = jnp.full(top_ref.shape, -jnp.inf, jnp.float32)
        for ref in (total_ref, own_ref, *sum_ref):
            ref[...] = jnp.zeros(ref.shape, jnp.float32)

    logits_CW, slope_CW = capped(matmul(x_ref[...], w_ref[...], ((1,), (1,))), spec)
    word_CW = j * w_ref.shape[0] + lax.broadcasted_iota(jnp.int32, logits_CW.shape, 1)
    if is_padded:
        # After the cap, which would make a finite logit of -inf.
        logits_CW = jnp.where(word_CW < vocabulary_size, logits_CW, -jnp.inf)
    is_target_CW = word_CW == targets_ref[...]
    own_ref[...] += jnp.sum(jnp.where(is_target_CW, logits_CW, 0.0), axis=1, keepdims=True)
    top_C1 = jnp.maximum(top_ref[...], jnp.max(logits_CW, axis=1, keepdims=True))
    # A block of nothing but padding: -inf - -inf is NaN.
    shift_C1 = jnp.where(top_C1 == -jnp.inf, 0.0, top_C1)
    decay_C1 = jnp.exp(top_ref[...] - shift_C1)
    exponentials_CW = jnp.exp(logits_CW - shift_C1)
    total_ref[...] = total_ref[...] * decay_C1 + jnp.sum(exponentials_CW, axis=1, keepdims=True)
    top_ref[...] = top_C1

    for ref in sum_ref:
        # The target is left out here: its coefficient p - 1 is added outside, exactly.
        others_CW = jnp.where(is_target_CW, 0.0, exponentials_CW)
        others_CW = (others_CW if slope_CW is None else others_CW * slope_CW).astype(x_ref.dtype)
        for part in column_chunks(ref.shape[1]):
            ref[:, part] = ref[:, part] * decay_C1 + matmul(others_CW, w_ref[:, part], ((1,), (0,)))

    @pl.when(j == pl.num_programs(1) - 1)
    def _() -> None:
        lse_ref[...] = top_ref[...] + jnp.log(total_ref[...])
        target_ref[...] = own_ref[...]
        maximum_ref[...] = top_ref[...]
        for mean, ref in zip(mean_ref, sum_ref, strict=True):
            mean[...] = (ref[...] / total_ref[...]).astype(mean.dtype)


def capped(logits: Array, spec: CrossEntropySpec) -> tuple[Array, Array | None]:
    """Return capped logits and the cap's slope there; the logits and None without a cap."""
    if spec.soft_cap is None:
        return logits, None
    bent = jnp.tanh(logits / spec.soft_cap)
    return spec.soft_cap * bent, 1.0 - bent * bent


def column_chunks(width: int) -> list[slice]:
    """Return the columns of a block in chunks."""
    return [slice(start, min(start + CHUNK, width)) for start in range(0, width, CHUNK)]


def matmul(a: Array, b: Array, contracting: tuple[tuple[int, ...], tuple[int, ...]]) -> Array:
    """Return a product in float32; of float32 to full precision."""
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return lax.dot_general(
        a, b, (contracting, ((), ())), precision=precision, preferred_element_type=jnp.float32
    )
