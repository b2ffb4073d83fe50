"""Checkpoints of a run: saved atomically, verified on restore, resharded as asked."""

from axcore.checkpoint.adapters import load_adapters, save_adapters
from axcore.checkpoint.checkpointer import Checkpointer
from axcore.checkpoint.manifest import DamagedCheckpointError, Manifest
from axcore.checkpoint.memory_snapshots import MemorySnapshots
from axcore.checkpoint.reader import Restored
from axcore.checkpoint.steps import StepDirectories
from axcore.checkpoint.storage import CheckpointWarning, StepStorage, StorageLock

__all__ = [
    "CheckpointWarning",
    "Checkpointer",
    "DamagedCheckpointError",
    "Manifest",
    "MemorySnapshots",
    "Restored",
    "StepDirectories",
    "StepStorage",
    "StorageLock",
    "load_adapters",
    "save_adapters",
]
