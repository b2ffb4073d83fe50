"""The names under which ops leave their residuals, for remat policies to save, drop or offload."""

from jax import Array
from jax.ad_checkpoint import checkpoint_name

ATTENTION_OUT = "attention_out"
ATTENTION_LSE = "attention_lse"


def name_attention_residuals(o_BTNV: Array, lse_BTN: Array) -> tuple[Array, Array]:
    """Return both arrays under their names."""
    return _named(o_BTNV, ATTENTION_OUT), _named(lse_BTN, ATTENTION_LSE)


def _named(x: Array, name: str) -> Array:
    named: Array = checkpoint_name(x, name)  # type: ignore[no-untyped-call]
    return named
