"""The tasks that models are evaluated on, and their evaluation while a run trains."""

from collections.abc import Iterator

from axcore.plugins import EvaluationTask, Modifier, Ref, hook


@hook.evaluation_tasks
def evaluation_tasks() -> Iterator[EvaluationTask]:
    """What models are measured by, with no download."""
    for name, target, summary in (
        (
            "arithmetic",
            "axcore.evaluation.arithmetic:arithmetic",
            "Results of sums, written",
        ),
        (
            "library_text",
            "axcore.evaluation.standard_library:library_text",
            "Files of Python's library, predicted",
        ),
        (
            "library_signatures",
            "axcore.evaluation.standard_library:library_signatures",
            "Signatures of functions of Python's library, written for their docstrings",
        ),
        (
            "library_names",
            "axcore.evaluation.standard_library:library_names",
            "Names that functions of Python's library return, chosen among four",
        ),
        ("hellaswag", "axcore.evaluation.public:hellaswag", "HellaSwag, of a local file"),
        ("arc", "axcore.evaluation.public:arc", "ARC, of a local file"),
        ("mmlu", "axcore.evaluation.public:mmlu", "A subject of MMLU, of a local file"),
        ("gsm8k", "axcore.evaluation.public:gsm8k", "GSM8K, of a local file"),
        (
            "humaneval",
            "axcore.evaluation.public:humaneval",
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
