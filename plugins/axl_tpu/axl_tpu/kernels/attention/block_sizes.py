"""Sizes of the blocks of flash attention on TPU."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import attrs

from axcore.ops import BlockSizeTable, Call, power_of_two
from axcore.plugins import Hardware
from axl_tpu.kernels.attention.block_schedule import LANES

MIB = 2**20


@attrs.frozen
class ForwardBlockSizes:
    """Queries and keys of a block, multiples of 128."""

    block_q: int
    block_k: int


@attrs.frozen
class BackwardBlockSizes:
    """The same of the kernels for the gradients of queries, and of keys and values.

    Where `at_once` is 1, one kernel computes both by the blocks of the second.
    """

    dq_block_q: int
    dq_block_k: int
    dkv_block_q: int
    dkv_block_k: int
    at_once: int


LONG = 2**16
"""Tokens of a row from which on blocks are larger."""

FAST_UNITS = ("v6e",)
"""Generations whose products take so little that larger blocks pay, by libtpu's schedules, where
nothing but causality hides parts of them."""

VMEM_BYTES = {"v4": 16 * MIB, "v5e": 128 * MIB, "v5p": 64 * MIB, "v6e": 128 * MIB, "7x": 64 * MIB}
"""Vector memory of a core, by generation."""

VMEM_SHARE = 0.75
"""Largest part of it that a kernel takes; the rest is for what the compiler keeps there."""

SCORES = 8
"""Float32 arrays of the size of a visit's scores that the compiler may hold at once."""


LEAST_VMEM = 16 * MIB
"""What kernels may take on every generation without asking."""


def step_bytes(block: tuple[int, int], widths: tuple[int, int], itemsize: int) -> int:
    """Return the VMEM that a visit needs: blocks twice, their sums, and scores.

    Args:
        block: Queries and keys.
        widths: Of keys and of values.
        itemsize: Bytes of a number of theirs.
    """
    block_q, block_k = block
    size = (block_q + block_k) * sum(_up(width, LANES) for width in widths)
    return size * (2 * itemsize + 4) + SCORES * block_q * block_k * 4


def fused_bytes(call: Call, block_q: int, block_k: int) -> int:
    """Return the VMEM that all gradients at once need: a visit's, and full sums and outputs."""
    queries, keys = (_up(call.shape(x)[1], b) for x, b in (("q", block_q), ("k", block_k)))
    widths = call.shape("k")[-1], call.shape("v")[-1]
    width, value_width = (_up(width, LANES) for width in widths)
    itemsize = 2 if call.dtype("q") == "bfloat16" else 4
    whole = queries * width + keys * (width + value_width)
    return whole * (4 + itemsize) + step_bytes((block_q, block_k), widths, itemsize)


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def block_size(call: Call) -> int:
    """Return the default number of queries and of keys of a block, larger for very long rows.

    A row's list of visits grows with the square of its blocks, and is in scalar memory.
    """
    # 512 to a side: scores of 1 MiB in float32, of which several have to fit the least VMEM of 16
    # MiB.
    return 512 if max(call.shape("q")[1], call.shape("k")[1]) <= LONG else 1024


def _default(call: Call, hardware: Hardware) -> ForwardBlockSizes:
    size = block_size(call)
    hides_blocks = call.has("q_segments") or call.has("k_start") or call.feature("left") is not None
    # Where documents or a window hide blocks, larger ones hide fewer of them.
    if hardware.generation in FAST_UNITS and not hides_blocks:
        size = max(size, 1024)
    return ForwardBlockSizes(size, size)


def _default_backward(call: Call, hardware: Hardware) -> BackwardBlockSizes:
    size = block_size(call)
    return BackwardBlockSizes(
        size, size, size, size, int(_fits_at_once(call, hardware, size, size))
    )


def _fits_at_once(call: Call, hardware: Hardware, block_q: int, block_k: int) -> bool:
    limit = VMEM_SHARE * VMEM_BYTES.get(hardware.generation, 0)
    return fused_bytes(call, block_q, block_k) <= limit


SIZES = (256, 512, 1024)


def _sizes(call: Call) -> Iterator[tuple[int, int]]:
    # Smaller blocks of very long rows would overflow scalar memory with their visits.
    least = block_size(call) // 2
    for block_q, block_k in product(SIZES, repeat=2):
        if min(block_q, block_k) >= least:
            yield block_q, block_k


def _candidates(call: Call, hardware: Hardware) -> Iterator[ForwardBlockSizes]:
    for block_q, block_k in _sizes(call):
        yield ForwardBlockSizes(block_q, block_k)


def _candidates_backward(call: Call, hardware: Hardware) -> Iterator[BackwardBlockSizes]:
    for block_q, block_k in _sizes(call):
        for at_once in range(1 + _fits_at_once(call, hardware, block_q, block_k)):
            yield BackwardBlockSizes(block_q, block_k, block_q, block_k, at_once)


def _bucket(call: Call) -> dict[str, Any]:
    return {
        "queries": power_of_two(call.shape("q")[1]),
        "keys": power_of_two(call.shape("k")[1]),
        "width": call.shape("q")[-1],
        "dtype": call.dtype("q"),
        "left": call.feature("left"),
        "packed": call.has("q_segments") or call.has("k_start"),
    }


BLOCK_SIZES = BlockSizeTable(
    kernel="attention/tpu_flash_attention",
    package=__package__,
    default=_default,
    candidates=_candidates,
    bucket=_bucket,
)

BACKWARD_BLOCK_SIZES = BlockSizeTable(
    kernel="attention_backward/tpu_flash_attention",
    package=__package__,
    default=_default_backward,
    candidates=_candidates_backward,
    bucket=_bucket,
)
