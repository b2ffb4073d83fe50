"""`BatchSpec`: what a batch is, without making one: shapes, dtypes, logical axes, and its units."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import attrs
import jax
from immutabledict import immutabledict

from axcore.errors import DataError
from axcore.module.param import Axes

BATCH_AXIS = "batch"
"""The logical axis of rows: the first of every array of a batch."""


@attrs.frozen(kw_only=True)
class ArraySpec:
    """One array of the global batch.

    Args:
        shape: Its shape, over all processes.
        axes: Logical axis of each dimension, `"batch"` the first; None is never sharded.
        dtype: Its dtype.
        num_values: Its integers are from 0 to this, exclusive; None where nothing bounds them.
    """

    shape: tuple[int, ...]
    axes: Axes
    dtype: str
    num_values: int | None = None


class ModelFlops(NamedTuple):
    """What one unit of a batch costs a model, forward and backward, and by which formula."""

    per_unit: float
    formula: str


@attrs.frozen(kw_only=True)
class LossGroups:
    """Groups of rows whose losses are reported, such as the sources of a mixture.

    Args:
        array: The array of a batch that has each row's group, from 0. No model reads it.
        names: Of the groups.
        weights: The array `[batch, time]` that each token's loss is multiplied with.
    """

    array: str
    names: tuple[str, ...]
    weights: str = "loss_weights"


@attrs.frozen(kw_only=True)
class BatchSpec:
    """Every array of the global batch, and what throughput counts.

    Args:
        arrays: A tree of dicts of `ArraySpec`; a batch is the same tree of arrays.
        unit: What throughput counts: `token`, `image`.
        num_units: How many of them a batch has, padding included.
        sized_by: The field of the data's config that sets the size of a logical axis, for errors.
        loss_groups: Groups of rows whose losses are reported; None for none.

    Raises:
        DataError: An array has no axis for a dimension or no rows, or sizes of an axis differ.
    """

    arrays: Mapping[str, Any]
    unit: str
    num_units: int
    sized_by: Mapping[str, str] = immutabledict({BATCH_AXIS: "batch_size"})
    loss_groups: LossGroups | None = None

    def __attrs_post_init__(self) -> None:
        sizes: dict[str, int] = {}
        for name, array in self.leaves():
            if len(array.axes) != len(array.shape) or array.axes[:1] != (BATCH_AXIS,):
                raise DataError(
                    f"{name} of a batch has shape {array.shape} and axes {array.axes}; expected "
                    f"an axis for each dimension, {BATCH_AXIS!r} the first",
                    where="batch_spec()",
                )
            for axis, size in zip(array.axes, array.shape, strict=True):
                if axis is not None and sizes.setdefault(axis, size) != size:
                    raise DataError(
                        f"{name} of a batch has {size} along {axis!r}, where another array has "
                        f"{sizes[axis]}",
                        where="batch_spec()",
                        hint="give the two axes different names",
                    )
        if not sizes:
            raise DataError("a batch has no arrays", where="batch_spec()")

    def leaves(self) -> list[tuple[str, ArraySpec]]:
        """Return every array with its path: `tokens`, `image/left`."""
        return [
            (jax.tree_util.keystr(path, simple=True, separator="/"), leaf)
            for path, leaf in jax.tree.leaves_with_path(self.arrays)
        ]

    def axis_sizes(self) -> dict[str, int]:
        """Return the size of every logical axis that a batch has."""
        return {
            axis: size
            for _, array in self.leaves()
            for axis, size in zip(array.axes, array.shape, strict=True)
            if axis is not None
        }

    def for_model(self) -> "BatchSpec":
        """Return what a model reads of a batch."""
        if self.loss_groups is None:
            return self
        arrays = {k: array for k, array in self.arrays.items() if k != self.loss_groups.array}
        return attrs.evolve(self, arrays=arrays, loss_groups=None)

    @property
    def num_rows(self) -> int:
        """Rows of the global batch."""
        return self.axis_sizes()[BATCH_AXIS]
