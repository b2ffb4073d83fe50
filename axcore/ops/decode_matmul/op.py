"""The decode-matmul op: a few rows times a weight, in full or low precision, or packed.

A weight in panels has some columns after the other, each of which is stored together. Whoever reads
some columns of a matrix at a time, to keep their sums in registers, then reads memory in its order.

Letters: R rows, K input, N output; G groups of K that share a scale in each column; P panels of C
columns.
"""

from typing import Any, NamedTuple

import attrs
import jax
import jax.numpy as jnp
from jax import Array

from axcore.errors import KernelError
from axcore.ops.dispatch import Call, choose, current_policy
from axcore.ops.op import KernelOp, ResultSpec
from axcore.parallel.shard_op import OpSharding, axes

INT4_PAIRS = "uint8"
"""Dtype of weights in int4: two numbers share a byte."""


class DecodeMatmulInputs(NamedTuple):
    """The arrays of one call, a pytree.

    The weight is `[K, N]`, `[N, K]` where it is transposed, or `[P, K, C]` in panels. One in
    low precision has a scale; in int4 it is `[K / 2, N]`: row `k` of it has the low halves of
    bytes, row `k + K / 2` the high ones. The scale of one in panels is in panels, too; that of one
    that is transposed is `[N, 1]`.
    """

    x_RK: Array
    weight: Array
    scale: Array | None = None


@attrs.frozen(kw_only=True)
class DecodeMatmulSpec:
    """The static choices of one call; hashable. `out_dim` is N of a weight in panels."""

    transposed: bool = False
    out_dim: int | None = None


def decode_matmul_sharding(inputs: DecodeMatmulInputs, spec: DecodeMatmulSpec) -> OpSharding:
    """Return how a call is split: not at all; on a mesh, layers leave products to the compiler."""
    whole = axes(None, None)
    weight = axes(*(None for _ in inputs.weight.shape))  # and of its scale, if there is one
    return OpSharding(inputs=DecodeMatmulInputs(whole, weight, weight), outputs=whole, split=())


def without_panels(weight: Array, out_dim: int | None) -> Array:
    """Return the matrix `[K, N]` of panels `[P, K, C]`; anything else as it is."""
    if weight.ndim == 2:
        return weight
    return weight.transpose(1, 0, 2).reshape(weight.shape[1], -1)[:, :out_dim]


def low_precision_values(weight: Array) -> Array:
    """Return the numbers `[K, N]` of a low-precision weight, those of int4 as int8."""
    return unpacked_int4(weight) if weight.dtype == INT4_PAIRS else weight


def full_precision_weight(values_KN: Array, scale_GN: Array) -> Array:
    """Return what numbers and their scales are, `[K, N]` in float32."""
    grouped = values_KN.astype(jnp.float32).reshape(scale_GN.shape[0], -1, scale_GN.shape[1])
    return (grouped * scale_GN[:, None, :]).reshape(values_KN.shape)


def packed_int4(values_KN: Array) -> Array:
    """Return integers from -8 to 7, two in a byte: `[K / 2, N]` uint8."""
    # Halves of the weight in a byte, and not neighbours: each half of the bytes is then whole
    # rows as they are stored, without an exchange between lanes.
    low, high = jnp.split((values_KN.astype(jnp.int32) & 15).astype(jnp.uint8), 2)
    return low | (high << 4)


def unpacked_int4(packed: Array) -> Array:
    """Return the integers, `[K, N]` int8."""
    # Both at the top of their byte, so that one arithmetic shift brings the sign.
    both = jnp.concatenate([packed << 4, packed & 0xF0])
    return jax.lax.bitcast_convert_type(both, jnp.int8) >> 4


PANEL_WIDTH = 48
"""C: a multiple of the lanes of all vectors, of which three are added up for eight rows at once."""


def num_panels(out_dim: int) -> int:
    """Return P."""
    return -(-out_dim // PANEL_WIDTH)


def in_panels(weight_KN: Array) -> Array:
    """Return a weight `[K, N]` as `[P, K, C]`, filled up with zeros."""
    depth, out_dim = weight_KN.shape
    count = num_panels(out_dim)
    padded = jnp.pad(weight_KN, ((0, 0), (0, count * PANEL_WIDTH - out_dim)))
    return padded.reshape(depth, count, PANEL_WIDTH).transpose(1, 0, 2)


def are_panels_wanted(dtype: str) -> bool:
    """Return whether there is a kernel for weights in panels on the hardware of the policy.

    Portable code has no use for them.
    """
    call = Call(
        op="decode_matmul",
        shapes=(("x", (1, 64)), ("weight", (1, 64, PANEL_WIDTH))),
        dtypes=(("x", dtype), ("weight", dtype)),
        features=tuple(attrs.asdict(DecodeMatmulSpec(out_dim=PANEL_WIDTH)).items()),
    )
    return not choose(call, current_policy()).kernel.is_portable


def _results(inputs: DecodeMatmulInputs, spec: DecodeMatmulSpec) -> ResultSpec:
    x_RK, weight, _ = inputs
    width = spec.out_dim or weight.shape[0 if spec.transposed else 1]
    return ResultSpec("y_RN", (x_RK.shape[0], width), x_RK.dtype.name)


DECODE_MATMUL_OP = KernelOp[Array](
    name="decode_matmul",
    inputs=DecodeMatmulInputs,
    spec=DecodeMatmulSpec,
    sharding=decode_matmul_sharding,
    results=_results,
)

LOW_PRECISION = ("int8", INT4_PAIRS, "float8_e4m3fn")


def decode_matmul(
    x_RK: Array,
    weight: Array,
    scale: Array | None = None,
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
        scale: float32 `[G, N]`, for `G` groups of rows of each column; as `in_panels` gives it
            where the weight is in panels, and `[N, 1]` where it is transposed.
        transposed: Whether the weight has its rows for outputs. It is not of int4 then.
        out_dim: N, of a weight in panels.

    Raises:
        KernelError: Shapes or dtypes do not fit, or no kernel can serve the call.
    """
    inputs = DecodeMatmulInputs(x_RK, weight, scale)
    spec = DecodeMatmulSpec(transposed=transposed, out_dim=out_dim)
    _check(inputs, spec)
    return DECODE_MATMUL_OP.run(inputs, spec)


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
                hint="cast both to the compute dtype, or give the scale of a low-precision weight",
            )
        return
    known = [one for one in LOW_PRECISION if not (spec.transposed and one == INT4_PAIRS)]
    if str(weight.dtype) not in known:
        raise KernelError(
            f"decode_matmul: there is a scale, and the weight is {weight.dtype} of shape "
            f"{weight.shape}{', transposed' if spec.transposed else ''}; expected a weight of "
            f"{' or '.join(known)}."
        )
    # The dimension of groups: of what is added up, in matrices and in panels.
    place = -1 if spec.transposed else -2
    shape: list[Any] = list(weight.shape)
    shape[place] = 1 if spec.transposed else scale.shape[place] if scale.ndim > 1 else 0
    if scale.shape != tuple(shape) or depth % shape[place] or scale.dtype != jnp.float32:
        shape[place] = 1 if spec.transposed else "groups"
        raise KernelError(
            f"decode_matmul: the scale is {scale.dtype} of shape {scale.shape}; expected float32 "
            f"({', '.join(map(str, shape))}), of groups that divide {depth}."
        )
