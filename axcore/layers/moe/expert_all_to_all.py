"""Rows sent to the devices that hold their experts, and back, by all-to-all.

Every device sends every other one a block that would hold all of its rows, so that none is lost
however uneven the load; what is not needed of a block stays zero.

Letters: R rows of this device, P devices, L experts of a device, S = P R rows that may arrive, D
width.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from axcore.layers.moe.token_permutation import TokenPermutation, inverse, permute

Rows = Float[Array, "rows dim"]
Sizes = Int[Array, " experts"]


def expert_all_to_all(
    run: Callable[[Rows, Sizes], Rows], x_RD: Rows, sizes: Sizes, axes: tuple[str, ...]
) -> Rows:
    """Returns what `run` makes of each row on the device that holds its expert.

    Args:
        run: From rows sorted by expert, and how many each of the device's own experts has.
        x_RD: Rows of this device, sorted by expert.
        sizes: How many rows are of each expert, of all devices.
        axes: Mesh axes that experts are split over, in order.
    """
    sent_PL = sizes.reshape(jax.lax.axis_size(axes), -1)
    place_R = _places(sent_PL, len(x_RD))
    num_places = sent_PL.shape[0] * len(x_RD)
    row_S = inverse(place_R, num_places)
    x_SD = _swapped(permute(x_RD, row_S, place_R), axes)
    arrived_PL = _swapped(sent_PL, axes)
    permutation = TokenPermutation.of(_experts(arrived_PL, len(x_RD)), sent_PL.shape[1])
    y_SD = run(permute(x_SD, permutation.order, permutation.place), permutation.sizes)
    y_SD = _swapped(permute(y_SD, permutation.place, permutation.order), axes)
    return permute(y_SD, place_R, row_S)


def _swapped(blocks: Array, axes: tuple[str, ...]) -> Array:
    """Returns, in place of the p-th block of rows, the block that device p has for this one."""
    swapped: Array = jax.lax.all_to_all(blocks, axes, 0, 0, tiled=True)  # type: ignore[no-untyped-call]
    return swapped


def _places(sent_PL: Int[Array, "devices experts"], num_rows: int) -> Int[Array, " rows"]:
    """Returns each row's place when every device's rows begin a block of `num_rows`."""
    ends_P = jnp.cumsum(jnp.sum(sent_PL, axis=1))
    row_R = jnp.arange(num_rows, dtype=ends_P.dtype)
    device_R = jnp.searchsorted(ends_P, row_R, side="right")
    starts_P = jnp.concatenate([jnp.zeros_like(ends_P[:1]), ends_P[:-1]])
    return (device_R * num_rows + row_R - starts_P[device_R]).astype(jnp.int32)


def _experts(arrived_PL: Int[Array, "devices experts"], num_rows: int) -> Int[Array, " places"]:
    """Returns the expert of the row at each place, and L where there is no row."""
    row_R = jnp.arange(num_rows, dtype=arrived_PL.dtype)

    def of_block(sizes_L: Array) -> Array:
        return jnp.searchsorted(jnp.cumsum(sizes_L), row_R, side="right")

    return jax.vmap(of_block)(arrived_PL).reshape(-1)
