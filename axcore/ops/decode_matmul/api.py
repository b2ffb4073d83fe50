"""The decode-matmul op: a few rows times a weight, which is read once and may be kept narrow.

Letters: R rows, K input, N output; G groups of K that share a scale in each column.
"""

import attrs
import jax.numpy as jnp
from jax import Array

from axcore.errors import KernelError
from axcore.ops.decode_matmul.sharding import decode_matmul_sharding
from axcore.ops.decode_matmul.types import INT4_PAIRS, DecodeMatmulInputs, DecodeMatmulSpec
from axcore.ops.dispatch.call import Call
from axcore.ops.dispatch.kernel_op import KernelOp

DECODE_MATMUL_OP = KernelOp(name="decode_matmul", sharding=decode_matmul_sharding)

NARROW = ("int8", INT4_PAIRS, "float8_e4m3fn")


def decode_matmul(
    x_RK: Array, weight: Array, scale_GN: Array | None = None, *, transposed: bool = False
) -> Array:
    """Return `y_RN = x @ weight`, or `x @ (values * scale)`, in x's dtype.

    Rows are those of a step that draws tokens: one or a few, so that reading the weight takes
    longer than to compute with it. Accumulates in float32. It has no gradient but by kernels that
    JAX differentiates, and is not split over a mesh.

    Args:
        x_RK: Floating.
        weight: `[K, N]`, or `[N, K]` if transposed, of x's dtype. With a scale its values: int8 or
            float8, or uint8 `[K / 2, N]` with two numbers of int4 in each byte, where row `k` has
            the low half of byte `k` and row `k + K / 2` the high one.
        scale_GN: float32, for `G` groups of rows of each column.
        transposed: Whether the weight has its rows for outputs. It is wide then.

    Raises:
        KernelError: Shapes or dtypes do not fit, or no kernel can serve the call.
    """
    inputs, spec = DecodeMatmulInputs(x_RK, weight, scale_GN), DecodeMatmulSpec(transposed=transposed)
    _check(inputs, spec)
    y_RN: Array = DECODE_MATMUL_OP.run(decode_matmul_call(inputs, spec), inputs, spec)
    return y_RN


def decode_matmul_call(inputs: DecodeMatmulInputs, spec: DecodeMatmulSpec) -> Call:
    """Return the call that kernels are asked about: arrays `x`, `weight` and `scale`."""
    arrays = {name.partition("_")[0]: array for name, array in inputs._asdict().items()}
    return Call.of(DECODE_MATMUL_OP.name, arrays, attrs.asdict(spec))


def _check(inputs: DecodeMatmulInputs, spec: DecodeMatmulSpec) -> None:
    x, weight, scale = inputs
    if not (x.ndim == weight.ndim == 2 and jnp.issubdtype(x.dtype, jnp.floating)):
        raise KernelError(
            f"decode_matmul: x is {x.dtype} of shape {x.shape}, the weight of shape "
            f"{weight.shape}; expected matrices, x floating."
        )
    depth = weight.shape[1 if spec.transposed else 0] * (2 if weight.dtype == INT4_PAIRS else 1)
    if depth != x.shape[1]:
        raise KernelError(
            f"decode_matmul: x has shape {x.shape}, and the weight {weight.shape} takes rows of "
            f"{depth}."
        )
    if scale is None:
        if weight.dtype != x.dtype:
            raise KernelError(
                f"decode_matmul: x is {x.dtype} and the weight {weight.dtype}; expected one dtype.",
                hint="cast both to the compute dtype, or give the scale of a narrow weight",
            )
        return
    if str(weight.dtype) not in NARROW or spec.transposed:
        raise KernelError(
            f"decode_matmul: there is a scale, and the weight is {weight.dtype}"
            f"{', transposed' if spec.transposed else ''}; expected one of {', '.join(NARROW)}, "
            "not transposed."
        )
    fits = scale.ndim == 2 and scale.shape[1] == weight.shape[1]
    if not fits or depth % scale.shape[0] or scale.dtype != jnp.float32:
        raise KernelError(
            f"decode_matmul: the scale is {scale.dtype} of shape {scale.shape}; expected float32 "
            f"(groups, {weight.shape[1]}), of groups that divide {depth}."
        )
