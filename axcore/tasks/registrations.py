"""The training tasks in addition to the next token."""

from collections.abc import Iterator

from axcore.plugins import Modifier, Ref, TrainingTask, hook


@hook.training_tasks
def training_tasks() -> Iterator[TrainingTask]:
    """What a model is trained for, in addition to the next token."""
    for name, config, summary in (
        ("dpo", "DPO", "Answers chosen over others, against a frozen copy"),
        ("ipo", "IPO", "Answers chosen over others by a set margin, against a frozen copy"),
        ("orpo", "ORPO", "Answers to give, and others to make less likely"),
        ("simpo", "SimPO", "Answers chosen over others by their mean log-probability"),
        ("reward_model", "RewardModel", "A score for each answer, by answers chosen over others"),
        ("kto", "KTO", "Answers that were labelled one by one, against a frozen copy"),
        ("grpo", "GRPO", "Rewards of sampled answers, compared within those to a prompt"),
        ("dr_grpo", "DrGRPO", "GRPO whose loss favours no length and no difficulty"),
        ("dapo", "DAPO", "GRPO with a wider clip above, and equal weight for each token"),
        ("gspo", "GSPO", "GRPO with one ratio for each answer"),
        ("rloo", "RLOO", "Rewards less the mean of the prompt's other answers"),
        ("contrastive", "Contrastive", "Pairs that belong together, among all of a batch"),
        ("ppo", "PPO", "Rewards less what a value head expects at each token"),
        ("masked_tokens", "MaskedTokens", "Tokens that are hidden, from what is around them"),
        ("flow_matching", "FlowMatching", "Velocities that lead from noise to data"),
    ):
        yield TrainingTask(name=name, config=Ref(f"axcore.tasks:{config}.Config"), summary=summary)


@hook.modifiers
def modifiers() -> Iterator[Modifier]:
    """What changes a task."""
    yield Modifier(
        name="routing_replay",
        config=Ref("axcore.tasks:RoutingReplay"),
        summary="Updates on a rollout keep the experts that its old log-probabilities were made by",
    )
