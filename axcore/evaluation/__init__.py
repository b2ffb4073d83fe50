"""Evaluation: what a model knows, measured by tasks."""

from axcore.evaluation.during_training import Evaluate, EvaluateTasks
from axcore.evaluation.engine_model import EngineModel
from axcore.evaluation.evaluate import (
    ModelIdentity,
    check_tasks,
    directory_of,
    evaluate_tasks,
    find_tasks,
    identity_of,
)
from axcore.evaluation.input_questions import InputQuestion, InputQuestions
from axcore.evaluation.questions import (
    Continuation,
    LanguageModel,
    Likelihood,
    PendingReply,
    Scored,
    TextLikelihood,
    Written,
)
from axcore.evaluation.samples import BadSample, Sample, SampleFile, SampleSource
from axcore.evaluation.scored_task import Estimate, ScoredSample, ScoredTask
from axcore.evaluation.shown_rows import ShownRow, shown_rows
from axcore.evaluation.task_run import TaskResult
from axcore.evaluation.tasks import CodeExecution, MultipleChoice, Perplexity, WrittenAnswer

__all__ = [
    "BadSample",
    "CodeExecution",
    "Continuation",
    "EngineModel",
    "Estimate",
    "Evaluate",
    "EvaluateTasks",
    "InputQuestion",
    "InputQuestions",
    "LanguageModel",
    "Likelihood",
    "ModelIdentity",
    "MultipleChoice",
    "PendingReply",
    "Perplexity",
    "Sample",
    "SampleFile",
    "SampleSource",
    "Scored",
    "ScoredSample",
    "ScoredTask",
    "ShownRow",
    "TaskResult",
    "TextLikelihood",
    "Written",
    "WrittenAnswer",
    "check_tasks",
    "directory_of",
    "evaluate_tasks",
    "find_tasks",
    "identity_of",
    "shown_rows",
]
