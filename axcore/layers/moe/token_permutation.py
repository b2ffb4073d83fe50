"""Rows in another order, such that neither the way there nor its gradient scatters anything.

Letters: R rows, S places, D width, E experts.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class TokenPermutation(NamedTuple):
    """The order of rows by expert.

    Args:
        order: Which row is at each place once sorted.
        place: Where each row is then.
        sizes: Rows of each expert.
    """

    order: Int[Array, " rows"]
    place: Int[Array, " rows"]
    sizes: Int[Array, " experts"]

    @classmethod
    def of(cls, expert_R: Int[Array, " rows"], num_experts: int) -> "TokenPermutation":
        """Returns the order of rows, which keep theirs within an expert.

        Rows of a higher number than any expert's come last, and count for none.
        """
        order = jnp.argsort(expert_R, stable=True).astype(jnp.int32)
        bounds = jnp.searchsorted(expert_R[order], jnp.arange(num_experts + 1))
        return cls(order, inverse(order, len(order)), jnp.diff(bounds).astype(jnp.int32))


def inverse(place_R: Int[Array, " rows"], num_places: int) -> Int[Array, " places"]:
    """Returns the row at each place, R where there is none; places past the end do not exist."""
    num_rows = len(place_R)
    rows = jnp.arange(num_rows, dtype=jnp.int32)
    return jnp.full((num_places,), num_rows, jnp.int32).at[place_R].set(rows, mode="drop")


@jax.custom_vjp
def permute(
    x_RD: Float[Array, "rows dim"], row_S: Int[Array, " places"], place_R: Int[Array, " rows"]
) -> Float[Array, "places dim"]:
    """Returns the row at each place, zeros where there is none.

    Args:
        x_RD: Rows.
        row_S: Which of them is at each place; R or more for none.
        place_R: Its inverse: where each row is; S or more for nowhere.
    """
    return jnp.take(x_RD, row_S, axis=0, mode="fill", fill_value=0.0)


def _forward(x_RD: Array, row_S: Array, place_R: Array) -> tuple[Array, Array]:
    return permute(x_RD, row_S, place_R), place_R


def _backward(place_R: Array, dy_SD: Array) -> tuple[Array, None, None]:
    return jnp.take(dy_SD, place_R, axis=0, mode="fill", fill_value=0.0), None, None


permute.defvjp(_forward, _backward)
