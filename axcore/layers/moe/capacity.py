"""`CapacityLimited`: every expert has room for so many tokens of a row, and drops the rest.

Letters: B batch, T time, K choices of a token, R = B T K rows, E experts, C capacity, D width.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from axcore.config import config
from axcore.errors import ConfigError
from axcore.layers.moe.dropless import Dropless
from axcore.layers.moe.experts import Choices, Experts, Tokens, Weights
from axcore.layers.moe.routing import Routing
from axcore.layers.moe.token_permutation import TokenPermutation, collect, inverse, spread
from axcore.layers.serving_room import KVCacheConfig
from axcore.module import StackedModule
from axcore.parallel import expert_mesh_axes, shard_map_over_tokens, vmap_local_experts


class CapacityLimited(Experts):
    """Runs every expert on an array of fixed size. Any module can be the expert.

    A choice for which there is no room adds nothing to its token. Room is counted in each row by
    itself, for the tokens that it has, so that neither padding nor other rows of a batch or a
    device matter; first choices go before second ones, and earlier tokens before later ones.

    Source: Lepikhin et al. 2020, arXiv:2006.16668, algorithm 1; a row is a group there.
    """

    @config
    class Config(Experts.Config):
        """Describes a `CapacityLimited`.

        Args:
            factor: Room, as a multiple of what an even load would need.
        """

        factor: float = 1.25

        def for_serving(self, room: KVCacheConfig) -> Dropless.Config:
            """Returns what drops none: how many tokens come at once is by chance there."""
            return Dropless.Config(
                dim=self.dim,
                num_experts=self.num_experts,
                expert=self.expert,
                dtypes=self.dtypes,
            )

    def setup(self, cfg: Config) -> None:
        """Builds the experts."""
        if cfg.factor <= 0:
            raise ConfigError(
                f"factor is {cfg.factor}; expected a number above 0", where="dispatch.factor"
            )
        self.expert = StackedModule(cfg.expert.build(dim=cfg.dim), cfg.num_experts, axis="expert")

    def forward(self, x: Tokens, routing: Routing) -> Tokens:
        """Returns each token's weighted sum of what its experts make of it."""
        return shard_map_over_tokens(self, type(self).mixed, x, *routing, replicate_time=True)

    def mixed(self, x: Tokens, experts: Choices, weights: Weights) -> Tokens:
        """Returns the mixture for the tokens of one device."""
        num_choices, (rows, time, dim) = experts.shape[-1], x.shape
        shape = (self.config.num_experts, rows, self.capacity(time, num_choices))
        room_by_size = np.array([self.capacity(n, num_choices) for n in range(time + 1)], np.int32)
        is_real = experts < self.config.num_experts
        num_real_B = jnp.sum(jnp.any(is_real, axis=-1), axis=-1)
        place_R = _places(experts, shape, jnp.asarray(room_by_size)[num_real_B]).reshape(-1)
        is_dropped = is_real.reshape(-1) & (place_R == math.prod(shape))
        dropped, real = (jnp.sum(x).astype(jnp.float32) for x in (is_dropped, is_real))
        self.add_summary("dropped", dropped / jnp.maximum(real, 1))
        row_S = inverse(place_R, math.prod(shape))
        x_SD = spread(x.reshape(-1, dim), row_S, place_R, False)
        y_SD = self._run(x_SD.reshape(*shape, dim)).reshape(-1, dim)
        y_KBTD = collect(y_SD, row_S, place_R, rows * time, False).reshape(-1, *x.shape)
        return jnp.einsum("kbtd,btk->btd", y_KBTD, weights.astype(y_KBTD.dtype))

    def capacity(self, time: int, num_choices: int) -> int:
        """Returns how many of a row's tokens each expert has room for; never more than it has."""
        even = time * num_choices / self.config.num_experts
        return min(time, math.ceil(self.config.factor * even))

    def _run(self, x_EBCD: Array) -> Array:
        axes = expert_mesh_axes()
        x_EBCD = _swapped(x_EBCD, axes, 0, 1) if axes else x_EBCD
        y_EBCD: Array = vmap_local_experts(self.expert, x_EBCD)
        return _swapped(y_EBCD, axes, 1, 0) if axes else y_EBCD


def _swapped(x: Array, axes: tuple[str, ...], split_axis: int, concat_axis: int) -> Array:
    swapped: Array = jax.lax.all_to_all(x, axes, split_axis, concat_axis, tiled=True)  # type: ignore[no-untyped-call]
    return swapped


def _places(
    experts: Choices, shape: tuple[int, int, int], room_B: Int[Array, " batch"]
) -> Int[Array, "batch time choices"]:
    """Returns each choice's place in `[E, B, C]`, and E B C where there is no room or no expert.

    Args:
        experts: Of each choice; E is none.
        shape: `[E, B, C]`.
        room_B: How many tokens of each row an expert has room for, C at most.
    """
    num_experts, num_rows, capacity = shape
    expert_BR = jnp.swapaxes(experts, 1, 2).reshape(num_rows, -1)
    permutation = jax.vmap(lambda expert_R: TokenPermutation.of(expert_R, num_experts))(expert_BR)
    starts_BE = jnp.cumsum(permutation.sizes, axis=1) - permutation.sizes
    rank_BR = permutation.place - jnp.take_along_axis(starts_BE, expert_BR, axis=1, mode="clip")
    row_B1 = jnp.arange(num_rows, dtype=jnp.int32)[:, None]
    place_BR = (expert_BR * num_rows + row_B1) * capacity + rank_BR
    has_room = (rank_BR < room_B[:, None]) & (expert_BR < num_experts)
    place_BR = jnp.where(has_room, place_BR, math.prod(shape))
    return jnp.swapaxes(place_BR.reshape(num_rows, experts.shape[2], -1), 1, 2)
