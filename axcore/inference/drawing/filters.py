"""Top-k, top-p and min-p: which tokens remain to be drawn.

A filter keeps the tokens whose logit is at least a row's threshold. The threshold is found bit by
bit, from counts and sums over the row: no sort, and tokens that are equally likely are kept or
dropped together.

Letters of shapes: B rows, V vocabulary.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from axcore.inference.drawing.sampling_rows import SamplingRows


def filter_tokens(scaled: Float[Array, "B V"], rows: SamplingRows) -> Float[Array, "B V"]:
    """Returns logits that are minus infinity where a filter drops the token.

    Args:
        scaled: Logits, divided by the temperature; 0 for the likeliest.
        rows: The settings; a filter takes no time where no row has it.
    """
    size = scaled.shape[1]
    scaled = _where_any(rows.top_k < size, lambda: _top_k(scaled, rows.top_k), scaled)
    scaled = _where_any(rows.top_p < 1, lambda: _top_p(scaled, rows.top_p), scaled)
    lowest = jnp.log(rows.min_p)[:, None]
    return jnp.where(scaled < lowest, -jnp.inf, scaled)


def _where_any(is_on: Bool[Array, " B"], filtered: Callable[[], Array], logits: Array) -> Array:
    left: Array = jax.lax.cond(jnp.any(is_on), filtered, lambda: logits)
    return left


def _top_k(logits: Float[Array, "B V"], top_k: Int[Array, " B"]) -> Float[Array, "B V"]:
    def is_enough(is_kept: Bool[Array, "B V"]) -> Bool[Array, " B"]:
        return jnp.sum(is_kept, axis=1) >= top_k

    return _largest(logits, is_enough, top_k < logits.shape[1])


def _top_p(logits: Float[Array, "B V"], top_p: Float[Array, " B"]) -> Float[Array, "B V"]:
    probabilities = jax.nn.softmax(logits, axis=1)

    def is_enough(is_kept: Bool[Array, "B V"]) -> Bool[Array, " B"]:
        return jnp.sum(jnp.where(is_kept, probabilities, 0), axis=1) >= top_p

    return _largest(logits, is_enough, top_p < 1)


def _largest(
    logits: Float[Array, "B V"],
    is_enough: Callable[[Bool[Array, "B V"]], Bool[Array, " B"]],
    is_on: Bool[Array, " B"],
) -> Float[Array, "B V"]:
    """Returns the fewest largest logits that are enough, where the filter is on."""
    ordered = _ordered(logits)

    def with_bit(place: Array, threshold: UInt32[Array, " B"]) -> UInt32[Array, " B"]:
        higher = threshold | (jnp.uint32(1) << (31 - place).astype(jnp.uint32))
        return jnp.where(is_enough(ordered >= higher[:, None]), higher, threshold)

    start = jnp.zeros(logits.shape[:1], jnp.uint32)
    threshold = jax.lax.fori_loop(0, 32, with_bit, start)
    is_dropped = is_on[:, None] & (ordered < threshold[:, None])
    return jnp.where(is_dropped, -jnp.inf, logits)


def _ordered(logits: Float[Array, "B V"]) -> UInt32[Array, "B V"]:
    """Returns whole numbers in the order of the logits."""
    bits = jax.lax.bitcast_convert_type(logits.astype(jnp.float32) + 0.0, jnp.uint32)
    sign = jnp.uint32(1 << 31)
    return jnp.where(bits >= sign, ~bits, bits | sign)
