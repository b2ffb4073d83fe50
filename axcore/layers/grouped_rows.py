"""What a layer needs that is called stacked: rows of several copies at once, sorted by copy."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

GROUP_SIZES = "group_sizes"
"""The shared value with the rows of each copy; rows are sorted by copy."""


class GroupedRows:
    """A module whose parameters can be stacked, and each row uses those of its copy.

    The copies are the experts of a layer. Parameters have a leading dimension then, and the shared
    value `GROUP_SIZES` says how many rows each copy has.
    """


def group_of_rows(sizes: Int[Array, " groups"], num_rows: int) -> Int[Array, " rows"]:
    """Returns the copy of each row."""
    row = jnp.arange(num_rows, dtype=sizes.dtype)
    group = jnp.searchsorted(jnp.cumsum(sizes), row, side="right")
    return jnp.minimum(group, len(sizes) - 1)


def taken_by_rows(
    values: Float[Array, "groups dim"], sizes: Int[Array, " groups"], num_rows: int
) -> Float[Array, "rows dim"]:
    """Returns for each row the values of its copy."""
    return jnp.take(values, group_of_rows(sizes, num_rows), axis=0)
