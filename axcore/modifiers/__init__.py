"""Modifiers: small configs whose `apply(cfg, hardware) -> cfg` changes a trainer's config, purely.

Mesh rules name them, and so may a plugin's module that imports no jax: nothing here does, and what
a modifier needs of later rooms it refers to by name.
"""

from axcore.modifiers.edits import Chain, Named, Replace, Update
from axcore.modifiers.kernels import Kernels
from axcore.modifiers.layout import Accumulate, MeshShape, MicroBatches, Shard
from axcore.modifiers.lora import LoRA
from axcore.modifiers.pipelined import Pipelined
from axcore.modifiers.remat import Remat

__all__ = [
    "Accumulate",
    "Chain",
    "Kernels",
    "LoRA",
    "MeshShape",
    "MicroBatches",
    "Named",
    "Pipelined",
    "Remat",
    "Replace",
    "Shard",
    "Update",
]
