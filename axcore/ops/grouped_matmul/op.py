"""The grouped matrix product op: rows sorted by group, each group with a matrix of its own.

A backward kernel is a function `(inputs, spec, *, dy_RF) -> GroupedMatmulInputs`: the gradients of
rows and of matrices, None for the sizes.

Letters: R rows, E groups (experts), D input width, F output width.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from axcore.errors import KernelError
from axcore.ops.op import KernelOp, ResultSpec, vjp_from_inputs
from axcore.parallel.shard_op import OpSharding, Partition, axes


class GroupedMatmulInputs(NamedTuple):
    """The arrays of one call: rows sorted by group, matrices, and how many rows each group has."""

    x_RD: Array
    w_EDF: Array
    group_sizes_E: Array


def grouped_matmul_sharding(inputs: GroupedMatmulInputs, spec: None) -> OpSharding:
    """Return how a call is split: by rows, as the rules split `batch`."""
    return OpSharding(
        inputs=GroupedMatmulInputs(axes("batch", None), axes(None, None, None), axes(None)),
        outputs=("batch", None),
        backward={"dy_RF": ("batch", None)},
        split=("batch",),
        localize=_own_rows,
    )


def _own_rows(partition: Partition, own: GroupedMatmulInputs) -> GroupedMatmulInputs:
    """Return the call with the sizes of the groups among a device's own rows."""
    if partition.mesh is None:
        return own
    num_rows, sizes_E = own.x_RD.shape[0], own.group_sizes_E
    first = jnp.asarray(partition.index("batch"), sizes_E.dtype) * num_rows
    ends_E = jnp.cumsum(sizes_E)
    starts_E = jnp.clip(ends_E - sizes_E, first, first + num_rows)
    return own._replace(group_sizes_E=jnp.clip(ends_E, first, first + num_rows) - starts_E)


def _results(inputs: GroupedMatmulInputs, spec: None) -> ResultSpec:
    x_RD, w_EDF, _ = inputs
    return ResultSpec("y_RF", (x_RD.shape[0], w_EDF.shape[2]), x_RD.dtype.name)


GROUPED_MATMUL_OP = KernelOp[Array](
    name="grouped_matmul",
    inputs=GroupedMatmulInputs,
    sharding=grouped_matmul_sharding,
    results=_results,
    custom_vjp=vjp_from_inputs("dy_RF"),
)


def grouped_matmul(x_RD: Array, w_EDF: Array, group_sizes_E: Array) -> Array:
    """Return `y_RF`: row `r` times the matrix of its group, in x's dtype.

    The first `group_sizes_E[0]` rows are of group 0, the next of group 1, and so on; rows after the
    last group give zeros. Accumulates in float32. Where the sizes add up to more than R the rows
    that are there are used.

    Args:
        x_RD: Rows, sorted by group.
        w_EDF: A matrix for each group, of x's dtype.
        group_sizes_E: Integers >= 0.

    Raises:
        KernelError: Shapes or dtypes do not fit, or no kernel can serve the call.
    """
    check_grouped("grouped_matmul", x_RD, w_EDF, group_sizes_E)
    inputs = GroupedMatmulInputs(x_RD, w_EDF, group_sizes_E)
    return GROUPED_MATMUL_OP.run(inputs)


def check_grouped(op: str, x: Array, w: Array, group_sizes: Array) -> None:
    """Refuse arrays whose ranks, sizes or dtypes do not fit together.

    Raises:
        KernelError: Naming the op and what does not fit.
    """
    if x.ndim != 2 or w.ndim != 3 or group_sizes.ndim != 1:
        raise KernelError(
            f"{op}: x has shape {x.shape}, w {w.shape}, group_sizes {group_sizes.shape}; "
            "expected RD, EDF and E."
        )
    if x.shape[1] != w.shape[1] or group_sizes.shape[0] != w.shape[0]:
        raise KernelError(
            f"{op}: x RD {x.shape}, w EDF {w.shape} and group_sizes E "
            f"{group_sizes.shape} differ in D or E."
        )
    if not (x.dtype == w.dtype and jnp.issubdtype(x.dtype, jnp.floating)):
        raise KernelError(
            f"{op}: dtypes are x {x.dtype} and w {w.dtype}; expected one floating dtype.",
            hint="cast both to the compute dtype before the call",
        )
    if not jnp.issubdtype(group_sizes.dtype, jnp.integer):
        raise KernelError(f"{op}: group_sizes are {group_sizes.dtype}; expected integers.")
