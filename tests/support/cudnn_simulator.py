"""What cuDNN's two custom calls compute, in plain JAX, for machines without a GPU.

Products and softmax are in float32, with every logit in memory. What cuDNN does not write, tokens
outside of documents, is NaN here, so that no result may depend on it.
"""

import jax
import jax.numpy as jnp
from axl_gpu.kernels.attention.cudnn_call import Library


def forward(arrays, spec):
    q, k, v, bias = (_wide(x) for x in arrays[:4])
    group = q.shape[2] // k.shape[2]
    k, v = (jnp.repeat(x, group, axis=2) for x in (k, v))
    logits = spec.scale * jnp.einsum("btnh,bsnh->bnts", q, k)
    if bias is not None:
        logits = logits + bias
    is_seen, is_written = _masks(arrays, spec)
    logits = jnp.where(is_seen, logits, -jnp.inf)
    lse = jax.nn.logsumexp(logits, axis=-1)
    weights = jnp.exp(logits - jnp.where(jnp.isfinite(lse), lse, 0.0)[..., None])
    o = jnp.einsum("bnts,bsnv->btnv", weights, v)
    o = jnp.where(is_written[:, :, None, None], o, jnp.nan)
    return o.astype(arrays.q_BTNH.dtype), jnp.repeat(lse, spec.num_documents, axis=0)


def backward(arrays, spec, *, o_BTNV, lse_PNT, do_BTNV):
    assert o_BTNV.shape == do_BTNV.shape
    assert lse_PNT.shape[0] == spec.num_documents * do_BTNV.shape[0]
    is_written = _masks(arrays, spec)[1][:, :, None, None]

    def output(q, k, v):
        o = forward(arrays._replace(q_BTNH=q, k_BSKH=k, v_BSKV=v), spec)[0]
        return jnp.where(is_written, o, jnp.zeros((), o.dtype))

    _, gradient = jax.vjp(output, *arrays[:3])
    gradients = gradient(do_BTNV)
    return tuple(jnp.where(is_written, g, jnp.asarray(jnp.nan, g.dtype)) for g in gradients)


SIMULATED = Library(forward, backward)


def _wide(x):
    return None if x is None else x.astype(jnp.float32)


def _masks(arrays, spec):
    """Returns which keys each query sees, as `[B or 1, 1, T, S]`, and which tokens are written."""
    batch, num_queries = arrays.q_BTNH.shape[:2]
    num_keys = arrays.k_BSKH.shape[1]
    place_T, place_S = jnp.arange(num_queries)[:, None], jnp.arange(num_keys)[None, :]
    is_seen = jnp.ones((1, 1, num_queries, num_keys), bool)
    if spec.mask.endswith("CAUSAL"):
        is_seen = is_seen & (place_S <= place_T)[None, None]
    if spec.window:
        is_seen = is_seen & (place_S > place_T - spec.window)[None, None]
    if not spec.mask.startswith("PADDING"):
        return is_seen, jnp.ones((batch, num_queries), bool)
    q, k = (
        _document_of(lengths, offsets, x)
        for lengths, offsets, x in (
            (arrays.q_lengths_P, arrays.q_offsets, arrays.q_BTNH),
            (arrays.k_lengths_P, arrays.k_offsets, arrays.k_BSKH),
        )
    )
    is_same = (q[:, :, None] == k[:, None, :]) & (q >= 0)[:, :, None]
    return is_seen & is_same[:, None], q >= 0


def _document_of(lengths, offsets, x):
    """Returns the document of each token `[B, T]`, -1 where there is none."""
    batch, time, heads, width = x.shape
    starts = offsets.reshape(-1)[: lengths.size] // (heads * width)
    place = jnp.arange(batch * time)[None, :]
    is_inside = (place >= starts[:, None]) & (place < (starts + lengths.reshape(-1))[:, None])
    found = jnp.where(jnp.any(is_inside, axis=0), jnp.argmax(is_inside, axis=0), -1)
    return found.reshape(batch, time)
