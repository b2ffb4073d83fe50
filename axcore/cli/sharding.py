"""The picture that `axcore config show --sharding` draws: what each device holds of every array."""

from collections.abc import Iterator
from typing import Any

from jax.sharding import AbstractMesh

from axcore.parallel import (
    MESH_AXES,
    AnyMesh,
    ShardedArray,
    bytes_per_device,
    describe_sharding,
    mesh_sizes,
    param_shardings,
)
from axcore.report.table import columns
from axcore.trainer import ResolvedConfig
from axcore.trainer.checks import check_mesh_is_used, check_sharding_rules
from axcore.trainer.shardings import BatchSharding, describe_pipelines, state_shardings
from axcore.trainer.step import TrainStep, task_of

_HEADER = ("PATH", "SHAPE", "SPLIT OVER", "BYTES PER DEVICE")


def sharding_table(resolved: ResolvedConfig) -> str:
    """Return a line for every parameter, what stays whole, and the sums; starts no device.

    Raises:
        ShardingError: The mesh does not fit the hardware, the batch or the parameters, or an axis
            is named that nothing uses.
    """
    cfg = resolved.config
    sizes = mesh_sizes(cfg.mesh, resolved.hardware.num_devices, slices=cfg.slices)
    mesh = AbstractMesh(sizes, MESH_AXES)
    step = TrainStep(task_of(cfg), cfg.learner.build(total_steps=cfg.max_steps))
    batch_spec = cfg.data.for_shapes().build().batch_spec()
    check_sharding_rules(cfg, step.specs, batch_spec)
    check_mesh_is_used(
        cfg, BatchSharding(batch_spec, cfg.sharding.activation_rules, mesh), step.specs
    )
    shardings = param_shardings(step.specs, cfg.sharding.param_rules, mesh)
    arrays = describe_sharding(step.specs, shardings)
    return "\n".join(
        [
            *_mesh_lines(cfg, mesh),
            *(f"pipeline {line}" for line in describe_pipelines(cfg, mesh)),
            columns(_HEADER, [_row(array) for array in arrays]),
            "",
            *_whole_lines(arrays, mesh),
            *_sums(cfg, step, mesh),
        ]
    )


def _mesh_lines(cfg: Any, mesh: AnyMesh) -> Iterator[str]:
    sizes = " x ".join(f"{name} {size}" for name, size in mesh.shape.items() if size > 1)
    yield f"mesh: {sizes or '1 device'}"
    if cfg.slices:
        yield "slices: " + " x ".join(f"{name} {count}" for name, count in cfg.slices.items())


def _row(array: ShardedArray) -> tuple[str, str, str, str]:
    shape = "x".join(map(str, array.shape)) or "scalar"
    return array.name, shape, ", ".join(array.split) or "-", f"{array.bytes_per_device:,}"


def _whole_lines(arrays: list[ShardedArray], mesh: AnyMesh) -> Iterator[str]:
    whole = [array for array in arrays if array.is_whole]
    if mesh.size > 1 and whole:
        total = sum(array.bytes_per_device for array in whole)
        yield f"on every device in full, {total:,} bytes:"
        yield from (f"  {array.name}" for array in whole)


def _sums(cfg: Any, step: TrainStep, mesh: AnyMesh) -> Iterator[str]:
    state = step.abstract_state()
    split = state_shardings(cfg, step.specs, state, mesh)
    model = bytes_per_device(state.model, split.model)
    optimizer = bytes_per_device(state.opt_state, split.opt_state)
    yield f"{model:,} bytes of parameters per device"
    yield f"{optimizer:,} bytes of optimizer state per device"
