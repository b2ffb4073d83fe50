"""The training tasks besides the next token."""

from collections.abc import Iterator

from axcore.plugins import Ref, TrainingTask, hook


@hook.training_tasks
def training_tasks() -> Iterator[TrainingTask]:
    """What a model is trained for, besides the next token."""
    for name, config, summary in (
        ("dpo", "DPO", "Answers chosen over others, against a frozen copy"),
        ("ipo", "IPO", "Answers chosen over others by a set margin, against a frozen copy"),
        ("orpo", "ORPO", "Answers to give, and others to make less likely"),
        ("simpo", "SimPO", "Answers chosen over others by their mean log-probability"),
        ("reward_model", "RewardModel", "A score for each answer, by answers chosen over others"),
        ("kto", "KTO", "Answers that were labelled one by one, against a frozen copy"),
    ):
        yield TrainingTask(name=name, config=Ref(f"axcore.tasks:{config}.Config"), summary=summary)
