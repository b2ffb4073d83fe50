"""`Dropless`: every token gets to every expert that it chose, by grouped matrix products.

Letters: N tokens, K choices of a token, R = N K rows, E experts, D width.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from axcore.config import config
from axcore.layers.experts import Choices, Experts, Tokens, Weights
from axcore.layers.grouped_linear import GROUP_SIZES, check_runs_together, with_grouped_linears
from axcore.layers.routing import Routing
from axcore.module import Repeated
from axcore.parallel import on_own_tokens

Rows = Float[Array, "rows dim"]


class Dropless(Experts):
    """Sorts rows by expert and runs all experts at once on them.

    Source: Gale et al. 2022, arXiv:2211.15841, section 4.
    """

    @config
    class Config(Experts.Config):
        """Describes a `Dropless`."""

    def setup(self, cfg: Config) -> None:
        """Builds the experts, with grouped products in place of their linear layers."""
        expert = with_grouped_linears(cfg.expert).build(dim=cfg.dim)
        check_runs_together(expert)
        self.expert = Repeated(expert, cfg.num_experts, axis="expert")

    def forward(self, x: Tokens, routing: Routing) -> Tokens:
        """Returns each token's weighted sum of what its experts make of it."""
        return on_own_tokens(self, type(self).mixed, x, *routing)

    def mixed(self, x: Tokens, experts: Choices, weights: Weights) -> Tokens:
        """Returns the mixture for the tokens of one device."""
        num_choices = experts.shape[-1]
        x_ND = x.reshape(-1, x.shape[-1])
        sorting = Sorting.of(experts.reshape(-1), self.config.num_experts)
        x_RD = _moved(jnp.repeat(x_ND, num_choices, axis=0), sorting.order, sorting.place)
        y_RD = self._experts_of(x_RD, sorting.sizes)
        y_NKD = _moved(y_RD, sorting.place, sorting.order).reshape(*experts.shape, -1)
        return jnp.einsum("btkd,btk->btd", y_NKD, weights.astype(y_NKD.dtype))

    def _experts_of(self, rows: Rows, sizes: Int[Array, " experts"]) -> Rows:
        with self.sending(GROUP_SIZES, sizes):
            y: Array = self.expert.together(rows[None])
        return y[0]


class Sorting(NamedTuple):
    """The order of rows by expert.

    Args:
        order: Which row stands at each place once sorted.
        place: Where each row stands then.
        sizes: Rows of each expert.
    """

    order: Int[Array, " rows"]
    place: Int[Array, " rows"]
    sizes: Int[Array, " experts"]

    @classmethod
    def of(cls, expert_R: Int[Array, " rows"], num_experts: int) -> "Sorting":
        """Returns the order of rows, which keep theirs within an expert."""
        order = jnp.argsort(expert_R, stable=True).astype(jnp.int32)
        place = jnp.zeros_like(order).at[order].set(jnp.arange(len(order), dtype=jnp.int32))
        bounds = jnp.searchsorted(expert_R[order], jnp.arange(num_experts + 1))
        return cls(order, place, jnp.diff(bounds).astype(jnp.int32))


@jax.custom_vjp
def _moved(x_RD: Rows, order: Int[Array, " rows"], place: Int[Array, " rows"]) -> Rows:
    """Returns `x_RD[order]`; `place` is the inverse, by which the gradient needs no scattering."""
    return jnp.take(x_RD, order, axis=0)


def _moved_forward(x_RD: Array, order: Array, place: Array) -> tuple[Array, Array]:
    return _moved(x_RD, order, place), place


def _moved_backward(place: Array, dy_RD: Array) -> tuple[Array, None, None]:
    return jnp.take(dy_RD, place, axis=0), None, None


_moved.defvjp(_moved_forward, _moved_backward)
