"""Matrix products in INT8 and FP8, and weights in low precision."""

from axcore.layers.quantization.frozen_linear import (
    FrozenLinear,
    frozen_state,
    full_precision_state,
    with_full_precision_weights,
)
from axcore.layers.quantization.quantized_dot import Fp8Current, Fp8Delayed, Int8Dynamic
from axcore.layers.quantization.stored_weights import QuantizedLinear, quantize_weights

__all__ = [
    "Fp8Current",
    "Fp8Delayed",
    "FrozenLinear",
    "Int8Dynamic",
    "QuantizedLinear",
    "frozen_state",
    "full_precision_state",
    "quantize_weights",
    "with_full_precision_weights",
]
