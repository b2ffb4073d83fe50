"""The cross-entropy op by NKI kernels: output projection and loss, forward and backward.

No logit is ever written to HBM. What is kept for backward is three numbers a token.

Letters: B all leading dimensions but the last, T time, D width, V vocabulary; N tokens, R tokens of
a group, M groups.
"""

from functools import partial
from typing import cast

import attrs
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from axcore.ops import Call, CrossEntropyInputs, CrossEntropySpec, CrossEntropySums
from axl_trainium.calling import call_kernel, float32_like
from axl_trainium.kernels.cross_entropy_backward import cross_entropy_dw, cross_entropy_dx
from axl_trainium.kernels.cross_entropy_forward import LOWEST, cross_entropy_forward
from axl_trainium.limits import PARTITIONS, SBUF_PARTITION_BYTES, why_not_dtype
from axl_trainium.row_tiles import tiled, untiled

LAST_TARGET = 2**24
"""Targets up to here are exact in float32."""

WORKING_BYTES = 24 * 1024
"""Of a partition of SBUF, for what does not grow with the width."""


@attrs.frozen(kw_only=True)
class CrossEntropyTiles:
    """How much of a call is on the chip at once.

    Args:
        tokens: Tokens that one read of the projection serves, a multiple of 128.
        columns: Columns of the projection that are read at once.
    """

    tokens: int
    columns: int

    def bytes_of_partition(self, width: int, itemsize: int) -> int:
        """Returns the bytes of a partition of SBUF that either backward kernel needs."""
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
    """Returns the first choice that fits the memory; None where the width is too large for all."""
    itemsize = jnp.dtype(dtype).itemsize
    fitting = (
        tiles
        for tiles in CHOICES
        if tiles.bytes_of_partition(width, itemsize) <= SBUF_PARTITION_BYTES
    )
    return next(fitting, None)


def accepts(call: Call) -> str | None:
    """Returns None where the kernels can serve the call, else the reason why not."""
    x, w = call.shape("x"), call.shape("w")
    if 0 in (*x, *w):
        return f"takes one token, column and word or more, not x {x} and w {w}"
    vocabulary = w[0 if call.feature("vocabulary_first") else 1]
    if vocabulary > LAST_TARGET:
        return f"takes vocabularies up to {LAST_TARGET}, not {vocabulary}"
    reason = why_not_dtype(call.dtype("x"))
    if reason is None and tiles_for(x[-1], call.dtype("x")) is None:
        return f"takes widths whose gradients fit SBUF, not {x[-1]} in {call.dtype('x')}"
    return reason


def nki_cross_entropy(inputs: CrossEntropyInputs, spec: CrossEntropySpec) -> CrossEntropySums:
    """Returns the sums; see `axcore.ops.cross_entropy_sums`.

    Products take x's dtype and accumulate in float32; all else is float32. Cost: the products of
    the projection once forward and twice more backward, beside those of the two gradients; the
    projection is turned in HBM once.
    """
    loss, z_loss, correct = _sums(spec, inputs)
    return CrossEntropySums(
        loss=loss,
        weight=jnp.sum(inputs.weights_BT.astype(jnp.float32)),
        z_loss=lax.stop_gradient(z_loss),
        correct=lax.stop_gradient(correct),
    )


_Outputs = tuple[Array, Array, Array]
_Residuals = tuple[CrossEntropyInputs, Array, Array]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sums(spec: CrossEntropySpec, inputs: CrossEntropyInputs) -> _Outputs:
    """Returns loss, z-loss and correct tokens, each summed by weight."""
    return _forward(spec, inputs)[0]


def _forward(spec: CrossEntropySpec, inputs: CrossEntropyInputs) -> tuple[_Outputs, _Residuals]:
    tiles = _tiles(inputs)
    x_MRD, target_MR1 = _grouped(inputs, tiles.tokens)
    statistics_MR3 = call_kernel(
        cross_entropy_forward,
        float32_like(*x_MRD.shape[:2], 3),
        x_MRD,
        _projection(inputs, spec),
        target_MR1,
        soft_cap=spec.soft_cap,
        block=tiles.columns,
    )
    num_tokens = inputs.targets_BT.size
    columns = statistics_MR3.reshape(-1, 3)[:num_tokens].T
    lse, target, largest = columns
    target = jnp.where(target <= LOWEST, -jnp.inf, target)
    z_loss = spec.z_loss * jnp.square(lse)
    loss = lse - target + z_loss
    weights = inputs.weights_BT.astype(jnp.float32).reshape(-1)
    correct = (target >= largest).astype(jnp.float32)
    sums = tuple(jnp.sum(weights * part) for part in (loss, z_loss, correct))
    return cast(_Outputs, sums), (inputs, lse, loss)


def _backward(
    spec: CrossEntropySpec, residuals: _Residuals, gradients: _Outputs
) -> tuple[CrossEntropyInputs]:
    inputs, lse, loss = residuals
    tiles = _tiles(inputs)
    weights = gradients[0] * inputs.weights_BT.astype(jnp.float32).reshape(-1)
    factor = weights * (1.0 + 2.0 * spec.z_loss * lse)
    token = jnp.stack([-lse, factor, -weights], axis=-1)
    x_MRD, target_MR1 = _grouped(inputs, tiles.tokens)
    w_DV = _projection(inputs, spec)
    choices = {"soft_cap": spec.soft_cap, "block": tiles.columns}
    dx_MRD = call_kernel(
        cross_entropy_dx,
        jax.ShapeDtypeStruct(x_MRD.shape, x_MRD.dtype),
        x_MRD,
        w_DV,
        w_DV.T,
        target_MR1,
        tiled(token, tiles.tokens),
        **choices,
    )
    x_MRD, target_MR1 = _grouped(inputs, PARTITIONS)
    dw_DV = call_kernel(
        cross_entropy_dw,
        float32_like(*w_DV.shape),
        x_MRD,
        w_DV,
        target_MR1,
        tiled(token, PARTITIONS),
        **choices,
    )
    dw = dw_DV.T if spec.vocabulary_first else dw_DV
    dweights = (gradients[0] * loss).astype(inputs.weights_BT.dtype)
    given = CrossEntropyInputs(
        x_BTD=untiled(dx_MRD, inputs.x_BTD.shape, num_rows=inputs.targets_BT.size),
        w=dw.astype(inputs.w.dtype),
        targets_BT=cast(Array, np.zeros(inputs.targets_BT.shape, jax.dtypes.float0)),
        weights_BT=dweights.reshape(inputs.weights_BT.shape),
    )
    return (given,)


_sums.defvjp(_forward, _backward)


def _tiles(inputs: CrossEntropyInputs) -> CrossEntropyTiles:
    tiles = tiles_for(inputs.x_BTD.shape[-1], inputs.x_BTD.dtype.name)
    assert tiles is not None
    return tiles


def _projection(inputs: CrossEntropyInputs, spec: CrossEntropySpec) -> Array:
    """Returns the projection `[D, V]` in x's dtype."""
    w = inputs.w.astype(inputs.x_BTD.dtype)
    return w.T if spec.vocabulary_first else w


def _grouped(inputs: CrossEntropyInputs, group: int) -> tuple[Array, Array]:
    """Returns tokens `[M, R, D]` and targets `[M, R, 1]`, float32; zeros fill the last group."""
    x_ND = inputs.x_BTD.reshape(-1, inputs.x_BTD.shape[-1])
    target_N1 = inputs.targets_BT.astype(jnp.float32).reshape(-1, 1)
    return tiled(x_ND, group), tiled(target_N1, group)
