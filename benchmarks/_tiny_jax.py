"""What the halves of `tiny_peers.py` in Flax NNX and in Equinox share."""

import _tiny_worker as worker
import jax
import jax.numpy as jnp
import optax

TOKENS, TARGETS = (jnp.asarray(one) for one in worker.batch())
COS, SIN = jnp.cos(worker.angles())[:, None], jnp.sin(worker.angles())[:, None]


def rotated(x: jax.Array) -> jax.Array:
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * COS - second * SIN, second * COS + first * SIN], axis=-1)


def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Causal attention of `[..., tokens, heads * width]`, by what jax offers for it."""
    q, k, v = (one.reshape(*one.shape[:-1], -1, worker.WIDTH) for one in (q, k, v))
    o = jax.nn.dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
    return o.reshape(*o.shape[:-2], -1)


def cross_entropy(logits: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, TARGETS).mean()


def optimizer() -> optax.GradientTransformation:
    b1, b2 = worker.BETAS
    adamw = optax.adamw(worker.RATE, b1=b1, b2=b2, weight_decay=worker.WEIGHT_DECAY)
    return optax.chain(optax.clip_by_global_norm(worker.CLIP_NORM), adamw)
