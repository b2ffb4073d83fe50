"""`BatchedLoRALinear`: a linear layer with several corrections, of which each row has its own.

Letters of shapes: A adapters, B rows, K input, N output, R rank.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from axcore.config import REQUIRED, PositiveInt, config
from axcore.errors import ModuleError
from axcore.module import Module, Param

DOWN, UP = "adapters_down", "adapters_up"
"""Names of the factors of all adapters, `[A, K, R]` and `[A, R, N]`."""

_rows: ContextVar[Int[Array, " B"] | None] = ContextVar("axcore_adapter_rows", default=None)


@contextmanager
def using_adapters(rows: Int[Array, " B"] | None) -> Iterator[None]:
    """Inside, each row of every call is corrected by the adapter of its number; -1 by none."""
    token = _rows.set(rows)
    try:
        yield
    finally:
        _rows.reset(token)


class BatchedLoRALinear(Module):
    """`base(x) + up[a](down[a](x))`, where `a` is the adapter of the row; it serves only.

    The products run over all adapters at once, and what is not of a row's own becomes 0 between
    them: ranks are small, and no weight is copied for a row.

    Source: Chen et al. 2023, arXiv:2310.18547, for one batch of many adapters; Differs: dense
    products. Slot protocol: that of `Linear`.
    """

    wraps = "base"

    @config
    class Config(Module.Config["BatchedLoRALinear"]):
        """The config of a `BatchedLoRALinear`.

        Args:
            in_dim: Size of the last dimension of the input.
            out_dim: Size of the last dimension of the output.
            axes: Logical axes of the base's weight, input first.
            base: The layer that is corrected.
            num_adapters: How many corrections there are.
            rank: Width of each; a narrower one is filled up with zeros.
        """

        in_dim: PositiveInt = REQUIRED
        out_dim: PositiveInt = REQUIRED
        axes: tuple[str | None, str | None] = REQUIRED
        base: Module.Config = REQUIRED
        num_adapters: PositiveInt = 1
        rank: PositiveInt = 16

    def setup(self, cfg: Config) -> None:
        """Build the base and declare the factors."""
        into, out = cfg.axes
        self.base = cfg.base.build(in_dim=cfg.in_dim, out_dim=cfg.out_dim, axes=cfg.axes)
        down, up = (cfg.in_dim, cfg.rank), (cfg.rank, cfg.out_dim)
        self.adapters_down = Param((cfg.num_adapters, *down), axes=(None, into, None), init=0.0)
        self.adapters_up = Param((cfg.num_adapters, *up), axes=(None, None, out), init=0.0)

    def forward(self, x: Float[Array, "*batch in_dim"]) -> Float[Array, "*batch out_dim"]:
        """Return the projection, corrected by `using_adapters`; outside of it the base's."""
        y: Array = self.base(x)
        rows = _rows.get()
        if rows is None:
            return y
        if x.ndim < 2 or x.shape[0] != rows.shape[0]:
            raise ModuleError(
                f"the input has shape {x.shape}, and there are adapters of {rows.shape[0]} rows",
                hint="exclude this layer from the adapters",
            )
        # A row of number -1 has no adapter: it is equal to none of them.
        is_own = rows[:, None] == jnp.arange(self.config.num_adapters)[None, :]
        is_own = is_own.reshape(is_own.shape[0], *(1,) * (x.ndim - 2), is_own.shape[1], 1)
        # Between the factors, where there are `A R` numbers a row; after the second there would
        # be `A N`.
        narrow = jnp.einsum("...k,akr->...ar", x, self.adapters_down)
        own = jnp.where(is_own, narrow, 0)
        return y + jnp.einsum("...ar,arn->...n", own, self.adapters_up)


Factors = tuple[Array, Array]
"""Down `[K, R]` and up `[R, N]` of one layer; the scale is in the second."""


def with_adapter(state: Any, number: int, factors: Mapping[tuple[str, ...], Factors] | None) -> Any:
    """Return a state with another adapter at a number; None takes it out.

    Args:
        state: Of a module with `BatchedLoRALinear`s.
        number: Of the adapter.
        factors: Of layers by their paths; the others are not corrected.

    Raises:
        ModuleError: The state has no such layer, or the rank is larger than there is room for.
    """
    left = dict(factors or {})
    changed = _replaced(state, (), number, left)
    if left:
        raise ModuleError(
            f"the model has no layer for adapters at {'.'.join(next(iter(left)))}",
            hint="serve the model that the adapter was trained for, and exclude no such layer",
        )
    return changed


def _replaced(
    state: Any, path: tuple[str, ...], number: int, left: dict[tuple[str, ...], Factors]
) -> Any:
    if not isinstance(state, dict):
        return state
    if DOWN not in state:
        return {
            name: _replaced(below, (*path, name), number, left) for name, below in state.items()
        }
    down, up = state[DOWN], state[UP]
    own = left.pop(path, None)
    if own is not None and own[0].shape[1] > down.shape[2]:
        raise ModuleError(
            f"the adapter has rank {own[0].shape[1]}, and there is room for {down.shape[2]}",
            where=".".join(path),
            hint="serve with room for larger adapters: adapter_rank",
        )
    rank = 0 if own is None else own[0].shape[1]
    # First all of the slot: an adapter of higher rank may have been there.
    down, up = down.at[number].set(0), up.at[number].set(0)
    if own is not None:
        down = down.at[number, :, :rank].set(own[0].astype(down.dtype))
        up = up.at[number, :rank].set(own[1].astype(up.dtype))
    return {**state, DOWN: down, UP: up}
