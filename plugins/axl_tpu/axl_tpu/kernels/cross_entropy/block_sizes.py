"""How cross-entropy's kernels divide tokens and the vocabulary into blocks, and what they cost.

Letters: R tokens, V vocabulary, D width.
"""

from collections.abc import Iterator
from typing import Literal

import attrs
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from axcore.ops import BlockSizeTable, Call, power_of_two
from axcore.plugins import Hardware

LANES = 128
MIB = 2**20

VMEM = {"v5e": 96 * MIB, "v6e": 96 * MIB}
"""Bytes of VMEM that the kernels may take; of others half of 96 MiB."""


@attrs.frozen
class CrossEntropyBlockSizes:
    """Block sizes, multiples of 128.

    Args:
        rows: Tokens of a block.
        vocabulary: Entries of the vocabulary in a block.
    """

    rows: int
    vocabulary: int

    def fitted(self, num_tokens: int, vocabulary_size: int) -> "CrossEntropyBlockSizes":
        """Return blocks for so many tokens and entries of the vocabulary.

        The vocabulary is cut without a rest if blocks of at least 3/4 of the size do so.
        """
        sizes = range(self.vocabulary, max(LANES, self.vocabulary * 3 // 4) - 1, -LANES)
        vocabulary = next((size for size in sizes if vocabulary_size % size == 0), self.vocabulary)
        return CrossEntropyBlockSizes(
            rows=min(self.rows, whole(num_tokens, LANES)),
            vocabulary=min(vocabulary, whole(vocabulary_size, LANES)),
        )

    def vmem_bytes(self, width: int, itemsize: int) -> int:
        """Return what the kernel that takes more holds: blocks, twice, sums, and logits."""
        operands = 2 * itemsize * width * (self.rows + self.vocabulary)
        forward = width * self.rows * (2 * itemsize + 4)
        backward = width * self.vocabulary * (2 * 4 + 4)
        return operands + max(forward, backward) + 6 * 4 * self.rows * self.vocabulary

    def compiler_params(self, x_RD: Array) -> pltpu.CompilerParams:
        """Return the compiler's parameters of a kernel with these blocks."""
        # An eighth and 2 MiB more: the compiler has temporaries of its own, and refuses a kernel
        # that it cannot fit.
        limit = self.vmem_bytes(x_RD.shape[1], x_RD.dtype.itemsize) * 9 // 8 + 2 * MIB
        semantics: tuple[Literal["parallel"], Literal["arbitrary"]] = ("parallel", "arbitrary")
        return pltpu.CompilerParams(dimension_semantics=semantics, vmem_limit_bytes=limit)


@attrs.frozen
class Products:
    """What a kernel costs that makes so many products of all tokens with the full vocabulary."""

    num: int

    def cost(
        self, x_RD: Array, w_VD: Array, block_sizes: CrossEntropyBlockSizes, *, is_by_word: bool
    ) -> pl.CostEstimate:
        """Return FLOPs, exponentials and bytes; the outer operand is read once only."""
        num_logits = x_RD.shape[0] * w_VD.shape[0]
        outer, inner, block = (
            (w_VD, x_RD, block_sizes.vocabulary) if is_by_word else (x_RD, w_VD, block_sizes.rows)
        )
        times = outer.shape[0] // block
        return pl.CostEstimate(
            flops=2 * self.num * num_logits * x_RD.shape[1],
            transcendentals=num_logits,
            bytes_accessed=3 * outer.nbytes + times * inner.nbytes,
        )


def whole(size: int, unit: int) -> int:
    """Return the least multiple of `unit` that is not below `size`."""
    return -(-size // unit) * unit


def _default(call: Call, hardware: Hardware) -> CrossEntropyBlockSizes:
    return next(_fitting(call, hardware))


def _candidates(call: Call, hardware: Hardware) -> Iterator[CrossEntropyBlockSizes]:
    return _fitting(call, hardware)


def _fitting(call: Call, hardware: Hardware) -> Iterator[CrossEntropyBlockSizes]:
    """Yield blocks that fit the VMEM, those with most tokens first; the smallest anyway.

    The vocabulary is read once for each block of tokens: less often with many tokens in one.
    """
    budget = VMEM.get(hardware.generation or "", 48 * MIB)
    width, itemsize = call.shape("x")[-1], 2 if call.dtype("x") == "bfloat16" else 4
    # Most tokens first: the vocabulary is read once for each block of tokens.
    for rows in (512, 256, 128):
        for vocabulary in range(768, 0, -LANES):
            block_sizes = CrossEntropyBlockSizes(rows, vocabulary)
            if vocabulary >= rows // 2 and block_sizes.vmem_bytes(width, itemsize) <= budget:
                yield block_sizes
    yield CrossEntropyBlockSizes(LANES, LANES)


BLOCK_SIZES = BlockSizeTable(
    kernel="cross_entropy/tpu_cross_entropy",
    package=__package__,
    default=_default,
    candidates=_candidates,
    bucket=lambda call: {
        "width": call.shape("x")[-1],
        "vocabulary": power_of_two(max(call.shape("w"))),
        "dtype": call.dtype("x"),
    },
)
