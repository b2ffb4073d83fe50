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
    yield Experiment(
        name="grpo",
        fn=Ref("axcore.rollouts.experiments:grpo"),
        summary="A small transformer that learns to reverse strings from rewards alone",
    )
