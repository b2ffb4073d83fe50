"""The decode-matmul op: a few rows times a weight, which is read once and may be kept narrow.

Letters: R rows, K input, N output; G groups of K that share a scale in each column; P panels of C
columns.
"""

import attrs
import jax.numpy as jnp
from jax import Array

from axcore.errors import KernelError
from axcore.ops.decode_matmul.sharding import decode_matmul_sharding
from axcore.ops.decode_matmul.types import INT4_PAIRS, DecodeMatmulInputs, DecodeMatmulSpec
from axcore.ops.dispatch.call import Call
from axcore.ops.dispatch.kernel_op import KernelOp
from axcore.ops.dispatch.kernel_result import ResultSpec


def _results(inputs: DecodeMatmulInputs, spec: DecodeMatmulSpec) -> ResultSpec:
    x_RK, weight, _ = inputs
    width = spec.out_dim or weight.shape[0 if spec.transposed else 1]
    return ResultSpec("y_RN", (x_RK.shape[0], width), x_RK.dtype.name)


DECODE_MATMUL_OP = KernelOp(name="decode_matmul", sharding=decode_matmul_sharding, results=_results)

NARROW = ("int8", INT4_PAIRS, "float8_e4m3fn")


def decode_matmul(
    x_RK: Array,
    weight: Array,
    scale_GN: Array | None = None,
    *,
    transposed: bool = False,
    out_dim: int | None = None,
) -> Array:
    """Return `y_RN = x @ weight`, or `x @ (values * scale)`, in x's dtype.

    It is the product of a model that serves, whose rows are often so few that to read the weight
    takes longer than to compute with it. Accumulates in float32. It has no gradient but by kernels
    that JAX differentiates, and is not split over a mesh.

    Args:
        x_RK: Floating.
        weight: `[K, N]`, `[N, K]` if transposed, or `[P, K, C]` as `in_panels` gives it, of x's
            dtype. With a scale its values `[K, N]`: int8 or float8, or uint8 `[K / 2, N]` with two
            numbers of int4 in each byte, where row `k` has the low half of byte `k` and row
            `k + K / 2` the high one.
        scale_GN: float32, for `G` groups of rows of each column.
        transposed: Whether the weight has its rows for outputs. It is wide then.
        out_dim: N, of a weight in panels.

    Raises:
        KernelError: Shapes or dtypes do not fit, or no kernel can serve the call.
    """
    inputs = DecodeMatmulInputs(x_RK, weight, scale_GN)
    spec = DecodeMatmulSpec(transposed=transposed, out_dim=out_dim)
    _check(inputs, spec)
    y_RN: Array = DECODE_MATMUL_OP.run(decode_matmul_call(inputs, spec), inputs, spec)
    return y_RN


def decode_matmul_call(inputs: DecodeMatmulInputs, spec: DecodeMatmulSpec) -> Call:
    """Return the call that kernels are asked about: arrays `x`, `weight` and `scale`."""
    arrays = {name.partition("_")[0]: array for name, array in inputs._asdict().items()}
    return Call.of(DECODE_MATMUL_OP.name, arrays, attrs.asdict(spec))


def _check(inputs: DecodeMatmulInputs, spec: DecodeMatmulSpec) -> None:
    x, weight, scale = inputs
    is_matrix, is_in_panels = weight.ndim == 2, weight.ndim == 3 and spec.out_dim is not None
    fits = (is_matrix and spec.out_dim is None) or (is_in_panels and not spec.transposed)
    if not (x.ndim == 2 and fits and jnp.issubdtype(x.dtype, jnp.floating)):
        raise KernelError(
            f"decode_matmul: x is {x.dtype} of shape {x.shape}, the weight of shape "
            f"{weight.shape}, out_dim {spec.out_dim}; expected floating (rows, in), and a matrix "
            "without out_dim or panels (panels, in, columns) with it."
        )
    depth = weight.shape[1 if spec.transposed or is_in_panels else 0]
    depth *= 2 if weight.dtype == INT4_PAIRS else 1
    if depth != x.shape[1]:
        raise KernelError(
            f"decode_matmul: x has shape {x.shape}, and the weight {weight.shape} takes rows of "
            f"{depth}."
        )
    if spec.out_dim is not None and not 0 < spec.out_dim <= weight.shape[0] * weight.shape[2]:
        raise KernelError(
            f"decode_matmul: out_dim is {spec.out_dim}; the panels {weight.shape} have 1 to "
            f"{weight.shape[0] * weight.shape[2]} columns."
        )
    if scale is None:
        if weight.dtype != x.dtype:
            raise KernelError(
                f"decode_matmul: x is {x.dtype} and the weight {weight.dtype}; expected one dtype.",
                hint="cast both to the compute dtype, or give the scale of a narrow weight",
            )
        return
    if str(weight.dtype) not in NARROW or spec.transposed or is_in_panels:
        raise KernelError(
            f"decode_matmul: there is a scale, and the weight is {weight.dtype} of shape "
            f"{weight.shape}{', transposed' if spec.transposed else ''}; expected a matrix of "
            f"{' or '.join(NARROW)}, not transposed."
        )
    matches = scale.ndim == 2 and scale.shape[1] == weight.shape[1]
    if not matches or depth % scale.shape[0] or scale.dtype != jnp.float32:
        raise KernelError(
            f"decode_matmul: the scale is {scale.dtype} of shape {scale.shape}; expected float32 "
            f"(groups, {weight.shape[1]}), of groups that divide {depth}."
        )
