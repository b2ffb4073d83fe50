"""Runs: opening what training left in a directory, and making runs of published models."""

from axcore.runs.base_model import BaseModel
from axcore.runs.gguf import export_gguf
from axcore.runs.hugging_face import export_run, import_run
from axcore.runs.run import Run, load_run
from axcore.runs.run_facts import RunFacts, run_facts
from axcore.runs.run_weights import FromRun, RunWeights

__all__ = [
    "BaseModel",
    "FromRun",
    "Run",
    "RunFacts",
    "RunWeights",
    "export_gguf",
    "export_run",
    "import_run",
    "load_run",
    "run_facts",
]
