"""Products in int8 and float8, for training: they go into the `dot` of a linear layer.

`Int8Dynamic` and `Fp8Current` scale operands by what they hold now, `Fp8Delayed` by what earlier
steps held, so that nothing waits for a maximum.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.config import config
from axcore.errors import ConfigError
from axcore.layers.linear import Dot, Input, Output, Rows, Sizes, Weight, Weights, over_rows
from axcore.module import Param, entry
from axcore.ops import (
    Amaxes,
    Quantization,
    QuantizedDotSpec,
    amax_of,
    amax_of_groups,
    quantize_input,
    quantized_dot,
    quantized_grouped_matmul,
)


class Int8Dynamic(Dot):
    """int8 with a scale per channel: each row of the input and column of the weight has its own.

    Every product takes its channels along what it sums over, so that scales leave the sum.

    Source: Abdolrashidi et al. 2021, arXiv:2105.03536, section 3, from which AQT ("Accurate
    Quantized Training") came. Differs: the weight's gradient is computed in int8 too, by default.
    """

    @config
    class Config(Dot.Config):
        """The config of an `Int8Dynamic`.

        Args:
            weight_gradient: Whether the weight's gradient is computed in int8 too. It sums over
                tokens, so that a few large gradients in a channel leave little to all others: set
                it to False where that harms.
            stochastic_rounding: Whether the output's gradient is rounded at random in training, so
                that it is right in the mean.
        """

        weight_gradient: bool = True
        stochastic_rounding: bool = False

    def forward(self, x: Input, weight: Weight) -> Output:
        """Return the product in x's dtype."""
        x = self.without_padding(x)
        spec, key = int8_spec(self.config), self._key()
        return over_rows(lambda rows: quantized_dot(rows, weight, spec, key=key), x)

    @entry
    def grouped(self, rows: Rows, weights: Weights, sizes: Sizes) -> Float[Array, "rows out_dim"]:
        """Return each row times the weight of its group, in rows' dtype."""
        spec = int8_spec(self.config)
        return quantized_grouped_matmul(rows, weights, sizes, spec, key=self._key())

    def _key(self) -> Array | None:
        is_random = self.config.stochastic_rounding and self.training
        return self.rng("rounding") if is_random else None


def int8_spec(cfg: Int8Dynamic.Config) -> QuantizedDotSpec:
    """Return the op's choices that a config means."""
    to_nearest = Quantization(format="int8", per="channel")
    gradients = Quantization(format="int8", per="channel", is_stochastic=cfg.stochastic_rounding)
    return QuantizedDotSpec(
        inputs=to_nearest,
        weights=to_nearest,
        gradients=gradients,
        weight_gradient=cfg.weight_gradient,
    )


E4M3 = Quantization(format="float8_e4m3fn", per="tensor")
E5M2 = Quantization(format="float8_e5m2", per="tensor")
FLOAT8 = QuantizedDotSpec(inputs=E4M3, weights=E4M3, gradients=E5M2)
"""Inputs and weights need precision, gradients need range."""


class Fp8Current(Dot):
    """float8 with a scale per tensor, taken from what the tensor holds now.

    The input and the weight are float8_e4m3fn, the output's gradient is float8_e5m2.

    Source: Micikevicius et al. 2022, arXiv:2209.05433, section 3.
    """

    @config
    class Config(Dot.Config):
        """The config of an `Fp8Current`."""

    def forward(self, x: Input, weight: Weight) -> Output:
        """Return the product in x's dtype."""
        x = self.without_padding(x)

        def product(rows: Array) -> Array:
            # Layers that share an input, as gate and up, share its float8 form.
            narrow = self.made_once("float8", x, lambda: quantize_input(rows, FLOAT8))
            return quantized_dot(rows, weight, FLOAT8, quantized_x=narrow)

        return over_rows(product, x)

    @entry
    def grouped(self, rows: Rows, weights: Weights, sizes: Sizes) -> Float[Array, "rows out_dim"]:
        """Return each row times the weight of its group, in rows' dtype; a scale per group."""
        return quantized_grouped_matmul(rows, weights, sizes, FLOAT8)


_History = Float[Array, "*groups history"]
_Amax = Float[Array, "*groups"]

FIRST_INPUT, FIRST_WEIGHT, FIRST_GRADIENT = 16.0, 1.0, 2.0**-4
"""Used as the largest magnitudes before any was seen. float8 has its own exponent: it represents
values down to 2^-17 of the largest for inputs and weights, and to 2^-31 for gradients."""


class Fp8Delayed(Dot):
    """float8 with a scale per tensor, from the largest magnitude of the last steps.

    Statistics keep these magnitudes. That of the output's gradient is found in the backward pass:
    `gradient_amax` is the last one, which the next forward pass moves into its history. What
    exceeds all of a history is clipped, once.

    Source: Micikevicius et al. 2022, arXiv:2209.05433, section 3; "Using FP8 with Transformer
    Engine", the delayed scaling recipe.
    """

    @config
    class Config(Dot.Config):
        """The config of an `Fp8Delayed`.

        Args:
            history: How many steps are looked back on.
        """

        history: int = 16

    def setup(self, cfg: Config) -> None:
        """Declare the buffers."""
        if cfg.history < 1:
            raise ConfigError(
                f"history is {cfg.history}; expected 1 or more",
                hint="Fp8Current.Config() scales without a history",
            )
        shape, axes = (cfg.history,), (None,)
        self.input_history = Param(shape, axes=axes, init=0.0, is_buffer=True, merge="max")
        self.weight_history = Param(shape, axes=axes, init=0.0, is_buffer=True, merge="max")
        self.gradient_history = Param(shape, axes=axes, init=0.0, is_buffer=True, merge="max")
        self.gradient_amax = Param(
            (), axes=(), init=0.0, is_buffer=True, merge="max", is_overwritten_by_gradient=True
        )

    def forward(self, x: Input, weight: Weight) -> Output:
        """Return the product in x's dtype; in training, takes the magnitudes down."""
        x = self.without_padding(x)
        amaxes = self._from_histories(amax_of(x), amax_of(weight))

        def product(rows: Array) -> Array:
            narrow = self.made_once(
                f"float8 by {self.config.history} steps",
                x,
                lambda: quantize_input(rows, FLOAT8, amax=amaxes.inputs),
            )
            return quantized_dot(rows, weight, FLOAT8, quantized_x=narrow, amaxes=amaxes)

        return over_rows(product, x)

    @entry
    def grouped(self, rows: Rows, weights: Weights, sizes: Sizes) -> Float[Array, "rows out_dim"]:
        """Return each row times the weight of its group; every group has histories of its own."""
        of_weights = amax_of(weights, (1, 2))[:, 0, 0]
        amaxes = self._from_histories(amax_of_groups(rows, sizes), of_weights)
        return quantized_grouped_matmul(rows, weights, sizes, FLOAT8, amaxes=amaxes)

    def _from_histories(self, of_input: _Amax, of_weight: _Amax) -> Amaxes:
        """Return the magnitudes to scale by; in training, keep those of this step."""
        # Backward overwrites `gradient_amax` after this forward pass, so it enters one step late.
        gradient_history = _pushed(self.gradient_history, self.gradient_amax)
        if self.training:
            self.update("input_history", _pushed(self.input_history, of_input))
            self.update("weight_history", _pushed(self.weight_history, of_weight))
            self.update("gradient_history", gradient_history)
        return Amaxes(
            inputs=largest(self.input_history, FIRST_INPUT),
            weights=largest(self.weight_history, FIRST_WEIGHT),
            gradients=largest(gradient_history, FIRST_GRADIENT),
            seen=self.gradient_amax,
        )


def _pushed(history: _History, newest: _Amax) -> _History:
    """Return the history with the newest in front, and without the oldest."""
    return jnp.concatenate([newest[..., None], history[..., :-1]], axis=-1)


def largest(history: _History, first: float) -> _Amax:
    """Return the largest of a history; `first` where it is all zeros."""
    amax = jnp.max(history, axis=-1)
    return jnp.where(amax > 0, amax, first)
