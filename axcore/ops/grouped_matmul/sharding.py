"""The logical axes of a grouped matmul's arrays.

Each device multiplies its own rows, which stay sorted, and counts how many of each group they are;
it has all matrices.
"""

import jax.numpy as jnp

from axcore.ops.grouped_matmul.types import GroupedMatmulInputs
from axcore.parallel.shard_op import OpSharding, Partition, axes


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
