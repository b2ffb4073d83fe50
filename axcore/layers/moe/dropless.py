"""`Dropless`: every token gets to every expert that it chose, by grouped matrix products.

Letters: N tokens, K choices of a token, R = N K rows, E experts, D width.
"""

import jax.numpy as jnp
from jaxtyping import Array

from axcore.config import PositiveFloat, config
from axcore.layers.grouped_rows import GROUP_SIZES
from axcore.layers.moe.expert_all_to_all import Rows, Sizes, expert_all_to_all
from axcore.layers.moe.experts import Choices, Experts, Tokens, Weights
from axcore.layers.moe.grouped_linear import check_supports_call_stacked, with_grouped_linears
from axcore.layers.moe.routing import Routing
from axcore.layers.moe.token_permutation import TokenPermutation, collect, spread
from axcore.module import StackedModule
from axcore.parallel import expert_mesh_axes, shard_map_over_tokens


class Dropless(Experts):
    """Sorts rows by expert and runs all experts at once on them.

    Where a mesh splits experts, rows travel to the devices that hold theirs, and back.

    Source: Gale et al. 2022, arXiv:2211.15841, section 4.
    """

    @config
    class Config(Experts.Config):
        """Describes a `Dropless`.

        Args:
            exchange_room: Rows that a device may send to each other one, as a multiple of an even
                share. What is beyond it adds nothing; the summary `dropped` counts it. None has
                room for all: nothing is dropped, and each of P devices then computes P times as
                many rows as it has, zeros mostly.
        """

        exchange_room: PositiveFloat | None = None

    def setup(self, cfg: Config) -> None:
        """Builds the experts, with grouped products in place of their linear layers."""
        expert = with_grouped_linears(cfg.expert).build(dim=cfg.dim)
        check_supports_call_stacked(expert)
        self.expert = StackedModule(expert, cfg.num_experts, axis="expert")

    def forward(self, x: Tokens, routing: Routing) -> Tokens:
        """Returns each token's weighted sum of what its experts make of it."""
        return shard_map_over_tokens(self, type(self).mixed, x, *routing)

    def mixed(self, x: Tokens, experts: Choices, weights: Weights) -> Tokens:
        """Returns the mixture for the tokens of one device."""
        x_ND = x.reshape(-1, x.shape[-1])
        permutation = TokenPermutation.of(experts.reshape(-1), self.config.num_experts)
        axes = expert_mesh_axes()
        room = self.config.exchange_room
        y_KND, dropped = (
            expert_all_to_all(self._run, x_ND, permutation, axes, room)
            if axes
            else (self._at_home(x_ND, permutation), jnp.zeros(()))
        )
        if room is not None:
            self.add_summary("dropped", dropped)
        y_KBTD = y_KND.reshape(-1, *x.shape)
        return jnp.einsum("kbtd,btk->btd", y_KBTD, weights.astype(y_KBTD.dtype))

    def _at_home(self, x_ND: Rows, permutation: TokenPermutation) -> Array:
        """Returns what this device's experts make of its own tokens, choice by choice."""
        rows, places = permutation.order, permutation.place
        y_RD = self._run(spread(x_ND, rows, places, True), permutation.sizes)
        return collect(y_RD, rows, places, len(x_ND), True)

    def _run(self, rows: Rows, sizes: Sizes) -> Rows:
        with self.with_shared(GROUP_SIZES, sizes):
            y: Array = self.expert.call_stacked(rows[None])
        return y[0]
