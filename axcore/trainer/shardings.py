"""How batches, the state and gradients are split over the mesh, and what pipelines leave idle.

A batch is split along its logical axes by the activation rules. A process reads the rows that its
devices hold. The mesh decides that, not the number of processes: where a model is split over all
devices of two processes, both hold and read every row.

Parameters are split by one table of rules, the optimizer's state by another if the config names
one. Then gradients are split as the optimizer's state is, as soon as they are made, and parameters
are put together after the update.
"""

import math
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import attrs
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from axcore.config import find_config
from axcore.errors import DataError, ShardingError
from axcore.layers import Pipeline
from axcore.module import ArraySpec, BatchSpec
from axcore.parallel import (
    AnyMesh,
    PipelineSchedule,
    Rules,
    param_shardings,
    partition_spec,
    shardings_like,
)
from axcore.trainer.step import GradientSplit, TrainState


@attrs.frozen
class BatchShard:
    """One of `count` equal blocks of rows: block `index`, from 0."""

    index: int
    count: int


ALL_ROWS = BatchShard(0, 1)
"""Every row."""


class BatchSharding:
    """The shardings of a batch's arrays on one mesh."""

    def __init__(self, spec: BatchSpec, rules: Rules, mesh: AnyMesh) -> None:
        """Split a batch.

        Raises:
            ShardingError: An axis has no rule, or does not divide over its mesh axes.
        """
        self.spec = spec
        self.mesh = mesh
        self._rules = rules
        self.shardings: Any = jax.tree.map(self._sharding, spec.arrays)

    def _sharding(self, array: ArraySpec) -> NamedSharding:
        parts = partition_spec(
            array.axes, self._rules, self.mesh, where="sharding.activation_rules"
        )
        for axis, size, entry in zip(array.axes, array.shape, parts, strict=True):
            names = (entry,) if isinstance(entry, str) else entry or ()
            ways = math.prod(self.mesh.shape[name] for name in names)
            # Here, with the field's name: jax would pad
            # or refuse, and name a dimension of an array.
            if size % ways:
                raise self._indivisible(str(axis), size, names, ways)
        return NamedSharding(self.mesh, parts)

    def _indivisible(self, axis: str, size: int, names: Iterable[str], ways: int) -> ShardingError:
        field = self.spec.sized_by.get(axis, axis)
        over = " x ".join(f"{name} {self.mesh.shape[name]}" for name in names)
        smaller = f"--set data.{field}={math.ceil(size / ways) * ways}, or "
        return ShardingError(
            f"{field} is {size}, which does not divide over {ways} devices ({over})",
            where=f"data.{field}" if axis in self.spec.sized_by else "data",
            hint=f"{smaller if axis in self.spec.sized_by else ''}use another mesh",
        )

    def abstract(self) -> Any:
        """Return shapes, dtypes and shardings of a batch, without reading the data."""
        return jax.tree.map(
            lambda array, sharding: jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
                array.shape, np.dtype(array.dtype), sharding=sharding
            ),
            self.spec.arrays,
            self.shardings,
        )

    @cached_property
    def shard(self) -> BatchShard:
        """Which rows of each batch this process reads."""
        (_, array), sharding = self.spec.leaves()[0], jax.tree.leaves(self.shardings)[0]
        # By one array: all of a batch have the same rows.
        indices = sharding.addressable_devices_indices_map(array.shape)
        # None is a device that has nothing of it.
        held = (index[0] for index in indices.values() if index is not None)
        return shard_from_rows(held, array.shape[0])

    def device_put(self, batch: Any) -> Any:
        """Return a process's part of a batch as global arrays, sharded over the mesh.

        Raises:
            DataError: The batch is not what `batch_spec()` of its data says.
        """
        self._check(batch)
        # Each process brings its own rows; nothing is sent between processes.
        put: Any = jax.make_array_from_process_local_data
        return jax.tree.map(
            lambda array, spec, sharding: put(sharding, array, spec.shape),
            batch,
            self.spec.arrays,
            self.shardings,
        )

    def _check(self, batch: Any) -> None:
        # Before it is put: a batch of another shape would have the step
        # compiled once more, or fail inside of jax without a word about data.
        rows = self.spec.num_rows // self.shard.count
        wanted = jax.tree.map(lambda one: ((rows, *one.shape[1:]), one.dtype), self.spec.arrays)
        found = jax.tree.map(lambda one: (np.shape(one), str(one.dtype)), batch)
        if found != wanted:
            raise DataError(
                f"a batch has {found}, but batch_spec() says {wanted}",
                where="data",
                hint="correct batch_spec(), or what train() and validation() yield",
            )


def shard_from_rows(held: Iterable[slice], num_rows: int) -> BatchShard:
    """Return the block that rows make up; all rows where those held are not one block.

    Args:
        held: Rows of each device, as slices.
        num_rows: Rows of the global batch.
    """
    rows = {row for one in held for row in range(*one.indices(num_rows))}
    first, size = min(rows), len(rows)
    # A process whose rows are not one aligned block, as on some
    # meshes with `seq` outside, reads all of them: slower, and right.
    is_block = max(rows) - first + 1 == size and first % size == 0 and num_rows % size == 0
    return BatchShard(first // size, num_rows // size) if is_block else ALL_ROWS


def state_shardings(cfg: Any, specs: Any, state: TrainState, mesh: AnyMesh) -> TrainState:
    """Return the sharding of every array of the state.

    Args:
        cfg: The trainer's config.
        specs: Of the model's state.
        state: Shapes and dtypes of the state.
        mesh: What it is split over.

    Raises:
        ShardingError: A parameter does not divide over the mesh.
    """
    replicated = NamedSharding(mesh, PartitionSpec())  # type: ignore[no-untyped-call]
    model = param_shardings(specs, cfg.sharding.param_rules, mesh)
    like = optimizer_shardings(cfg, specs, mesh)
    # Moments by their parameters' shardings; what has
    # another shape, such as a counter, is not split.
    opt_state = shardings_like(state.opt_state, state.model, like, mesh)
    fields: Any = (replicated, model, opt_state, replicated)
    return TrainState(*fields)


def optimizer_shardings(cfg: Any, specs: Any, mesh: AnyMesh) -> Any:
    """Return how each parameter's gradient and its part of the optimizer's state are split.

    Raises:
        ShardingError: A parameter does not divide over the mesh.
    """
    rules = (
        cfg.sharding.param_rules
        if cfg.sharding.optimizer_rules is None
        else cfg.sharding.optimizer_rules
    )
    return param_shardings(specs, rules, mesh)


def gradient_split(cfg: Any, mesh: Mesh) -> GradientSplit | None:
    """Return what splits gradients; None where they are split as parameters are, by themselves."""
    if cfg.sharding.optimizer_rules is None:
        return None

    def constrained(sharding: NamedSharding, gradient: Any) -> Any:
        # None is a parameter that is not trained.
        if gradient is None:
            return None
        # A constraint and no copy: the compiler then reduces the
        # gradient by scattering it, instead of summing it everywhere.
        return jax.lax.with_sharding_constraint(gradient, sharding)  # type: ignore[no-untyped-call]

    def split(gradients: Any, specs: Any) -> Any:
        return jax.tree.map(constrained, optimizer_shardings(cfg, specs, mesh), gradients)

    return split


def describe_pipelines(cfg: Any, mesh: AnyMesh) -> tuple[str, ...]:
    """Return a line for every pipeline of a trainer's config: its schedule, and its bubble."""
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
