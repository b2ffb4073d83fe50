"""How cross-entropy's kernels cut tokens and words, and what they cost.

Letters: R tokens, V vocabulary, D width.
"""

from collections.abc import Iterator
from typing import Literal

import attrs
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from axcore.ops import Call, TileTable, power_of_two
from axcore.plugins import Hardware

LANES = 128
MIB = 2**20

VMEM = {"v5e": 96 * MIB, "v6e": 96 * MIB}
"""Bytes of VMEM that the kernels may take; of others half of 96 MiB."""


@attrs.frozen
class CrossEntropyTiles:
    """Block sizes, multiples of 128.

    Args:
        rows: Tokens of a block.
        words: Words of a block.
    """

    rows: int
    words: int

    def fitted(self, num_tokens: int, num_words: int) -> "CrossEntropyTiles":
        """Returns blocks for so many tokens and words.

        Words are cut without a rest if blocks of at least 3/4 of the size do so.
        """
        sizes = range(self.words, max(LANES, self.words * 3 // 4) - 1, -LANES)
        words = next((size for size in sizes if num_words % size == 0), self.words)
        return CrossEntropyTiles(
            rows=min(self.rows, whole(num_tokens, LANES)), words=min(words, whole(num_words, LANES))
        )

    def vmem_bytes(self, width: int, itemsize: int) -> int:
        """Returns what the kernel that takes more holds: blocks, twice, sums, and logits."""
        operands = 2 * itemsize * width * (self.rows + self.words)
        forward = width * self.rows * (2 * itemsize + 4)
        backward = width * self.words * (2 * 4 + 4)
        return operands + max(forward, backward) + 6 * 4 * self.rows * self.words

    def compiler_params(self, x_RD: Array) -> pltpu.CompilerParams:
        """Returns the compiler's parameters of a kernel with these blocks."""
        limit = self.vmem_bytes(x_RD.shape[1], x_RD.dtype.itemsize) * 9 // 8 + 2 * MIB
        semantics: tuple[Literal["parallel"], Literal["arbitrary"]] = ("parallel", "arbitrary")
        return pltpu.CompilerParams(dimension_semantics=semantics, vmem_limit_bytes=limit)


@attrs.frozen
class Products:
    """What a kernel costs that makes so many products of all tokens with all words."""

    num: int

    def cost(
        self, x_RD: Array, w_VD: Array, tiles: CrossEntropyTiles, *, is_by_word: bool
    ) -> pl.CostEstimate:
        """Returns FLOPs, exponentials and bytes; the outer operand is read once only."""
        num_logits = x_RD.shape[0] * w_VD.shape[0]
        outer, inner, block = (w_VD, x_RD, tiles.words) if is_by_word else (x_RD, w_VD, tiles.rows)
        times = outer.shape[0] // block
        return pl.CostEstimate(
            flops=2 * self.num * num_logits * x_RD.shape[1],
            transcendentals=num_logits,
            bytes_accessed=3 * outer.nbytes + times * inner.nbytes,
        )


def whole(size: int, unit: int) -> int:
    """Returns the least multiple of `unit` that is not below `size`."""
    return -(-size // unit) * unit


def _default(call: Call, hardware: Hardware) -> CrossEntropyTiles:
    return next(_fitting(call, hardware))


def _candidates(call: Call, hardware: Hardware) -> Iterator[CrossEntropyTiles]:
    return _fitting(call, hardware)


def _fitting(call: Call, hardware: Hardware) -> Iterator[CrossEntropyTiles]:
    """Yields blocks that fit the VMEM, those with most tokens first; the smallest anyway.

    Many tokens make the words, which pass by for each block of them, go by less often.
    """
    budget = VMEM.get(hardware.generation or "", 48 * MIB)
    width, itemsize = call.shape("x")[-1], 2 if call.dtype("x") == "bfloat16" else 4
    for rows in (512, 256, 128):
        for words in range(768, 0, -LANES):
            tiles = CrossEntropyTiles(rows, words)
            if words >= rows // 2 and tiles.vmem_bytes(width, itemsize) <= budget:
                yield tiles
    yield CrossEntropyTiles(LANES, LANES)


TILES = TileTable(
    kernel="cross_entropy/tpu_cross_entropy",
    package="axl_tpu.kernels",
    default=_default,
    candidates=_candidates,
    bucket=lambda call: {
        "width": call.shape("x")[-1],
        "vocabulary": power_of_two(max(call.shape("w"))),
        "dtype": call.dtype("x"),
    },
)
