"""The loss of each group of rows, such as those of a source, from any model's own loss.

A loss is a sum over tokens of weight times loss. So the gradient with respect to a token's weight
is that token's loss: no model needs to know of groups, and none computes anything twice.

Letters: B rows, T time, S groups.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.module import Loss, LossGroups

Batch = Mapping[str, Array]


def without_groups(batch: Any, groups: LossGroups | None) -> Any:
    """Returns what a model reads of a batch."""
    if groups is None:
        return batch
    return {name: array for name, array in batch.items() if name != groups.array}


def parts_of_groups(
    batch: Batch, gradient_BT: Float[Array, "batch time"], groups: LossGroups
) -> tuple[Float[Array, " groups"], Float[Array, " groups"]]:
    """Returns what each group adds to the loss that is minimised, and its weight; both add up.

    Args:
        batch: A batch or a part of one.
        gradient_BT: Of the loss of the whole batch, by the weights of the tokens.
        groups: Which rows are of which group.
    """
    weights_BT = batch[groups.weights].astype(jnp.float32)
    losses_BT = jnp.where(weights_BT != 0, weights_BT * gradient_BT.astype(jnp.float32), 0)
    is_of_BS = jax.nn.one_hot(batch[groups.array], len(groups.names), dtype=jnp.float32)
    parts = (jnp.sum(rows, axis=1) @ is_of_BS for rows in (losses_BT, weights_BT))
    loss_S, weight_S = parts
    return loss_S, weight_S


def losses_of_groups(parts: tuple[Array, Array] | None) -> Loss | None:
    """Returns sums and weights `[groups]` of a whole batch; None where there are no groups."""
    if parts is None:
        return None
    loss_S, weight_S = parts
    return Loss(loss_S * jnp.sum(weight_S), weight_S)
