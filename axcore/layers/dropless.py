"""`Dropless`: every token gets to every expert that it chose, by grouped matrix products.

Letters: N tokens, K choices of a token, R = N K rows, E experts, D width.
"""

import jax.numpy as jnp
from jaxtyping import Array

from axcore.config import config
from axcore.layers.exchange import Rows, Sizes, at_their_experts
from axcore.layers.experts import Choices, Experts, Tokens, Weights
from axcore.layers.grouped_linear import GROUP_SIZES, check_runs_together, with_grouped_linears
from axcore.layers.routing import Routing
from axcore.layers.sorting import Sorting, moved
from axcore.module import Repeated
from axcore.parallel import expert_axes, on_own_tokens


class Dropless(Experts):
    """Sorts rows by expert and runs all experts at once on them.

    Where a mesh splits experts, rows travel to the devices that hold theirs, and back.

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
        x_RD = moved(jnp.repeat(x_ND, num_choices, axis=0), sorting.order, sorting.place)
        axes = expert_axes()
        y_RD = (
            at_their_experts(self._run, x_RD, sorting.sizes, axes)
            if axes
            else self._run(x_RD, sorting.sizes)
        )
        y_NKD = moved(y_RD, sorting.place, sorting.order).reshape(*experts.shape, -1)
        return jnp.einsum("btkd,btk->btd", y_NKD, weights.astype(y_NKD.dtype))

    def _run(self, rows: Rows, sizes: Sizes) -> Rows:
        with self.sending(GROUP_SIZES, sizes):
            y: Array = self.expert.together(rows[None])
        return y[0]
