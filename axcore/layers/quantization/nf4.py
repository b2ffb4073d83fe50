"""NF4: numbers of four bits whose levels are quantiles of a normal distribution.

Blocks are numbers below each other in a column, which are next to each other where outputs come
first. Functions use the array API, so that they work in host memory and on devices.

Letters of shapes: K input, N output, G blocks of a column.

Source: Dettmers et al. 2023, arXiv:2305.14314: section 3 and appendix E for the levels, which are
listed there; section 3, "Double Quantization", for scales in eight bits. Dettmers et al. 2021,
arXiv:2110.02861, section 2.1, for the levels of those.
"""

from functools import cache
from itertools import pairwise
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, UInt8

LEVELS = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""What the codes 0 to 15 are, in units of the block's largest magnitude."""
BETWEEN = tuple((low + high) / 2 for low, high in pairwise(LEVELS))

SCALES_PER_BLOCK = 256
"""Scales that share one of their own, where these are quantized too."""
SMALLEST = np.float32(2.0**-126)


def largest_of_blocks(weight: Any, num_blocks: int) -> Any:
    """Return the largest magnitude of each block of a weight `[K, N]`, `[G, N]` in float32."""
    api = weight.__array_namespace__()
    blocks = weight.astype(np.float32).reshape(num_blocks, -1, weight.shape[1])
    return api.max(api.abs(blocks), axis=1)


def packed_codes(weight: Any, largest: Any) -> Any:
    """Return the nearest levels of a weight `[K, N]`, two in a byte, `[K / 2, N]`.

    Of rows 2k and 2k + 1 the first has the low half.
    """
    num_blocks, columns = largest.shape
    blocks = weight.astype(np.float32).reshape(num_blocks, -1, columns)
    parts = blocks / largest.clip(SMALLEST)[:, None, :]
    # Fifteen comparisons, which fuse with what is around; a search would be a loop for each
    # number.
    codes = sum((parts > bound).astype(np.uint8) for bound in BETWEEN)
    pairs = codes.reshape(-1, 2, columns)
    return pairs[:, 0] | (pairs[:, 1] << 4)


def unpacked_levels(packed: UInt8[Array, "half N"]) -> Float[Array, "K N"]:
    """Return the levels of packed codes, in float32."""
    both = jnp.stack([packed & 15, packed >> 4], axis=1).reshape(-1, packed.shape[1])
    levels: list[Any] = [jnp.float32(level) for level in LEVELS]
    for bit in range(4):  # a table of 16 by selections, which fuse with what comes after
        is_set: Bool[Array, "K N"] = (both >> bit) & 1 == 1
        levels = [jnp.where(is_set, high, low) for low, high in zip(*[iter(levels)] * 2)]  # noqa: B905
    found: Array = levels[0]
    return found


@cache
def scale_levels() -> tuple[float, ...]:
    """Return the 256 levels of quantized scales, ascending.

    Seven magnitudes, each ten times the one before, are split into 1, 2, 4, ..., 64 parts.
    """
    found = [0.0, 1.0]
    for exponent in range(7):
        bounds = np.linspace(0.1, 1.0, 2**exponent + 1, dtype=np.float32)
        middles = (bounds[:-1] + bounds[1:]) / 2 * np.float32(10.0 ** (exponent - 6))
        found += [*map(float, middles), *(-float(middle) for middle in middles)]
    return tuple(sorted(found))


def quantized_scales(scales: Any) -> tuple[Any, Any, Any]:
    """Return scales `[G, N]` in eight bits: codes, the scale of each 256, and what is added.

    Scales are counted column by column.
    """
    api = scales.__array_namespace__()
    # Scales are positive. Less their mean they use both signs of the levels.
    mean = api.mean(scales)
    flat = (scales - mean).T.reshape(-1)
    num_blocks = -(-flat.shape[0] // SCALES_PER_BLOCK)
    filled = api.concatenate(
        [flat, api.zeros((num_blocks * SCALES_PER_BLOCK - flat.shape[0],), dtype=np.float32)]
    )
    blocks = filled.reshape(num_blocks, SCALES_PER_BLOCK)
    largest = api.max(api.abs(blocks), axis=1)
    parts = blocks / largest.clip(SMALLEST)[:, None]
    levels = np.asarray(scale_levels(), np.float32)
    between = api.asarray((levels[:-1] + levels[1:]) / 2)
    codes = api.searchsorted(between, parts.reshape(-1)).astype(np.uint8)
    return codes[: flat.shape[0]].reshape(scales.T.shape).T, largest, mean


def dequantized_scales(
    codes: UInt8[Array, "G N"], largest: Float[Array, " blocks"], mean: Float[Array, ""]
) -> Float[Array, "G N"]:
    """Return scales in float32."""
    levels = jnp.take(jnp.asarray(scale_levels(), jnp.float32), codes.astype(jnp.int32).T)
    flat = levels.reshape(-1)
    own = jnp.repeat(largest, SCALES_PER_BLOCK)[: flat.shape[0]]
    return (flat * own).reshape(codes.T.shape).T + mean
