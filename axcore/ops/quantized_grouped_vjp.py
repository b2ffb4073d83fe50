"""The narrow grouped product and its gradients, block of rows by block of rows.

Every block holds rows of one group, so that its products are plain narrow products, each by the
kernel of `quantized_dot` for it. What a weight's gradient sums over is rows: there a channel of a
block, and not of the group, has the scale, and blocks add up in float32.

Letters: R rows, E groups, D input width, F output width, P blocks, C rows of a block.
"""

from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import Array, lax

from axcore.ops.grouped_layout import GroupLayout
from axcore.ops.quantized_dot_quantize import quantized
from axcore.ops.quantized_dot_types import (
    Amaxes,
    Contracting,
    Narrow,
    Operands,
    Product,
    ProductSpec,
    Quantization,
    QuantizedDotSpec,
)
from axcore.ops.quantized_dot_vjp import (
    QUANTIZED_INPUT,
    QUANTIZED_WEIGHT,
    Kernels,
    named_narrow,
    two_keys,
)

_Kept: TypeAlias = Narrow | Array
_Residuals: TypeAlias = tuple[_Kept, _Kept, Array, Amaxes | None, Array | None]
_Cotangents: TypeAlias = tuple[Array, Array, None, Amaxes | None, None]


def grouped_from_products(
    x_RD: Array,
    w_EDF: Array,
    group_sizes_E: Array,
    spec: QuantizedDotSpec,
    kernels: Kernels,
    *,
    amaxes: Amaxes | None = None,
    key: Array | None = None,
) -> Array:
    """Return the product by `kernels`, one for each of the products that `spec` makes narrow.

    Arguments are those of `quantized_grouped_matmul`, checked; `key` is a key's data.
    """

    def product(name: Product, lhs: Narrow, rhs: Narrow, over: Contracting, dtype: str) -> Array:
        return kernels[name](
            Operands(lhs, rhs), ProductSpec(product=name, contracting=over, dtype=dtype)
        )

    @jax.custom_vjp
    def run(x: Array, w: Array, sizes: Array, amaxes: Amaxes | None, key: Array | None) -> Array:
        return run_forward(x, w, sizes, amaxes, key)[0]

    def run_forward(
        x: Array, w: Array, sizes: Array, amaxes: Amaxes | None, key: Array | None
    ) -> tuple[Array, _Residuals]:
        layout = GroupLayout.of(sizes, x.shape[0])
        given_x, given_w = (amaxes.inputs, amaxes.weights) if amaxes else (None, None)
        narrow_x = named_narrow(_rows(x, layout, spec.inputs, 2, given_x), QUANTIZED_INPUT)
        narrow_w = named_narrow(_matrices(w, spec.weights, 1, given_w), QUANTIZED_WEIGHT)

        def step(_: None, block: tuple[Narrow, Array]) -> tuple[None, Array]:
            rows, group = block
            matrix = _of_group(narrow_w, group)
            return None, product("forward", rows, matrix, ((1,), (0,)), x.dtype.name)

        _, y_PCF = lax.scan(step, None, (narrow_x, layout.group_P))
        kept_x = narrow_x if spec.inputs.per == "tensor" and spec.weight_gradient else x
        kept_w = narrow_w if spec.weights.per == "tensor" else w
        return layout.collect(y_PCF), (kept_x, kept_w, sizes, amaxes, key)

    def run_backward(residuals: _Residuals, dy: Array) -> _Cotangents:
        kept_x, kept_w, sizes, amaxes, key = residuals
        layout = GroupLayout.of(sizes, dy.shape[0])
        given = amaxes.gradients if amaxes else None
        keys = (None, None) if key is None else two_keys(key)
        narrow_dy = _rows(dy, layout, spec.gradients, 2, given, keys[0])
        narrow_w = kept_w if isinstance(kept_w, Narrow) else _matrices(kept_w, spec.weights, 2)
        over_rows = narrow_dy
        if spec.gradients.per == "channel":
            over_rows = _rows(dy, layout, spec.gradients, 1, key=keys[1])

        def own_dw(x: _Kept, dy: _Kept) -> Array:
            if isinstance(x, Narrow) and isinstance(dy, Narrow):
                return product("weight_gradient", x, dy, ((0,), (0,)), "float32")
            return jnp.einsum("cd,cf->df", x, dy, preferred_element_type=jnp.float32)

        def step(dw_EDF: Array, block: tuple[Narrow, _Kept, _Kept, Array]) -> tuple[Array, Array]:
            narrow_dy, x, dy, group = block
            matrix = _of_group(narrow_w, group)
            dx = product("input_gradient", narrow_dy, matrix, ((1,), (1,)), x_RD.dtype.name)
            return dw_EDF.at[group].add(own_dw(x, dy)), dx

        factors: tuple[_Kept, _Kept] = (_over_rows(kept_x, layout, spec.inputs), over_rows)
        if not spec.weight_gradient:
            assert not isinstance(kept_x, Narrow)
            factors = layout.spread(kept_x), layout.spread(dy)
        zeros = jnp.zeros(w_EDF.shape, jnp.float32)
        dw_EDF, dx_PCD = lax.scan(step, zeros, (narrow_dy, *factors, layout.group_P))
        seen = _seen(amaxes, dy, layout)
        return layout.collect(dx_PCD), dw_EDF.astype(w_EDF.dtype), None, seen, None

    run.defvjp(run_forward, run_backward)
    y_RF: Array = run(x_RD, w_EDF, group_sizes_E, amaxes, key)
    return y_RF


def group_amaxes(x_RD: Array, layout: GroupLayout) -> Array:
    """Return the largest magnitude of each group's rows, float32 `[E]`; 0 where it has none."""
    largest_R = jnp.max(jnp.abs(x_RD.astype(jnp.float32)), axis=1, initial=0.0)
    zeros = jnp.zeros((layout.num_groups,), jnp.float32)
    return zeros.at[layout.group_R].max(largest_R, mode="drop")


def _rows(
    x_RD: Array,
    layout: GroupLayout,
    how: Quantization,
    axis: int,
    amax_E: Array | None = None,
    key: Array | None = None,
) -> Narrow:
    """Return rows in blocks, narrow, for products that sum over an axis of `[P, C, D]`."""
    x_PCD = layout.spread(x_RD)
    if how.per == "channel":
        return quantized(x_PCD, how, (axis,), key=key)
    if amax_E is None:
        amax_E = group_amaxes(x_RD, layout)
    return _per_tensor(x_PCD, how, axis, amax_E[layout.group_P])


def _over_rows(kept_x: _Kept, layout: GroupLayout, how: Quantization) -> Narrow:
    return kept_x if isinstance(kept_x, Narrow) else _rows(kept_x, layout, how, 1)


def _matrices(w_EDF: Array, how: Quantization, axis: int, amax_E: Array | None = None) -> Narrow:
    """Return the groups' matrices, narrow, for products that sum over an axis of `[E, D, F]`."""
    if how.per == "channel":
        return quantized(w_EDF, how, (axis,))
    if amax_E is None:
        amax_E = jnp.max(jnp.abs(w_EDF.astype(jnp.float32)), axis=(1, 2), initial=0.0)
    return _per_tensor(w_EDF, how, axis, amax_E)


def _per_tensor(x: Array, how: Quantization, axis: int, amax: Array) -> Narrow:
    """Return `[P, ...]` narrow with a scale for each of P, `[P]`."""
    narrow = quantized(x, how, (axis,), amax=amax[:, None, None])
    return Narrow(narrow.values, narrow.scale[:, 0, 0])


def _of_group(narrow: Narrow, group: Array) -> Narrow:
    return Narrow(narrow.values[group], narrow.scale[group])


def _seen(amaxes: Amaxes | None, dy_RF: Array, layout: GroupLayout) -> Amaxes | None:
    if amaxes is None:
        return None
    zeros = jnp.zeros_like(amaxes.inputs)
    seen = group_amaxes(dy_RF, layout)
    return Amaxes(inputs=zeros, weights=zeros, gradients=zeros, seen=seen)
