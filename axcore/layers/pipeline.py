"""`Pipeline`: layers in stages, each on devices of its own, and micro-batches that pass through."""

from functools import partial
from typing import Any

import attrs
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveInt, Resumable, config
from axcore.errors import ConfigError, ModuleError, ShardingError
from axcore.layers.tokens import TokenInfo
from axcore.module import (
    Merge,
    Module,
    Outputs,
    ParamSpec,
    StackedModule,
    StackRunner,
    merge_buffer,
    merge_microbatches,
    merge_outputs,
    split_microbatches,
)
from axcore.parallel import PipelineSchedule, num_shards, run_pipeline

Hidden = Float[Array, "batch time dim"]


class Pipeline(Module):
    """`num_layers` layers of one config, in the slot of a `ScannedLayers`.

    There are as many stages as the mesh has devices along the rule for `stages`, one without a
    mesh; how many does not change a number. With one round the state is that of a `ScannedLayers`,
    and checkpoints of either are read by the other. With more, its arrays are `[rounds, layers a
    round, ...]`, the same numbers in the same order.

    What layers add is merged as for the micro-batches of an accumulated batch: losses are sums
    with weights, summaries and buffers means or maxima.

    Slot protocol: the parent fills `dim`.
    """

    layers_in = "layer"

    @config
    class Config(Module.Config["Pipeline"]):
        """The config of a `Pipeline`.

        Args:
            dim: Size of the last dimension of input and output.
            num_layers: Number of layers.
            layer: The layer; called with the token info.
            num_micro_batches: Parts that a batch is split into. More of them make the bubble
                smaller, and each part too. Outside of training a batch that does not divide goes
                through whole.
            num_rounds: How often a micro-batch passes through every stage. More rounds make the
                bubble smaller, and arrays move between stages more often.
        """

        dim: PositiveInt = REQUIRED
        num_layers: PositiveInt = REQUIRED
        layer: Module.Config = REQUIRED
        num_micro_batches: Resumable[PositiveInt] = REQUIRED
        num_rounds: PositiveInt = 1

    def setup(self, cfg: Config) -> None:
        """Build one layer with a state for each place."""
        if cfg.num_layers % cfg.num_rounds:
            raise ConfigError(
                f"{cfg.num_layers} layers do not divide into {cfg.num_rounds} rounds",
                hint="change num_layers or num_rounds",
            )
        layer = cfg.layer.build(dim=cfg.dim)
        self.layer = StackedModule(layer, cfg.num_layers, "stages", rounds=cfg.num_rounds)

    def forward(self, x: Hidden, info: TokenInfo) -> Hidden:
        """Return the input passed through all layers.

        Raises:
            ShardingError: Layers do not divide into stages, or the batch into micro-batches.
        """
        schedule = self._schedule(x.shape[0])
        copies = StackRunner(self.layer)
        _check_channels(copies.channels, x.shape[0])
        count = schedule.num_micro_batches
        info, inputs = jax.tree.map(
            lambda leaf: split_microbatches(leaf, count), (info, (x, copies.channels))
        )
        stage = _Stage(schedule, copies, self.config.num_layers, info)
        state = stage.state()
        carried, outputs = run_pipeline(
            stage,
            schedule,
            state=state,
            state_by_tick=_measured_by_tick(state, copies.specs, schedule),
            inputs=inputs,
        )
        x, channels = jax.tree.map(merge_microbatches, carried)
        copies.finish(channels, stage.merge_outputs(outputs, self.layer.shape))
        return x

    def _schedule(self, num_rows: int) -> PipelineSchedule:
        cfg = self.config
        num_stages = num_shards("stages")
        if cfg.num_layers % (num_stages * cfg.num_rounds):
            raise ShardingError(
                f"{cfg.num_layers} layers do not divide into {num_stages} stages"
                + (f" of {cfg.num_rounds} rounds" if cfg.num_rounds > 1 else ""),
                where="mesh",
                hint="change num_layers, num_rounds, or the mesh's axis pipeline",
            )
        if num_rows % cfg.num_micro_batches == 0:
            return PipelineSchedule(num_stages, cfg.num_micro_batches, cfg.num_rounds)
        if self.training:
            raise ShardingError(
                f"a batch of {num_rows} rows does not divide into {cfg.num_micro_batches} "
                "micro-batches of the pipeline",
                where="num_micro_batches",
                hint="change num_micro_batches of the Pipeline, or data.batch_size",
            )
        # A batch to evaluate may have any number of rows; in one part it is slower, but right.
        return PipelineSchedule(num_stages, 1, cfg.num_rounds)


def _check_channels(channels: dict[str, Any], num_rows: int) -> None:
    """Check that shared values can be split as the batch is.

    Raises:
        ModuleError: It has no dimension for the rows of the batch.
    """
    for name, value in channels.items():
        for leaf in jax.tree.leaves(value):
            if jnp.shape(leaf)[:1] != (num_rows,):
                raise ModuleError(
                    f"channel {name!r} has an array of shape {jnp.shape(leaf)}, which does not "
                    f"begin with the {num_rows} rows of the batch that a pipeline splits",
                    hint="share it by rows, or use ScannedLayers",
                )


@attrs.frozen(eq=False)
class _Stage:
    """The layers of one stage in one round, called for one micro-batch.

    Args:
        schedule: Of the pipeline.
        copies: All layers.
        num_layers: How many there are.
        info: What is known of the tokens, `[micro-batch, rows, time]`.
    """

    schedule: PipelineSchedule
    copies: StackRunner
    num_layers: int
    info: TokenInfo

    @property
    def size(self) -> int:
        """Layers that a stage passes through in one round."""
        return self.num_layers // (self.schedule.num_stages * self.schedule.num_rounds)

    def state(self) -> Any:
        """Return the state of all layers, `[stage, layer, round, ...]`."""
        lead = (self.schedule.num_rounds, self.schedule.num_stages, self.size)
        num_stacked = 1 if self.schedule.num_rounds == 1 else 2

        def by_stage(leaf: Array) -> Array:
            return jnp.moveaxis(leaf.reshape(*lead, *leaf.shape[num_stacked:]), 0, 2)

        return jax.tree.map(by_stage, self.copies.state)

    def __call__(self, state: Any, stage: Array, turn: Array, micro: Array, carried: Any) -> Any:
        """Return one micro-batch after the stage's layers, and their outputs.

        Args:
            state: Of the stage's layers in all rounds, `[layer, round, ...]`.
            stage: Number of the stage.
            turn: Number of the round.
            micro: Number of the micro-batch.
            carried: The hidden vectors, and the channels.
        """
        info = jax.tree.map(lambda leaf: leaf[micro], self.info)
        first = (turn * self.schedule.num_stages + stage) * self.size
        # A batch in one part uses the random keys of ScannedLayers, so that both train alike.
        part = micro if self.schedule.num_micro_batches > 1 else None

        def step(carried: Any, layer: Any) -> tuple[Any, Outputs]:
            offset, state = layer
            x, channels = carried
            copy = self.copies.copy(first + offset, part, lambda state: _of_round(state, turn))
            x, channels, outputs = copy(state, x, channels, (info,))
            return (x, channels), outputs

        return jax.lax.scan(step, carried, (jnp.arange(self.size), state))

    def merge_outputs(self, outputs: Outputs, shape: tuple[int, ...]) -> Outputs:
        """Return the outputs `[tick, stage, layer, ...]` as those of all layers for the batch.

        Args:
            outputs: Of all ticks, those in the bubble included.
            shape: How layers are stacked in the state.
        """
        by_part = jax.tree.map(self._by_part, outputs)
        updates = {
            path: leaf.reshape(leaf.shape[0], *shape, *leaf.shape[2:])
            for path, leaf in by_part.updates.items()
        }
        return merge_outputs(attrs.evolve(by_part, updates=updates), self.copies.specs)

    def _by_part(self, leaf: Array) -> Array:
        """Return `[micro-batch, layer of all, ...]` of `[tick, stage, layer, ...]`."""
        groups = jnp.moveaxis(self.schedule.of_each_layer_group(leaf), 2, 0)
        return groups.reshape(groups.shape[0], self.num_layers, *groups.shape[4:])


def _of_round(state: Any, turn: Array) -> Any:
    return jax.tree.map(lambda leaf: leaf[turn if len(leaf) > 1 else 0], state)


def _measured_by_tick(state: Any, specs: Any, schedule: PipelineSchedule) -> Any:
    """Return the state with arrays `[tick, stage, layer, round, ...]` of buffers from backward.

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
    """Return the next value, from those of the ticks at which a layer had something to do."""
    parts = schedule.of_each_layer_group(measured)  # [round, stage, micro-batch, layer, round, ...]
    parts = jnp.stack([part[:, :, :, turn] for turn, part in enumerate(parts)])
    merged = merge_buffer(jnp.moveaxis(parts, 2, 0), merge)
    return (jnp.moveaxis(merged, 0, 2),)


_of_each_tick.defvjp(_forward, _backward)
