"""The gradients of a quantized product: two more low-precision products, each with its kernel.

With a scale per tensor the low-precision operands themselves are kept for backward, at a quarter of
float32's memory. With a scale per channel they are made again, since each product sums over other
axes.

A layout says how rows meet weights: all rows one matrix, or each row that of its group. It says
what shares a scale per tensor, and puts each product together from matmuls of rows and one matrix.

Letters: R rows, E groups, D input width, F output width, P blocks, C rows of a block.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import attrs
import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name

from axcore.ops.grouped_matmul.kernels import GroupLayout
from axcore.ops.quantized.quantize import (
    Amaxes,
    Contracting,
    MatmulRole,
    MatmulSpec,
    Operands,
    Quantization,
    QuantizedArray,
    QuantizedDotSpec,
    amax_of,
    quantized,
)

Operand: TypeAlias = QuantizedArray | Array
Matmul: TypeAlias = Callable[[Operand, Operand, str], Array]
"""From two operands and the name of the result's dtype."""


def contracting(role: MatmulRole, ndim: int) -> Contracting:
    """Return what a product sums over whose left operand, rows, has so many dimensions."""
    *rows, width = range(ndim)
    if role == "weight_gradient":
        return tuple(rows), tuple(rows)
    return (width,), (0 if role == "forward" else 1,)


class Dense:
    """All rows times one matrix."""

    def amax(self, x: Array) -> Array:
        """Return the largest magnitude, a float32 scalar."""
        return amax_of(x)

    def spread(self, x: Array) -> Array:
        """Return rows as products take them."""
        return x

    def rows(
        self,
        x: Array,
        how: Quantization,
        role: MatmulRole,
        amax: Array | None = None,
        key: Array | None = None,
    ) -> QuantizedArray:
        """Return quantized rows for one of the products."""
        return quantized(x, how, contracting(role, x.ndim)[0], amax=amax, key=key)

    def weights(
        self, w: Array, how: Quantization, role: MatmulRole, amax: Array | None = None
    ) -> QuantizedArray:
        """Return quantized weights for one of the products."""
        return quantized(w, how, contracting(role, 2)[1], amax=amax)

    def times(self, matmul: Matmul, rows: QuantizedArray, w: QuantizedArray, dtype: str) -> Array:
        """Return each row times its matrix."""
        return matmul(rows, w, dtype)

    def weight_gradient(self, matmul: Matmul, x: Operand, dy: Operand, like: Array) -> Array:
        """Return the sum over rows, with the shape and dtype of the weights."""
        return matmul(x, dy, like.dtype.name)


@attrs.frozen(eq=False)
class Grouped:
    """Rows in blocks of one group each, times the group's matrix; blocks add up in float32.

    Per tensor, each group has a scale. Per channel, what sums over rows has one for each block.
    """

    groups: GroupLayout

    def amax(self, x_RD: Array) -> Array:
        """Return the largest magnitude of each group's rows, float32 `[E]`; 0 where it has none."""
        largest_R = amax_of(x_RD, (1,))[:, 0]
        zeros = jnp.zeros((self.groups.num_groups,), jnp.float32)
        return zeros.at[self.groups.group_R].max(largest_R, mode="drop")

    def spread(self, x_RD: Array) -> Array:
        """Return rows in blocks `[P, C, D]`."""
        return self.groups.spread(x_RD)

    def rows(
        self,
        x_RD: Array,
        how: Quantization,
        role: MatmulRole,
        amax_E: Array | None = None,
        key: Array | None = None,
    ) -> QuantizedArray:
        """Return quantized rows in blocks for one of the products."""
        if how.per == "tensor":
            amax_E = self.amax(x_RD) if amax_E is None else amax_E
        # A scale per group and not per block, so that the numbers do not depend on how rows are
        # cut.
        amax_P = None if amax_E is None else amax_E[self.groups.group_P]
        return _stacked(self.spread(x_RD), how, contracting(role, 2)[0], amax_P, key)

    def weights(
        self, w_EDF: Array, how: Quantization, role: MatmulRole, amax_E: Array | None = None
    ) -> QuantizedArray:
        """Return the groups' quantized matrices for one of the products."""
        if how.per == "tensor" and amax_E is None:
            amax_E = amax_of(w_EDF, (1, 2))[:, 0, 0]
        return _stacked(w_EDF, how, contracting(role, 2)[1], amax_E)

    def times(self, matmul: Matmul, rows: QuantizedArray, w: QuantizedArray, dtype: str) -> Array:
        """Return each row times the matrix of its group; zeros for rows of no group."""

        def step(_: None, block: tuple[QuantizedArray, Array]) -> tuple[None, Array]:
            rows, group = block
            return None, matmul(rows, jax.tree.map(lambda array: array[group], w), dtype)

        _, y_PCF = lax.scan(step, None, (rows, self.groups.group_P))
        return self.groups.collect(y_PCF)

    def weight_gradient(self, matmul: Matmul, x: Operand, dy: Operand, like: Array) -> Array:
        """Return each group's sum over its rows, with the shape and dtype of the weights."""

        def step(dw_EDF: Array, block: tuple[Operand, Operand, Array]) -> tuple[Array, None]:
            x, dy, group = block
            return dw_EDF.at[group].add(matmul(x, dy, "float32")), None

        zeros = jnp.zeros(like.shape, jnp.float32)
        dw_EDF, _ = lax.scan(step, zeros, (x, dy, self.groups.group_P))
        return dw_EDF.astype(like.dtype)


def _stacked(
    x: Array,
    how: Quantization,
    axes: tuple[int, ...],
    amax: Array | None,
    key: Array | None = None,
) -> QuantizedArray:
    """Return a stack of quantized matrices for products of each; `amax` is that of each."""
    axes = tuple(axis + 1 for axis in axes)
    if amax is None:
        return quantized(x, how, axes, key=key)
    narrow = quantized(x, how, axes, amax=amax[:, None, None], key=key)
    return QuantizedArray(narrow.values, narrow.scale[:, 0, 0])


def layout_of(group_sizes_E: Array | None, x: Array) -> Dense | Grouped:
    """Return the layout of the rows of `x`, sorted by group if there are groups."""
    if group_sizes_E is None:
        return Dense()
    return Grouped(GroupLayout.of(group_sizes_E, x.shape[0]))


QUANTIZED_INPUT = "quantized_input"
QUANTIZED_WEIGHT = "quantized_weight"
"""Names of the low-precision operands that are kept for backward, for remat policies."""

MatmulKernel: TypeAlias = Callable[[Operands, MatmulSpec], Array]
Kernels: TypeAlias = Mapping[MatmulRole, MatmulKernel]

_Residuals: TypeAlias = tuple[Operand, Operand, Array | None, Amaxes | None, Array | None]
_Cotangents: TypeAlias = tuple[Array, None, Array, None, Amaxes | None, None]


def quantize_input(
    x: Array,
    spec: QuantizedDotSpec,
    *,
    group_sizes: Array | None = None,
    amax: Array | None = None,
) -> QuantizedArray:
    """Return `x` as the forward pass multiplies it; no gradient goes through it."""
    rows = lax.stop_gradient(x)
    narrow = layout_of(group_sizes, x).rows(rows, spec.inputs, "forward", amax)
    return _named(narrow, QUANTIZED_INPUT)


def quantized_custom_vjp(
    x: Array,
    w: Array,
    spec: QuantizedDotSpec,
    kernels: Kernels,
    *,
    quantized_x: QuantizedArray | None = None,
    group_sizes: Array | None = None,
    amaxes: Amaxes | None = None,
    key: Array | None = None,
) -> Array:
    """Return the product by `kernels`, one for each of the products that `spec` quantizes.

    Arguments are those of `quantized_dot` or, with `group_sizes`, of `quantized_grouped_matmul`,
    checked; `key` is a key's data. `x` is quantized outside of what is differentiated, so that
    products which are given the same `quantized_x` also keep it once for backward.
    """
    x_dtype, like_w = x.dtype.name, w
    if quantized_x is None:
        given_x = amaxes.inputs if amaxes else None
        quantized_x = quantize_input(x, spec, group_sizes=group_sizes, amax=given_x)

    @jax.custom_vjp
    def run(
        x: Array,
        quantized_x: QuantizedArray,
        w: Array,
        sizes: Array | None,
        amaxes: Amaxes | None,
        key: Array | None,
    ) -> Array:
        return run_forward(x, quantized_x, w, sizes, amaxes, key)[0]

    def run_forward(
        x: Array,
        quantized_x: QuantizedArray,
        w: Array,
        sizes: Array | None,
        amaxes: Amaxes | None,
        key: Array | None,
    ) -> tuple[Array, _Residuals]:
        layout = layout_of(sizes, x)
        given_w = amaxes.weights if amaxes else None
        quantized_w = _named(layout.weights(w, spec.weights, "forward", given_w), QUANTIZED_WEIGHT)
        y = layout.times(_narrow(kernels, "forward"), quantized_x, quantized_w, x_dtype)
        # Low-precision operands serve backward only with a scale per tensor: a scale per channel is
        # of the axis that this product sums over, and backward sums over another.
        kept_x = quantized_x if spec.inputs.per == "tensor" and spec.weight_gradient else x
        kept_w = quantized_w if spec.weights.per == "tensor" else w
        return y, (kept_x, kept_w, sizes, amaxes, key)

    def run_backward(residuals: _Residuals, dy: Array) -> _Cotangents:
        x, w, sizes, amaxes, key = residuals
        layout = layout_of(sizes, dy)
        given = amaxes.gradients if amaxes else None
        # A key each: the same random numbers in both products would make their rounding errors go
        # together.
        key_dx, key_dw = (None, None) if key is None else _two_keys(key)
        quantized_dy = layout.rows(dy, spec.gradients, "input_gradient", given, key_dx)
        if not isinstance(w, QuantizedArray):
            w = layout.weights(w, spec.weights, "input_gradient")
        dx = layout.times(_narrow(kernels, "input_gradient"), quantized_dy, w, x_dtype)
        if spec.weight_gradient:
            if not isinstance(x, QuantizedArray):
                x = layout.rows(x, spec.inputs, "weight_gradient")
            if spec.gradients.per == "channel":
                quantized_dy = layout.rows(dy, spec.gradients, "weight_gradient", key=key_dw)
            narrow = _narrow(kernels, "weight_gradient")
            dw = layout.weight_gradient(narrow, x, quantized_dy, like_w)
        else:
            assert not isinstance(x, QuantizedArray)
            wide_x, wide_dy = layout.spread(x), layout.spread(dy)
            dw = layout.weight_gradient(_wide_weight_gradient, wide_x, wide_dy, like_w)
        # As a gradient, since a backward pass has no other way out: see `Amaxes`.
        seen = None if amaxes is None else _seen(amaxes, layout.amax(dy))
        return dx, None, dw, None, seen, None

    run.defvjp(run_forward, run_backward)
    y: Array = run(x, quantized_x, w, group_sizes, amaxes, key)
    return y


def _narrow(kernels: Kernels, role: MatmulRole) -> Matmul:
    """Return the matmul of rows and one matrix by the kernel for one of the products."""

    def matmul(lhs: Operand, rhs: Operand, dtype: str) -> Array:
        assert isinstance(lhs, QuantizedArray)
        assert isinstance(rhs, QuantizedArray)
        over = contracting(role, lhs.values.ndim)
        spec = MatmulSpec(product=role, contracting=over, dtype=dtype)
        return kernels[role](Operands(lhs, rhs), spec)

    return matmul


def _wide_weight_gradient(x: Operand, dy: Operand, dtype: str) -> Array:
    assert not isinstance(x, QuantizedArray)
    assert not isinstance(dy, QuantizedArray)
    dims = (contracting("weight_gradient", x.ndim), ((), ()))
    total = lax.dot_general(x, dy, dims, preferred_element_type=jnp.dtype(dtype))
    return total.astype(dtype)


def _seen(amaxes: Amaxes, seen: Array) -> Amaxes:
    zeros = jnp.zeros_like(amaxes.inputs)
    return Amaxes(inputs=zeros, weights=zeros, gradients=zeros, seen=seen)


def _two_keys(key: Array) -> tuple[Array, Array]:
    """Return the data of two keys from that of one."""
    first, second = jax.random.split(jax.random.wrap_key_data(key))
    return jax.random.key_data(first), jax.random.key_data(second)


def _named(narrow: QuantizedArray, name: str) -> QuantizedArray:
    """Return it under a name, which goes to its bits.

    What remat saves of floats it rounds to their numbers of bits as IEEE 754 would read them, and
    float8_e4m3fn holds more.
    """
    bits = lax.bitcast_convert_type(narrow.values, jnp.uint8)
    named = checkpoint_name(bits, name)  # type: ignore[no-untyped-call]
    return QuantizedArray(lax.bitcast_convert_type(named, narrow.values.dtype), narrow.scale)
