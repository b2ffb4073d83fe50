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
    """

    mesh: Mesh
    num_present: int

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
            devices: All devices, those of this process by default; the first ones are used.

        Raises:
            ShardingError: There are not so many devices, engines do not split work over an axis,
                or the model does not divide over it.
        """
        # Of this process: a server is one process, and
        # cannot place arrays on another host's devices.
        present = jax.local_devices() if devices is None else devices
        used = _used(shape, present)
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
        return cls(mesh=mesh, num_present=len(present))

    def describe(self) -> str | None:
        """Return which devices are used; None where there is but one."""
        if self.num_present == 1:
            return None
        if self.num_replicas > 1:
            of = f"{self.num_used} of {self.num_present} devices"
            return f"{self.num_replicas} replicas, their weights on {of}"
        if self.num_used > 1:
            return f"weights are split over {self.num_used} of {self.num_present} devices"
        return (
            f"weights are on 1 of {self.num_present} devices; to split them over two: "
            "--set \"mesh={'model': 2}\""
        )


def _used(shape: MeshShape, present: Sequence[Any]) -> Sequence[Any]:
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
    return present[: max(num, 1)]
