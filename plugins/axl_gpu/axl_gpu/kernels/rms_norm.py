"""RMS normalisation on Hopper GPUs by kernels of our own, forward and backward.

There is one form of them, which is both interpreted and compiled. Backward computes each row's mean
square again from `x`, which it reads anyway, so the forward pass leaves nothing but its inputs.

Letters: R rows, D width, P programs.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import attrs
import jax
import jax.numpy as jnp
from jax import Array

from axcore.ops import Call, TileTable, choose_tiles
from axcore.parallel import rows_on_each_device
from axcore.plugins import Hardware
from axl_gpu.kernels.rms_norm_kernels import backward_rows, forward_rows

DTYPES = ("bfloat16", "float16", "float32")
WIDTHS = 256
"""The width is a multiple of it: two numbers for each thread of a warp group."""

MAX_WIDTH = 8192
"""Wider rows do not fit the registers of a warp group."""


@attrs.frozen(kw_only=True)
class RmsNormTiles:
    """The sizes that the kernels work in.

    Args:
        rows: Rows that a program works on, one after another.
        backward_rows: The same in the backward pass, which writes a row for each program.
    """

    rows: int
    backward_rows: int


def default_tiles(call: Call, hardware: Hardware) -> RmsNormTiles:
    """Returns sizes that give each multiprocessor several programs at usual sizes."""
    return RmsNormTiles(rows=4, backward_rows=16)


def candidates(call: Call, hardware: Hardware) -> Iterator[RmsNormTiles]:
    """Yields what may be fastest."""
    for rows in (1, 2, 4, 8, 16):
        yield RmsNormTiles(rows=rows, backward_rows=4 * rows)


TILES = TileTable(
    kernel="rms_norm/gpu_rms_norm",
    package="axl_gpu.kernels",
    default=default_tiles,
    candidates=candidates,
    bucket=lambda call: {"width": call.shape("x")[-1], "dtype": call.dtype("x")},
)


def accepts(call: Call) -> str | None:
    """Returns None where the kernels can serve the call, else the reason why not."""
    for name in ("x", "scale"):
        if call.has(name) and call.dtype(name) not in DTYPES:
            return f"takes {name} of {', '.join(DTYPES)}, not {call.dtype(name)}"
    if 0 in call.shape("x"):
        return f"takes no empty array, not x {call.shape('x')}"
    width = call.shape("x")[-1]
    if width % WIDTHS or width > MAX_WIDTH:
        return f"takes widths that are multiples of {WIDTHS} up to {MAX_WIDTH}, not {width}"
    return None


class Kernels(NamedTuple):
    """Functions like `forward_rows` and `backward_rows`."""

    forward: Callable[..., Array]
    backward: Callable[..., tuple[Array, Array]]


KERNELS = Kernels(forward_rows, backward_rows)


class _How(NamedTuple):
    epsilon: float
    tiles: RmsNormTiles
    kernels: Kernels


def gpu_rms_norm(
    x: Array,
    scale_D: Array | None,
    epsilon: float,
    scale_offset: float,
    *,
    kernels: Kernels = KERNELS,
) -> Array:
    """Returns the normalised `x` in its dtype; all arithmetic is float32.

    Forward reads `x` and writes the result; backward reads `x` and the result's gradient, writes
    the gradient of `x`, and for each program a row that is summed up to the gradient of the scale.

    Args:
        x: `[..., D]` of a call that `accepts` takes.
        scale_D: The scale, or none.
        epsilon: Added to the mean square.
        scale_offset: Added to the scale.
        kernels: Both kernels, or what stands in for them where there is no GPU.
    """
    tiles = choose_tiles(TILES, Call.of("rms_norm", {"x": x}, {}))
    how = _How(epsilon, tiles, kernels)

    def normalise(x: Array, *scale: Array) -> Array:
        factor = scale_offset + scale[0].astype(jnp.float32) if scale else jnp.ones(x.shape[-1:])
        y_RD = _normalised(x.reshape(-1, x.shape[-1]), factor, how)
        return y_RD.reshape(x.shape)

    return rows_on_each_device(normalise, x, *(() if scale_D is None else (scale_D,)))


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _normalised(x_RD: Array, factor_D: Array, how: _How) -> Array:
    return how.kernels.forward(x_RD, factor_D, epsilon=how.epsilon, rows=how.tiles.rows)


_Residuals = tuple[Array, Array]


def _forward(x_RD: Array, factor_D: Array, how: _How) -> tuple[Array, _Residuals]:
    return _normalised(x_RD, factor_D, how), (x_RD, factor_D)


def _backward(how: _How, residuals: _Residuals, dy_RD: Array) -> tuple[Array, Array]:
    dx_RD, dfactor_PD = how.kernels.backward(
        *residuals, dy_RD, epsilon=how.epsilon, rows=how.tiles.backward_rows
    )
    return dx_RD, jnp.sum(dfactor_PD, axis=0)


_normalised.defvjp(_forward, _backward)
