"""The cross-entropy op by NKI kernels: output projection and loss, forward and backward.

No logit is ever written to HBM. What is kept for backward is one number a token.

Letters: B all leading dimensions but the last, T time, D width, V vocabulary; N tokens.
"""

from typing import Any, cast

import attrs
import jax.numpy as jnp
from jax import Array

from axcore.ops import Call, CrossEntropySpec, CrossEntropyTokens, TokenStatistics
from axl_trainium.calling import call_kernel, float32_like, tiled, untiled
from axl_trainium.hardware import PARTITIONS, SBUF_PARTITION_BYTES, unsupported_dtype_reason
from axl_trainium.kernels.cross_entropy.nki_backward import cross_entropy_dw, cross_entropy_dx
from axl_trainium.kernels.cross_entropy.nki_forward import LOWEST, cross_entropy_forward

LAST_TARGET = 2**24
"""Targets up to here are exact in float32."""


WORKING_BYTES = 24 * 1024
"""Of a partition of SBUF, for what does not grow with the width."""


@attrs.frozen(kw_only=True)
class CrossEntropyTiles:
    """Block sizes of the kernels.

    Args:
        tokens: Tokens that one read of the projection serves, a multiple of 128.
        columns: Columns of the projection that are read at once, at most 512.
    """

    tokens: int
    columns: int

    def bytes_of_partition(self, width: int, itemsize: int) -> int:
        """Return the bytes of a partition of SBUF that the larger backward kernel needs."""
        chunks = -(-width // PARTITIONS)
        block = chunks * self.columns
        row_blocks = -(-self.columns // PARTITIONS) * width
        tiles = self.tokens // PARTITIONS
        by_tokens = tiles * width * 4 + itemsize * (chunks * self.tokens + block + row_blocks)
        by_columns = block * 4 + itemsize * (block + chunks * PARTITIONS)
        return max(by_tokens, by_columns) + itemsize * width + WORKING_BYTES


CHOICES = sorted(
    (
        CrossEntropyTiles(tokens=tiles * PARTITIONS, columns=columns)
        for tiles in (1, 2, 4, 8)
        for columns in (128, 256, 512)
    ),
    key=lambda tiles: (min(tiles.tokens, tiles.columns), tiles.tokens),
    reverse=True,
)
"""Best first: the more columns and tokens, the more products for each byte that is read."""


def tiles_for(width: int, dtype: str) -> CrossEntropyTiles | None:
    """Return the first choice that fits the memory; None where the width is too large for all."""
    itemsize = jnp.dtype(dtype).itemsize
    fitting = (
        tiles
        for tiles in CHOICES
        if tiles.bytes_of_partition(width, itemsize) <= SBUF_PARTITION_BYTES
    )
    return next(fitting, None)


def unsupported_reason(call: Call) -> str | None:
    """Return None where the kernels can serve the call, else the reason why not."""
    x, w = call.shape("x"), call.shape("w")
    if 0 in (*x, *w):
        return f"takes one token, column and word or more, not x {x} and w {w}"
    vocabulary = w[0 if call.feature("vocabulary_first") else 1]
    if vocabulary > LAST_TARGET:
        return f"takes vocabularies up to {LAST_TARGET}, not {vocabulary}"
    reason = unsupported_dtype_reason(call.dtype("x"))
    if reason is None and tiles_for(x[-1], call.dtype("x")) is None:
        return f"takes widths whose gradients fit SBUF, not {x[-1]} in {call.dtype('x')}"
    return reason


def nki_cross_entropy(inputs: CrossEntropyTokens, spec: CrossEntropySpec) -> TokenStatistics:
    """Return what the logits give each token.

    Products take x's dtype and accumulate in float32; all else is float32.
    """
    tiles, target_N1 = _tiles(inputs), _targets(inputs)
    x_MRD = tiled(inputs.x_BTD, tiles.tokens)
    statistics_MR3 = call_kernel(
        cross_entropy_forward,
        float32_like(*x_MRD.shape[:2], 3),
        x_MRD,
        _projection(inputs, spec),
        tiled(target_N1, tiles.tokens),
        soft_cap=spec.soft_cap,
        block=tiles.columns,
    )
    num_tokens = len(target_N1)
    statistics_3N = untiled(statistics_MR3, (num_tokens, 3), num_rows=num_tokens).T
    lse, target, largest = (one.reshape(inputs.targets_BT.shape) for one in statistics_3N)
    # A logit of -inf is lower than what the kernel begins with; its loss has to be infinite.
    target = jnp.where(target <= LOWEST, -jnp.inf, target)
    return TokenStatistics(largest, lse, jnp.where(inputs.targets_BT < 0, 0.0, target))


def nki_cross_entropy_backward(
    inputs: CrossEntropyTokens,
    spec: CrossEntropySpec,
    *,
    lse_BT: Array,
    scale_BT: Array,
    **unused: Array | None,
) -> CrossEntropyTokens:
    """Return the gradients of `x` and `w`, float32.

    Cost: the products of the projection twice, in addition to those of the gradients; the
        projection is
    transposed in HBM once.
    """
    factor_BT = scale_BT * (1.0 + 2.0 * spec.z_loss * lse_BT)
    token_N3 = jnp.stack([-lse_BT, factor_BT, -scale_BT], axis=-1).reshape(-1, 3)
    tiles, target_N1 = _tiles(inputs), _targets(inputs)
    x, w_DV = inputs.x_BTD, _projection(inputs, spec)
    choices: dict[str, Any] = {"soft_cap": spec.soft_cap, "block": tiles.columns}
    x_MRD = tiled(x, tiles.tokens)
    rows = (tiled(target_N1, tiles.tokens), tiled(token_N3, tiles.tokens))
    dx_like = float32_like(*x_MRD.shape)
    # The projection both ways round, as each product wants what it sums over on partitions;
    # transposed block by block, it would be transposed again for every group of tokens.
    dx_MRD = call_kernel(cross_entropy_dx, dx_like, x_MRD, w_DV, w_DV.T, *rows, **choices)
    dw_DV = call_kernel(
        cross_entropy_dw,
        float32_like(*w_DV.shape),
        # Tokens are what this product sums over, so they are on partitions, 128 at once.
        tiled(x, PARTITIONS),
        w_DV,
        tiled(target_N1, PARTITIONS),
        tiled(token_N3, PARTITIONS),
        **choices,
    )
    dx = untiled(dx_MRD, x.shape, num_rows=len(token_N3))
    return CrossEntropyTokens(dx, dw_DV.T if spec.vocabulary_first else dw_DV, cast(Array, None))


def _tiles(inputs: CrossEntropyTokens) -> CrossEntropyTiles:
    tiles = tiles_for(inputs.x_BTD.shape[-1], inputs.x_BTD.dtype.name)
    assert tiles is not None
    return tiles


def _targets(inputs: CrossEntropyTokens) -> Array:
    return inputs.targets_BT.astype(jnp.float32).reshape(-1, 1)


def _projection(inputs: CrossEntropyTokens, spec: CrossEntropySpec) -> Array:
    rounded = inputs.w.astype(inputs.x_BTD.dtype)
    return rounded.T if spec.vocabulary_first else rounded
