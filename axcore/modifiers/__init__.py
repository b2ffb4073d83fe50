"""Modifiers: small configs whose `apply(cfg, hardware) -> cfg` changes a trainer's config, purely.

Mesh rules hold them. A plugin's module, which imports no jax and so none of these, holds their text
instead, as users write it: `MeshRule(..., modifiers=("remat(policy=minimal)",))`.
"""

from axcore.modifiers.adapter_room import AdapterRoom
from axcore.modifiers.dots import with_dot
from axcore.modifiers.edits import Chain, Named, ReplaceConfig, UpdateConfig
from axcore.modifiers.half_cache import HalfCaches
from axcore.modifiers.kernels import Kernels
from axcore.modifiers.layout import Accumulate, MeshShape, MicroBatches, Shard, Zero2
from axcore.modifiers.lora import LoRA
from axcore.modifiers.low_precision import LowPrecisionOptimizer
from axcore.modifiers.named import apply_modifier, find_change, with_changes
from axcore.modifiers.panel_weights import with_panels
from axcore.modifiers.pipelined import Pipelined
from axcore.modifiers.pretrained import Pretrained
from axcore.modifiers.quantization import Fp8Training, Int8Training
from axcore.modifiers.quantized_base import QuantizedBase
from axcore.modifiers.quantized_cache import QuantizedCaches
from axcore.modifiers.quantized_weights import NAMED_WEIGHTS, QuantizedWeights
from axcore.modifiers.remat import RematModifier
from axcore.modifiers.serving import for_serving, is_widened, served_compute
from axcore.modifiers.sliding_cache import SlidingCaches
from axcore.modifiers.variants import with_variant

__all__ = [
    "NAMED_WEIGHTS",
    "Accumulate",
    "AdapterRoom",
    "Chain",
    "Fp8Training",
    "HalfCaches",
    "Int8Training",
    "Kernels",
    "LoRA",
    "LowPrecisionOptimizer",
    "MeshShape",
    "MicroBatches",
    "Named",
    "Pipelined",
    "Pretrained",
    "QuantizedBase",
    "QuantizedCaches",
    "QuantizedWeights",
    "RematModifier",
    "ReplaceConfig",
    "Shard",
    "SlidingCaches",
    "UpdateConfig",
    "Zero2",
    "apply_modifier",
    "find_change",
    "for_serving",
    "is_widened",
    "served_compute",
    "with_changes",
    "with_dot",
    "with_panels",
    "with_variant",
]
