"""LoRA: the layer, and adapters as a part of a model's state."""

from axcore.layers.lora.adapters import (
    adapters_of,
    merge_adapters,
    new_adapters,
    with_adapters,
    without_lora,
)
from axcore.layers.lora.batched import BatchedLoRALinear, using_adapters, with_adapter
from axcore.layers.lora.linear import LoRALinear
from axcore.layers.lora.magnitude import Magnitude

__all__ = [
    "BatchedLoRALinear",
    "LoRALinear",
    "Magnitude",
    "adapters_of",
    "merge_adapters",
    "new_adapters",
    "using_adapters",
    "with_adapter",
    "with_adapters",
    "without_lora",
]
