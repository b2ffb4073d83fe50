"""`QuantizedLinear`: a linear layer with a low-precision weight, for serving only.

Letters of shapes: E experts, K input, N output, G groups of K.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveInt, config
from axcore.errors import ConfigError
from axcore.layers.linear import (
    GROUP_SIZES,
    PANELS,
    GroupedRows,
    as_row,
    over_rows,
    packed_arrays,
    packed_product,
    quantized_product,
    row_groups,
    take_by_group,
)
from axcore.module import Module, Param, ParamSpec
from axcore.ops import (
    PANEL_WIDTH,
    Quantization,
    QuantizedArray,
    full_precision_weight,
    grouped_matmul,
    in_panels,
    num_panels,
    packed_int4,
    unpacked_int4,
)
from axcore.ops.quantized.quantize import SMALLEST, amax_of, quantized

WeightFormat = Literal["int8", "int4", "float8_e4m3fn"]

_INT4_LARGEST = 7
VALUES, SCALE = "weight_values", "weight_scale"
"""Names of the arrays that take the place of a `weight`."""

_DTYPES: Mapping[str, str] = {"int8": "int8", "int4": "uint8", "float8_e4m3fn": "float8_e4m3fn"}


class QuantizedLinear(GroupedRows, Module):
    """`x @ (values * scale) (+ bias)`; the weight is converted in the product only.

    Experts have a weight each; each of them has its own scales.

    The scale is the largest magnitude of each group of a column over the largest number of the
    format, so a weight is off by at most half a step: 1/254 of that magnitude in int8, 1/14 in
    int4, and 1/16 of itself in float8.

    Two numbers of int4 share a byte: row `k` has the low half, row `k + K / 2` the high half.

    Source: Frantar et al. 2022, arXiv:2210.17323, section 4, for groups; weights are rounded to
    nearest. Slot protocol: that of `Linear`.
    """

    @config
    class Config(Module.Config["QuantizedLinear"]):
        """The config of a `QuantizedLinear`.

        Args:
            in_dim: Size of the last dimension of the input.
            out_dim: Size of the last dimension of the output.
            axes: Logical axes of the weight, input first.
            has_bias: Whether a bias is added.
            format: What the weight is kept in.
            group_size: Rows of the weight that share a scale in each column; where it does not
                divide `in_dim`, and where None, all rows do.
        """

        in_dim: PositiveInt = REQUIRED
        out_dim: PositiveInt = REQUIRED
        axes: tuple[str | None, str | None] = REQUIRED
        has_bias: bool = False
        format: WeightFormat = "int8"
        group_size: PositiveInt | None = None

    def setup(self, cfg: Config) -> None:
        """Declare the values, the scales and the bias."""
        into, out = cfg.axes
        self._num_groups = _num_groups(cfg)
        rows = _num_rows(cfg)
        narrow: dict[str, Any] = {"dtype": _DTYPES[cfg.format], "init": 0.0, "cast": False}
        self.weight_values = Param((rows, cfg.out_dim), axes=(into, out), **narrow)
        self.weight_scale = Param(
            (self._num_groups, cfg.out_dim), axes=(None, out), init=1.0, dtype="float32", cast=False
        )
        if cfg.has_bias:
            self.bias = Param((cfg.out_dim,), axes=(out,), init=0.0)

    def forward(self, x: Float[Array, "*batch in_dim"]) -> Float[Array, "*batch out_dim"]:
        """Return the projection of the last dimension, in the dtype of x."""
        values = self.weight_values
        if values.ndim > 2:
            return self._of_experts(x)
        y = over_rows(lambda rows: quantized_product(rows, values, self.weight_scale), x)
        return y + as_row(self.bias, y.ndim) if self.config.has_bias else y

    def _of_experts(self, x: Float[Array, "*batch in_dim"]) -> Float[Array, "*batch out_dim"]:
        """Return the projection of rows sorted by expert, whose sizes are a shared value.

        Where there are fewer rows than experts, only the weights of their experts are converted.
        """
        sizes, rows = self.get_shared(GROUP_SIZES), x.reshape(-1, x.shape[-1])
        values, scale = self.weight_values, self.weight_scale
        bias = self.bias if self.config.has_bias else None
        if len(rows) < len(values):
            arrays = (values, scale, bias)
            # A token of one row goes to a few experts of many: all of them in full precision would
            # be the largest array of the call.
            own = row_groups(sizes, len(rows))
            values, scale, bias = jax.tree.map(lambda array: array[own], arrays)
            sizes = jnp.ones(len(rows), sizes.dtype)
        if self.config.format == "int4":
            values = jax.vmap(unpacked_int4)(values)
        if self._num_groups > 1:
            values = jax.vmap(full_precision_weight)(values, scale)
        y = grouped_matmul(rows, values.astype(rows.dtype), sizes)
        if self._num_groups == 1:  # one scale a column leaves the sum: it multiplies fewer numbers
            y = y.astype(jnp.float32) * take_by_group(scale[:, 0], sizes, len(rows))
            y = y.astype(x.dtype)
        if bias is not None:
            y = y + take_by_group(bias, sizes, len(rows))
        return y.reshape(*x.shape[:-1], -1)


ROW_VALUES, ROW_SCALE = "row_values", "row_scale"
"""Names of those of a weight that has its rows for outputs, as heads have."""

VALUE_PANELS, SCALE_PANELS = "weight_value_panels", "weight_scale_panels"


class PackedQuantizedLinear(Module):
    """A `QuantizedLinear`, values and scales laid out in the order in which the product reads them.

    Both are what `in_panels` makes of those of a `QuantizedLinear`, but that an odd number of
    groups of int4 is doubled. Slot protocol: that of `Linear`.
    """

    @config
    class Config(Module.Config["PackedQuantizedLinear"]):
        """The config of a `PackedQuantizedLinear`; the fields are those of a `QuantizedLinear`."""

        in_dim: PositiveInt = REQUIRED
        out_dim: PositiveInt = REQUIRED
        axes: tuple[str | None, str | None] = REQUIRED
        has_bias: bool = False
        format: WeightFormat = "int8"
        group_size: PositiveInt | None = None

    def setup(self, cfg: Config) -> None:
        """Declare the panels and the bias."""
        rows, count = _num_rows(cfg), num_panels(cfg.out_dim)
        axes = (None, cfg.axes[0], None)
        narrow: dict[str, Any] = {"dtype": _DTYPES[cfg.format], "init": 0.0, "cast": False}
        self.weight_value_panels = Param((count, rows, PANEL_WIDTH), axes=axes, **narrow)
        shape = (count, _num_packed_groups(cfg), PANEL_WIDTH)
        self.weight_scale_panels = Param(
            shape, axes=(None, None, None), init=1.0, dtype="float32", cast=False
        )
        if cfg.has_bias:
            self.bias = Param((cfg.out_dim,), axes=cfg.axes[1:], init=0.0)

    def forward(self, x: Float[Array, "*batch in_dim"]) -> Float[Array, "*batch out_dim"]:
        """Return the projection of the last dimension, in the dtype of x."""
        values, scale = self.weight_value_panels, self.weight_scale_panels
        y = packed_product(x, values, self.config.out_dim, scale)
        return y + as_row(self.bias, y.ndim) if self.config.has_bias else y


def quantize_weights(specs: Any, state: Any) -> Any:
    """Return the state of a module with quantized layers, from its full-precision state.

    Args:
        specs: `param_specs()` of the module with `QuantizedLinear`s, or of a part of it.
        state: Of the module that has a `Linear` in the place of each, or a part of that; those of
            experts have a weight `[E, K, N]`.
    """
    if isinstance(specs, ParamSpec):
        return state
    if VALUES not in specs:
        return {name: quantize_weights(specs[name], below) for name, below in state.items()}
    rest = {name: leaf for name, leaf in state.items() if name != "weight"}
    return {**rest, **_quantized_arrays(specs, state["weight"])}


def _quantized_arrays(specs: Any, weight: Float[Array, "*E K N"]) -> dict[str, Array]:
    """Return the arrays that a `QuantizedLinear` of some specs keeps a weight as, by name."""
    many = _quantize if weight.ndim == 2 else _quantize_experts
    values, scale = many(weight, _format_of(specs[VALUES]), specs[SCALE].shape[-2])
    return {VALUES: values, SCALE: scale}


def _packed_quantized_arrays(specs: Any, weight: Float[Array, "K N"]) -> dict[str, Array]:
    """Return the arrays that a `PackedQuantizedLinear` keeps a weight as, by name."""
    how, num_groups = _format_of(specs[VALUE_PANELS]), specs[SCALE_PANELS].shape[-2]
    values, scale = _quantize_in_panels(weight, how, num_groups)
    return {VALUE_PANELS: values, SCALE_PANELS: scale}


def _quantized_rows(specs: Any, weight: Float[Array, "N K"]) -> dict[str, Array]:
    """Return the arrays that a weight with its rows for outputs is kept as, by name."""
    values, scale = _quantize_rows(weight)
    return {ROW_VALUES: values, ROW_SCALE: scale}


def _format_of(spec: Any) -> WeightFormat:
    formats: dict[str, Any] = {dtype: name for name, dtype in _DTYPES.items()}
    found: WeightFormat = formats[str(spec.dtype)]
    return found


def quantized_weight(
    weight: Float[Array, "K N"], how: WeightFormat, num_groups: int = 1
) -> QuantizedArray:
    """Return a weight as a `QuantizedLinear` keeps it: values `[K, N]`, scales `[G, N]`."""
    grouped = weight.reshape(num_groups, -1, weight.shape[1])
    if how == "int4":
        scale = jnp.maximum(amax_of(grouped, (1,)) / _INT4_LARGEST, SMALLEST)
        # -8 is not used: with a symmetric range one scale serves both signs, and 0 stays 0.
        steps = jnp.round(grouped.astype(jnp.float32) / scale)
        narrow = jnp.clip(steps, -_INT4_LARGEST, _INT4_LARGEST).astype(jnp.int8)
        return QuantizedArray(packed_int4(narrow.reshape(weight.shape)), scale[:, 0])
    found = quantized(grouped, Quantization(format=how, per="channel"), (1,))
    return QuantizedArray(found.values.reshape(weight.shape), found.scale[:, 0])


def _num_rows(cfg: Any) -> int:
    """Return the rows of a weight as they are stored.

    Raises:
        ConfigError: Two of them would share bytes, and they are of an odd number.
    """
    if cfg.format != "int4":
        return int(cfg.in_dim)
    if cfg.in_dim % 2:
        raise ConfigError(
            f"in_dim is {cfg.in_dim}; two numbers of int4 share a byte",
            where="format",
            hint='keep this layer in "int8"',
        )
    return int(cfg.in_dim // 2)


def _num_packed_groups(cfg: Any) -> int:
    # The two numbers of a byte are half a column apart. An odd number of groups has one that
    # is in both halves, so each group is split.
    groups = _num_groups(cfg)
    return 2 * groups if cfg.format == "int4" and groups > 1 and groups % 2 else groups


def _num_groups(cfg: Any) -> int:
    fits = cfg.group_size is not None and cfg.in_dim % cfg.group_size == 0
    return cfg.in_dim // cfg.group_size if fits else 1


def _quantized_experts(weight: Float[Array, "E K N"], how: WeightFormat, num_groups: int) -> Any:
    return jax.vmap(lambda one: quantized_weight(one, how, num_groups))(weight)


def _quantized_in_panels(weight: Float[Array, "K N"], how: WeightFormat, num_groups: int) -> Any:
    return jax.tree.map(in_panels, tuple(quantized_weight(weight, how, num_groups)))


@jax.jit
def _quantize_rows(weight: Float[Array, "N K"]) -> Any:
    found = quantized(weight, Quantization(format="int8", per="channel"), (1,))
    return found.values, found.scale


_quantize = jax.jit(quantized_weight, static_argnums=(1, 2))
_quantize_experts = jax.jit(_quantized_experts, static_argnums=(1, 2))
_quantize_in_panels = jax.jit(_quantized_in_panels, static_argnums=(1, 2))


FORMS: Mapping[str, Callable[[Any, Array], dict[str, Array]]] = {
    PANELS: packed_arrays,
    VALUES: _quantized_arrays,
    VALUE_PANELS: _packed_quantized_arrays,
    ROW_VALUES: _quantized_rows,
}
"""By the name of an array that only layers of one form have."""


def kept_weight(specs: Any, weight: Float[Array, "*E K N"]) -> dict[str, Array]:
    """Return the arrays that a weight is kept as, by name.

    Args:
        specs: Those of the layer that keeps it, which has no `weight`.
        weight: As it was trained.
    """
    (form,) = (form for name, form in FORMS.items() if name in specs)
    return form(specs, weight)
