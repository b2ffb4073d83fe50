"""Batch inference: a model's answers to every prompt in a file, resumable and exact."""

from axcore.batch_inference.answers import AnswerFile
from axcore.batch_inference.batch import BatchConfig, BatchInference, BatchProgress
from axcore.batch_inference.prompts import Prompt, PromptFile, PromptSummary

__all__ = [
    "AnswerFile",
    "BatchConfig",
    "BatchInference",
    "BatchProgress",
    "Prompt",
    "PromptFile",
    "PromptSummary",
]
