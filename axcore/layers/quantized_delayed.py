"""float8 products scaled by what earlier steps held, so that nothing waits for a maximum."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.config import config
from axcore.errors import ConfigError
from axcore.layers.dot import Dot, Input, Output, Weight, over_rows
from axcore.layers.quantized import FLOAT8
from axcore.module import Param
from axcore.ops import Amaxes, amax_of, quantized_dot

History = Float[Array, "history"]
Scalar = Float[Array, ""]

FIRST_INPUT, FIRST_WEIGHT, FIRST_GRADIENT = 16.0, 1.0, 2.0**-4
"""Taken for the largest magnitudes before any was seen. float8 has an exponent of its own: it holds
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
        """Describes an `Fp8Delayed`.

        Args:
            history: How many steps are looked back on.
        """

        history: int = 16

    def setup(self, cfg: Config) -> None:
        """Declares the statistics."""
        if cfg.history < 1:
            raise ConfigError(
                f"history is {cfg.history}; expected 1 or more",
                mend="Fp8Current.Config() scales without a history",
            )
        shape, axes = (cfg.history,), (None,)
        self.input_history = Param(shape, axes=axes, init=0.0, is_statistic=True, merge="max")
        self.weight_history = Param(shape, axes=axes, init=0.0, is_statistic=True, merge="max")
        self.gradient_history = Param(shape, axes=axes, init=0.0, is_statistic=True, merge="max")
        self.gradient_amax = Param(
            (), axes=(), init=0.0, is_statistic=True, merge="max", is_from_backward=True
        )

    def forward(self, x: Input, weight: Weight) -> Output:
        """Returns the product in x's dtype; in training, takes the magnitudes down."""
        gradient_history = pushed(self.gradient_history, self.gradient_amax)
        amaxes = Amaxes(
            inputs=largest(self.input_history, FIRST_INPUT),
            weights=largest(self.weight_history, FIRST_WEIGHT),
            gradients=largest(gradient_history, FIRST_GRADIENT),
            seen=self.gradient_amax,
        )
        if self.training:
            self.update("input_history", pushed(self.input_history, amax_of(x)))
            self.update("weight_history", pushed(self.weight_history, amax_of(weight)))
            self.update("gradient_history", gradient_history)
        return over_rows(lambda rows: quantized_dot(rows, weight, FLOAT8, amaxes=amaxes), x)


def pushed(history: History, newest: Scalar) -> History:
    """Returns the history with the newest in front, and without the oldest."""
    return jnp.concatenate([newest[None], history[:-1]])


def largest(history: History, first: float) -> Scalar:
    """Returns the largest of a history; `first` where it is all zeros."""
    amax = jnp.max(history)
    return jnp.where(amax > 0, amax, first)
