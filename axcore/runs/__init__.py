"""Runs: opening what training left in a directory."""

from axcore.runs.run import Run, load_run

__all__ = ["Run", "load_run"]
