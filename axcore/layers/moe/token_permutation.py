"""Tokens sorted by expert on one device, and sent to the devices that hold their experts.

Neither the way there nor its gradient scatters anything. A row is a choice of a token: row r is
choice r % K of token r // K. What tokens get back is laid out choice by choice: split so, rows of
full tokens stay where they are in a chip's memory.

Between devices rows go by all-to-all: every device sends every other one a block of equal size,
whatever the load; what is not needed of a block stays zero, and rows beyond its size stay
behind. A block that would hold all rows of a device loses none.

Letters: N tokens, K choices of a token, R = N K rows of this device, S places, D width, E experts;
P devices, L experts of a device, B rows of a block, S = P B where blocks arrive.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from axcore.ops import occupancy_scope


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
        """Return the order of rows, which keep theirs within an expert.

        Rows of a higher number than any expert's come last, and count for none.
        """
        # Stable, so that rows beyond a block's size are the last ones, and the result depends on
        # no sort's whim.
        order = jnp.argsort(expert_R, stable=True).astype(jnp.int32)
        bounds = jnp.searchsorted(expert_R[order], jnp.arange(num_experts + 1))
        return cls(order, inverse(order, len(order)), jnp.diff(bounds).astype(jnp.int32))


def inverse(place_R: Int[Array, " rows"], num_places: int) -> Int[Array, " places"]:
    """Return the row at each place, R where there is none; places past the end do not exist."""
    num_rows = len(place_R)
    rows = jnp.arange(num_rows, dtype=jnp.int32)
    # The one scatter there is: of a number for each row, not of the row, and without a gradient.
    return jnp.full((num_places,), num_rows, jnp.int32).at[place_R].set(rows, mode="drop")


@jax.custom_vjp
def permute(
    x_RD: Float[Array, "rows dim"], row_R: Int[Array, " rows"], place_R: Int[Array, " rows"]
) -> Float[Array, "rows dim"]:
    """Return the row at each place.

    Args:
        x_RD: Rows.
        row_R: Which of them is at each place, each at one.
        place_R: Its inverse: where each row is.
    """
    return jnp.take(x_RD, row_R, axis=0, mode="clip")


def _permute_forward(x_RD: Array, row_R: Array, place_R: Array) -> tuple[Array, Array]:
    return permute(x_RD, row_R, place_R), place_R


def _permute_backward(place_R: Array, dy_RD: Array) -> tuple[Array, None, None]:
    # A gather by the inverse: what autodiff makes of a gather is a scatter-add, which is slow
    # where several rows might meet, and here none do.
    return jnp.take(dy_RD, place_R, axis=0, mode="clip"), None, None


permute.defvjp(_permute_forward, _permute_backward)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def spread(
    x_ND: Float[Array, "tokens dim"],
    row_S: Int[Array, " places"],
    place_R: Int[Array, " rows"],
    is_total: bool,
) -> Float[Array, "places dim"]:
    """Return at each place the token whose choice is there, zeros where there is none.

    Args:
        x_ND: Tokens.
        row_S: Which row is at each place; R for none.
        place_R: Its inverse: where each row is; S for nowhere.
        is_total: Whether every place has a row, and every row a place.
    """
    return _take(x_ND, row_S // (len(place_R) // len(x_ND)), is_total)


def _spread_forward(x_ND: Array, row_S: Array, place_R: Array, is_total: bool) -> Any:
    # Backward needs the number of tokens, a shape: residuals must be arrays, so one without memory.
    return spread(x_ND, row_S, place_R, is_total), (place_R, jnp.empty((len(x_ND), 0), x_ND.dtype))


def _spread_backward(is_total: bool, kept: tuple[Array, Array], dy_SD: Array) -> Any:
    place_R, like_N0 = kept
    return jnp.sum(_by_choice(dy_SD, place_R, len(like_N0), is_total), axis=0), None, None


spread.defvjp(_spread_forward, _spread_backward)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def collect(
    y_SD: Float[Array, "places dim"],
    row_S: Int[Array, " places"],
    place_R: Int[Array, " rows"],
    num_tokens: int,
    is_total: bool,
) -> Float[Array, "choices tokens dim"]:
    """Return the output for each choice of each token, zeros for choices without a place.

    Args:
        y_SD: What there is at each place.
        row_S: Which row is at each place; R for none.
        place_R: Its inverse: where each row is; S for nowhere.
        num_tokens: N.
        is_total: Whether every place has a row, and every row a place.
    """
    return _by_choice(y_SD, place_R, num_tokens, is_total)


def _collect_forward(
    y_SD: Array, row_S: Array, place_R: Array, num_tokens: int, is_total: bool
) -> Any:
    return collect(y_SD, row_S, place_R, num_tokens, is_total), row_S


def _collect_backward(num_tokens: int, is_total: bool, row_S: Array, dy_KND: Array) -> Any:
    dy_RD = dy_KND.reshape(-1, dy_KND.shape[-1])  # choice by choice
    num_choices = len(dy_KND)
    by_choice_S = row_S % num_choices * num_tokens + row_S // num_choices
    at_S = jnp.where(row_S < len(dy_RD), by_choice_S, len(dy_RD))
    return _take(dy_RD, at_S, is_total), None, None


collect.defvjp(_collect_forward, _collect_backward)


def _by_choice(y_SD: Array, place_R: Array, num_tokens: int, is_total: bool) -> Array:
    place_KN = place_R.reshape(num_tokens, -1).T
    y_RD = _take(y_SD, place_KN.reshape(-1), is_total)
    return y_RD.reshape(*place_KN.shape, y_SD.shape[-1])


def _take(x: Array, index: Array, is_total: bool) -> Array:
    """Return rows, zeros for an index past the end; these are put where there are fewer rows."""
    if is_total:
        return jnp.take(x, index, axis=0, mode="clip")
    # Filling costs a pass over the result, padding one over the source: whichever has fewer rows.
    if len(index) <= len(x):
        return jnp.take(x, index, axis=0, mode="fill", fill_value=0.0)
    return jnp.take(jnp.pad(x, ((0, 1), (0, 0))), index, axis=0, mode="clip")


Rows = Float[Array, "rows dim"]
Sizes = Int[Array, " experts"]


def expert_all_to_all(
    run: Callable[[Rows, Sizes], Rows],
    x_ND: Rows,
    permutation: TokenPermutation,
    axes: tuple[str, ...],
    capacity_factor: float | None = None,
) -> tuple[Float[Array, "choices tokens dim"], Float[Array, ""]]:
    """Return the experts' output for each choice of a token, and the share of rows that stay.

    Those are rows beyond a block's size; zeros are in their place, and in that of rows that
    go to no expert, which do not count.

    Args:
        run: From rows sorted by expert, and how many each of the device's own experts has, to what
            they make of them.
        x_ND: Tokens of this device.
        permutation: The order of its rows by expert, of all devices.
        axes: Mesh axes that experts are split over, in order.
        capacity_factor: Size of a block, as a multiple of R / P; R where None.
    """
    num_rows = len(permutation.order)
    wanted_PL = permutation.sizes.reshape(jax.lax.axis_size(axes), -1)
    block = _block_size(num_rows, wanted_PL.shape[0], capacity_factor)
    sent_PL = _with_room(wanted_PL, block)
    place_R = _places(wanted_PL, num_rows, block)[permutation.place]
    num_places = wanted_PL.shape[0] * block
    row_S = inverse(place_R, num_places)
    # Each token is copied to its places in one pass, with no sorted array of rows in between.
    x_SD = _swapped(spread(x_ND, row_S, place_R, False), axes)
    # How many rows of each expert a block holds has to be sent, too; blocks have one size
    # whatever the load, as shapes are static.
    arrived_PL = _swapped(sent_PL, axes)
    arrived = TokenPermutation.of(_experts(arrived_PL, block), sent_PL.shape[1])
    # Most places of the blocks may be empty, which counts in the choice and the cost of kernels.
    with occupancy_scope(min(1.0, num_rows / num_places)):
        y_SD = run(permute(x_SD, arrived.order, arrived.place), arrived.sizes)
    y_SD = _swapped(permute(y_SD, arrived.place, arrived.order), axes)
    wanted, sent = (jnp.sum(sizes).astype(jnp.float32) for sizes in (wanted_PL, sent_PL))
    left_behind = (wanted - sent) / jnp.maximum(wanted, 1)
    return collect(y_SD, row_S, place_R, len(x_ND), False), left_behind


def _block_size(num_rows: int, num_devices: int, capacity_factor: float | None) -> int:
    return (
        num_rows
        if capacity_factor is None
        else min(num_rows, math.ceil(capacity_factor * num_rows / num_devices))
    )


def _with_room(wanted_PL: Int[Array, "devices experts"], block: int) -> Int[Array, "d e"]:
    """Return how many rows of each expert are in a block, the first ones first."""
    ends_PL = jnp.minimum(jnp.cumsum(wanted_PL, axis=1), block)
    return jnp.diff(ends_PL, axis=1, prepend=0).astype(wanted_PL.dtype)


def _swapped(blocks: Array, axes: tuple[str, ...]) -> Array:
    """Return, in place of the p-th block of rows, the block that device p has for this one."""
    swapped: Array = jax.lax.all_to_all(blocks, axes, 0, 0, tiled=True)  # type: ignore[no-untyped-call]
    return swapped


def _places(
    wanted_PL: Int[Array, "devices experts"], num_rows: int, block: int
) -> Int[Array, " rows"]:
    """Return each row's place in the blocks; one past the end where its block is full.

    So have rows after those of all experts, which go to none.
    """
    ends_P = jnp.cumsum(jnp.sum(wanted_PL, axis=1))
    row_R = jnp.arange(num_rows, dtype=ends_P.dtype)
    device_R = jnp.searchsorted(ends_P, row_R, side="right")
    starts_P = jnp.concatenate([jnp.zeros_like(ends_P[:1]), ends_P[:-1]])
    within_R = row_R - starts_P[device_R]
    fits = (within_R < block) & (device_R < len(ends_P))
    place_R = jnp.where(fits, device_R * block + within_R, len(ends_P) * block)
    return place_R.astype(jnp.int32)


def _experts(arrived_PL: Int[Array, "devices experts"], num_rows: int) -> Int[Array, " places"]:
    """Return the expert of the row at each place, and L where there is no row."""
    row_R = jnp.arange(num_rows, dtype=arrived_PL.dtype)

    def of_block(sizes_L: Array) -> Array:
        return jnp.searchsorted(jnp.cumsum(sizes_L), row_R, side="right")

    return jax.vmap(of_block)(arrived_PL).reshape(-1)
