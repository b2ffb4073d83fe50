"""Quantized tensors of pretrained checkpoints, dequantized as they are read.

Numbers are float32 as they are read: the products of stored numbers and their scales, not rounded.
"""

from axcore.interop.quantized.formats import FORMATS, dequantized, quantized_format
from axcore.interop.quantized.settings import QUANTIZATION, with_quantization
from axcore.interop.quantized.tensors import Tensor

__all__ = [
    "FORMATS",
    "QUANTIZATION",
    "Tensor",
    "dequantized",
    "quantized_format",
    "with_quantization",
]
