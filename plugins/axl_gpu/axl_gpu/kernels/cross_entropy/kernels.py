"""The two Hopper kernels of cross-entropy: what logits come to, and their gradient, by blocks.

Both multiply a tile of tokens by blocks of the vocabulary, and use the logits in registers, where
they are made. The first writes three numbers a token for every run of blocks. The second writes the
gradient by the logits of a part of the vocabulary, in 16 bits, for the products with it.

Letters: R tokens, V vocabulary, D width, P tiles of tokens, S runs of blocks of the
vocabulary, M tokens of a tile, N entries of the vocabulary in a block.
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
from axl_gpu.kernels.matmul.pipeline import (
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

VOCABULARY_MULTIPLE = 64
"""The vocabulary is padded to a multiple of it."""


@attrs.frozen(kw_only=True)
class CrossEntropyBlockSizes:
    """The sizes that the kernels work in.

    Args:
        rows: Tokens of a tile: 64 or 128.
        vocabulary: Entries of the vocabulary in a block, for each warp group: 64 or 128.
        warp_groups: How many multiply, each for its own part of the vocabulary.
        depth: What is summed at once.
        num_ahead: How many such tiles of both operands are in shared memory.
        run: Blocks that a thread block works through, one after another, keeping three numbers.
        band: Tiles of tokens that are worked on together.
        parts: Backward goes through the vocabulary in so many parts.
    """

    rows: int = 128
    vocabulary: int = 128
    warp_groups: int = 2
    depth: int = 64
    num_ahead: int = 3
    # Eight blocks of 256 words: three numbers in float32 are written for 2,048 logits of a token.
    run: int = 8
    band: int = 16
    parts: int = 16

    @property
    def block_vocabulary(self) -> int:
        """Vocabulary of all warp groups."""
        return self.vocabulary * self.warp_groups

    @property
    def shared_bytes(self) -> int:
        """Shared memory that 16-bit tiles and gradients take."""
        block_sizes = self.num_ahead * self.depth * (self.rows + self.block_vocabulary)
        return 2 * (block_sizes + self.rows * self.block_vocabulary)


class Vocabulary(NamedTuple):
    """The output projection as the kernels take it.

    Args:
        w: `[D, V]`, or `[V, D]` where transposed, with V padded.
        vocabulary_size: V without padding.
        is_transposed: Which of the two.
    """

    w: Array
    vocabulary_size: int
    is_transposed: bool


class Statistics(NamedTuple):
    """Sums over the logits of a run of the vocabulary, for each token; float32 `[S, R]`.

    The sum is that of `exp(logit - maximum)`; the target's logit is 0 where it is another's.
    """

    maximum_SR: Array
    sum_SR: Array
    target_SR: Array


Numbers = tuple[Array, Array, Array]


def statistics(
    x_RD: Array,
    vocabulary: Vocabulary,
    targets_R: Array,
    spec: CrossEntropySpec,
    *,
    block_sizes: CrossEntropyBlockSizes,
    variant: Variant = TUNED,
) -> Statistics:
    """Return what the logits come to.

    Logits are sums in float32 of 16-bit products, and all that follows is float32.

    Args:
        x_RD: A multiple of `block_sizes.rows` tokens; D a multiple of `block_sizes.depth`.
        vocabulary: The output projection, of x's dtype.
        targets_R: Int32; -1 for a token whose target is not in this part.
        spec: Soft cap.
        block_sizes: Sizes.
        variant: The form of the kernel.
    """
    num_tokens = x_RD.shape[0]
    num_runs = -(-vocabulary.vocabulary_size // (block_sizes.block_vocabulary * block_sizes.run))
    shape = (num_tokens // block_sizes.rows, num_runs)
    blocks = _Blocks(x_RD, vocabulary, block_sizes, variant)

    def body(targets: Any, x: Any, w: Any, found: Any) -> None:
        # A run of blocks by one thread block, and not the full vocabulary: with few tokens,
        # tiles of tokens alone do not fill the GPU. The few numbers of each run are put together
        # outside.
        p, run = place(lax.axis_index("tile"), shape, block_sizes.band)

        def work(warp_group: Any, multiply: Multiply, staged: Reference) -> None:
            target_M = variant.load_by_row(targets, p)

            def block(b: Array, state: Numbers) -> Numbers:
                logits_MN = blocks.logits(multiply, b)
                first = blocks.first_word(run * block_sizes.run + b, warp_group)
                word_MN = first + variant.index(logits_MN.shape, 1)
                value_MN = capped(logits_MN, spec)[0]
                # After the cap, which would make a finite number of -inf. Columns past the
                # vocabulary are padding, or what a copy beyond the array's end filled in.
                value_MN = jnp.where(word_MN < vocabulary.vocabulary_size, value_MN, -jnp.inf)
                return online(state, value_MN, word_MN == spread(target_M, logits_MN.shape))

            # No word found yet is -inf, 0 and 0. A target is in exactly one block, so that its
            # logit is a sum in which all other terms are 0.
            nothing = jnp.zeros((block_sizes.rows,), jnp.float32)
            state = tuple(variant.by_row(one) for one in (nothing - jnp.inf, nothing, nothing))
            for n, number_M in enumerate(lax.fori_loop(0, block_sizes.run, block, state)):
                staged[n] = number_M
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(staged, found.at[run * block_sizes.warp_groups + warp_group, p])
            plgpu.wait_smem_to_gmem(0)

        sides = blocks.sides(x, w, p, lambda b: run * block_sizes.run + b)
        staged = jax.ShapeDtypeStruct((3, block_sizes.rows), jnp.float32)
        in_warp_groups(work, blocks.steps(sides, block_sizes.run, staged), variant)

    num_parts = num_runs * block_sizes.warp_groups
    run = launch(
        body,
        jax.ShapeDtypeStruct((num_parts, shape[0], 3, block_sizes.rows), jnp.float32),
        name="cross_entropy_statistics",
        grid={"tile": shape[0] * shape[1]},
        num_groups=block_sizes.warp_groups,
        variant=variant,
    )
    found_SP3M = run(targets_R.reshape(shape[0], block_sizes.rows), x_RD, blocks.vocabulary.w)
    return Statistics(*(found_SP3M[:, :, n].reshape(num_parts, num_tokens) for n in range(3)))


def logit_gradients(
    x_RD: Array,
    vocabulary: Vocabulary,
    tokens: Numbers,
    spec: CrossEntropySpec,
    *,
    first_block: Array,
    num_blocks: int,
    block_sizes: CrossEntropyBlockSizes,
    variant: Variant = TUNED,
) -> Array:
    """Return the gradient by some logits, `[R, num_blocks * block_sizes.block_vocabulary]`.

    It is of x's dtype, and 0 past the last word.

    Args:
        x_RD: As of `statistics`.
        vocabulary: As of `statistics`.
        tokens: For each token its target, int32, its log-sum-exp and the gradient by its loss.
        spec: Soft cap and z-loss.
        first_block: The block of the vocabulary that it begins with.
        num_blocks: How many blocks there are.
        block_sizes: Sizes.
        variant: The form of the kernel.
    """
    num_tokens = x_RD.shape[0]
    shape = (num_tokens // block_sizes.rows, num_blocks)
    blocks = _Blocks(x_RD, vocabulary, block_sizes, variant)

    def body(first: Any, targets: Any, lse: Any, scale: Any, x: Any, w: Any, g: Any) -> None:
        p, column = place(lax.axis_index("tile"), shape, block_sizes.band)
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
            # What follows sums over these columns, too.
            gradient_MN = jnp.where(word_MN < vocabulary.vocabulary_size, gradient_MN, 0.0)
            # 16 bits, as the products that take it multiply no more; the difference that makes it
            # small was taken in float32.
            staged[...] = gradient_MN.astype(g.dtype)
            plgpu.commit_smem()
            rows = pl.ds(p * block_sizes.rows, block_sizes.rows)
            columns = pl.ds(blocks.first_word(column, warp_group), block_sizes.vocabulary)
            plgpu.copy_smem_to_gmem(staged, g.at[rows, columns])
            plgpu.wait_smem_to_gmem(0)

        sides = blocks.sides(x, w, p, lambda b: number)
        staged = jax.ShapeDtypeStruct((block_sizes.rows, block_sizes.vocabulary), g.dtype)
        in_warp_groups(work, blocks.steps(sides, 1, staged), variant)

    run = launch(
        body,
        jax.ShapeDtypeStruct((num_tokens, num_blocks * block_sizes.block_vocabulary), x_RD.dtype),
        name="cross_entropy_gradients",
        grid={"tile": shape[0] * shape[1]},
        num_groups=block_sizes.warp_groups,
        variant=variant,
    )
    by_tile = (one.reshape(shape[0], block_sizes.rows) for one in tokens)
    g: Array = run(first_block.reshape(1), *by_tile, x_RD, blocks.vocabulary.w)
    return g


def spread(x_M: Array, shape: tuple[int, ...]) -> Array:
    """Return a number for each row of a tile at each of its places."""
    return lax.broadcast_in_dim(x_M, shape, (0,))


def capped(logits: Array, spec: CrossEntropySpec) -> tuple[Array, Array | None]:
    """Return logits with the soft cap, and their share of it where there is one."""
    if spec.soft_cap is None:
        return logits, None
    # In terms of `exp`: with `approx_math`, `jnp.tanh` is off by 5e-4.
    # It may overflow: 2 / inf is 0, and the tangent 1, as it should be.
    share = 1.0 - 2.0 / (jnp.exp(logits * (2.0 / spec.soft_cap)) + 1.0)
    return share * spec.soft_cap, share


def online(state: Numbers, value_MN: Array, is_target_MN: Array) -> Numbers:
    """Return maximum, sum and target's logit with a block of logits added."""
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
    """Return the gradient by a block of logits, float32."""
    lse_M, scale_M = tokens
    value_MN, share_MN = capped(logits_MN, spec)
    # The z-loss is `z_loss * lse^2`, whose gradient by a logit is its probability times 2 z_loss
    # lse; so it costs a factor for each token and no second array.
    factor_M = scale_M * (1.0 + (2.0 * spec.z_loss) * lse_M)
    probability_MN = jnp.exp(value_MN - spread(lse_M, value_MN.shape))
    gradient_MN = probability_MN * spread(factor_M, value_MN.shape)
    gradient_MN -= jnp.where(is_target_MN, spread(scale_M, value_MN.shape), 0.0)
    return gradient_MN if share_MN is None else gradient_MN * (1.0 - share_MN * share_MN)


class _Blocks:
    """Blocks of logits: a tile of tokens times a block of the vocabulary."""

    def __init__(
        self,
        x_RD: Array,
        vocabulary: Vocabulary,
        block_sizes: CrossEntropyBlockSizes,
        variant: Variant,
    ) -> None:
        w, is_transposed = variant.stored(vocabulary.w, is_transposed=vocabulary.is_transposed)
        self.vocabulary, self.block_sizes = (
            vocabulary._replace(w=w, is_transposed=is_transposed),
            block_sizes,
        )
        self.dtype, self.depth_steps = x_RD.dtype, x_RD.shape[1] // block_sizes.depth

    def first_word(self, block: Array, warp_group: Any) -> Array:
        """Return the first word of a warp group's part of a block."""
        return block * self.block_sizes.block_vocabulary + warp_group * self.block_sizes.vocabulary

    def logits(self, multiply: Multiply, block: Array) -> Array:
        """Return the logits of the n-th block that is worked on."""

        def products(total: Reference) -> Array:
            multiply(total, first=block * self.depth_steps, count=self.depth_steps)
            return total[...]

        logits: Array = pl.run_scoped(
            products, plgpu.ACC((self.block_sizes.rows, self.block_sizes.vocabulary))
        )
        return logits

    def sides(
        self, x: Reference, w: Reference, p: Array, block_of: Callable[[Array], Array]
    ) -> tuple[Side, Side]:
        """Return both operands' tiles, of the blocks that `block_of` numbers."""
        block_sizes, (_, _, is_transposed) = self.block_sizes, self.vocabulary

        def depth(step: Array) -> Any:
            return pl.ds(
                lax.rem(step, jnp.int32(self.depth_steps)) * block_sizes.depth, block_sizes.depth
            )

        def x_tile(step: Array, warp_group: Any) -> Reference:
            return x.at[pl.ds(p * block_sizes.rows, block_sizes.rows), depth(step)]

        def w_tile(step: Array, warp_group: Any) -> Reference:
            block = block_of(lax.div(step, jnp.int32(self.depth_steps)))
            vocabulary_slice = pl.ds(self.first_word(block, warp_group), block_sizes.vocabulary)
            at = (
                (vocabulary_slice, depth(step))
                if is_transposed
                else (depth(step), vocabulary_slice)
            )
            return w.at[at]

        w_shape = (
            (block_sizes.vocabulary, block_sizes.depth)
            if is_transposed
            else (block_sizes.depth, block_sizes.vocabulary)
        )
        return (
            Side(tile=x_tile, shape=(block_sizes.rows, block_sizes.depth), dtype=self.dtype),
            Side(tile=w_tile, shape=w_shape, dtype=self.dtype, is_transposed=is_transposed),
        )

    def steps(
        self, sides: tuple[Side, Side], num_blocks: int, staged: jax.ShapeDtypeStruct
    ) -> Steps:
        """Return the pairs of tiles of so many blocks."""
        block_sizes = self.block_sizes
        return Steps(
            lhs=sides[0],
            rhs=sides[1],
            num_steps=num_blocks * self.depth_steps,
            num_groups=block_sizes.warp_groups,
            num_ahead=block_sizes.num_ahead,
            staged=staged,
        )
