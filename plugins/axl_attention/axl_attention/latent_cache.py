"""Latent attention that serves: what is kept of a token is its latent, not the keys made from it.

A head's logit is `q . (W latent)`, which is `(W^T q) . latent`: the key projection moves to the
queries, and in the same way the value projection to what is mixed. All heads then have one key in
common, the latent with the part that has a position behind it, and it is the value, too.

A bias is a row of the matrix for a latent that is always 1, and is kept as such.

Source: DeepSeek-AI 2024, arXiv:2405.04434, section 2.1.2 and appendix C.

Letters of shapes: B rows, T tokens, N heads, H a head's own dimensions, L latent, R shared ones.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.config import evolve, find_config, map_config
from axcore.layers import Linear, PlainDot, QuantizedLinear

Heads = Float[Array, "batch time heads size"]


class LatentForm(NamedTuple):
    """What is kept of a token besides the shared dimensions.

    Args:
        dim: L, size of the latent.
        has_unit: Whether a 1 follows it, because a projection has a bias.
    """

    dim: int
    has_unit: bool

    @property
    def size(self) -> int:
        """How many numbers it is."""
        return self.dim + self.has_unit

    def of(self, latent: Float[Array, "*batch latent"]) -> Float[Array, "*batch kept"]:
        """Return what is kept of latents."""
        unit = jnp.ones((*latent.shape[:-1], int(self.has_unit)), latent.dtype)
        return jnp.concatenate([latent, unit], axis=-1)


def can_move(linear: Any) -> bool:
    """Whether a projection is a product with one matrix, and perhaps a bias."""
    return type(linear) is Linear.Config and isinstance(linear.dot, PlainDot.Config)


def has_bias(linear: Any) -> bool:
    """Whether a projection, or one inside of it, has a bias."""
    return bool(find_config(linear, lambda node: getattr(node, "has_bias", False)))


def with_scale(core: Any, head_dim: int) -> Any:
    """Return a core that divides by the root of what a query's width was before it was moved."""
    return map_config(
        core,
        lambda node: (
            evolve(node, scale=head_dim**-0.5) if getattr(node, "scale", 0) is None else node
        ),
    )


def moved_queries(q: Heads, k: Any, form: LatentForm) -> Heads:
    """Return queries of latents, `[B, T, N, L]`, from queries `[B, T, N, H]` of keys.

    Args:
        q: The queries, without those of the shared part.
        k: The projection from latents to the keys of all heads.
        form: Of the latents.
    """
    return _through("btnh,{}lnh->btnl", q, k, form)


def moved_values(mixed: Heads, v: Any, form: LatentForm) -> Float[Array, "batch time width"]:
    """Return the values of all heads, `[B, T, N V]`, from what they mixed, `[B, T, N, L + R]`."""
    values = _through("btnl,{}lnv->btnv", mixed[..., : form.size], v, form)
    return values.reshape(*values.shape[:2], -1)


def _through(equation: str, x: Heads, linear: Any, form: LatentForm) -> Heads:
    """Return a product of heads with the weight of a projection, `{}` for its rows."""
    weight = _weight(linear, form, x)
    weight = weight.reshape(*weight.shape[:-1], x.shape[2], -1)
    return jnp.einsum(equation.format("b" * (weight.ndim - 3)), x, weight)


def _weight(linear: Any, form: LatentForm, x: Heads) -> Float[Array, "*rows latent width"]:
    """Return the matrix of a projection, `[L, width]`, or of each row, where it has its own.

    Where it is not at hand, it is what the projection makes of unit vectors.
    """
    unit = jnp.eye(form.dim, dtype=x.dtype)
    if type(linear) not in (Linear, QuantizedLinear):
        unit = jnp.broadcast_to(unit, (x.shape[0], *unit.shape))
    if not form.has_unit:
        return linear.weight if type(linear) is Linear else linear(unit)
    bias = linear(jnp.zeros_like(unit[..., :1, :]))
    weight = linear.weight if type(linear) is Linear else linear(unit) - bias
    return jnp.concatenate([weight, bias], axis=-2)
