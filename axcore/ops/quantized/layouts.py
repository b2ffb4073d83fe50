"""How rows meet weights in a quantized product: all rows one matrix, or each row that of its group.

A layout says what shares a scale per tensor, and puts each product together from matmuls of rows
and one matrix.

Letters: R rows, E groups, D input width, F output width, P blocks, C rows of a block.
"""

from collections.abc import Callable
from typing import TypeAlias

import attrs
import jax
import jax.numpy as jnp
from jax import Array, lax

from axcore.ops.grouped_matmul.layout import GroupLayout
from axcore.ops.quantized.quantize import amax_of, quantized
from axcore.ops.quantized.types import Contracting, MatmulRole, Quantization, QuantizedArray

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
        """Return rows, narrow, for one of the products."""
        return quantized(x, how, contracting(role, x.ndim)[0], amax=amax, key=key)

    def weights(
        self, w: Array, how: Quantization, role: MatmulRole, amax: Array | None = None
    ) -> QuantizedArray:
        """Return weights, narrow, for one of the products."""
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
        """Return rows in blocks, narrow, for one of the products."""
        if how.per == "tensor":
            amax_E = self.amax(x_RD) if amax_E is None else amax_E
        amax_P = None if amax_E is None else amax_E[self.groups.group_P]
        return _stacked(self.spread(x_RD), how, contracting(role, 2)[0], amax_P, key)

    def weights(
        self, w_EDF: Array, how: Quantization, role: MatmulRole, amax_E: Array | None = None
    ) -> QuantizedArray:
        """Return the groups' matrices, narrow, for one of the products."""
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
    """Return a stack of matrices, narrow, for products of each; `amax` is that of each."""
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
