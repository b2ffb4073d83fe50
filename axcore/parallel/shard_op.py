"""`shard_op`: kernels under a mesh, each device on its own part of a call.

For kernels that the compiler cannot split by itself. An op declares once, by an `OpSharding`, the
logical axes of its arrays and which of them a kernel may see split; everything else follows:

- A logical axis is split as the activation rules say. If any dimension of that axis does not
  divide, the axis stays whole, and so does one that a `shard_map` around this has split already.
- All other axes are whole on each device.
- The gradient of an array is summed over the devices that hold the same part of the array and
  worked on other parts of the call.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import attrs
import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from axcore.parallel.activations import active_mesh, current_rules, manual_axes
from axcore.parallel.rules import AnyMesh

Names = tuple[str, ...]
T = TypeVar("T")


def axes(*names: str | None) -> Any:
    """Return the logical axes of an array, to be written in the array's place."""
    return names


def leading_axes(num: int) -> tuple[str | None, ...]:
    """Return the logical axes of an activation's leading dimensions: batch, time, heads."""
    return (*("batch", "time", "heads")[:num], *(None,) * (num - 3))


@attrs.frozen(eq=False)
class Partition:
    """The mesh axes over which one call is split, by logical axis; no mesh means no split.

    Args:
        mesh: The mesh; None outside of one, and where every axis of it is handled already.
        axes: Mesh axes by logical axis; empty where the axis stays whole.
    """

    mesh: AnyMesh | None
    axes: Mapping[str, Names]

    @classmethod
    def of(cls, split: tuple[str, ...], arrays: Any, axes: Any) -> "Partition":
        """Return the partition of a call by the rules in force.

        Args:
            split: The logical axes that may be split; the first ones take mesh axes first.
            arrays: The call's arrays, a tree.
            axes: Their logical axes: a tuple in the place of each array.
        """
        mesh = active_mesh()
        free = frozenset() if mesh is None else frozenset(mesh.axis_names) - manual_axes()
        if mesh is None or not free:
            return cls(None, dict.fromkeys(split, ()))
        # Two dimensions of one array cannot share a mesh axis; the first in `split` gets it.
        taken: set[str] = set()
        chosen: dict[str, Names] = {}
        sizes = _sizes(arrays, axes)
        for axis in split:
            rule = current_rules().get(axis, ())
            names = tuple(n for n in rule if n in free - taken and mesh.shape[n] > 1)
            ways = math.prod(mesh.shape[name] for name in names)
            # All dimensions of the axis or none: queries split and keys not split would not meet.
            divides = axis in sizes and not any(size % ways for size in sizes[axis])
            chosen[axis] = names if divides else ()
            taken.update(chosen[axis])
        return cls(mesh, chosen)

    @property
    def names(self) -> Names:
        """All mesh axes that the call is split over."""
        return tuple(name for names in self.axes.values() for name in names)

    def ways(self, axis: str) -> int:
        """Return the number of parts along a logical axis."""
        if self.mesh is None:
            return 1
        return math.prod(self.mesh.shape[name] for name in self.axes[axis])

    def index(self, axis: str) -> Array | int:
        """Return which part along a logical axis this device has; inside of `run`."""
        names = self.axes[axis]
        return jax.lax.axis_index(names) if names else 0

    def summed(self, tree: T, *axes: str) -> T:
        """Return arrays summed over the parts along logical axes; inside of `run`."""
        return _psum(tree, tuple(name for axis in axes for name in self.axes[axis]))

    def largest(self, x: Array, axis: str) -> Array:
        """Return the maximum over the parts along a logical axis; inside of `run`."""
        if not self.axes[axis]:
            return x
        top: Array = jax.lax.pmax(x, self.axes[axis])  # type: ignore[no-untyped-call]
        return top

    def spec(self, axes: tuple[str | None, ...]) -> PartitionSpec:
        """Return how an array with these logical axes is split."""
        entries = (None if axis is None else self.axes.get(axis) or None for axis in axes)
        return PartitionSpec(*entries)  # type: ignore[no-untyped-call]

    def specs(self, arrays: Any, axes: Any) -> Any:
        """Return `spec` of each array of a tree."""
        return _map_axes(lambda _, one: self.spec(one), arrays, axes)

    def run(
        self,
        fn: Callable[..., Any],
        in_specs: tuple[Any, ...],
        out_specs: Any,
        *,
        only: frozenset[str] | None = None,
    ) -> Any:
        """Return `fn`, which every device computes for its own parts.

        Args:
            fn: The work of one device.
            in_specs: How its arguments are split.
            out_specs: How what it returns is split.
            only: Mesh axes over which it runs device by device, where the compiler is to split it
                over the others; all axes where None.
        """
        if self.mesh is None:
            return fn
        return jax.shard_map(
            fn,
            mesh=self.mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            axis_names=set(self.mesh.axis_names if only is None else only) - manual_axes(),
            # Kernels are opaque: JAX cannot see which of their results are alike on several
            # devices.
            check_vma=False,
        )


def _as_given(partition: Partition, inputs: Any) -> Any:
    return inputs


def _as_made(partition: Partition, inputs: Any, outputs: Any) -> Any:
    return outputs


@attrs.frozen(kw_only=True, eq=False)
class OpSharding:
    """What an op declares of one call: the logical axes of its arrays.

    Args:
        inputs: A tree as that of the inputs, with a tuple of logical axes in the place of each
            array; None is a dimension that is never split.
        outputs: The same for what the forward kernel returns.
        backward: The same for what a backward kernel is given in addition to the inputs, by its
            name: residuals, and the gradients of outputs.
        split: The logical axes that a kernel may see split.
        localize: From the partition and a device's inputs to what its kernel gets; for numbers
            that count along a split axis.
        combine: From the partition, a device's inputs and what its kernel made of them to what
            `outputs` describes; for outputs to which several devices contribute.
    """

    inputs: Any
    outputs: Any
    backward: Mapping[str, Any] = attrs.field(factory=dict)
    split: tuple[str, ...]
    localize: Callable[[Partition, Any], Any] = _as_given
    combine: Callable[[Partition, Any, Any], Any] = _as_made


def shard_op(
    kernel: Callable[..., Any],
    sharding: OpSharding,
    inputs: Any,
    backward: Mapping[str, Any] | None = None,
) -> Any:
    """Return `kernel(inputs)`, or gradients `kernel(inputs, **backward)`, computed in parts.

    Where no mesh is set it is just that call.

    Args:
        kernel: A forward kernel; or a backward kernel, which returns the gradients of the inputs,
            None for those that have none.
        sharding: The op's declaration for this call.
        inputs: The call's arrays, a tree.
        backward: What a backward kernel is given in addition to them; None for a forward kernel.
    """
    partition = Partition.of(sharding.split, inputs, sharding.inputs)
    in_specs = partition.specs(inputs, sharding.inputs)
    if backward is None:

        def forward_on_device(parts: Any) -> Any:
            local = sharding.localize(partition, _given_once(parts, inputs))
            return sharding.combine(partition, local, kernel(local))

        outputs = jax.tree.map(partition.spec, sharding.outputs, is_leaf=is_axes)
        return partition.run(forward_on_device, (in_specs,), outputs)(inputs)

    def backward_on_device(inputs: Any, rows: Any) -> Any:
        gradients = kernel(sharding.localize(partition, inputs), **rows)
        return jax.tree.map(
            lambda x, spec, gradient: _of_whole(gradient, x, spec, partition.names),
            *(_only_floats(tree, inputs) for tree in (inputs, in_specs, gradients)),
        )

    row_specs = {
        name: partition.specs(rows, sharding.backward[name]) for name, rows in backward.items()
    }
    run = partition.run(backward_on_device, (in_specs, row_specs), _only_floats(in_specs, inputs))
    return run(inputs, dict(backward))


def _given_once(parts: Any, arrays: Any) -> Any:
    """Return a device's parts, the same object where one array is given twice: kernels may ask."""
    # `shard_map` makes an array of its own of each argument, and kernels ask by identity whether
    # queries and keys have the same segments.
    given = [id(x) for x in jax.tree.leaves(arrays)]
    leaves, structure = jax.tree.flatten(parts)
    return jax.tree.unflatten(structure, [leaves[given.index(one)] for one in given])


def _of_whole(gradient: Array, x: Array, spec: PartitionSpec, names: Names) -> Array:
    """Return the gradient of an array by all parts of a call, in the array's dtype."""
    held = jax.tree.leaves(tuple(spec))  # entries are names, tuples of names, or None
    return _psum(gradient, tuple(name for name in names if name not in held)).astype(x.dtype)


def _psum(tree: T, names: Names) -> T:
    total: T = jax.lax.psum(tree, names) if names else tree  # type: ignore[no-untyped-call]
    return total


def _only_floats(tree: Any, arrays: Any) -> Any:
    """Return a tree with None where the arrays are not floating."""
    return jax.tree.map(
        lambda x, one: one if jnp.issubdtype(x.dtype, jnp.floating) else None, arrays, tree
    )


def _map_axes(fn: Callable[[Array, Any], Any], arrays: Any, axes: Any) -> Any:
    """Return `fn(array, axes)` for each array; None for parts of the call that are not given."""
    return jax.tree.map(
        lambda x, one: None if x is None else fn(x, one), arrays, axes, is_leaf=_is_none
    )


def _sizes(arrays: Any, axes: Any) -> dict[str, list[int]]:
    """Return the sizes of all dimensions of each logical axis."""
    sizes: dict[str, list[int]] = {}

    def note(x: Array, one: tuple[str | None, ...]) -> None:
        for axis, size in zip(one, x.shape, strict=True):
            if axis is not None:
                sizes.setdefault(axis, []).append(size)

    _map_axes(note, arrays, axes)
    return sizes


def _is_none(x: Any) -> bool:
    return x is None


def is_axes(x: Any) -> bool:
    """Return whether `x` is a tuple of logical axes, and no tree of them."""
    return type(x) is tuple and all(axis is None or isinstance(axis, str) for axis in x)
