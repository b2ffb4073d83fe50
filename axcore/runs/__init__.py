"""Runs: opening what training left in a directory, and making runs of pretrained checkpoints."""

from axcore.runs.base_model import BaseModel
from axcore.runs.distill import DistillFrom, DistillFromCache, OnPolicyDistillFrom
from axcore.runs.export import (
    export_gguf,
    export_run,
    import_run,
    open_checkpoint,
)
from axcore.runs.opening import OpenedModel, engine_for, merge_models_and_runs, open_model
from axcore.runs.orbax import import_orbax
from axcore.runs.rewards import reward_of
from axcore.runs.run import RestoredModel, Run, load_run, no_text_reason
from axcore.runs.run_facts import RunFacts, run_facts
from axcore.runs.run_weights import FromRun, RunWeights
from axcore.runs.teacher_cache import write_teacher_cache
from axcore.runs.text_samples import GenerateSamples, TextSamples

__all__ = [
    "BaseModel",
    "DistillFrom",
    "DistillFromCache",
    "FromRun",
    "GenerateSamples",
    "OnPolicyDistillFrom",
    "OpenedModel",
    "RestoredModel",
    "Run",
    "RunFacts",
    "RunWeights",
    "TextSamples",
    "engine_for",
    "export_gguf",
    "export_run",
    "import_orbax",
    "import_run",
    "load_run",
    "merge_models_and_runs",
    "no_text_reason",
    "open_checkpoint",
    "open_model",
    "reward_of",
    "run_facts",
    "write_teacher_cache",
]
