"""The names under which ops leave their residuals, for remat policies to save, drop or offload."""

from jax import Array

from axcore.module import named

ATTENTION_OUT = "attention_out"
ATTENTION_LSE = "attention_lse"


def name_attention_residuals(o_BTNV: Array, lse_BTN: Array) -> tuple[Array, Array]:
    """Return both arrays under their names."""
    return named(o_BTNV, ATTENTION_OUT), named(lse_BTN, ATTENTION_LSE)
