# ruff: noqa: N815 - fields carry shape letters
"""The two Hopper kernels of cross-entropy: what logits come to, and their gradient, by blocks.

Both multiply a tile of tokens by blocks of words, and use the logits where they are made: in
registers. The first writes three numbers a token for every run of blocks. The second writes the
gradient by the logits of some of the words, in 16 bits, for the products with it.

Letters: R tokens, V words, D width, P tiles of tokens, S runs of blocks of words, M tokens of a
tile, N words of a block.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import attrs
import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from axcore.ops import CrossEntropySpec
from axl_gpu.kernels.tile_products import (
    TUNED,
    Multiply,
    Reference,
    Side,
    Steps,
    Variant,
    in_warp_groups,
    launch,
    place,
)

WORDS = 64
"""Words are padded to a multiple of it."""


@attrs.frozen(kw_only=True)
class CrossEntropyTiles:
    """The sizes that the kernels work in.

    Args:
        rows: Tokens of a tile: 64 or 128.
        words: Words of a block, of each warp group: 64 or 128.
        warp_groups: How many multiply, each for words of its own.
        depth: What is summed at once.
        num_ahead: How many such tiles of both operands are in shared memory.
        run: Blocks that a thread block works through, one after another, keeping three numbers.
        band: Tiles of tokens that are worked on together.
        parts: Backward goes through the words in so many parts.
    """

    rows: int = 128
    words: int = 128
    warp_groups: int = 2
    depth: int = 64
    num_ahead: int = 3
    run: int = 8
    band: int = 16
    parts: int = 16

    @property
    def all_words(self) -> int:
        """Words of all warp groups."""
        return self.words * self.warp_groups

    @property
    def shared_bytes(self) -> int:
        """Shared memory that 16-bit tiles and gradients take."""
        tiles = self.num_ahead * self.depth * (self.rows + self.all_words)
        return 2 * (tiles + self.rows * self.all_words)


class Words(NamedTuple):
    """The output projection as the kernels take it.

    Args:
        w: `[D, V]`, or `[V, D]` where turned, with V padded.
        num_words: V without padding.
        is_turned: Which of the two.
    """

    w: Array
    num_words: int
    is_turned: bool


class Statistics(NamedTuple):
    """What the logits of a run of words come to for each token; float32 `[S, R]`.

    The sum is that of `exp(logit - maximum)`; the target's logit is 0 where it is another's.
    """

    maximum_SR: Array
    sum_SR: Array
    target_SR: Array


Numbers = tuple[Array, Array, Array]


def statistics(
    x_RD: Array,
    words: Words,
    targets_R: Array,
    spec: CrossEntropySpec,
    *,
    tiles: CrossEntropyTiles,
    variant: Variant = TUNED,
) -> Statistics:
    """Returns what the logits come to.

    Logits are sums in float32 of 16-bit products, and all that follows is float32.

    Args:
        x_RD: A multiple of `tiles.rows` tokens; D a multiple of `tiles.depth`.
        words: The output projection, of x's dtype.
        targets_R: Int32; -1 for a token whose target is none of the words.
        spec: Soft cap.
        tiles: Sizes.
        variant: The form of the kernel.
    """
    num_tokens = x_RD.shape[0]
    num_runs = -(-words.num_words // (tiles.all_words * tiles.run))
    shape = (num_tokens // tiles.rows, num_runs)
    blocks = _Blocks(x_RD, words, tiles, variant)

    def body(targets: Any, x: Any, w: Any, found: Any) -> None:
        p, run = place(lax.axis_index("tile"), shape, tiles.band)

        def work(warp_group: Any, multiply: Multiply, staged: Reference) -> None:
            target_M = variant.load_by_row(targets, p)

            def block(b: Array, state: Numbers) -> Numbers:
                logits_MN = blocks.logits(multiply, b)
                first = blocks.first_word(run * tiles.run + b, warp_group)
                word_MN = first + variant.index(logits_MN.shape, 1)
                value_MN = capped(logits_MN, spec)[0]
                value_MN = jnp.where(word_MN < words.num_words, value_MN, -jnp.inf)
                return online(state, value_MN, word_MN == spread(target_M, logits_MN.shape))

            nothing = jnp.zeros((tiles.rows,), jnp.float32)
            state = tuple(variant.by_row(one) for one in (nothing - jnp.inf, nothing, nothing))
            for n, number_M in enumerate(lax.fori_loop(0, tiles.run, block, state)):
                staged[n] = number_M
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(staged, found.at[run * tiles.warp_groups + warp_group, p])
            plgpu.wait_smem_to_gmem(0)

        sides = blocks.sides(x, w, p, lambda b: run * tiles.run + b)
        staged = jax.ShapeDtypeStruct((3, tiles.rows), jnp.float32)
        in_warp_groups(work, blocks.steps(sides, tiles.run, staged), variant)

    num_parts = num_runs * tiles.warp_groups
    run = launch(
        body,
        jax.ShapeDtypeStruct((num_parts, shape[0], 3, tiles.rows), jnp.float32),
        grid={"tile": shape[0] * shape[1]},
        num_groups=tiles.warp_groups,
        variant=variant,
    )
    found_SP3M = run(targets_R.reshape(shape[0], tiles.rows), x_RD, blocks.words.w)
    return Statistics(*(found_SP3M[:, :, n].reshape(num_parts, num_tokens) for n in range(3)))


def logit_gradients(
    x_RD: Array,
    words: Words,
    tokens: Numbers,
    spec: CrossEntropySpec,
    *,
    first_block: Array,
    num_blocks: int,
    tiles: CrossEntropyTiles,
    variant: Variant = TUNED,
) -> Array:
    """Returns `[R, num_blocks * tiles.all_words]`, the gradient by the logits of some words.

    It is of x's dtype, and 0 past the last word.

    Args:
        x_RD: As of `statistics`.
        words: As of `statistics`.
        tokens: For each token its target, int32, its log-sum-exp and the gradient by its loss.
        spec: Soft cap and z-loss.
        first_block: The block of words that it begins with.
        num_blocks: How many blocks there are.
        tiles: Sizes.
        variant: The form of the kernel.
    """
    num_tokens = x_RD.shape[0]
    shape = (num_tokens // tiles.rows, num_blocks)
    blocks = _Blocks(x_RD, words, tiles, variant)

    def body(first: Any, targets: Any, lse: Any, scale: Any, x: Any, w: Any, g: Any) -> None:
        p, column = place(lax.axis_index("tile"), shape, tiles.band)
        number = first[0] + column

        def work(warp_group: Any, multiply: Multiply, staged: Reference) -> None:
            target_M, lse_M, scale_M = (
                variant.load_by_row(one, p) for one in (targets, lse, scale)
            )
            logits_MN = blocks.logits(multiply, jnp.int32(0))
            word_MN = blocks.first_word(number, warp_group) + variant.index(logits_MN.shape, 1)
            gradient_MN = gradient(
                logits_MN, word_MN == spread(target_M, logits_MN.shape), (lse_M, scale_M), spec
            )
            gradient_MN = jnp.where(word_MN < words.num_words, gradient_MN, 0.0)
            staged[...] = gradient_MN.astype(g.dtype)
            plgpu.commit_smem()
            rows = pl.ds(p * tiles.rows, tiles.rows)
            columns = pl.ds(blocks.first_word(column, warp_group), tiles.words)
            plgpu.copy_smem_to_gmem(staged, g.at[rows, columns])
            plgpu.wait_smem_to_gmem(0)

        sides = blocks.sides(x, w, p, lambda b: number)
        staged = jax.ShapeDtypeStruct((tiles.rows, tiles.words), g.dtype)
        in_warp_groups(work, blocks.steps(sides, 1, staged), variant)

    run = launch(
        body,
        jax.ShapeDtypeStruct((num_tokens, num_blocks * tiles.all_words), x_RD.dtype),
        grid={"tile": shape[0] * shape[1]},
        num_groups=tiles.warp_groups,
        variant=variant,
    )
    by_tile = (one.reshape(shape[0], tiles.rows) for one in tokens)
    g: Array = run(first_block.reshape(1), *by_tile, x_RD, blocks.words.w)
    return g


def spread(x_M: Array, shape: tuple[int, ...]) -> Array:
    """Returns a number for each row of a tile at each of its places."""
    return lax.broadcast_in_dim(x_M, shape, (0,))


def capped(logits: Array, spec: CrossEntropySpec) -> tuple[Array, Array | None]:
    """Returns logits with the soft cap, and their share of it where there is one."""
    if spec.soft_cap is None:
        return logits, None
    # tanh in terms of what the processors have an instruction for
    share = 1.0 - 2.0 / (jnp.exp(logits * (2.0 / spec.soft_cap)) + 1.0)
    return share * spec.soft_cap, share


def online(state: Numbers, value_MN: Array, is_target_MN: Array) -> Numbers:
    """Returns maximum, sum and target's logit with a block of logits added."""
    maximum_M, sum_M, target_M = state
    highest_M = jnp.maximum(maximum_M, jnp.max(value_MN, axis=1))
    # With no word yet, 0 in place of minus infinity keeps their difference from NaN.
    shift_M = jnp.where(highest_M == -jnp.inf, 0.0, highest_M)
    exponentials_MN = jnp.exp(value_MN - spread(shift_M, value_MN.shape))
    sum_M = sum_M * jnp.exp(maximum_M - shift_M) + jnp.sum(exponentials_MN, axis=1)
    found_M = jnp.sum(jnp.where(is_target_MN, value_MN, 0.0), axis=1)
    return highest_M, sum_M, target_M + found_M


def gradient(
    logits_MN: Array,
    is_target_MN: Array,
    tokens: tuple[Array, Array],
    spec: CrossEntropySpec,
) -> Array:
    """Returns the gradient by a block of logits, float32."""
    lse_M, scale_M = tokens
    value_MN, share_MN = capped(logits_MN, spec)
    factor_M = scale_M * (1.0 + (2.0 * spec.z_loss) * lse_M)
    probability_MN = jnp.exp(value_MN - spread(lse_M, value_MN.shape))
    gradient_MN = probability_MN * spread(factor_M, value_MN.shape)
    gradient_MN -= jnp.where(is_target_MN, spread(scale_M, value_MN.shape), 0.0)
    return gradient_MN if share_MN is None else gradient_MN * (1.0 - share_MN * share_MN)


class _Blocks:
    """Blocks of logits: a tile of tokens times a block of words."""

    def __init__(
        self, x_RD: Array, words: Words, tiles: CrossEntropyTiles, variant: Variant
    ) -> None:
        w, is_turned = variant.stored(words.w, is_turned=words.is_turned)
        self.words, self.tiles = words._replace(w=w, is_turned=is_turned), tiles
        self.dtype, self.depth_steps = x_RD.dtype, x_RD.shape[1] // tiles.depth

    def first_word(self, block: Array, warp_group: Any) -> Array:
        """Returns the first word of a warp group's part of a block."""
        return block * self.tiles.all_words + warp_group * self.tiles.words

    def logits(self, multiply: Multiply, block: Array) -> Array:
        """Returns the logits of the n-th block that is worked on."""

        def products(total: Reference) -> Array:
            multiply(total, first=block * self.depth_steps, count=self.depth_steps)
            return total[...]

        logits: Array = pl.run_scoped(products, plgpu.ACC((self.tiles.rows, self.tiles.words)))
        return logits

    def sides(
        self, x: Reference, w: Reference, p: Array, block_of: Callable[[Array], Array]
    ) -> tuple[Side, Side]:
        """Returns both operands' tiles, of the blocks that `block_of` numbers."""
        tiles, (_, _, is_turned) = self.tiles, self.words

        def depth(step: Array) -> Any:
            return pl.ds(lax.rem(step, jnp.int32(self.depth_steps)) * tiles.depth, tiles.depth)

        def x_tile(step: Array, warp_group: Any) -> Reference:
            return x.at[pl.ds(p * tiles.rows, tiles.rows), depth(step)]

        def w_tile(step: Array, warp_group: Any) -> Reference:
            block = block_of(lax.div(step, jnp.int32(self.depth_steps)))
            block_words = pl.ds(self.first_word(block, warp_group), tiles.words)
            at = (block_words, depth(step)) if is_turned else (depth(step), block_words)
            return w.at[at]

        w_shape = (tiles.words, tiles.depth) if is_turned else (tiles.depth, tiles.words)
        return (
            Side(tile=x_tile, shape=(tiles.rows, tiles.depth), dtype=self.dtype),
            Side(tile=w_tile, shape=w_shape, dtype=self.dtype, is_turned=is_turned),
        )

    def steps(
        self, sides: tuple[Side, Side], num_blocks: int, staged: jax.ShapeDtypeStruct
    ) -> Steps:
        """Returns the pairs of tiles of so many blocks."""
        tiles = self.tiles
        return Steps(
            lhs=sides[0],
            rhs=sides[1],
            num_steps=num_blocks * self.depth_steps,
            num_groups=tiles.warp_groups,
            num_ahead=tiles.num_ahead,
            staged=staged,
        )
