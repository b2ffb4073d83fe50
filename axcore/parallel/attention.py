"""Attention kernels under a mesh: each device works on its own rows and heads. For kernels that the
compiler cannot split by itself.
"""

from collections.abc import Callable

import attrs
import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from axcore.ops import AttentionInputs, AttentionSpec, Backward, Forward
from axcore.parallel.attention_split import AttentionSplit


def on_each_device(attend: Callable[[AttentionInputs], Array], inputs: AttentionInputs) -> Array:
    """Returns `attend(inputs)`, computed in parts where a mesh is set.

    Where the call stands inside of a `shard_map` it has been split already.

    Args:
        attend: From a call's arrays to the output `[B, T, N, V]`; differentiable as it stands.
        inputs: The call's arrays.
    """
    split = _by_rows_and_heads(inputs)
    if split is None:
        return attend(inputs)
    output: Array = split.in_parts(attend, inputs, split.output_specs()[0])
    return output


def forward_on_each_device(
    forward: Forward, inputs: AttentionInputs, spec: AttentionSpec
) -> tuple[Array, Array]:
    """Returns `forward(inputs, spec)`, `(o_BTNV, lse_BTN)`, in parts as `on_each_device` does."""
    split = _by_rows_and_heads(inputs)
    if split is None:
        return forward(inputs, spec)
    outputs: tuple[Array, Array] = split.in_parts(
        lambda part: forward(part, spec), inputs, split.output_specs()
    )
    return outputs


def backward_on_each_device(
    backward: Backward,
    inputs: AttentionInputs,
    spec: AttentionSpec,
    *,
    o_BTNV: Array,
    lse_BTN: Array,
    do_BTNV: Array,
    dlse_BTN: Array,
) -> AttentionInputs:
    """Returns `backward`'s gradients, in parts as `on_each_device` does.

    Gradients of what several devices hold, such as sinks, are summed over them.
    """
    split = _by_rows_and_heads(inputs)
    rows = {"o_BTNV": o_BTNV, "lse_BTN": lse_BTN, "do_BTNV": do_BTNV, "dlse_BTN": dlse_BTN}
    if split is None:
        return backward(inputs, spec, **rows)
    input_specs, (wide, narrow) = split.specs(inputs), split.output_specs()
    row_specs = {"o_BTNV": wide, "lse_BTN": narrow, "do_BTNV": wide, "dlse_BTN": narrow}
    gradient_specs = jax.tree.map(
        lambda x, spec: spec if jnp.issubdtype(x.dtype, jnp.floating) else None, inputs, input_specs
    )

    def on_device(inputs: AttentionInputs, rows: dict[str, Array]) -> AttentionInputs:
        gradients = backward(inputs, spec, **rows)
        summed: AttentionInputs = jax.tree.map(
            lambda x, held: _summed(x, held, split), gradients, gradient_specs
        )
        return summed

    mapped = jax.shard_map(
        on_device,
        mesh=split.mesh,
        in_specs=(input_specs, row_specs),
        out_specs=gradient_specs,
        axis_names=set(split.free_axes),
        check_vma=False,
    )
    gradients: AttentionInputs = mapped(inputs, rows)
    return gradients


def _summed(gradient: Array, held: PartitionSpec, split: AttentionSplit) -> Array:
    """Returns the sum over the devices that hold the same part and worked on others of the call."""
    spread = jax.tree.leaves(tuple(held))  # entries are names, tuples of names, or None
    axes = tuple(name for name in (*split.rows, *split.heads) if name not in spread)
    total: Array = jax.lax.psum(gradient, axes) if axes else gradient  # type: ignore[no-untyped-call]
    return total


def _by_rows_and_heads(inputs: AttentionInputs) -> AttentionSplit | None:
    """Returns how the call is split, time kept whole; None where there is nothing to split."""
    split = AttentionSplit.of(inputs)
    if split is None or not split.free_axes:
        return None
    return attrs.evolve(split, time=())
