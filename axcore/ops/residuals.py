"""The names under which ops leave their residuals, for remat policies to save, drop or offload."""

from jax import Array

from axcore.module import named, named_bits

ATTENTION_OUT = "attention_out"
ATTENTION_LSE = "attention_lse"


def name_attention_residuals(o_BTNV: Array, lse_BTN: Array) -> tuple[Array, Array]:
    """Return both arrays under their names."""
    return named_heads(o_BTNV, ATTENTION_OUT), named(lse_BTN, ATTENTION_LSE)


def named_heads(x_BTNH: Array, name: str) -> Array:
    """Return heads under a name, by which they are kept side by side: `[B, T, N * H]`.

    So products make and take them. As heads of their own they would be padded and turned around in
    the memory of accelerators that hold matrices in tiles.
    """
    batch, time, heads, width = x_BTNH.shape
    return named_bits(x_BTNH.reshape(batch, time, heads * width), name).reshape(x_BTNH.shape)
