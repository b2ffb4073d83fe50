"""Adapters (LoRA and its kin): the layers, and adapters as a part of a model's state."""

from axcore.layers.adapters.batched import BatchedLoRALinear, using_adapters, with_adapter
from axcore.layers.adapters.lora import LoRALinear, Magnitude
from axcore.layers.adapters.states import (
    adapters_of,
    merge_adapters,
    new_adapters,
    with_adapters,
    without_lora,
)

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
