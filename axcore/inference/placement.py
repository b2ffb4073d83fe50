"""`Placement`: the devices that an engine has its weights on."""

import math
from collections.abc import Sequence
from typing import Any

import attrs
import jax
from jax.sharding import Mesh

from axcore.errors import ShardingError
from axcore.module import Module
from axcore.parallel import MESH_AXES, PARAM_RULES, MeshShape, make_mesh, param_shardings

_SERVED_AXES = ("data", "model")
"""Mesh axes of engines: replicas are along the first, work is split over the second."""


@attrs.frozen(kw_only=True)
class Placement:
    """Where weights are stored.

    Args:
        mesh: Of the devices that they are on.
        num_present: Devices that there are.
        num_processes: Processes whose devices they are.
    """

    mesh: Mesh
    num_present: int
    num_processes: int = 1

    @property
    def num_used(self) -> int:
        """Devices that weights are on."""
        return int(self.mesh.size)

    @property
    def num_replicas(self) -> int:
        """How many copies of the weights are there."""
        return int(self.mesh.shape["data"])

    @classmethod
    def of(
        cls, model: Module, shape: MeshShape, devices: Sequence[Any] | None = None
    ) -> "Placement":
        """Return where the weights of a model are on a mesh of these sizes.

        Args:
            model: The model, as it is trained.
            shape: Sizes by mesh axis, one of which may be -1.
            devices: All devices, by default those of all processes. The first ones of each process
                are used.

        Raises:
            ShardingError: There are not so many devices, engines do not split work over an axis,
                or the model does not divide over it.
        """
        present = jax.devices() if devices is None else devices
        processes = {device.process_index for device in present}
        used = _used(shape, present, len(processes))
        mesh = make_mesh(shape, used)
        try:
            # Tried out on specs, before any weight is read.
            param_shardings(model.param_specs(), PARAM_RULES, mesh)
        except ShardingError as error:
            raise ShardingError(
                error.what,
                where="mesh",
                hint="choose a size of `model` that divides the dimensions of the weights",
            ) from error
        return cls(mesh=mesh, num_present=len(present), num_processes=len(processes))

    def describe(self) -> str | None:
        """Return which devices are used; None where there is but one."""
        if self.num_present == 1:
            return None
        if self.num_replicas > 1:
            of = f"{self.num_used} of {self.num_present} devices"
            return f"{self.num_replicas} replicas, their weights on {of}"
        if self.num_used > 1:
            of = f"of {self.num_processes} processes" if self.num_processes > 1 else ""
            split = f"weights are split over {self.num_used} of {self.num_present} devices {of}"
            return split.rstrip()
        return (
            f"weights are on 1 of {self.num_present} devices; to split them over two: "
            "--set \"mesh={'model': 2}\""
        )


def _used(shape: MeshShape, present: Sequence[Any], num_processes: int) -> Sequence[Any]:
    """Return the devices of a mesh of these sizes."""
    # Axes such as `fsdp` split training's state; a step of
    # decoding would gather the weights for every token.
    others = [axis for axis, size in shape.items() if axis not in _SERVED_AXES and size != 1]
    if others and others[0] in MESH_AXES:  # what is none, the mesh refuses
        raise ShardingError(
            f"mesh has the axis {others[0]!r}, over which an engine splits nothing",
            where="mesh",
            hint="mesh={'model': N} splits weights over N devices, {'data': N} makes N replicas",
        )
    if num_processes > 1 and shape.get("data", 1) != 1:
        raise ShardingError(
            f"mesh {dict(shape)} makes replicas, each of which is of one process; there are "
            f"{num_processes}",
            where="mesh",
            hint="mesh={'model': -1} splits one model over all of them; for replicas, start one "
            "server for each, behind a load balancer",
        )
    if -1 in shape.values():
        return present
    num = math.prod(shape.values())
    if num > len(present):
        raise ShardingError(
            f"mesh {dict(shape)} needs {num} devices; there are {len(present)}",
            where="mesh",
            hint="choose smaller sizes, or -1 for all devices",
        )
    # The first ones: neighbours in the order of the
    # runtime, so that collectives take the short links.
    if num_processes == 1:
        return present[: max(num, 1)]
    if num % num_processes:
        raise ShardingError(
            f"mesh {dict(shape)} needs {num} devices, which are not as many of each of "
            f"{num_processes} processes",
            where="mesh",
            hint=f"mesh={{'model': N}} with a multiple of {num_processes}, or start one process",
        )
    kept: dict[int, list[Any]] = {}
    for device in present:
        kept.setdefault(device.process_index, []).append(device)
    share = num // num_processes
    return [device for own in kept.values() for device in own[:share]]
