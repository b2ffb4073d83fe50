"""Micro-batches: how rows are split into them, and how their outputs merge into the batch's."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from axcore.module.outputs import Outputs
from axcore.module.param import Merge, ParamSpec


def split_microbatches(x: Array, count: int) -> Array:
    """Return rows split into micro-batches, `[count, rows, ...]`.

    Row r goes to part r % count, so that a batch split over devices in blocks of rows stays where
    it is.
    """
    # Not `reshape(count, rows)`: that would give the first devices'
    # rows to the first part, and move rows between devices.
    return jnp.swapaxes(x.reshape(x.shape[0] // count, count, *x.shape[1:]), 0, 1)


def merge_microbatches(x: Array) -> Array:
    """Return rows from `[count, rows, ...]`, in the order before `split_microbatches`."""
    return jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:])


def merge_outputs(outputs: Outputs, specs: Any) -> Outputs:
    """Return the outputs of stacked parts of a batch as those of all of it.

    Summaries and new buffers are averaged, which is exact for what is linear in the mean over
    rows, such as running means; buffers that say so have the largest instead. An integer
    buffer is otherwise the last part's.
    """
    is_spec = lambda leaf: isinstance(leaf, ParamSpec)  # noqa: E731
    # By path, since parts return only those buffers that changed.
    merges = {spec.state_path: spec.merge for spec in jax.tree.leaves(specs, is_leaf=is_spec)}
    losses = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), outputs.losses)
    summaries = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), outputs.summaries)
    updates = {path: merge_buffer(value, merges[path]) for path, value in outputs.updates.items()}
    return Outputs(losses, summaries, updates, {})


def merge_buffer(stacked: Array, merge: Merge) -> Array:
    """Return the next value of a buffer from those that parts give it, stacked."""
    if merge == "max":
        return jnp.max(stacked, axis=0)
    # An integer has no mean; a counter's last value is the largest.
    if jnp.issubdtype(stacked.dtype, jnp.inexact):
        return jnp.mean(stacked, axis=0)
    return stacked[-1]
