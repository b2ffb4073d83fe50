"""Linear recurrences over tokens, computed chunk by chunk, and the convolution before them.

`delta_rule` overwrites what it remembers; `state_space` lets it fade.

Letters of shapes: B batch, T time, C chunk, S a second C. Of `state_space`: G groups of heads, R
heads in a group, P head_dim, N state_dim. Of `delta_rule`: H key heads, R value heads of a key
head, K key_dim, V value_dim.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from axcore.config import REQUIRED, PositiveInt, config
from axcore.layers import NoStateCache, TokenInfo
from axcore.module import Module, Normal, Param


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
    """Return the weight of each token of a chunk in the output of those from it on."""
    size = one.segments.shape[1]
    is_same = one.segments[:, :, None] == one.segments[:, None, :]
    is_seen = (is_same & jnp.tril(jnp.ones((size, size), bool))[None])[..., None, None]
    # Masked before `exp`: of later tokens the difference is positive, and may overflow to infinity,
    # whose gradient is NaN even where it is not used.
    decay = jnp.exp(jnp.where(is_seen, total_BCGR[:, :, None] - total_BCGR[:, None], -jnp.inf))
    return jnp.einsum("bcgn,bsgn->bcsg", one.c, one.b)[..., None] * decay * one.dt[:, None]


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
        return _delta_chunk(*carry, one)

    (memory, _), y = jax.lax.scan(step, (memory, inputs.segments[:, 0]), chunks)
    return jnp.moveaxis(y, 0, 1).reshape(batch, -1, heads, groups, width)[:, :time], memory


def _delta_chunk(
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
    """Return the share of each token's addition that is left at those from it on."""
    size = segments_BC.shape[1]
    is_same = segments_BC[:, :, None] == segments_BC[:, None, :]
    is_seen = (is_same & jnp.tril(jnp.ones((size, size), bool))[None])[..., None, None]
    # Masked before `exp`, as in `_weights`.
    return jnp.exp(jnp.where(is_seen, total_BCHR[:, :, None] - total_BCHR[:, None], -jnp.inf))


def _solved(system_BCSHR: Array, right_BCHRV: Array) -> Float[Array, "B C H R V"]:
    """Return `x` of `(I + system) x = right`; of the system what is below the diagonal counts."""
    left_BHRCS = jnp.moveaxis(system_BCSHR, (1, 2), (3, 4))
    right_BHRCV = jnp.moveaxis(right_BCHRV, 1, 3)
    solved: Any = jax.lax.linalg.triangular_solve(
        left_BHRCS, right_BHRCV, left_side=True, lower=True, unit_diagonal=True
    )
    return jnp.moveaxis(solved, 3, 1)


OUTSIDE = -1
"""The segment before the first token; no token is of it."""


class CausalConv(Module):
    """`y[t] = sum of weight[i] * x[t - width + 1 + i]`, over tokens of the same document.

    Slot protocol: the parent fills `dim` and `axis`.
    """

    @config
    class Config(Module.Config["CausalConv"]):
        """The config of a `CausalConv`.

        Args:
            dim: Number of channels.
            axis: Logical axis of the channels.
            width: Number of tokens that each token sees, itself counted.
            has_bias: Whether a bias is added.
            state_cache: Keeps the last tokens of each row where the model serves.
        """

        dim: PositiveInt = REQUIRED
        axis: str | None = REQUIRED
        width: PositiveInt = 4
        has_bias: bool = True
        state_cache: Module.Config = NoStateCache.Config()

    def setup(self, cfg: Config) -> None:
        """Declare the weights, the last of which is a token's own, and the bias."""
        init = Normal(std=(3 * cfg.width) ** -0.5)
        self.weight = Param((cfg.dim, cfg.width), axes=(cfg.axis, None), init=init)
        if cfg.has_bias:
            self.bias = Param((cfg.dim,), axes=(cfg.axis,), init=0.0)
        self.state_cache = cfg.state_cache.build(shape=(cfg.width - 1, cfg.dim))

    def forward(
        self, x: Float[Array, "batch time dim"], info: TokenInfo
    ) -> Float[Array, "batch time dim"]:
        """Return the convolved channels in the input's dtype; sums are float32."""
        width, weight = self.config.width, self.weight.astype(jnp.float32)
        total = jnp.zeros(x.shape, jnp.float32)
        known = jnp.concatenate([self.state_cache.before(info, x.dtype), x], axis=1)
        for i in range(width):
            total += _earlier(known, info, width - 1 - i) * weight[None, None, :, i]
        last = info.num_new()[:, None] + jnp.arange(width - 1, dtype=jnp.int32)[None, :]
        self.state_cache.after(jnp.take_along_axis(known, last[:, :, None], axis=1), info)
        if self.config.has_bias:
            total += self.bias.astype(jnp.float32)[None, None]
        return total.astype(x.dtype)


def _earlier(
    known: Float[Array, "batch known dim"], info: TokenInfo, distance: int
) -> Float[Array, "batch time dim"]:
    """Return the vector so many tokens before each, in float32, or 0 outside of its document.

    Args:
        known: The tokens, behind those that came before them.
        info: Of the tokens.
        distance: How many tokens before.
    """
    time = info.positions.shape[1]
    first = known.shape[1] - time - distance
    seen = known[:, first : first + time].astype(jnp.float32)
    if info.segment_ids is None or info.num_cached is not None:
        return seen
    before = jnp.pad(info.segment_ids, ((0, 0), (distance, 0)), constant_values=OUTSIDE)
    return jnp.where((before[:, :time] == info.segment_ids)[:, :, None], seen, 0.0)
