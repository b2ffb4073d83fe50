"""A module's method run by hand on every device: each on the tokens that it holds.

For computations that the compiler would not split well by itself, such as sorting tokens. What the
method adds (losses, summaries, buffers) is put together over devices, so that nothing is lost.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array

from axcore.errors import ModuleError, ShardingError
from axcore.module import Module, Outputs, ParamSpec, Path, StackedModule
from axcore.module.context import current_context
from axcore.module.invoke import as_pure_function
from axcore.module.rng import fold
from axcore.parallel.activations import (
    active_mesh,
    current_rules,
    manual_axes,
    param_rules,
    warn_once,
)
from axcore.parallel.rules import AnyMesh

Names = tuple[str, ...]


def shard_map_over_tokens(
    module: Module, method: Callable[..., Array], *args: Array, replicate_time: bool = False
) -> Array:
    """Return `method(module, *args)`, computed on each device for the tokens that are there.

    Outside of a mesh it is just that. Arrays of the module's state whose first axis is `expert`
    stay split as the activation rules split `expert`; else every device gathers what it reads. Mesh
    axes that the rules for `batch`, `time` and `expert` do not name are left to the compiler.

    Args:
        module: The module at work.
        method: One of its methods; `expert_mesh_axes()` says how experts are split.
        *args: Arrays `[batch, time, ...]`, as the result is.
        replicate_time: Whether every device gets rows in their full length.

    Raises:
        ModuleError: A value was captured inside.
        ShardingError: Experts do not divide over the mesh.
    """
    mesh = active_mesh()
    if mesh is None:
        return method(module, *args)
    context = current_context(f"{type(module).__qualname__} was split over devices")
    pure = as_pure_function(context, method)
    experts, tokens = expert_mesh_axes(), _tokens_spec(mesh, args[0].shape, replicate_time)
    specs = module.param_specs()
    names = _manual_mesh_axes(mesh, ("batch", "time", "expert"))
    parts = _state_specs(specs, names, experts, mesh)
    key = context.key() if context.has_key else None

    def body(state: Any, key: Any, args: tuple[Array, ...]) -> tuple[Array, Outputs]:
        # Without this every device would sample the same dropout for its different tokens.
        own = None if key is None else fold(key, jax.lax.axis_index(names))
        result, outputs, _ = pure(_gathered(state, parts, experts), own, {}, args, {})
        return result, _merge_over_devices(outputs, names, experts, _by_path(specs, context.path))

    split: Any = jax.shard_map(
        body,
        mesh=mesh,
        in_specs=(parts, PartitionSpec(), tokens),  # type: ignore[no-untyped-call]
        out_specs=(tokens, PartitionSpec()),  # type: ignore[no-untyped-call]
        axis_names={
            *names,
            *_manual_mesh_axes(mesh, ("stages",)),
        },  # layers of a pipeline run side by side
        check_vma=False,
    )
    # Cast before they are split: devices then gather 16 bits where modules read 16 bits.
    result, outputs = split(_as_read(context.state, specs), key, args)
    context.frame.outputs.absorb(outputs)
    array: Array = result
    return array


def vmap_local_experts(experts: StackedModule, *args: Array) -> Any:
    """Return the results of the experts that a device holds, stacked, each of its own item.

    Inside of `shard_map_over_tokens`; losses, summaries and buffers are those of all experts.
    """
    axes = expert_mesh_axes()
    result, outputs = experts.vmap_with_outputs(*args)
    if axes:
        gather = lambda leaf: jax.lax.all_gather(leaf, axes, tiled=True)  # noqa: E731
        outputs = jax.tree.map(gather, outputs)
    current_context("experts ran").frame.outputs.absorb(outputs)
    return result


def expert_mesh_axes() -> Names:
    """Return the mesh axes that experts are split over; none outside of a mesh."""
    mesh = active_mesh()
    if mesh is None:
        return ()
    return tuple(name for name in current_rules().get("expert", ()) if mesh.shape[name] > 1)


def _tokens_spec(mesh: AnyMesh, shape: tuple[int, ...], replicate_time: bool) -> PartitionSpec:
    """Return how tokens are split; a dimension that does not divide stays whole."""
    free = {name for name in mesh.axis_names if name not in manual_axes()}
    entries = []
    for axis, size in zip(("batch", "time"), shape, strict=False):
        names = tuple(n for n in current_rules()[axis] if n in free and mesh.shape[n] > 1)
        ways = math.prod(mesh.shape[name] for name in names)
        if axis == "time" and replicate_time:
            names = ()
        elif size % ways:
            warn_once(
                f"{size} of {axis!r} do not divide over {ways} devices: each device computes the "
                "experts' output for all of them"
            )
            names = ()
        entries.append(names or None)
    return PartitionSpec(*entries)  # type: ignore[no-untyped-call]


def _manual_mesh_axes(mesh: AnyMesh, axes: Names) -> Names:
    """Return the mesh axes that devices handle by hand: those of logical axes, and of size 1."""
    wanted = {name for axis in axes for name in current_rules().get(axis, ())}
    done = manual_axes()
    return tuple(
        name
        for name in mesh.axis_names
        if name not in done and (name in wanted or mesh.shape[name] == 1)
    )


def _state_specs(specs: Any, names: Names, experts: Names, mesh: AnyMesh) -> Any:
    """Return how the state is split over axes that are handled by hand, as parameters are stored.

    What does not divide, or the rules for parameters do not name, is whole.
    """
    rules, handled = param_rules(), set(names) - set(experts)

    def axes_of(axis: str | None, size: int) -> Names | None:
        found = tuple(name for name in rules.get(axis or "", ()) if name in handled)
        ways = math.prod(mesh.shape[name] for name in found)
        return found if ways > 1 and size % ways == 0 else None

    def partition_spec_of(spec: ParamSpec) -> PartitionSpec:
        entries = [axes_of(*one) for one in zip(spec.axes, spec.shape, strict=True)]
        if spec.axes[:1] == ("expert",):
            _check_experts(spec.shape[0], experts, mesh)
            entries[0] = experts or None
        return PartitionSpec(*entries)  # type: ignore[no-untyped-call]

    return jax.tree.map(partition_spec_of, specs, is_leaf=_is_spec)


def _check_experts(num_experts: int, experts: Names, mesh: AnyMesh) -> None:
    ways = math.prod(mesh.shape[name] for name in experts)
    if num_experts % ways:
        raise ShardingError(
            f"{num_experts} experts do not divide over mesh axis {'x'.join(experts)} of size "
            f"{ways}",
            where="mesh",
            hint="change the number of experts, the mesh's sizes, or rules['expert']",
        )


def _as_read(state: Any, specs: Any) -> Any:
    """Return the state in the dtypes that modules read it in, cast where it is still split."""
    return jax.tree.map(lambda spec, x: spec.as_read(x), specs, state, is_leaf=_is_spec)


def _gathered(state: Any, parts: Any, experts: Names) -> Any:
    """Return the state of one device with all of each array, but for other devices' experts.

    Gathered here, in the dtype that it is read in, its gradient is added up in that dtype, and each
    device gets its own part of the sum.
    """

    def whole(part: PartitionSpec, x: Array) -> Array:
        for axis, entry in enumerate(part):
            names = (entry,) if isinstance(entry, str) else entry or ()
            # Other devices' experts stay there: tokens travel to them.
            if names and tuple(names) != experts:
                x = jax.lax.all_gather(x, names, axis=axis, tiled=True)
        return x

    return jax.tree.map(whole, parts, state, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec))


def _by_path(specs: Any, path: Path) -> dict[Path, ParamSpec]:
    leaves = jax.tree.leaves(specs, is_leaf=_is_spec)
    return {(*path, *spec.state_path): spec for spec in leaves}


def _merge_over_devices(
    outputs: Outputs, names: Names, experts: Names, specs: dict[Path, ParamSpec]
) -> Outputs:
    """Return the outputs of one device put together with those of all others."""
    if outputs.captures:
        raise ModuleError(
            f"{', '.join(outputs.captures)} cannot be captured on a mesh, where every device has "
            "tokens of its own",
            hint="capture the module around the experts, or run on one device",
        )
    # Losses are sums and weights, so they add up, whatever part of the tokens a device has.
    losses = jax.tree.map(lambda leaf: jax.lax.psum(leaf, names), outputs.losses)  # type: ignore[no-untyped-call]
    summaries = {name: _mean(value, names) for name, value in outputs.summaries.items()}
    updates = {
        path: _merged(value, specs[path], names, experts) for path, value in outputs.updates.items()
    }
    return Outputs(losses, summaries, updates, {})


def _mean(value: Array, names: Names) -> Array:
    wide = value if jnp.issubdtype(value.dtype, jnp.inexact) else value.astype(jnp.float32)
    mean: Array = jax.lax.pmean(wide, names)  # type: ignore[no-untyped-call]
    return mean


def _merged(value: Array, spec: ParamSpec, names: Names, experts: Names) -> Array:
    """Return the next value of a buffer; of one that is split by expert, that of all experts.

    An integer one is the same on all devices, or no such value exists.
    """
    is_part = value.shape != spec.shape
    over = tuple(name for name in names if not (is_part and name in experts))
    if spec.merge == "max":
        value = jax.lax.pmax(value, over)  # type: ignore[no-untyped-call]
    elif jnp.issubdtype(value.dtype, jnp.inexact):
        value = jax.lax.pmean(value, over)  # type: ignore[no-untyped-call]
    return jax.lax.all_gather(value, experts, tiled=True) if is_part else value


def _is_spec(leaf: Any) -> bool:
    return isinstance(leaf, ParamSpec)
