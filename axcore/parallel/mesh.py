"""Meshes: devices arranged along the six axes that sharding rules speak of."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from immutabledict import immutabledict
from jax.sharding import AxisType, Mesh, Sharding

from axcore._jax_compat import device_grid
from axcore.config import suggest_names
from axcore.errors import ShardingError

MESH_AXES = ("pipeline", "data", "fsdp", "expert", "seq", "model")
"""All mesh axes, outermost first: the innermost share the fastest links."""

MeshShape = Mapping[str, int]
"""Sizes by axis, 1 where unnamed; one of them may be -1, all devices that are left."""

_ONE_SLICE: MeshShape = immutabledict()


def make_mesh(
    shape: MeshShape, devices: Sequence[Any] | None = None, *, slices: MeshShape = _ONE_SLICE
) -> Mesh:
    """Return a mesh over the devices, all of jax's by default.

    Args:
        shape: Sizes within a slice, whose devices share fast links.
        devices: The devices, in any order of slices.
        slices: Number of slices along each axis, 1 where unnamed; an axis has as many devices as
            the product of its two sizes, and crosses slices only where it is named here.

    Raises:
        ShardingError: An axis is unknown, the sizes do not multiply out to the devices, or the
            devices are in other slices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = mesh_sizes(shape, len(devices), slices=slices)
    # Auto: `shard` gives hints and the compiler does the rest. Explicit axes would need a rule for
    # every operation of every layer.
    kinds = (AxisType.Auto,) * len(sizes)
    across = [slices.get(axis, 1) for axis in MESH_AXES]
    if math.prod(across) == 1:
        return Mesh(device_grid(sizes, devices), MESH_AXES, axis_types=kinds)
    within = tuple(size // count for size, count in zip(sizes, across, strict=True))
    grids = [device_grid(within, part) for part in _by_slice(devices, slices)]
    return Mesh(_interleaved(np.stack(grids), across, within), MESH_AXES, axis_types=kinds)


def _by_slice(devices: Sequence[Any], slices: MeshShape) -> list[list[Any]]:
    """Return the devices of each slice. Devices that name none are dealt in the order given."""
    count = math.prod(slices.values())
    size = len(devices) // count
    told: list[Any] = [getattr(device, "slice_index", None) for device in devices]
    if set(told) == {None}:
        return [list(devices[i * size : (i + 1) * size]) for i in range(count)]
    found = {
        index: [device for device, own in zip(devices, told, strict=True) if own == index]
        for index in sorted(set(told))
    }
    if [len(part) for part in found.values()] != [size] * count:
        there = ", ".join(f"slice {index} has {len(part)}" for index, part in found.items())
        raise ShardingError(
            f"slices {_text(slices)} are {count} of {size} devices each, but {there}",
            where="slices",
            hint="name as many slices as there are, and sizes of `mesh` that fit one",
        )
    return list(found.values())


def _interleaved(grids: np.ndarray, across: Sequence[int], within: Sequence[int]) -> np.ndarray:
    """Return slices' grids as one, in which each axis goes through its slices one by one."""
    num = len(within)
    order = [axis for pair in zip(range(num), range(num, 2 * num), strict=True) for axis in pair]
    whole = [a * w for a, w in zip(across, within, strict=True)]
    # The slice is the slower part of each axis, so that neighbours along it share fast links
    # wherever they can.
    return grids.reshape(*across, *within).transpose(order).reshape(whole)


def mesh_sizes(
    shape: MeshShape, num_devices: int, *, slices: MeshShape = _ONE_SLICE
) -> tuple[int, ...]:
    """Return the size of every mesh axis over all slices, in the order of `MESH_AXES`.

    Raises:
        ShardingError: As `make_mesh`.
    """
    _check_axes(shape, where="mesh", may_be_free=True)
    _check_axes(slices, where="slices", may_be_free=False)
    num_slices = math.prod(slices.values())
    if num_devices % num_slices:
        raise ShardingError(
            f"slices {_text(slices)} are {num_slices}, which do not divide {num_devices} devices",
            where="slices",
            hint="name as many slices as there are",
        )
    within = _sizes_of_one_slice(shape, num_devices // num_slices, bool(slices))
    return tuple(size * slices.get(axis, 1) for axis, size in zip(MESH_AXES, within, strict=True))


def _check_axes(shape: MeshShape, *, where: str, may_be_free: bool) -> None:
    for name, size in shape.items():
        if name not in MESH_AXES:
            raise ShardingError(
                f"no mesh axis is named {name!r}",
                where=where,
                hint=suggest_names(name, MESH_AXES),
            )
        if size < 1 and not (size == -1 and may_be_free):
            raise ShardingError(
                f"mesh axis {name} has size {size}",
                where=where,
                hint="1 or more, or -1" if may_be_free else "1 or more",
            )


def _sizes_of_one_slice(shape: MeshShape, num_devices: int, has_slices: bool) -> tuple[int, ...]:
    free = [name for name, size in shape.items() if size == -1]
    fixed = math.prod(size for size in shape.values() if size != -1)
    if len(free) > 1:
        raise ShardingError(
            f"mesh axes {', '.join(free)} are all -1", where="mesh", hint="leave one of them free"
        )
    if num_devices % fixed or (not free and fixed != num_devices):
        raise ShardingError(
            f"mesh {_text(shape)} needs {fixed} devices{' or a multiple' if free else ''}; there "
            f"are {num_devices}{' in a slice' if has_slices else ''}",
            where="mesh",
            hint="change a size, or set one to -1 for all devices that are left",
        )
    rest = num_devices // fixed
    return tuple(rest if shape.get(axis, 1) == -1 else shape.get(axis, 1) for axis in MESH_AXES)


def _text(shape: MeshShape) -> str:
    return " x ".join(f"{name} {size}" for name, size in shape.items())


def put_everywhere(tree: Any, shardings: Any) -> Any:
    """Return arrays on devices, of other processes too, each of which gives the same values.

    Args:
        tree: Arrays of the host or of devices.
        shardings: One for all, or a tree of them; None takes jax's own device.
    """
    if isinstance(shardings, Sharding):
        shardings = jax.tree.map(lambda _: shardings, tree)
    if all(one.is_fully_addressable for one in jax.tree.leaves(shardings)):
        return jax.device_put(tree, shardings)
    return jax.tree.map(_put_on_all, tree, shardings)


def _put_on_all(leaf: Any, sharding: Sharding) -> Any:
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return jax.device_put(leaf, sharding)
    # Of host values, `device_put` would have all processes compare them with those of process 0.
    held = np.asarray(leaf)
    return jax.make_array_from_callback(held.shape, sharding, lambda index: held[index])
