"""Rows sent to the devices that hold their experts, and back, by all-to-all.

Every device sends every other one a block of equal size, whatever the load; what is not needed of a
block stays zero, and rows for which it has no room stay behind. A block that would hold all rows of
a device loses none.

Letters: R rows of this device, P devices, L experts of a device, B rows of a block, S = P B rows
that may arrive, N tokens of K choices, D width.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from axcore.layers.moe.token_permutation import (
    TokenPermutation,
    collect,
    inverse,
    permute,
    spread,
)
from axcore.ops import occupancy_scope

Rows = Float[Array, "rows dim"]
Sizes = Int[Array, " experts"]


def expert_all_to_all(
    run: Callable[[Rows, Sizes], Rows],
    x_ND: Rows,
    permutation: TokenPermutation,
    axes: tuple[str, ...],
    room: float | None = None,
) -> tuple[Float[Array, "choices tokens dim"], Float[Array, ""]]:
    """Returns what experts make of each choice of a token, and the share of rows that stay.

    Those are rows for which there was no room; zeros are in their place, and in that of rows that
    go to no expert, which do not count.

    Args:
        run: From rows sorted by expert, and how many each of the device's own experts has, to what
            they make of them.
        x_ND: Tokens of this device.
        permutation: The order of its rows by expert, of all devices.
        axes: Mesh axes that experts are split over, in order.
        room: Of a block, as a multiple of R / P; room for all rows where None.
    """
    num_rows = len(permutation.order)
    wanted_PL = permutation.sizes.reshape(jax.lax.axis_size(axes), -1)
    block = _block_size(num_rows, wanted_PL.shape[0], room)
    sent_PL = _with_room(wanted_PL, block)
    place_R = _places(wanted_PL, num_rows, block)[permutation.place]
    num_places = wanted_PL.shape[0] * block
    row_S = inverse(place_R, num_places)
    x_SD = _swapped(spread(x_ND, row_S, place_R, False), axes)
    arrived_PL = _swapped(sent_PL, axes)
    arrived = TokenPermutation.of(_experts(arrived_PL, block), sent_PL.shape[1])
    with occupancy_scope(min(1.0, num_rows / num_places)):
        y_SD = run(permute(x_SD, arrived.order, arrived.place), arrived.sizes)
    y_SD = _swapped(permute(y_SD, arrived.place, arrived.order), axes)
    wanted, sent = (jnp.sum(sizes).astype(jnp.float32) for sizes in (wanted_PL, sent_PL))
    left_behind = (wanted - sent) / jnp.maximum(wanted, 1)
    return collect(y_SD, row_S, place_R, len(x_ND), False), left_behind


def _block_size(num_rows: int, num_devices: int, room: float | None) -> int:
    return num_rows if room is None else min(num_rows, math.ceil(room * num_rows / num_devices))


def _with_room(wanted_PL: Int[Array, "devices experts"], block: int) -> Int[Array, "d e"]:
    """Returns how many rows of each expert are in a block, the first ones first."""
    ends_PL = jnp.minimum(jnp.cumsum(wanted_PL, axis=1), block)
    return jnp.diff(ends_PL, axis=1, prepend=0).astype(wanted_PL.dtype)


def _swapped(blocks: Array, axes: tuple[str, ...]) -> Array:
    """Returns, in place of the p-th block of rows, the block that device p has for this one."""
    swapped: Array = jax.lax.all_to_all(blocks, axes, 0, 0, tiled=True)  # type: ignore[no-untyped-call]
    return swapped


def _places(
    wanted_PL: Int[Array, "devices experts"], num_rows: int, block: int
) -> Int[Array, " rows"]:
    """Returns each row's place in the blocks; one past the end where its block has no room.

    So have rows after those of all experts, which go to none.
    """
    ends_P = jnp.cumsum(jnp.sum(wanted_PL, axis=1))
    row_R = jnp.arange(num_rows, dtype=ends_P.dtype)
    device_R = jnp.searchsorted(ends_P, row_R, side="right")
    starts_P = jnp.concatenate([jnp.zeros_like(ends_P[:1]), ends_P[:-1]])
    within_R = row_R - starts_P[device_R]
    has_room = (within_R < block) & (device_R < len(ends_P))
    place_R = jnp.where(has_room, device_R * block + within_R, len(ends_P) * block)
    return place_R.astype(jnp.int32)


def _experts(arrived_PL: Int[Array, "devices experts"], num_rows: int) -> Int[Array, " places"]:
    """Returns the expert of the row at each place, and L where there is no row."""
    row_R = jnp.arange(num_rows, dtype=arrived_PL.dtype)

    def of_block(sizes_L: Array) -> Array:
        return jnp.searchsorted(jnp.cumsum(sizes_L), row_R, side="right")

    return jax.vmap(of_block)(arrived_PL).reshape(-1)
