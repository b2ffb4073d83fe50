"""The gradients of a quantized product: two narrow products more, each by a kernel of its own.

With a scale per tensor the narrow operands themselves are kept for backward, at a quarter of
float32's memory; with a scale per channel they are made anew, since each product sums over another
axis.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name

from axcore.ops.quantized_dot_kernels import Kernel
from axcore.ops.quantized_dot_quantize import amax_of, quantized
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

QUANTIZED_INPUT = "quantized_input"
QUANTIZED_WEIGHT = "quantized_weight"

_Kept = Narrow | Array
_Residuals = tuple[_Kept, _Kept, Amaxes | None, Array | None]
_Gradients = tuple[Array, Array, Amaxes | None, None]


class Products:
    """The three products of one call, from operands of known shapes."""
