"""A run's directory: its config, its lock, its history, and whether all processes agree."""

from axcore.trainer.run_directory.directory import RunDirectory

__all__ = ["RunDirectory"]
