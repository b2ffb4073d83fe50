"""Pipelines: which stage works on which part of a batch when, and the loop that does it.

Every stage computes at every tick, and hands what it made to the next. In the first ticks the later
stages have nothing to work on yet, nor have the earlier ones in the last: that is the bubble. With
one round this is GPipe. With more, the schedule is interleaved: stages hold a layer group for each
round and a micro-batch goes round that often, which makes a tick shorter and the bubble smaller.

Source: Huang et al. 2018, arXiv:1811.06965, section 2.3; Narayanan et al. 2021, arXiv:2104.04473,
section 2.2 (rounds are called model chunks there).
"""

from collections.abc import Callable
from typing import Any

import attrs
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from axcore.parallel.activations import shard, sharded_mesh_axes

Stage = Callable[[Any, Array, Array, Array, Any], tuple[Any, Any]]
"""`(state, stage, round, micro_batch, x) -> (x, outputs)` of one stage at one tick."""


@attrs.frozen
class PipelineSchedule:
    """Stages, micro-batches and rounds, and the order in which they meet.

    An *item* is a micro-batch in one round; a stage takes up one item each tick, in the order of
    their numbers, one tick after the stage before it. Micro-batches go round in groups of as many
    as there are stages, so that one comes back to the first stage when its next round begins.
    """

    num_stages: int
    num_micro_batches: int
    num_rounds: int = 1

    @property
    def num_ticks(self) -> int:
        """How many times every stage computes."""
        return int(self.ticks().max()) + 1

    @property
    def bubble(self) -> float:
        """The fraction of all stages' time in which they have nothing to do."""
        return 1 - self.num_micro_batches * self.num_rounds / self.num_ticks

    def ticks(self) -> np.ndarray:
        """Return int `[stage, round, micro-batch]`: the tick at which these meet."""
        stage, turn, micro = np.indices((self.num_stages, self.num_rounds, self.num_micro_batches))
        group, place = micro // self.num_stages, micro % self.num_stages
        return np.asarray((group * self.num_rounds + turn) * self.num_stages + place + stage)

    def items(self) -> tuple[np.ndarray, np.ndarray]:
        """Return int `[tick, stage]`, twice: the round and the micro-batch that a stage works on.

        In a bubble it repeats one that there is, whose numbers are sound, for nothing.
        """
        tick, stage = np.indices((self.num_ticks, self.num_stages))
        # A real micro-batch in the bubble, not zeros: a layer that divides by what it sees makes
        # NaN of zeros, whose gradients are NaN even where nobody looks.
        item = np.clip(tick - stage, 0, self.num_ticks - self.num_stages)
        span, place = item // self.num_stages, item % self.num_stages
        micro = span // self.num_rounds * self.num_stages + place
        return span % self.num_rounds, np.minimum(micro, self.num_micro_batches - 1)

    def is_last(self) -> np.ndarray:
        """Return bool `[tick]`: whether the last stage finishes a micro-batch at that tick."""
        finished = np.zeros(self.num_ticks, bool)
        finished[self.ticks()[-1, -1]] = True
        return finished

    def of_each_layer_group(self, leaf: Array) -> Array:
        """Return `[round, stage, micro-batch, ...]` of what was made at `[tick, stage]`."""
        ticks = jnp.asarray(self.ticks().reshape(self.num_stages, -1))
        picked = jax.vmap(lambda made, when: made[when], in_axes=(1, 0))(leaf, ticks)
        shape = (self.num_stages, self.num_rounds, self.num_micro_batches)
        return jnp.swapaxes(picked.reshape(*shape, *leaf.shape[2:]), 0, 1)


def run_pipeline(
    stage: Stage, schedule: PipelineSchedule, *, state: Any, state_by_tick: Any, inputs: Any
) -> tuple[Any, Any]:
    """Return every micro-batch passed through all stages in every round, and all outputs.

    Under a mesh each device of the `stages` axes computes its own stages, and arrays move from one
    to the next.

    Args:
        stage: The work of one stage at one tick; pure.
        schedule: The order of the work.
        state: Arrays `[stage, ...]`.
        state_by_tick: Arrays `[tick, stage, ...]` that replace those of `state` where they are
            not None.
        inputs: Arrays `[micro-batch, rows, ...]`.

    Returns:
        Arrays as `inputs`, and the outputs `[tick, stage, ...]`.
    """
    names = sharded_mesh_axes("stages") or None
    # One program for all stages, split over devices by the compiler: what a stage does itself by
    # hand, such as kernels and experts, then works as it does outside of a pipeline. By the name,
    # constraints inside of a stage leave the dimension of stages split.
    all_stages = jax.vmap(stage, spmd_axis_name=names)
    stages = jnp.arange(schedule.num_stages)

    def tick(carried: Any, now: Any) -> Any:
        arriving, finished = carried
        turns, micros, place, state_now = now
        is_new = (stages == 0) & (turns == 0)
        x = jax.tree.map(
            lambda old, new: jnp.where(_as_rows(is_new, old), new[micros[0]][None], old),
            arriving,
            inputs,
        )
        whole_state = jax.tree.map(
            lambda own, always: always if own is None else own, state_now, state, is_leaf=_is_none
        )
        x, outputs = all_stages(whole_state, stages, turns, micros, jax.tree.map(_by_stage, x))
        finished = jax.tree.map(
            # Written into one carried array: as outputs of the scan those of all ticks and stages
            # would be kept until the end.
            lambda kept, made: kept.at[place].set(made[-1], mode="drop"),
            finished,
            x,
        )
        # Along a dimension that is split over devices a roll is a send to the neighbour, by the
        # compiler.
        return (jax.tree.map(lambda made: jnp.roll(made, 1, axis=0), x), finished), outputs

    start = jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf[:1], (schedule.num_stages, *leaf.shape[1:])), inputs
    )
    turns, micros = schedule.items()
    # Out of range, which `mode="drop"` does not write.
    nowhere = schedule.num_micro_batches
    places = np.where(schedule.is_last(), micros[:, -1], nowhere)
    now = (jnp.asarray(turns), jnp.asarray(micros), jnp.asarray(places), state_by_tick)
    carried = (jax.tree.map(_by_stage, start), jax.tree.map(jnp.zeros_like, inputs))
    (_, finished), outputs = jax.lax.scan(tick, carried, now)
    return finished, outputs


def _by_stage(x: Array) -> Array:
    return shard(x, "stages", "batch", *("time",) * (x.ndim > 2), *(None,) * (x.ndim - 3))


def _as_rows(flags: Array, like: Array) -> Array:
    return flags.reshape(-1, *(1,) * (like.ndim - 1))


def _is_none(leaf: Any) -> bool:
    return leaf is None
