"""Evaluation: what a model knows, measured by tasks."""

from axcore.evaluation.code_execution import CodeExecution
from axcore.evaluation.during_training import Evaluate, EvaluateTasks
from axcore.evaluation.engine_model import EngineModel
from axcore.evaluation.estimates import Estimate
from axcore.evaluation.evaluate import (
    ModelIdentity,
    check_tasks,
    directory_of,
    evaluate_tasks,
    identity_of,
)
from axcore.evaluation.find_task import find_tasks
from axcore.evaluation.multiple_choice import MultipleChoice
from axcore.evaluation.perplexity import Perplexity
from axcore.evaluation.questions import (
    Continuation,
    LanguageModel,
    Likelihood,
    PendingReply,
    Scored,
    TextLikelihood,
    Written,
)
from axcore.evaluation.sample import BadSample, Sample, SampleSource
from axcore.evaluation.sample_file import SampleFile
from axcore.evaluation.scored_task import ScoredSample, ScoredTask
from axcore.evaluation.task_run import TaskResult
from axcore.evaluation.written_answer import WrittenAnswer

__all__ = [
    "BadSample",
    "CodeExecution",
    "Continuation",
    "EngineModel",
    "Estimate",
    "Evaluate",
    "EvaluateTasks",
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
    "TaskResult",
    "TextLikelihood",
    "Written",
    "WrittenAnswer",
    "check_tasks",
    "directory_of",
    "evaluate_tasks",
    "find_tasks",
    "identity_of",
]
