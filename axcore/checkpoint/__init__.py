"""Checkpoints of a run: saved atomically, verified on restore, resharded as asked."""

from axcore.checkpoint.checkpointer import Checkpointer
from axcore.checkpoint.manifest import DamagedCheckpointError, Manifest
from axcore.checkpoint.reader import CheckpointWarning, Restored
from axcore.checkpoint.run_directory import RunDirectory

__all__ = [
    "CheckpointWarning",
    "Checkpointer",
    "DamagedCheckpointError",
    "Manifest",
    "Restored",
    "RunDirectory",
]
