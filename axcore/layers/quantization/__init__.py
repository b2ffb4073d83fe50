"""Matrix products in INT8 and FP8."""

from axcore.layers.quantization.current_scaling import Fp8Current, Int8Dynamic
from axcore.layers.quantization.delayed_scaling import Fp8Delayed

__all__ = [
    "Fp8Current",
    "Fp8Delayed",
    "Int8Dynamic",
]
