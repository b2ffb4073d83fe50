"""The names under which ops leave their residuals, for remat policies to save, drop or offload."""

from functools import partial

import jax
from jax import Array

from axcore.module import named, named_bits

ATTENTION_OUT = "attention_out"
ATTENTION_LSE = "attention_lse"


def name_attention_residuals(o_BTNV: Array, lse_BTN: Array) -> tuple[Array, Array]:
    """Return both arrays under their names; not to be differentiated."""
    return _side_by_side(o_BTNV, ATTENTION_OUT), named(lse_BTN, ATTENTION_LSE)


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def named_heads(x_BTNH: Array, name: str) -> Array:
    """Return heads under a name, by which they are kept side by side: `[B, T, N * H]`.

    So products make and take them. As heads of their own they would be padded and turned around in
    the memory of accelerators that hold matrices in tiles.
    """
    return _side_by_side(x_BTNH, name)


@named_heads.defjvp
def _named_heads_jvp(
    name: str, primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Array, Array]:
    return _side_by_side(*primals, name), tangents[0]


def _side_by_side(x_BTNH: Array, name: str) -> Array:
    """Return heads under a name that a policy can see: within no call of a function."""
    batch, time, heads, width = x_BTNH.shape
    return named_bits(x_BTNH.reshape(batch, time, heads * width), name).reshape(x_BTNH.shape)
