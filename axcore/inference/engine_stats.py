"""`EngineStats`: what an engine does at one moment, and did since it was made."""

from collections.abc import Sequence

import attrs


@attrs.frozen
class EngineStats:
    """What an engine does at one moment, and did since it was made.

    Args:
        num_waiting: Requests that wait for a slot.
        num_running: Requests that have one.
        num_slots: Slots there are.
        pages_used: Pages that requests hold.
        pages_total: Pages there are.
        num_prompt_tokens: Tokens of all prompts.
        num_cached_prompt_tokens: Those of them that another request had computed.
        shares_prefixes: Whether prompts that begin alike are computed once.
        num_preemptions: How often a request lost its pages and was read again.
        num_drawn: Tokens drawn.
        num_guesses: Tokens guessed ahead.
        num_right_guesses: Those of them that were drawn.
        num_steps: Steps run.
        compilations_after_warm_up: Programs compiled while requests waited for them.
        host_seconds_per_step: Time of a step that is the engine's own, not the device's.
        num_replicas: Replicas there are; one where there is an engine alone.
        num_failed_replicas: Those of them that failed, and answer no more.
        num_moved: Requests that went from a failed replica to another.
        num_lost: Requests that ended with an error because their replica failed.
    """

    num_waiting: int
    num_running: int
    num_slots: int
    pages_used: int
    pages_total: int
    num_prompt_tokens: int
    num_cached_prompt_tokens: int
    shares_prefixes: bool
    num_preemptions: int
    num_drawn: int
    num_guesses: int
    num_right_guesses: int
    num_steps: int
    compilations_after_warm_up: int
    host_seconds_per_step: float
    num_replicas: int = 1
    num_failed_replicas: int = 0
    num_moved: int = 0
    num_lost: int = 0


def summed(parts: Sequence[EngineStats]) -> EngineStats:
    """Returns what several engines do together; times of a step are means over all steps."""
    names = [field.name for field in attrs.fields(EngineStats)]
    total = {name: sum(getattr(one, name) for one in parts) for name in names}
    host = sum(one.host_seconds_per_step * one.num_steps for one in parts)
    total["host_seconds_per_step"] = host / max(1, total["num_steps"])
    total["shares_prefixes"] = all(one.shares_prefixes for one in parts)
    return EngineStats(**total)


def without_room(stats: EngineStats) -> EngineStats:
    """Returns what an engine did that does nothing any more."""
    return attrs.evolve(
        stats, num_waiting=0, num_running=0, num_slots=0, pages_used=0, pages_total=0
    )
