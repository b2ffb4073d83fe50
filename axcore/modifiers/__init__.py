"""Modifiers: small configs whose `apply(cfg, hardware) -> cfg` changes a trainer's config, purely.

Mesh rules hold them. A plugin's module, which imports no jax and so none of these, holds their text
instead, as users write it: `MeshRule(..., modifiers=("remat(policy=minimal)",))`.
"""

from axcore.modifiers.adapters import AdapterSlots, LoRA, QuantizedBase
from axcore.modifiers.diloco import DiLoCoModifier
from axcore.modifiers.edits import Chain, Kernels, Named, ReplaceConfig, UpdateConfig
from axcore.modifiers.kv_cache import KVCache
from axcore.modifiers.layout import Accumulate, MeshShape, MicroBatches, Pipelined, Shard, Zero2
from axcore.modifiers.multi_token import MultiTokenPrediction
from axcore.modifiers.named import (
    apply_modifier,
    find_change,
    parse_change,
    split_at_commas,
    with_changes,
)
from axcore.modifiers.pretrained import Pretrained
from axcore.modifiers.quantization import (
    NAMED_WEIGHTS,
    Fp8Training,
    Int8Training,
    LowPrecisionOptimizer,
    QuantizedWeights,
    with_dot,
    with_packed_weights,
)
from axcore.modifiers.remat import RematModifier
from axcore.modifiers.serving import changes_compute_dtype, for_serving, served_compute
from axcore.modifiers.variants import with_variant

__all__ = [
    "NAMED_WEIGHTS",
    "Accumulate",
    "AdapterSlots",
    "Chain",
    "DiLoCoModifier",
    "Fp8Training",
    "Int8Training",
    "KVCache",
    "Kernels",
    "LoRA",
    "LowPrecisionOptimizer",
    "MeshShape",
    "MicroBatches",
    "MultiTokenPrediction",
    "Named",
    "Pipelined",
    "Pretrained",
    "QuantizedBase",
    "QuantizedWeights",
    "RematModifier",
    "ReplaceConfig",
    "Shard",
    "UpdateConfig",
    "Zero2",
    "apply_modifier",
    "changes_compute_dtype",
    "find_change",
    "for_serving",
    "parse_change",
    "served_compute",
    "split_at_commas",
    "with_changes",
    "with_dot",
    "with_packed_weights",
    "with_variant",
]
