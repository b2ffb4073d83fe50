"""Prompts, and an experiment that learns from rewards."""

from collections.abc import Iterator

from axcore.plugins import DataSource, Experiment, Feature, Ref, hook


@hook.data_sources
def data_sources() -> Iterator[DataSource]:
    """Where prompts come from."""
    for name, config, summary in (
        ("prompts", "PromptFiles", "JSON lines with a prompt or messages, and fields for rewards"),
        ("reversed_strings", "ReversedStrings", "Strings to reverse, with the answers"),
        ("arithmetic", "Arithmetic", "Sums of two numbers, with the answers"),
    ):
        yield DataSource(name=name, config=Ref(f"axcore.rollouts:{config}.Config"), summary=summary)


@hook.experiments
def experiments() -> Iterator[Experiment]:
    """What is trained by rewards with the core alone."""
    for name, function, summary in (
        ("grpo", "grpo", "Rewards of sampled answers, to train a base further"),
        ("grpo-reverse", "grpo_reverse", "Learns to reverse strings from rewards alone; minutes"),
    ):
        fn = Ref(f"axcore.rollouts.experiments:{function}")
        yield Experiment(name=name, fn=fn, summary=summary)


@hook.features
def features() -> Iterator[Feature]:
    """What `axcore loc` measures of learning from rewards."""
    for name, summary, implementation in (
        ("gspo", "Rewards, with one ratio for each answer", "axcore.tasks.policy_gradient:GSPO"),
        ("reward", "A reward for a format", "axcore.rewards.builtin:RegexMatch"),
    ):
        yield Feature(
            name=name,
            apply=Ref(f"axcore.rollouts.features:with_{name}"),
            evidence=Ref(f"axcore.rollouts.features:has_{name}"),
            implementation=(implementation,),
            summary=summary,
        )
