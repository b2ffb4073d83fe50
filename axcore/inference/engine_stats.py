"""`EngineStats`: what an engine does at one moment, and what it has done."""

from collections.abc import Sequence

import attrs


@attrs.frozen
class EngineStats:
    """The state of an engine at one moment, and counters since it was made.

    Args:
        num_waiting: Requests that wait for a slot.
        num_running: Requests that have one.
        num_slots: Slots there are.
        pages_used: Pages that requests hold.
        pages_total: Pages there are.
        num_prompt_tokens: Tokens of all prompts.
        num_cached_prompt_tokens: Those of them that were found in the prefix cache.
        enable_prefix_caching: Whether prompts that begin alike are computed once.
        num_preemptions: How often a request lost its pages and was read again.
        num_sampled_tokens: Tokens sampled.
        num_draft_tokens: Draft tokens proposed.
        num_accepted_draft_tokens: Those of them that the model sampled itself.
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
    enable_prefix_caching: bool
    num_preemptions: int
    num_sampled_tokens: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    num_steps: int
    compilations_after_warm_up: int
    host_seconds_per_step: float
    num_replicas: int = 1
    num_failed_replicas: int = 0
    num_moved: int = 0
    num_lost: int = 0


def summed(parts: Sequence[EngineStats]) -> EngineStats:
    """Return what several engines do together; times of a step are means over all steps."""
    names = [field.name for field in attrs.fields(EngineStats)]
    total = {name: sum(getattr(one, name) for one in parts) for name in names}
    host = sum(one.host_seconds_per_step * one.num_steps for one in parts)
    total["host_seconds_per_step"] = host / max(1, total["num_steps"])
    total["enable_prefix_caching"] = all(one.enable_prefix_caching for one in parts)
    return EngineStats(**total)


def without_capacity(stats: EngineStats) -> EngineStats:
    """Return the counters of an engine that has failed."""
    return attrs.evolve(
        stats, num_waiting=0, num_running=0, num_slots=0, pages_used=0, pages_total=0
    )
