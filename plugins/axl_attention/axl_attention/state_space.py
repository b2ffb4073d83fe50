"""`state_space`: a linear recurrence over tokens, computed chunk by chunk.

Letters of shapes: B batch, T time, C chunk, G groups of heads, R heads in a group, P head_dim, N
state_dim; S is a second C.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Inputs(NamedTuple):
    """What a recurrence is over, in float32.

    Args:
        x: What enters the state, `[B, T, G, R, P]`.
        dt: The size of each step, `[B, T, G, R]`.
        b: The direction in which it enters, `[B, T, G, N]`.
        c: The direction that is read, `[B, T, G, N]`.
        segments: Document of each token; the state of another one is not seen.
    """

    x: Float[Array, "B T G R P"]
    dt: Float[Array, "B T G R"]
    b: Float[Array, "B T G N"]
    c: Float[Array, "B T G N"]
    segments: Int[Array, "B T"]


def state_space(
    inputs: Inputs,
    a: Float[Array, "G R"],
    state: Float[Array, "B G R P N"] | None = None,
    *,
    chunk: int,
) -> tuple[Float[Array, "B T G R P"], Float[Array, "B G R P N"]]:
    """Return `c h` of every token, where `h = exp(dt a) h + dt b x` from token to token.

    The first `h` is of `state`, of the first token's document, or zeros. The last is returned too;
    where a chunk is not full it is that of the last token only if all are of segment 0.

    Within a chunk that is masked attention, without softmax; states pass from chunk to chunk.

    Source: Dao and Gu 2024, arXiv:2405.21060, section 6 and listing 1.
    """
    batch, time, groups, heads, width = inputs.x.shape
    chunk = min(chunk, time)
    if state is None:
        state = jnp.zeros((batch, groups, heads, width, inputs.b.shape[-1]), jnp.float32)
    chunks = Inputs(*(in_chunks(array, chunk) for array in inputs))

    def step(carry: tuple[Array, Array], one: Inputs) -> tuple[tuple[Array, Array], Array]:
        return _chunk(*carry, one, a)

    (state, _), y = jax.lax.scan(step, (state, inputs.segments[:, 0]), chunks)
    return jnp.moveaxis(y, 0, 1).reshape(batch, -1, groups, heads, width)[:, :time], state


def in_chunks(array: Array, chunk: int) -> Array:
    """Return an array with its chunks first; the last one is filled with zeros."""
    rest = -array.shape[1] % chunk
    padded = jnp.pad(array, [(0, 0), (0, rest)] + [(0, 0)] * (array.ndim - 2))
    chunks = padded.reshape(array.shape[0], -1, chunk, *array.shape[2:])
    return jnp.moveaxis(chunks, 1, 0)


def _chunk(
    state_BGRPN: Array, before_B: Array, one: Inputs, a: Array
) -> tuple[tuple[Array, Array], Array]:
    """Return the state after a chunk, the document that it is of, and the chunk's output."""
    x, dt, b, c, segments = one
    total_BCGR = jnp.cumsum(dt * a[None, None], axis=1)
    last_BGR, last_B = total_BCGR[:, -1], segments[:, -1]
    inside = jnp.einsum("bcsgr,bsgrp->bcgrp", _weights(one, total_BCGR), x)
    is_known = (segments == before_B[:, None])[:, :, None, None]
    known_BCGR = jnp.where(is_known, jnp.exp(total_BCGR), 0.0)
    outside = jnp.einsum("bcgn,bgrpn->bcgrp", c, state_BGRPN) * known_BCGR[..., None]
    is_left = (segments == last_B[:, None])[:, :, None, None]
    left_BCGR = jnp.where(is_left, jnp.exp(last_BGR[:, None] - total_BCGR) * dt, 0.0)
    kept_BGR = jnp.where((last_B == before_B)[:, None, None], jnp.exp(last_BGR), 0.0)
    added = jnp.einsum("bcgr,bcgrp,bcgn->bgrpn", left_BCGR, x, b)
    state_BGRPN = kept_BGR[..., None, None] * state_BGRPN + added
    return (state_BGRPN, last_B), inside + outside


def _weights(one: Inputs, total_BCGR: Array) -> Float[Array, "B C S G R"]:
    """Return what each token of a chunk takes of each before it, and of itself."""
    size = one.segments.shape[1]
    is_same = one.segments[:, :, None] == one.segments[:, None, :]
    is_seen = (is_same & jnp.tril(jnp.ones((size, size), bool))[None])[..., None, None]
    decay = jnp.exp(jnp.where(is_seen, total_BCGR[:, :, None] - total_BCGR[:, None], -jnp.inf))
    return jnp.einsum("bcgn,bsgn->bcsg", one.c, one.b)[..., None] * decay * one.dt[:, None]
