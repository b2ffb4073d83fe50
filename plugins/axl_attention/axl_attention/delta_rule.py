"""`delta_rule`: a linear recurrence that overwrites what it remembers, computed chunk by chunk.

Letters of shapes: B batch, T time, C chunk, S a second C, H key heads, R value heads of a key head,
K key_dim, V value_dim.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from axl_attention.state_space import in_chunks


class DeltaInputs(NamedTuple):
    """What a recurrence is over, in float32.

    Args:
        q: What is looked up, `[B, T, H, K]`.
        k: Under what a value is remembered, of length one, `[B, T, H, K]`.
        v: The values, `[B, T, H, R, V]`.
        log_decay: Logarithm of how much of the memory each token leaves, `[B, T, H, R]`.
        beta: By how much a value takes the place of what is remembered, `[B, T, H, R]`.
        segments: Document of each token; the memory of another one is not seen.
    """

    q: Float[Array, "B T H K"]
    k: Float[Array, "B T H K"]
    v: Float[Array, "B T H R V"]
    log_decay: Float[Array, "B T H R"]
    beta: Float[Array, "B T H R"]
    segments: Int[Array, "B T"]


def delta_rule(
    inputs: DeltaInputs, memory: Float[Array, "B H R K V"] | None = None, *, chunk: int
) -> tuple[Float[Array, "B T H R V"], Float[Array, "B H R K V"]]:
    """Return `q M` of every token, where `M = N + beta k (v - k N)` and `N = exp(log_decay) M`.

    `M` is the memory, `[K, V]` for each value head, from token to token: at first `memory`, of the
    first token's document, or zeros. The last is returned too; where a chunk is not full it is that
    of the last token only if all are of segment 0. In a chunk what each token adds to it solves a
    triangular system; memories pass from chunk to chunk.

    Source: Yang et al. 2024, arXiv:2412.06464, section 3.
    """
    batch, time, heads, groups, width = inputs.v.shape
    chunks = DeltaInputs(*(in_chunks(array, min(chunk, time)) for array in inputs))
    if memory is None:
        memory = jnp.zeros((batch, heads, groups, inputs.k.shape[-1], width), jnp.float32)

    def step(carry: tuple[Array, Array], one: DeltaInputs) -> tuple[tuple[Array, Array], Array]:
        return _chunk(*carry, one)

    (memory, _), y = jax.lax.scan(step, (memory, inputs.segments[:, 0]), chunks)
    return jnp.moveaxis(y, 0, 1).reshape(batch, -1, heads, groups, width)[:, :time], memory


def _chunk(
    memory_BHRKV: Array, before_B: Array, one: DeltaInputs
) -> tuple[tuple[Array, Array], Array]:
    """Return the memory after a chunk, the document that it is of, and the chunk's output."""
    q, k, v, log_decay, beta, segments = one
    total_BCHR = jnp.cumsum(log_decay, axis=1)
    decay_BCSHR = _decay(total_BCHR, segments)
    is_known = (segments == before_B[:, None])[:, :, None, None]
    known_BCHR = jnp.where(is_known, jnp.exp(total_BCHR), 0.0)

    def looked_up(x: Array) -> Array:
        return jnp.einsum("bchk,bhrkv->bchrv", x, memory_BHRKV) * known_BCHR[..., None]

    system_BCSHR = jnp.einsum("bchk,bshk->bcsh", k, k)[..., None] * decay_BCSHR * beta[:, :, None]
    added_BCHRV = _solved(system_BCSHR, beta[..., None] * (v - looked_up(k)))
    weights_BCSHR = jnp.einsum("bchk,bshk->bcsh", q, k)[..., None] * decay_BCSHR
    y = looked_up(q) + jnp.einsum("bcshr,bshrv->bchrv", weights_BCSHR, added_BCHRV)
    last_BHR, last_B = total_BCHR[:, -1], segments[:, -1]
    is_left = (segments == last_B[:, None])[:, :, None, None]
    left_BCHR = jnp.where(is_left, jnp.exp(last_BHR[:, None] - total_BCHR), 0.0)
    kept_BHR = jnp.where((last_B == before_B)[:, None, None], jnp.exp(last_BHR), 0.0)
    news = jnp.einsum("bchk,bchr,bchrv->bhrkv", k, left_BCHR, added_BCHRV)
    return (kept_BHR[..., None, None] * memory_BHRKV + news, last_B), y


def _decay(total_BCHR: Array, segments_BC: Array) -> Float[Array, "B C S H R"]:
    """Return what each token finds left of what each before it, and itself, has added."""
    size = segments_BC.shape[1]
    is_same = segments_BC[:, :, None] == segments_BC[:, None, :]
    is_seen = (is_same & jnp.tril(jnp.ones((size, size), bool))[None])[..., None, None]
    return jnp.exp(jnp.where(is_seen, total_BCHR[:, :, None] - total_BCHR[:, None], -jnp.inf))


def _solved(system_BCSHR: Array, right_BCHRV: Array) -> Float[Array, "B C H R V"]:
    """Return `x` of `(I + system) x = right`; of the system what is below the diagonal counts."""
    left_BHRCS = jnp.moveaxis(system_BCSHR, (1, 2), (3, 4))
    right_BHRCV = jnp.moveaxis(right_BCHRV, 1, 3)
    solved: Any = jax.lax.linalg.triangular_solve(
        left_BHRCS, right_BHRCV, left_side=True, lower=True, unit_diagonal=True
    )
    return jnp.moveaxis(solved, 3, 1)
