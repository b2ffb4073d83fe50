"""Statistics that the backward pass measures, where layers run once for each micro-batch.

Such a buffer's next value is its gradient. A gradient adds up over uses; what several
micro-batches measured has to be merged as the buffer says, and what was measured in the bubble
left out. So every tick reads a copy of its own.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from axcore.module import Merge, ParamSpec, merge_buffer
from axcore.parallel import PipelineSchedule


def measured_by_tick(state: Any, specs: Any, schedule: PipelineSchedule) -> Any:
    """Returns the state with arrays `[tick, stage, layer, round, ...]` of buffers from backward.

    Args:
        state: Arrays `[stage, layer, round, ...]`.
        specs: Of those arrays.
        schedule: Of the pipeline.

    Returns:
        A tree like `state`, with None in the place of all other arrays.
    """
    return jax.tree.map(
        lambda spec, leaf: (
            _of_each_tick(leaf, schedule, spec.merge) if spec.is_overwritten_by_gradient else None
        ),
        specs,
        state,
        is_leaf=lambda leaf: isinstance(leaf, ParamSpec),
    )


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _of_each_tick(leaf: Array, schedule: PipelineSchedule, merge: Merge) -> Array:
    return jnp.broadcast_to(leaf[None], (schedule.num_ticks, *leaf.shape))


def _forward(leaf: Array, schedule: PipelineSchedule, merge: Merge) -> tuple[Array, None]:
    return _of_each_tick(leaf, schedule, merge), None


def _backward(schedule: PipelineSchedule, merge: Merge, _: None, measured: Array) -> tuple[Array]:
    """Returns the next value, from those of the ticks at which a layer had something to do."""
    parts = schedule.of_each_layer_group(measured)  # [round, stage, micro-batch, layer, round, ...]
    parts = jnp.stack([part[:, :, :, turn] for turn, part in enumerate(parts)])
    merged = merge_buffer(jnp.moveaxis(parts, 2, 0), merge)
    return (jnp.moveaxis(merged, 0, 2),)


_of_each_tick.defvjp(_forward, _backward)
