"""The arithmetic of one block of attention in registers, shared by every kernel of this package.

Logits here are in base 2, for `exp2` is what the hardware has. A block has queries along its
rows (forward, and gradients of queries) or along its columns (gradients of keys and values); the
`axis` of queries says which. Everything is float32.

Letters: I queries, J keys of the block, V value width.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from axl_gpu.kernels.attention.matmuls import Ref

LOG2_E = math.log2(math.e)

Shape = tuple[int, ...]


class Queries(NamedTuple):
    """What is known of the queries of a block: the keys `[low, high)` they see, and segments.

    Like those of `Keys`, these are references to shared memory: a block that need not be masked
    spends no registers on them.
    """

    low_I: Ref
    high_I: Ref
    segments_I: Ref | None


class Keys(NamedTuple):
    """What is known of the keys of a block: the place of the first, and segments."""

    first: Array
    segments_J: Ref | None


def along(x: Array, shape: Shape, axis: int) -> Array:
    """Return a vector spread over a block whose `axis` it runs along."""
    return lax.broadcast_in_dim(x, shape, [axis])


def logits(products: Array, *, scale: float, soft_cap: float | None) -> Array:
    """Return the logits, in base 2, of products `q k`."""
    if soft_cap is None:
        return products * (scale * LOG2_E)
    # Not `jnp.tanh`: the kernels are compiled with `approx_math`, by which that is the hardware's
    # `tanh.approx`, off by 5e-4: at a cap of 50, 0.025 of a logit. The error of `exp2` is that of
    # float32. It may overflow: 2 / inf is 0, and the tangent 1, as it should be.
    tangent = 1.0 - 2.0 / (1.0 + jnp.exp2(products * (2.0 * LOG2_E * scale / soft_cap)))
    # A cap on logits in base e is one of `soft_cap * LOG2_E` in base 2.
    return tangent * (soft_cap * LOG2_E)


def masked(values: Array, queries: Queries, keys: Keys, *, axis: int) -> Array:
    """Return the values with -inf where a query does not see a key."""
    shape, key_axis = values.shape, 1 - axis
    key = lax.broadcasted_iota(jnp.int32, shape, key_axis) + keys.first
    sees = key >= along(queries.low_I[...], shape, axis)
    sees &= key < along(queries.high_I[...], shape, axis)
    if queries.segments_I is not None and keys.segments_J is not None:
        own, theirs = queries.segments_I[...], keys.segments_J[...]
        sees &= along(own, shape, axis) == along(theirs, shape, key_axis)
    return jnp.where(sees, values, -jnp.inf)


def masked_unless(
    is_full: Array, values: Array, queries: Queries, keys: Keys, *, axis: int
) -> Array:
    """Return the values, masked unless the queries are known to see all of the keys."""
    # A branch, where a select would do: most blocks are seen whole, and a select would load
    # ranges and count keys for each of them. All threads of a block take the same side, since
    # `is_full` comes from the block's span.
    result: Array = lax.cond(
        is_full,
        lambda values: values,
        lambda values: masked(values, queries, keys, axis=axis),
        values,
    )
    return result


class Running(NamedTuple):
    """The online softmax so far: the largest logit, and the sum of exponentials relative to it."""

    maximum_I: Array
    total_I: Array


class Step(NamedTuple):
    """What a block adds: its unnormalised probabilities, and by what older sums shrink."""

    running: Running
    exponentials_IJ: Array
    decay_I: Array


def start(num_queries: int) -> Running:
    """Return the sums before the first key."""
    nothing = jnp.full((num_queries,), -jnp.inf, jnp.float32)
    return Running(nothing, jnp.zeros((num_queries,), jnp.float32))


def advance(running: Running, logits_IJ: Array) -> Step:
    """Return the sums with one block more.

    Source: Milakov and Gimelshein 2018, arXiv:1805.02867.
    """
    maximum = jnp.maximum(running.maximum_I, jnp.max(logits_IJ, axis=1))
    # A row that has seen no key yet has -inf for its maximum, and -inf - -inf is NaN. By a shift
    # of 0 its exponentials are exp2(-inf) = 0, and so is its decay.
    shift = jnp.where(maximum == -jnp.inf, 0.0, maximum)
    exponentials = jnp.exp2(logits_IJ - along(shift, logits_IJ.shape, 0))
    decay = jnp.exp2(running.maximum_I - shift)
    total = running.total_I * decay + jnp.sum(exponentials, axis=1)
    return Step(Running(maximum, total), exponentials, decay)


class Finished(NamedTuple):
    """By what to multiply the weighted values, and the log-sum-exp (base e)."""

    factor_I: Array
    lse_I: Array


def finish(running: Running, sink: Array) -> Finished:
    """Return what the sums come to; a row that saw nothing gets 0, and its sink or -inf.

    Args:
        running: After the last block.
        sink: One more logit, base e, that has no value; -inf where there is none.
    """
    # A sink has no value, so it only joins the sum, once, at the end.
    sink = sink * LOG2_E
    largest = jnp.maximum(running.maximum_I, sink)
    shift = jnp.where(largest == -jnp.inf, 0.0, largest)
    decay = jnp.exp2(running.maximum_I - shift)
    total = running.total_I * decay + jnp.exp2(sink - shift)
    is_empty = total == 0.0
    # Of an empty row 0 / 0 would be NaN; 0 / 1 gives the zeros that the op asks for.
    total = jnp.where(is_empty, 1.0, total)
    lse = jnp.where(is_empty, -jnp.inf, shift / LOG2_E + jnp.log(total))
    return Finished(decay / total, lse)


def probabilities(logits: Array, lse: Array, *, axis: int) -> Array:
    """Return a block's probabilities from the log-sum-exp of its queries, in base 2."""
    # A row that saw nothing comes with a log-sum-exp of 0 (`Residuals`), as -inf - -inf were NaN.
    return jnp.exp2(logits - along(lse, logits.shape, axis))


def sloped(probabilities: Array, logits: Array, soft_cap: float | None) -> Array:
    """Return the probabilities times the slope of the logits by `scale * q k`.

    Args:
        probabilities: Of the block.
        logits: Of the block, masked: the slope there is that of the lowest logit, 0.
        soft_cap: Of the call.
    """
    if soft_cap is None:
        return probabilities
    largest = soft_cap * LOG2_E
    # Hidden logits are -inf, and 1 - inf times a probability of 0 is NaN; at the lowest logit the
    # slope is 0, too. So the tangent need not be kept next to the logits, in registers that there
    # are not.
    tangent = jnp.maximum(logits, -largest) * (1.0 / largest)
    return probabilities * (1.0 - tangent * tangent)


def logit_gradients(weights: Array, products: Array, delta: Array, *, axis: int) -> Array:
    """Return the gradient of `scale * q k`.

    Args:
        weights: The block's probabilities, `sloped`.
        products: Gradient of the output times values, `do v`.
        delta: `sum(do * o) - dlse` of each query.
        axis: Of queries.

    Source: Dao et al. 2022, arXiv:2205.14135, appendix B.2.
    """
    return weights * (products - along(delta, products.shape, axis))
