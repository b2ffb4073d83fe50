"""What a run loses in the bubbles of its pipelines."""

from typing import Any

from axcore.config import find_config
from axcore.layers import Pipeline
from axcore.parallel import AnyMesh, PipelineSchedule


def describe_pipelines(cfg: Any, mesh: AnyMesh) -> tuple[str, ...]:
    """Returns a line for every pipeline of a trainer's config: its schedule, and its bubble."""
    num_stages = mesh.shape["pipeline"]
    return tuple(
        f"{found.path}: {_line(found.node, num_stages)}" for found in find_config(cfg, Pipeline)
    )


def _line(stack: Any, num_stages: int) -> str:
    schedule = PipelineSchedule(num_stages, stack.num_micro_batches, stack.num_rounds)
    rounds = f", {stack.num_rounds} rounds" if stack.num_rounds > 1 else ""
    return (
        f"{num_stages} stages, {stack.num_micro_batches} micro-batches{rounds}: "
        f"{100 * schedule.bubble:.1f} % bubble"
    )
