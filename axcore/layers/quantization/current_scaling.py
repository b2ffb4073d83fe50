"""Products of narrow operands that are scaled by what they hold themselves, in int8 and float8.

They go into the `dot` of a linear layer: one by one, or all by a modifier.
"""

from jaxtyping import Array, Float

from axcore.config import config
from axcore.layers.dot import Dot, Input, Output, Rows, Sizes, Weight, Weights, over_rows
from axcore.module import entry
from axcore.ops import (
    Quantization,
    QuantizedDotSpec,
    narrow_input,
    quantized_dot,
    quantized_grouped_matmul,
)


class Int8Dynamic(Dot):
    """int8 with a scale per channel: each row of the input and column of the weight has its own.

    Every product takes its channels along what it sums over, so that scales leave the sum.

    Source: Abdolrashidi et al. 2021, arXiv:2105.03536, section 3, from which AQT ("Accurate
    Quantized Training") came. Differs: the weight's gradient is narrow too, by default.
    """

    @config
    class Config(Dot.Config):
        """Describes an `Int8Dynamic`.

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
        """Returns the product in x's dtype."""
        x = self.without_padding(x)
        spec, key = int8_spec(self.config), self._key()
        return over_rows(lambda rows: quantized_dot(rows, weight, spec, key=key), x)

    @entry
    def grouped(self, rows: Rows, weights: Weights, sizes: Sizes) -> Float[Array, "rows out_dim"]:
        """Returns each row times the weight of its group, in rows' dtype."""
        spec = int8_spec(self.config)
        return quantized_grouped_matmul(rows, weights, sizes, spec, key=self._key())

    def _key(self) -> Array | None:
        is_random = self.config.stochastic_rounding and self.training
        return self.rng("rounding") if is_random else None


def int8_spec(cfg: Int8Dynamic.Config) -> QuantizedDotSpec:
    """Returns the op's choices that a config means."""
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
        """Describes an `Fp8Current`."""

    def forward(self, x: Input, weight: Weight) -> Output:
        """Returns the product in x's dtype."""
        x = self.without_padding(x)

        def product(rows: Array) -> Array:
            narrow = self.made_once("float8", x, lambda: narrow_input(rows, FLOAT8))
            return quantized_dot(rows, weight, FLOAT8, narrow_x=narrow)

        return over_rows(product, x)

    @entry
    def grouped(self, rows: Rows, weights: Weights, sizes: Sizes) -> Float[Array, "rows out_dim"]:
        """Returns each row times the weight of its group, in rows' dtype; a scale per group."""
        return quantized_grouped_matmul(rows, weights, sizes, FLOAT8)
