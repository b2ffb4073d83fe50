"""Prompts, and an experiment that learns from rewards."""

from collections.abc import Iterator

from axcore.plugins import DataSource, Experiment, Ref, hook


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
