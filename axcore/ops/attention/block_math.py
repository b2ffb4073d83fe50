"""The arithmetic of one block of attention, forward and backward, and its online softmax.

A block is any rectangle of the score matrix, up to all of it. Query heads `N` are grouped: `K` key
heads times `G` queries that share each. Products take the inputs' dtype and accumulate in float32;
all else is float32.

Letters: B batch, N query heads, K key heads, G query heads that share a key head, T queries, S keys
of the block, H key width, V value width.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from axcore.ops.attention.op import AttentionSpec


def group_heads(x_BTNH: Array, num_key_heads: int) -> Array:
    """Return `x_BKGTH`."""
    batch, time, num_heads, width = x_BTNH.shape
    grouped = x_BTNH.reshape(batch, time, num_key_heads, num_heads // num_key_heads, width)
    return grouped.transpose(0, 2, 3, 1, 4)


def ungroup_heads(x_BKGTH: Array) -> Array:
    """Return `x_BTNH`."""
    batch, num_key_heads, group, time, width = x_BKGTH.shape
    x_BTKGH = x_BKGTH.transpose(0, 3, 1, 2, 4)
    return x_BTKGH.reshape(batch, time, num_key_heads * group, width)


def group_rows(x_BTN: Array, num_key_heads: int) -> Array:
    """Return `x_BKGT`."""
    return group_heads(x_BTN[..., None], num_key_heads)[..., 0]


def ungroup_rows(x_BKGT: Array) -> Array:
    """Return `x_BTN`."""
    return ungroup_heads(x_BKGT[..., None])[..., 0]


def swap_heads(x_BSKH: Array) -> Array:
    """Return `x_BKSH` from `x_BSKH`, or the other way round."""
    return x_BSKH.transpose(0, 2, 1, 3)


def keys_first(x_BKHS: Array) -> Array:
    """Return `x_BSKH`."""
    return x_BKHS.transpose(0, 3, 1, 2)


def group_bias(bias_BNTS: Array, num_key_heads: int) -> Array:
    """Return the bias `[B, K, G, T, S]`, where sizes of 1 stay 1."""
    batch, heads, queries, keys = bias_BNTS.shape
    groups = (1, 1) if heads == 1 else (num_key_heads, heads // num_key_heads)
    return bias_BNTS.reshape(batch, *groups, queries, keys)


class Logits(NamedTuple):
    """Logits of a block, and what their gradient needs."""

    value: Array
    """Float32 `[B, K, G, T, S]`, -inf where not visible."""
    capped: Array | None
    """`tanh(x / soft_cap)`, where there is a soft cap."""


def block_logits(
    q_BKGTH: Array, k_BKSH: Array, spec: AttentionSpec, *, bias: Array | None, mask: Array | None
) -> Logits:
    """Return the logits of a block; `bias` is `[B, K, G, T, S]` with sizes that may be 1."""
    logits = spec.scale * _matmul("bkgth,bksh->bkgts", q_BKGTH, k_BKSH)
    capped = None
    if spec.soft_cap is not None:
        capped = jnp.tanh(logits / spec.soft_cap)
        logits = spec.soft_cap * capped
    if bias is not None:
        logits = logits + bias.astype(jnp.float32)
    if mask is not None:
        logits = jnp.where(mask, logits, -jnp.inf)
    return Logits(logits, capped)


def weigh_values(probabilities: Array, v_BKSV: Array) -> Array:
    """Return float32 `[B, K, G, T, V]`: probabilities `[B, K, G, T, S]` times values."""
    # The values' dtype, as matrix units multiply 16 bits several times faster; sums are in
    # float32.
    return _matmul("bkgts,bksv->bkgtv", probabilities.astype(v_BKSV.dtype), v_BKSV)


class BlockGradients(NamedTuple):
    """Float32 gradients that one block adds to its inputs.

    Those of keys and values come transposed.
    """

    q_BKGTH: Array
    k_BKHS: Array
    v_BKVS: Array
    logits: Array


def block_gradients(
    probabilities: Array,
    do_BKGTV: Array,
    delta_BKGT: Array,
    spec: AttentionSpec,
    *,
    q_BKGTH: Array,
    k_BKSH: Array,
    v_BKSV: Array,
    capped: Array | None,
    dropout: Array | None,
) -> BlockGradients:
    """Return the gradients of a block.

    Args:
        probabilities: `exp(logits - lse)`, `[B, K, G, T, S]`.
        do_BKGTV: Gradient of the output, in the inputs' dtype.
        delta_BKGT: `sum(do * o) - dlse`, float32.
        spec: Of the call.
        q_BKGTH: Queries of the block.
        k_BKSH: Keys of the block.
        v_BKSV: Values of the block.
        capped: From `Logits`.
        dropout: Factors that multiply the probabilities, `[B, K, G, T, S]`.

    Source: Dao et al. 2022, arXiv:2205.14135, appendix B.2.
    """
    probabilities = probabilities.astype(jnp.float32)
    kept = probabilities if dropout is None else probabilities * dropout
    # Probabilities are larger than keys or values, so they are multiplied as they are stored. The
    # other order has XLA transpose them on a CPU, before both products.
    dv_BKVS = _matmul("bkgtv,bkgts->bkvs", do_BKGTV, kept.astype(v_BKSV.dtype))
    dp = _matmul("bkgtv,bksv->bkgts", do_BKGTV, v_BKSV)
    if dropout is not None:
        dp = dp * dropout
    # `probabilities`, without dropout's factor: the softmax is before dropout, and `delta` has
    # the factor in it by way of the output.
    dlogits = probabilities * (dp - delta_BKGT[..., None])
    dproduct = dlogits if capped is None else dlogits * (1.0 - jnp.square(capped))
    dproduct = (spec.scale * dproduct).astype(q_BKGTH.dtype)
    return BlockGradients(
        q_BKGTH=_matmul("bkgts,bksh->bkgth", dproduct, k_BKSH),
        k_BKHS=_matmul("bkgth,bkgts->bkhs", q_BKGTH, dproduct),
        v_BKVS=dv_BKVS,
        logits=dlogits,
    )


def softmax(logits: Array, sinks: Array | None) -> tuple[Array, Array]:
    """Return probabilities and log-sum-exp over the last axis; an empty row gets 0 and -inf.

    Args:
        logits: Float32 `[B, K, G, T, S]`.
        sinks: Float32 `[1, K, G, 1]`, one more logit of each row.
    """
    maximum = jnp.max(logits, axis=-1, initial=-jnp.inf)
    if sinks is not None:
        maximum = jnp.maximum(maximum, sinks)
    is_empty = jnp.isneginf(maximum)
    # The shift cancels, so its gradient is 0; differentiated, it would cost a pass to find that
    # out. Where a row sees nothing it is 0, since -inf - -inf is NaN.
    shift = lax.stop_gradient(jnp.where(is_empty, 0.0, maximum))
    exponentials = jnp.exp(logits - shift[..., None])
    total = jnp.sum(exponentials, axis=-1)
    if sinks is not None:
        total = total + jnp.exp(sinks - shift)
    total = jnp.where(is_empty, 1.0, total)
    lse = jnp.where(is_empty, -jnp.inf, shift + jnp.log(total))
    return exponentials / total[..., None], lse


def row_delta(o_BTNV: Array, do_BTNV: Array, dlse_BTN: Array) -> Array:
    """Return float32 `sum(do * o) - dlse`: what each row's logit gradients are measured from."""
    products = do_BTNV.astype(jnp.float32) * o_BTNV.astype(jnp.float32)
    return jnp.sum(products, axis=-1) - dlse_BTN


def sink_gradient(sinks_N: Array | None, lse_BTN: Array, delta_BTN: Array) -> Array | None:
    """Return the gradient of the sinks: what a sink takes of each row, it takes from the keys."""
    if sinks_N is None:
        return None
    # The log-sum-exp includes the sink, so the sink's probability follows from it, and nothing
    # else has to be stored for it.
    share_BTN = jnp.exp(sinks_N.astype(jnp.float32)[None, None, :] - finite_lse(lse_BTN))
    return -jnp.sum(share_BTN * delta_BTN, axis=(0, 1)).astype(sinks_N.dtype)


def finite_lse(lse: Array) -> Array:
    """Return the log-sum-exp with 0 for rows that see nothing, where `exp(-inf - 0)` is 0."""
    return jnp.where(jnp.isneginf(lse), 0.0, lse)


def sum_to(x: Array, shape: tuple[int, ...]) -> Array:
    """Return `x` summed over the axes where `shape` is 1."""
    axes = tuple(i for i, (size, to) in enumerate(zip(x.shape, shape, strict=True)) if size != to)
    return jnp.sum(x, axis=axes, keepdims=True) if axes else x


def _matmul(equation: str, a: Array, b: Array) -> Array:
    return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)


class OnlineSoftmax(NamedTuple):
    """Sums over the keys seen so far, relative to the largest logit so far; float32."""

    weighted: Array
    """Values by unnormalised probability, `[..., B, K, G, T, V]`."""
    maximum: Array
    total: Array

    @classmethod
    def start(
        cls, shape: tuple[int, ...], value_width: int, sinks_N: Array | None
    ) -> "OnlineSoftmax":
        """Return the sums before the first key: nothing, or the sinks alone.

        Args:
            shape: `[..., B, K, G, T]`.
            value_width: V.
            sinks_N: One logit of each query head that has no value.
        """
        maximum, total = jnp.full(shape, -jnp.inf, jnp.float32), jnp.zeros(shape, jnp.float32)
        if sinks_N is not None:
            sinks = sinks_N.astype(jnp.float32).reshape(1, *shape[-3:-1], 1)
            # A sink is a key without a value that was seen first, so nothing after this knows of
            # it.
            maximum, total = jnp.broadcast_to(sinks, shape), jnp.ones(shape, jnp.float32)
        return cls(jnp.zeros((*shape, value_width), jnp.float32), maximum, total)

    def add(self, logits: Array, v_BKSV: Array, dropout: Array | None = None) -> "OnlineSoftmax":
        """Return the sums with a block of keys more.

        Args:
            logits: Float32 `[B, K, G, T, S]`, -inf where not visible.
            v_BKSV: Values of the block.
            dropout: Factors that multiply the probabilities, `[B, K, G, T, S]`.
        """
        maximum = jnp.maximum(self.maximum, jnp.max(logits, axis=-1))
        shift = jnp.where(jnp.isneginf(maximum), 0.0, maximum)
        exponentials = jnp.exp(logits - shift[..., None])
        decay = jnp.exp(self.maximum - shift)
        kept = exponentials if dropout is None else exponentials * dropout
        return OnlineSoftmax(
            weighted=self.weighted * decay[..., None] + weigh_values(kept, v_BKSV),
            maximum=maximum,
            # Without dropout's factor: it drops weights, and not the denominator.
            total=self.total * decay + jnp.sum(exponentials, axis=-1),
        )

    def finish(self) -> tuple[Array, Array]:
        """Return the weighted means and the log-sum-exp; 0 and -inf where nothing was seen."""
        is_empty = self.total == 0.0
        total = jnp.where(is_empty, 1.0, self.total)
        lse = jnp.where(is_empty, -jnp.inf, self.maximum + jnp.log(total))
        return self.weighted / total[..., None], lse
