"""The environments of the core."""

from collections.abc import Iterator

from axcore.plugins import Ref, RolloutEnvironment, hook


@hook.environments
def environments() -> Iterator[RolloutEnvironment]:
    """What answers a policy between its turns, by name."""
    yield RolloutEnvironment(
        name="tools",
        config=Ref("axcore.environments:ToolCalls.Config"),
        summary="Runs functions that the policy calls: a calculator, or those that you give it",
    )
