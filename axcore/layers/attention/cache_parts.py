"""What all caches of keys and values have in common: types, room, writing, refusals."""

from typing import Any

from jaxtyping import Array, Float, Int

from axcore.errors import ModuleError
from axcore.layers.tokens import TokenInfo
from axcore.module import Axes, Param

Keys = Float[Array, "batch time kv_heads head_dim"]
Values = Float[Array, "batch time kv_heads value_dim"]
AllKeys = Float[Array, "rows keys kv_heads head_dim"]
AllValues = Float[Array, "rows keys kv_heads value_dim"]


def key_room(shape: tuple[int, ...], axes: Axes, dtype: str) -> Any:
    """Declares room for keys or values, in the dtype that they are computed in."""
    return Param(shape, axes=axes, init=0.0, is_buffer=True, dtype=dtype)


def with_new(
    held: Float[Array, "rows keys kv_heads size"],
    new: Float[Array, "batch time kv_heads size"],
    rows: Int[Array, "batch #time"],
    places: Int[Array, "batch time"],
) -> Float[Array, "rows keys kv_heads size"]:
    """Returns what is held with new vectors in their rows and places; out of range is dropped."""
    at = held.at[rows, places]
    return at.set(new.astype(held.dtype), mode="drop", wrap_negative_indices=False)


def check_continued(info: TokenInfo) -> None:
    """Refuses a call that does not say how many tokens each row has.

    Raises:
        ModuleError: It has no `num_cached`.
    """
    if info.num_cached is None:
        raise ModuleError(
            "a layer that keeps keys and values is called without TokenInfo.num_cached",
            hint="pass continued_rows(tokens, num_cached, num_new)",
        )
