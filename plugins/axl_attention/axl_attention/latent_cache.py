"""Latent attention that serves: what is kept of a token is its latent, not the keys made from it.

A head's logit is `q . (W latent)`, which is `(W^T q) . latent`: the key projection moves to the
queries, and in the same way the value projection to what is mixed. All heads then have one key in
common, the latent with the part that has a position behind it, and it is the value, too.

Source: DeepSeek-AI 2024, arXiv:2405.04434, section 2.1.2 and appendix C.

Letters of shapes: B rows, T tokens, N heads, H a head's own dimensions, L latent, R shared ones.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.config import evolve, map_config
from axcore.layers import Linear, PlainDot, QuantizedLinear

Heads = Float[Array, "batch time heads size"]


def can_move(linear: Any) -> bool:
    """Whether a projection is a product with one matrix and nothing else."""
    is_plain = type(linear) is Linear.Config and isinstance(linear.dot, PlainDot.Config)
    return is_plain and not linear.has_bias


def with_scale(core: Any, head_dim: int) -> Any:
    """Returns a core that divides by the root of what a query's width was before it was moved."""
    return map_config(
        core,
        lambda node: (
            evolve(node, scale=head_dim**-0.5) if getattr(node, "scale", 0) is None else node
        ),
    )


def moved_queries(q: Heads, k: Any, latent_dim: int) -> Float[Array, "batch time heads latent"]:
    """Returns queries of latents, `[B, T, N, L]`, from queries `[B, T, N, H]` of keys.

    Args:
        q: The queries, without those of the shared part.
        k: The projection from latents to the keys of all heads.
        latent_dim: L.
    """
    return _through("btnh,{}lnh->btnl", q, k, latent_dim)


def moved_values(mixed: Heads, v: Any, latent_dim: int) -> Float[Array, "batch time width"]:
    """Returns the values of all heads, `[B, T, N V]`, from what they mixed, `[B, T, N, L + R]`."""
    values = _through("btnl,{}lnv->btnv", mixed[..., :latent_dim], v, latent_dim)
    return values.reshape(*values.shape[:2], -1)


def _through(equation: str, x: Heads, linear: Any, latent_dim: int) -> Heads:
    """Returns a product of heads with the weight of a projection, `{}` for its rows."""
    weight = _weight(linear, latent_dim, x)
    weight = weight.reshape(*weight.shape[:-1], x.shape[2], -1)
    return jnp.einsum(equation.format("b" * (weight.ndim - 3)), x, weight)


def _weight(linear: Any, in_dim: int, x: Heads) -> Float[Array, "*rows latent width"]:
    """Returns the matrix of a projection, `[L, width]`, or of each row, where it has its own.

    Where it is not at hand, it is what the projection makes of unit vectors.
    """
    if type(linear) is Linear:
        weight: Array = linear.weight
        return weight
    unit = jnp.eye(in_dim, dtype=x.dtype)
    if type(linear) is not QuantizedLinear:
        unit = jnp.broadcast_to(unit, (x.shape[0], in_dim, in_dim))
    made: Array = linear(unit)
    return made
