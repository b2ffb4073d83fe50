"""Products of rows with a weight, which the op `decode_matmul` computes where a model serves.

Letters of shapes: K input, N output, G groups of K, P panels of C columns.
"""

from contextlib import AbstractContextManager
from typing import cast

from jax.lax import dot_general
from jaxtyping import Array, Float

from axcore._jax_compat import user_context
from axcore.ops import decode_matmul, narrow_product

_are_by_op = user_context(False)


def products_by_op() -> AbstractContextManager[None]:
    """Inside, layers ask the op for their products: for programs without gradients or a mesh."""
    return cast(AbstractContextManager[None], _are_by_op(True))


def times(x: Float[Array, "*rows K"], weight: Float[Array, "K N"]) -> Float[Array, "*rows N"]:
    """Returns `x @ weight`."""
    return decode_matmul(x, weight) if _asks(x) else x @ weight


def times_panels(
    x: Float[Array, "*rows K"], panels: Float[Array, "P K C"], out_dim: int
) -> Float[Array, "*rows N"]:
    """Returns the product with a weight in panels."""
    y = decode_matmul(x.reshape(-1, x.shape[-1]), panels, out_dim=out_dim)
    return y.reshape(*x.shape[:-1], out_dim)


def compared(x: Float[Array, "*rows K"], rows: Float[Array, "N K"]) -> Float[Array, "*rows N"]:
    """Returns `x @ rows.T`."""
    if _asks(x):
        return decode_matmul(x, rows, transposed=True)
    return dot_general(x, rows, (((x.ndim - 1,), (1,)), ((), ())))


def times_narrow(
    x: Float[Array, "*rows K"], values: Array, scale: Float[Array, "G N"]
) -> Float[Array, "*rows N"]:
    """Returns `x @ (values * scale)`, of a weight as a `QuantizedLinear` keeps it."""
    return decode_matmul(x, values, scale) if _asks(x) else narrow_product(x, values, scale)


def _asks(x: Array) -> bool:
    return bool(_are_by_op.value) and x.ndim == 2
