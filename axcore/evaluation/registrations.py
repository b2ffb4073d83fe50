"""The tasks that models are evaluated on, and their evaluation while a run trains."""

from collections.abc import Iterator

from axcore.plugins import EvaluationTask, Modifier, Ref, hook


@hook.evaluation_tasks
def evaluation_tasks() -> Iterator[EvaluationTask]:
    """What models are measured by, with no download."""
    for name, target, summary in (
        (
            "arithmetic",
            "axcore.evaluation.tasks:arithmetic",
            "Results of sums, written",
        ),
        (
            "library_text",
            "axcore.evaluation.public_tasks:library_text",
            "Files of Python's library, predicted",
        ),
        (
            "library_signatures",
            "axcore.evaluation.public_tasks:library_signatures",
            "Signatures of functions of Python's library, written for their docstrings",
        ),
        (
            "library_names",
            "axcore.evaluation.public_tasks:library_names",
            "Names that functions of Python's library return, chosen among four",
        ),
        ("hellaswag", "axcore.evaluation.public_tasks:hellaswag", "HellaSwag, of a local file"),
        ("arc", "axcore.evaluation.public_tasks:arc", "ARC, of a local file"),
        ("mmlu", "axcore.evaluation.public_tasks:mmlu", "A subject of MMLU, of a local file"),
        ("gsm8k", "axcore.evaluation.public_tasks:gsm8k", "GSM8K, of a local file"),
        (
            "humaneval",
            "axcore.evaluation.public_tasks:humaneval",
            "HumanEval, of a local file; programs are run",
        ),
    ):
        yield EvaluationTask(name=name, config=Ref(target), summary=summary)


@hook.modifiers
def modifiers() -> Iterator[Modifier]:
    """Evaluation while a run trains."""
    yield Modifier(
        name="evaluate",
        config=Ref("axcore.evaluation:Evaluate"),
        summary="Tasks evaluated every n steps of training",
    )
