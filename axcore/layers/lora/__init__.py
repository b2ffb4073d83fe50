"""LoRA: the layer, and adapters as a part of a model's state."""

from axcore.layers.lora.adapters import (
    adapters_of,
    merge_adapters,
    new_adapters,
    with_adapters,
    without_lora,
)
from axcore.layers.lora.linear import LoRALinear

__all__ = [
    "LoRALinear",
    "adapters_of",
    "merge_adapters",
    "new_adapters",
    "with_adapters",
    "without_lora",
]
