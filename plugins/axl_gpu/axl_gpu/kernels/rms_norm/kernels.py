"""The two Hopper kernels of RMS normalisation, forward and backward.

A warp group works on one row after another, in registers, where all arithmetic is float32.

Letters: R rows, D width, P programs.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from axl_gpu.kernels.launch import mosaic_kernel

THREADS = 128
"""Of a warp group."""

AXIS = "program"


def forward_rows(
    x_RD: Array, factor_D: Array, *, epsilon: float, rows: int, interpreter: Any = None
) -> Array:
    """Return `y_RD`, of x's dtype.

    Args:
        x_RD: The rows.
        factor_D: Float32, what normal rows are multiplied by.
        epsilon: Added to the mean square.
        rows: Rows that a program works on, one after another.
        interpreter: Parameters of Pallas' interpreter for Mosaic GPU; None for a GPU.
    """
    load = _loader(x_RD.shape[1], interpreter)

    def body(x: Any, factor: Any, y: Any) -> None:
        factor_D = load(factor, 0)

        def row(r: Array, _: None) -> None:
            x_D = load(x, r)
            y[r] = (x_D * _inverse(x_D, epsilon) * factor_D).astype(y.dtype)

        lax.fori_loop(*_own_rows(rows, x_RD.shape[0]), row, None)

    num_programs = -(-x_RD.shape[0] // rows)
    output = jax.ShapeDtypeStruct(x_RD.shape, x_RD.dtype)
    run = _launch(body, output, "rms_norm", num_programs, interpreter)
    y_RD: Array = run(x_RD, factor_D[None])
    return y_RD


def backward_rows(
    x_RD: Array,
    factor_D: Array,
    dy_RD: Array,
    *,
    epsilon: float,
    rows: int,
    interpreter: Any = None,
) -> tuple[Array, Array]:
    """Return `dx_RD`, of x's dtype, and `dfactor_PD`, float32, of which the sum is wanted.

    Args:
        x_RD: The rows.
        factor_D: As of `forward_rows`.
        dy_RD: The gradient of the result, of x's dtype.
        epsilon: Added to the mean square.
        rows: Rows that a program works on, one after another.
        interpreter: Parameters of Pallas' interpreter for Mosaic GPU; None for a GPU.
    """
    num_rows, width = x_RD.shape
    load = _loader(width, interpreter)

    def body(x: Any, factor: Any, dy: Any, dx: Any, dfactor: Any) -> None:
        factor_D = load(factor, 0)

        def row(r: Array, total_D: Array) -> Array:
            x_D, dy_D = load(x, r), load(dy, r)
            inverse = _inverse(x_D, epsilon)
            normal_D, gradient_D = x_D * inverse, dy_D * factor_D
            along = jnp.sum(gradient_D * normal_D) * (1.0 / width)
            # With the mean of `dy factor x` taken out, along which normal rows do not change.
            dx[r] = (inverse * (gradient_D - normal_D * along)).astype(dx.dtype)
            return total_D + dy_D * normal_D

        # Zeros made of `factor_D` have its layout, which those of `jnp.zeros` would not, and a
        # loop's carry keeps one layout.
        total_D = lax.fori_loop(*_own_rows(rows, num_rows), row, factor_D * 0.0)
        dfactor[lax.axis_index(AXIS)] = total_D

    num_programs = -(-num_rows // rows)
    outputs = (
        jax.ShapeDtypeStruct(x_RD.shape, x_RD.dtype),
        jax.ShapeDtypeStruct((num_programs, width), jnp.float32),
    )
    run = _launch(body, outputs, "rms_norm_gradients", num_programs, interpreter)
    dx_RD, dfactor_PD = run(x_RD, factor_D[None], dy_RD)
    return dx_RD, dfactor_PD


def _loader(width: int, interpreter: Any) -> Callable[[Any, Any], Array]:
    """Return what loads a row in float32, spread over threads alike whatever it is stored as."""
    # Four numbers are 16 bytes of float32, the widest load of a thread. The same for every dtype,
    # so that rows of 16 bits and the factor of 32 meet in one layout.
    each = 4 if width % (4 * THREADS) == 0 else 2

    def load(rows: Any, r: Any) -> Array:
        if interpreter:
            row: Array = rows[r]
        else:
            layout = plgpu.Layout.WG_STRIDED((width,), vec_size=each)
            row = plgpu.load(rows, (r,), layout=layout)
        return row.astype(jnp.float32)

    return load


def _inverse(x_D: Array, epsilon: float) -> Array:
    mean_square = jnp.sum(x_D * x_D) * (1.0 / x_D.shape[0])
    return lax.rsqrt(mean_square + epsilon)


def _own_rows(rows: int, num_rows: int) -> tuple[Array, Array]:
    first = lax.axis_index(AXIS) * rows
    return first, jnp.minimum(first + rows, num_rows)


def _launch(body: Any, outputs: Any, name: str, num_programs: int, interpreter: Any) -> Any:
    run = mosaic_kernel(
        body,
        outputs,
        grid=(num_programs,),
        grid_names=(AXIS,),
        interpret=interpreter,
        kernel_name=name,
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )
    return jax.custom_batching.sequential_vmap(run)
