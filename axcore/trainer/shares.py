"""Which rows of each global batch a process reads: those that its devices hold.

That is decided by the mesh, not by the number of processes: where a model is split over all devices
of two processes, both hold every row and read every row.
"""

from collections.abc import Iterable

import attrs
import jax


@attrs.frozen
class BatchShare:
    """One of `count` equal blocks of rows: block `index`, from 0."""

    index: int
    count: int


WHOLE = BatchShare(0, 1)
"""Every row."""


def batch_share(sharding: jax.sharding.Sharding, shape: tuple[int, int]) -> BatchShare:
    """Returns the block of rows that the devices of this process hold.

    Args:
        sharding: Of a batch.
        shape: Rows and tokens of the global batch.
    """
    indices = sharding.addressable_devices_indices_map(shape)
    return share_of((index[0] for index in indices.values() if index is not None), shape[0])


def share_of(held: Iterable[slice], num_rows: int) -> BatchShare:
    """Returns the block that rows make up; all rows where those held are no such block.

    Args:
        held: Rows of each device, as slices.
        num_rows: Rows of the global batch.
    """
    rows = {row for one in held for row in range(*one.indices(num_rows))}
    first, size = min(rows), len(rows)
    is_block = max(rows) - first + 1 == size and first % size == 0 and num_rows % size == 0
    return BatchShare(first // size, num_rows // size) if is_block else WHOLE
