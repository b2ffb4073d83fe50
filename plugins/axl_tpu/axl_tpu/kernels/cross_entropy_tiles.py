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

SMALL_VMEM = {"v4": 12 * MIB}
"""Bytes of VMEM that the kernels may take, where that is less than `VMEM`."""
VMEM = 48 * MIB


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

        Words are cut without a rest if blocks of at least half the size do so.
        """
        sizes = range(self.words, max(LANES, self.words // 2) - 1, -LANES)
        words = next((size for size in sizes if num_words % size == 0), self.words)
        return CrossEntropyTiles(
            rows=min(self.rows, whole(num_tokens, LANES)), words=min(words, whole(num_words, LANES))
        )

    def compiler_params(
        self, semantics: tuple[Literal["parallel", "arbitrary"], ...]
    ) -> pltpu.CompilerParams:
        """Returns the compiler's parameters of a kernel with these blocks."""
        return pltpu.CompilerParams(dimension_semantics=semantics, vmem_limit_bytes=VMEM + 8 * MIB)


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
    """Blocks whose tokens, sums and words fill the VMEM, within what keeps the matrix unit busy."""
    width, nbytes = call.shape("x")[-1], 2 if call.dtype("x") == "bfloat16" else 4
    budget = SMALL_VMEM.get(hardware.generation or "", VMEM)
    # A row's own block, twice, its gradient, twice, and its sums; a word's row, twice.
    of_a_row, of_a_word = width * (4 * nbytes + 4), width * 2 * nbytes
    rows = _blocks(budget // 2 // of_a_row, 512)
    return CrossEntropyTiles(rows=rows, words=_blocks(budget // 4 // of_a_word, 768))


def _blocks(size: int, most: int) -> int:
    return max(LANES, min(most, size // LANES * LANES))


def _candidates(call: Call, hardware: Hardware) -> Iterator[CrossEntropyTiles]:
    largest = _default(call, hardware)
    for rows in sorted({max(LANES, largest.rows // parts) for parts in (1, 2)}):
        for words in sorted({_blocks(largest.words // parts, 768) for parts in (1, 2, 3)}):
            yield CrossEntropyTiles(rows=rows, words=words)


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
