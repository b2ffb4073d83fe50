"""What a pure call returns in addition to its result, and how micro-batches' become a batch's.

Outputs are losses, summaries, updates of buffers, and captures.
"""

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from axcore.errors import ModuleError
from axcore.module.param import Merge, ParamSpec
from axcore.module.rng import Path, format_path

NATS_A_TOKEN = "nats a token"
"""The unit of a loss that is a mean cross-entropy of tokens, whose exponential is a perplexity."""


@attrs.frozen
class Loss:
    """A loss as a sum over items and the weight of those items.

    It adds `scale * sum / weight` to what is minimised. Sums and weights of parts of a batch add
    up to those of the whole, which is what makes accumulation exact. Under a scan both have a
    leading dimension, and every layer adds its own quotient. One with a scale of 0 is a measure;
    a regularizer is minimised and is not part of how good a model is.
    """

    sum: Array
    weight: Array
    scale: float = 1.0
    is_regularizer: bool = False

    def contribution(self) -> Float[Array, ""]:
        """Return what the loss adds to the total; nothing where the weight is zero."""
        has_items = self.weight != 0
        # Both `where`s are needed: without the inner one the gradient
        # of the branch not taken is nan, and 0 * nan is nan.
        mean = jnp.where(has_items, self.sum / jnp.where(has_items, self.weight, 1), 0)
        return self.scale * jnp.sum(mean)


jax.tree_util.register_dataclass(
    Loss, data_fields=["sum", "weight"], meta_fields=["scale", "is_regularizer"]
)


@attrs.frozen(kw_only=True)
class RowMeasure:
    """Measures that sums over rows do not give, such as ranks among all rows of an evaluation.

    Args:
        captures: Names of what `forward` captures in evaluations, `[rows, ...]` each.
        num_rows: How many rows of an evaluation are read at most.
        measure: From these arrays, by name and joined over batches, on the host. Rows that fill the
            last batch are among them.
    """

    captures: tuple[str, ...]
    num_rows: int
    measure: Callable[[Mapping[str, np.ndarray]], Mapping[str, float]]


@attrs.frozen
class Outputs:
    """The outputs of a pure call, keyed by module path and name, `decoder.layer[3].balance`.

    Args:
        losses: Every loss that any module added.
        summaries: Values to report; a scan stacks them on a leading dimension.
        updates: New buffers, keyed by their path in the state.
        captures: What the call asked to capture.
    """

    losses: dict[str, Loss] = attrs.field(factory=dict)
    summaries: dict[str, Array] = attrs.field(factory=dict)
    updates: dict[Path, Array] = attrs.field(factory=dict)
    captures: dict[str, Any] = attrs.field(factory=dict)

    def absorb(self, other: "Outputs") -> None:
        """Add the outputs of a call made on the way; a name used again gets a suffix."""
        for mine, theirs in zip(self._dicts(), other._dicts(), strict=True):
            for name, value in theirs.items():
                # Losses of the same name from a layer called twice
                # count both; to replace one would drop it silently.
                mine[unused(name, mine)] = value
        # Updates are keyed by their path: the last one counts.
        self.updates.update(other.updates)

    def _dicts(self) -> tuple[dict[str, Any], ...]:
        return self.losses, self.summaries, self.captures

    def total_loss(self) -> Float[Array, ""]:
        """Return the sum of all losses' contributions; what has no scale is only reported."""
        minimised = (loss for loss in self.losses.values() if loss.scale)
        return sum((loss.contribution() for loss in minimised), start=jnp.float32(0))


# Paths are tuples of strings and numbers, which jax cannot
# sort as keys of a dict; so they go with the structure.
def _flatten(outputs: Outputs) -> tuple[tuple[Any, ...], tuple[Path, ...]]:
    paths = tuple(outputs.updates)
    values = tuple(outputs.updates.values())
    return (outputs.losses, outputs.summaries, values, outputs.captures), paths


def _unflatten(paths: tuple[Path, ...], parts: tuple[Any, ...]) -> Outputs:
    losses, summaries, values, captures = parts
    return Outputs(losses, summaries, dict(zip(paths, values, strict=True)), captures)


jax.tree_util.register_pytree_node(Outputs, _flatten, _unflatten)


def unused(name: str, taken: dict[str, Any]) -> str:
    """Return `name`, or with a suffix `#2`, `#3`, ... where it is taken."""
    if name not in taken:
        return name
    count = 2
    while f"{name}#{count}" in taken:
        count += 1
    return f"{name}#{count}"


def apply_updates(state: dict[str, Any], updates: dict[Path, Array]) -> dict[str, Any]:
    """Return the state with new buffers in place; the given state is left as it is.

    Raises:
        ModuleError: An update has another shape or dtype than the buffer.
    """
    for path, value in updates.items():
        state = _with_leaf(state, path, value, path)
    return state


def _with_leaf(state: dict[str, Any], path: Path, value: Array, whole: Path) -> dict[str, Any]:
    step = str(path[0])
    if len(path) > 1:
        # Copies of dicts on the way down only; arrays and
        # other branches are shared with the old state.
        return {**state, step: _with_leaf(state[step], path[1:], value, whole)}
    old = state[step]
    if old.shape != value.shape or old.dtype != value.dtype:
        raise ModuleError(
            f"an update has shape {value.shape} and dtype {value.dtype}; the buffer has "
            f"{old.shape} and {old.dtype}",
            where=format_path(whole),
        )
    return {**state, step: value}


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
