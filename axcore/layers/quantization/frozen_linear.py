"""`FrozenLinear`: a linear layer whose weight is kept in few bits and not trained.

Letters of shapes: K input, N output, G blocks of a column.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

import attrs
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveInt, Resumable, config, replace_config
from axcore.errors import ConfigError
from axcore.layers.linear import (
    GROUP_SIZES,
    Dot,
    GroupedRows,
    Linear,
    PlainDot,
    as_row,
    take_by_group,
)
from axcore.layers.quantization import nf4
from axcore.module import Initializer, Module, Param, ParamSpec, Remat

FrozenFormat = Literal["nf4", "int8"]

CODES = "weight_codes"
"""The name of a frozen weight's numbers; the others of its arrays begin alike."""

_INT8_LARGEST = 127
_DRAWN = 42.0
"""Deviation of the first numbers of int8: three of them are the largest number."""
_NF4_DEVIATION = math.sqrt(sum(level**2 for level in nf4.LEVELS) / 16)


@config
class AnyCode(Initializer):
    """Bytes, each as probable as the others: of NF4, whose levels are quantiles, normal numbers."""

    def sample(self, key: Array, shape: tuple[int, ...], fans: tuple[int, int]) -> Array:
        """Return bytes."""
        return jax.random.randint(key, shape, 0, 256).astype(jnp.float32)


@config
class NormalCode(Initializer):
    """Normal whole numbers of eight bits."""

    def sample(self, key: Array, shape: tuple[int, ...], fans: tuple[int, int]) -> Array:
        """Return whole numbers."""
        drawn = jnp.round(_DRAWN * jax.random.normal(key, shape))
        return drawn.clip(-_INT8_LARGEST, _INT8_LARGEST)


@attrs.frozen
class FrozenForm:
    """How a frozen weight is kept; see the fields of `FrozenLinear.Config`."""

    format: FrozenFormat = "nf4"
    block_size: int = 64
    double_quant: bool = False

    def num_blocks(self, in_dim: int) -> int:
        """Return the blocks of a column: one for all of it where they do not divide it."""
        is_whole = self.format == "int8" or in_dim % self.block_size != 0
        return 1 if is_whole else in_dim // self.block_size

    def kept(self, weight: Any) -> dict[str, Any]:
        """Return the arrays that a weight `[K, N]` is kept as, by name."""
        wide = weight.astype(np.float32)
        largest = nf4.largest_of_blocks(wide, self.num_blocks(weight.shape[0]))
        if self.format == "int8":
            api = wide.__array_namespace__()
            scale = (largest / _INT8_LARGEST).clip(nf4.SMALLEST)
            return {"weight_codes": api.round(wide / scale).astype(np.int8), "weight_scale": scale}
        if not self.double_quant:
            return {"weight_codes": nf4.packed_codes(wide, largest), "weight_scale": largest}
        codes, scale, mean = nf4.quantized_scales(largest)
        return {
            "weight_codes": nf4.packed_codes(wide, largest),
            "weight_scale": codes,
            "weight_scale_scale": scale,
            "weight_scale_mean": mean,
        }

    def dequantized(self, arrays: Mapping[str, Any]) -> Float[Array, "*copies K N"]:
        """Return the weight that arrays are, in float32; leading dimensions are copies."""
        if arrays["weight_codes"].ndim > 2:
            many: Array = jax.vmap(self.dequantized)(dict(arrays))
            return many
        scale = arrays["weight_scale"]
        if self.format == "int8":
            return arrays["weight_codes"].astype(jnp.float32) * scale
        if self.double_quant:
            scale = nf4.dequantized_scales(
                scale, arrays["weight_scale_scale"], arrays["weight_scale_mean"]
            )
        levels = nf4.unpacked_levels(arrays["weight_codes"])
        blocks = levels.reshape(scale.shape[0], -1, scale.shape[1])
        return (blocks * scale[:, None, :]).reshape(levels.shape)


class FrozenLinear(GroupedRows, Module):
    """`x @ weight (+ bias)`, the weight dequantized for the product alone, forward and backward.

    NF4 has a scale for each block of a column, the largest magnitude in it; int8 has one for each
    column. What is trained is around it, as in QLoRA.

    Source: Dettmers et al. 2023, arXiv:2305.14314, eq. 5. Slot protocol: that of `Linear`.
    """

    @config
    class Config(Module.Config["FrozenLinear"]):
        """The config of a `FrozenLinear`.

        Args:
            in_dim: Size of the last dimension of the input.
            out_dim: Size of the last dimension of the output.
            axes: Logical axes of the weight, input first.
            has_bias: Whether a bias is added; it keeps full precision.
            dot: Multiplies the input by the weight.
            format: What the weight is kept in.
            block_size: Numbers of a column that share a scale in NF4; where it does not divide
                `in_dim`, all of a column do.
            double_quant: Whether the scales of NF4 are kept in eight bits.
            remat: What the backward pass keeps; by default it dequantizes the weight again.
        """

        in_dim: PositiveInt = REQUIRED
        out_dim: PositiveInt = REQUIRED
        axes: tuple[str | None, str | None] = REQUIRED
        has_bias: bool = False
        dot: Dot.Config = PlainDot.Config()
        format: FrozenFormat = "nf4"
        block_size: PositiveInt = 64
        double_quant: bool = False
        remat: Resumable[Remat | None] = Remat()

        @property
        def form(self) -> FrozenForm:
            """How the weight is kept."""
            return FrozenForm(self.format, self.block_size, self.double_quant)

    def setup(self, cfg: Config) -> None:
        """Declare the codes, the scales and the bias."""
        _check(cfg)
        out, blocks = cfg.axes[1], cfg.form.num_blocks(cfg.in_dim)
        deviation = cfg.in_dim**-0.5
        if cfg.format == "int8":
            self.weight_codes = _kept((cfg.in_dim, cfg.out_dim), cfg.axes, "int8", NormalCode())
            first = deviation / _DRAWN
        else:
            rows = cfg.in_dim // 2
            self.weight_codes = _kept((rows, cfg.out_dim), cfg.axes, "uint8", AnyCode())
            first = deviation / _NF4_DEVIATION
        shape, axes = (blocks, cfg.out_dim), (None, out)
        if cfg.format == "nf4" and cfg.double_quant:
            # The code of the level 0, so that every scale is the mean at first.
            middle = float(nf4.scale_levels().index(0.0))
            own = -(-blocks * cfg.out_dim // nf4.SCALES_PER_BLOCK)
            self.weight_scale = _kept(shape, axes, "uint8", middle)
            self.weight_scale_scale = _kept((own,), (None,), "float32", 0.0)
            self.weight_scale_mean = _kept((), (), "float32", first)
        else:
            self.weight_scale = _kept(shape, axes, "float32", first)
        if cfg.has_bias:
            self.bias = Param((cfg.out_dim,), axes=(out,), init=0.0)
        self.dot = cfg.dot.build()

    @property
    def weight(self) -> Float[Array, "*copies K N"]:
        """The weight in the dtype of computation; it can be read where the model is at work."""
        names = [name for name in self._params if name != "bias"]
        arrays = {name: getattr(self, name) for name in names}
        return self.config.form.dequantized(arrays).astype(self.dtypes.compute)

    def forward(self, x: Float[Array, "*batch in_dim"]) -> Float[Array, "*batch out_dim"]:
        """Return the projection of the last dimension."""
        weight = self.weight
        if weight.ndim == 2:
            y: Array = self.dot(x, weight)
            return y + as_row(self.bias, y.ndim) if self.config.has_bias else y
        sizes, rows = self.get_shared(GROUP_SIZES), x.reshape(-1, x.shape[-1])
        y = self.dot.grouped(rows, weight, sizes)
        if self.config.has_bias:
            y = y + take_by_group(self.bias, sizes, len(rows))
        return y.reshape(*x.shape[:-1], -1)


def frozen_state(module: Module, state: Any) -> Any:
    """Return the state of a module with `FrozenLinear`s, from the full-precision state of the same.

    Args:
        module: The module with them.
        state: Of the module that has a `Linear` in the place of each.
    """
    return _frozen_part(module.param_specs(), state)


def with_full_precision_weights(cfg: Any) -> Any:
    """Return a config with a `Linear` in the place of every `FrozenLinear`."""

    def full_precision(frozen: Any) -> Linear.Config:
        return Linear.Config(has_bias=frozen.has_bias, dot=frozen.dot, dtypes=frozen.dtypes)

    return replace_config(cfg, FrozenLinear, full_precision, missing_ok=True)


def full_precision_state(cfg: Any, state: Any) -> Any:
    """Return the state of the model of `with_full_precision_weights`, of equal numbers.

    Args:
        cfg: The config of the model with frozen weights.
        state: Its state.
    """
    return _wide_part(with_full_precision_weights(cfg).build().param_specs(), state)


def _frozen_part(specs: Any, state: Any) -> Any:
    if isinstance(specs, ParamSpec):
        return state
    if CODES not in specs:
        return {name: _frozen_part(specs[name], below) for name, below in state.items()}
    kept = _form_of(specs).kept
    # Leading dimensions are layers and experts; blocks and their scales never span two of them.
    for _ in range(state["weight"].ndim - 2):
        kept = jax.vmap(kept)
    rest = {name: leaf for name, leaf in state.items() if name != "weight"}
    return {**rest, **jax.jit(kept)(state["weight"])}


def _wide_part(specs: Any, state: Any) -> Any:
    if isinstance(specs, ParamSpec):
        return state
    if CODES not in state:
        return {name: _wide_part(specs[name], below) for name, below in state.items()}
    arrays = {name: leaf for name, leaf in state.items() if name.startswith("weight_")}
    rest = {name: leaf for name, leaf in state.items() if name not in arrays}
    wide = jax.jit(_form_of(state).dequantized)(arrays)
    return {**rest, "weight": wide.astype(specs["weight"].dtype)}


def _form_of(arrays: Mapping[str, Any]) -> FrozenForm:
    """Return the form that arrays, or their specs, are kept in."""
    codes, blocks = arrays[CODES], arrays["weight_scale"].shape[-2]
    if str(codes.dtype) == "int8":
        return FrozenForm("int8")
    return FrozenForm("nf4", 2 * codes.shape[-2] // blocks, "weight_scale_scale" in arrays)


def _check(cfg: Any) -> None:
    if cfg.format == "nf4" and cfg.in_dim % 2:
        raise ConfigError(
            f"in_dim is {cfg.in_dim}; two numbers of nf4 share a byte",
            where="format",
            hint='keep this layer in "int8"',
        )
    if cfg.format == "nf4" and cfg.block_size % 2:
        raise ConfigError(
            f"block_size is {cfg.block_size}; expected an even number", where="block_size"
        )
    if cfg.format == "int8" and cfg.double_quant:
        raise ConfigError(
            "double_quant is for the scales of nf4; int8 has one for each column alone",
            where="double_quant",
            hint='leave it out, or set format="nf4"',
        )


def _kept(shape: Any, axes: Any, dtype: str, init: Initializer | float) -> Any:
    return Param(shape, axes=axes, dtype=dtype, init=init, cast=False, decay=False)
