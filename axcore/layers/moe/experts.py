"""`MoE`, a mixture of experts in the place of one feed-forward, and ways to run the experts.

`Dropless` sends every token to every expert that it chose, by grouped matrix products.
`CapacityLimited` lets every expert take so many tokens of a row, and drops the others.

Letters: B batch, T time, N = B T tokens, K choices of a token, R = N K rows, E experts, C capacity,
D width.
"""

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from axcore.config import (
    REQUIRED,
    PositiveFloat,
    PositiveInt,
    config,
    field_names,
    find_config,
    replace_config,
)
from axcore.errors import ConfigError
from axcore.layers.cache import KVCacheConfig
from axcore.layers.linear import GROUP_SIZES, Dot, GroupedRows, Linear, take_by_group
from axcore.layers.moe.router import Router, Routing
from axcore.layers.moe.token_permutation import (
    Rows,
    Sizes,
    TokenPermutation,
    collect,
    expert_all_to_all,
    inverse,
    spread,
)
from axcore.layers.tokens import TOKEN_MASK
from axcore.module import Module, StackedModule, count_params
from axcore.parallel import expert_mesh_axes, shard_map_over_tokens, vmap_local_experts

Tokens = Float[Array, "batch time dim"]
Choices = Int[Array, "batch time choices"]
Weights = Float[Array, "batch time choices"]


class Experts(Module):
    """Many copies of a feed-forward, each for the tokens that are routed to it.

    Every kind of `Experts` has the same state, that of the feed-forward with a leading axis
    `expert`. Slot protocol: the parent fills `dim`, `num_experts` and `expert`.
    """

    @config
    class Config(Module.Config["Experts"]):
        """The fields of every kind of experts.

        Args:
            dim: Size of a token's vector.
            num_experts: Number of experts.
            expert: The feed-forward.
        """

        dim: PositiveInt = REQUIRED
        num_experts: PositiveInt = REQUIRED
        expert: Module.Config = REQUIRED

    def forward(self, x: Tokens, routing: Routing) -> Tokens:
        """Return each token's weighted sum of what its experts make of it.

        Choices of padding have the number `num_experts` and a weight of 0: they go nowhere.
        """
        raise NotImplementedError(f"{type(self).__qualname__} runs no expert")


class Dropless(Experts):
    """Sort rows by expert and run all experts at once on them.

    Where a mesh splits experts, rows travel to the devices that hold theirs, and back.

    Source: Gale et al. 2022, arXiv:2211.15841, section 4.
    """

    @config
    class Config(Experts.Config):
        """The config of a `Dropless`.

        Args:
            exchange_room: Rows that a device may send to each other one, as a multiple of an even
                share. Rows beyond it add nothing; the summary `dropped` counts them. None is
                enough for all rows: nothing is dropped, and each of P devices then computes P times
                as many rows as it has, zeros mostly.
        """

        exchange_room: PositiveFloat | None = None

    def setup(self, cfg: Config) -> None:
        """Build the experts, with grouped products in place of their linear layers."""
        expert = _with_grouped_linears(cfg.expert).build(dim=cfg.dim)
        _check_supports_call_stacked(expert)
        self.expert = StackedModule(expert, cfg.num_experts, axis="expert")

    def forward(self, x: Tokens, routing: Routing) -> Tokens:
        """Return each token's weighted sum of what its experts make of it."""
        return shard_map_over_tokens(self, type(self).mixed, x, *routing)

    def mixed(self, x: Tokens, experts: Choices, weights: Weights) -> Tokens:
        """Return the mixture for the tokens of one device."""
        # Rows are tokens in their order, so that sorting by expert is stable: equal on any mesh.
        x_ND = x.reshape(-1, x.shape[-1])
        permutation = TokenPermutation.of(experts.reshape(-1), self.config.num_experts)
        axes = expert_mesh_axes()
        capacity_factor = self.config.exchange_room
        y_KND, dropped = (
            expert_all_to_all(self._run, x_ND, permutation, axes, capacity_factor)
            if axes
            else (self._at_home(x_ND, permutation), jnp.zeros(()))
        )
        if capacity_factor is not None:
            self.add_summary("dropped", dropped)
        y_KBTD = y_KND.reshape(-1, *x.shape)
        # Weighted here and not before the experts, which are not linear; and after the exchange,
        # so that weights, and their gradients, stay with their tokens.
        return jnp.einsum("kbtd,btk->btd", y_KBTD, weights.astype(y_KBTD.dtype))

    def _at_home(self, x_ND: Rows, permutation: TokenPermutation) -> Array:
        """Return the output of this device's experts for its own tokens, choice by choice."""
        rows, places = permutation.order, permutation.place
        y_RD = self._run(spread(x_ND, rows, places, True), permutation.sizes)
        return collect(y_RD, rows, places, len(x_ND), True)

    def _run(self, rows: Rows, sizes: Sizes) -> Rows:
        # `call_stacked` calls the expert once with all copies of its parameters: `[None]` is the
        # copies' dimension, and the shared sizes say which rows are of which copy.
        with self.with_shared(GROUP_SIZES, sizes):
            y: Array = self.expert.call_stacked(rows[None])
        return y[0]


class CapacityLimited(Experts):
    """Run every expert on an array of fixed size. Any module can be the expert.

    A choice beyond an expert's capacity adds nothing to its token. Capacity is counted in each row
    by itself, for the tokens that it has, so that neither padding nor other rows of a batch or a
    device matter; first choices go before second ones, and earlier tokens before later ones.

    Source: Lepikhin et al. 2020, arXiv:2006.16668, algorithm 1; a row is a group there.
    """

    @config
    class Config(Experts.Config):
        """The config of a `CapacityLimited`.

        Args:
            factor: Room, as a multiple of what an even load would need.
        """

        factor: float = 1.25

        def for_serving(self, cache_size: KVCacheConfig) -> Dropless.Config:
            """Return experts that drop nothing: how many tokens come at once is by chance there."""
            return Dropless.Config(
                dim=self.dim,
                num_experts=self.num_experts,
                expert=self.expert,
                dtypes=self.dtypes,
            )

    def setup(self, cfg: Config) -> None:
        """Build the experts."""
        if cfg.factor <= 0:
            raise ConfigError(
                f"factor is {cfg.factor}; expected a number above 0", where="dispatch.factor"
            )
        self.expert = StackedModule(cfg.expert.build(dim=cfg.dim), cfg.num_experts, axis="expert")

    def forward(self, x: Tokens, routing: Routing) -> Tokens:
        """Return each token's weighted sum of what its experts make of it."""
        # Capacity is counted over a full row, so no device may have a part of one.
        return shard_map_over_tokens(self, type(self).mixed, x, *routing, replicate_time=True)

    def mixed(self, x: Tokens, experts: Choices, weights: Weights) -> Tokens:
        """Return the mixture for the tokens of one device."""
        num_choices, (rows, time, dim) = experts.shape[-1], x.shape
        shape = (self.config.num_experts, rows, self.capacity(time, num_choices))
        # A table, made in Python's floats: computed at run time in float32, a product just above
        # a whole number would round to another capacity than `capacity` gives.
        capacity_by_length = np.array(
            [self.capacity(n, num_choices) for n in range(time + 1)], np.int32
        )
        is_real = experts < self.config.num_experts
        num_real_B = jnp.sum(jnp.any(is_real, axis=-1), axis=-1)
        place_R = _places(experts, shape, jnp.asarray(capacity_by_length)[num_real_B]).reshape(-1)
        is_dropped = is_real.reshape(-1) & (place_R == math.prod(shape))
        dropped, real = (jnp.sum(x).astype(jnp.float32) for x in (is_dropped, is_real))
        self.add_summary("dropped", dropped / jnp.maximum(real, 1))
        row_S = inverse(place_R, math.prod(shape))
        x_SD = spread(x.reshape(-1, dim), row_S, place_R, False)
        y_SD = self._run(x_SD.reshape(*shape, dim)).reshape(-1, dim)
        y_KBTD = collect(y_SD, row_S, place_R, rows * time, False).reshape(-1, *x.shape)
        return jnp.einsum("kbtd,btk->btd", y_KBTD, weights.astype(y_KBTD.dtype))

    def capacity(self, time: int, num_choices: int) -> int:
        """Return how many of a row's tokens each expert takes; never more than the row has."""
        even = time * num_choices / self.config.num_experts
        return min(time, math.ceil(self.config.factor * even))

    def _run(self, x_EBCD: Array) -> Array:
        # Each device has its own rows for all experts; they are exchanged for all rows of its own
        # experts, and back.
        axes = expert_mesh_axes()
        x_EBCD = _swapped(x_EBCD, axes, 0, 1) if axes else x_EBCD
        y_EBCD: Array = vmap_local_experts(self.expert, x_EBCD)
        return _swapped(y_EBCD, axes, 1, 0) if axes else y_EBCD


def _swapped(x: Array, axes: tuple[str, ...], split_axis: int, concat_axis: int) -> Array:
    swapped: Array = jax.lax.all_to_all(x, axes, split_axis, concat_axis, tiled=True)  # type: ignore[no-untyped-call]
    return swapped


def _places(
    experts: Choices, shape: tuple[int, int, int], capacity_B: Int[Array, " batch"]
) -> Int[Array, "batch time choices"]:
    """Return each choice's place in `[E, B, C]`, and E B C where it has none.

    Args:
        experts: Of each choice; E is none.
        shape: `[E, B, C]`.
        capacity_B: How many tokens of each row an expert takes, C at most.
    """
    num_experts, num_rows, capacity = shape
    # Choice by choice, then token by token: first choices are placed before any second one.
    expert_BR = jnp.swapaxes(experts, 1, 2).reshape(num_rows, -1)
    permutation = jax.vmap(lambda expert_R: TokenPermutation.of(expert_R, num_experts))(expert_BR)
    starts_BE = jnp.cumsum(permutation.sizes, axis=1) - permutation.sizes
    rank_BR = permutation.place - jnp.take_along_axis(starts_BE, expert_BR, axis=1, mode="clip")
    row_B1 = jnp.arange(num_rows, dtype=jnp.int32)[:, None]
    place_BR = (expert_BR * num_rows + row_B1) * capacity + rank_BR
    fits = (rank_BR < capacity_B[:, None]) & (expert_BR < num_experts)
    place_BR = jnp.where(fits, place_BR, math.prod(shape))
    return jnp.swapaxes(place_BR.reshape(num_rows, experts.shape[2], -1), 1, 2)


class GroupedLinear(GroupedRows, Linear):
    """A `Linear` in a `StackedModule` that is called stacked: each row by its expert's weight.

    It has the parameters of a `Linear`, so that a state fits both.
    """

    @config
    class Config(Linear.Config):
        """The config of a `GroupedLinear`; its fields are those of `Linear`."""

    def forward(self, x: Float[Array, "*batch in_dim"]) -> Float[Array, "*batch out_dim"]:
        """Return the projection of rows sorted by expert, whose sizes are a shared value."""
        sizes = self.get_shared(GROUP_SIZES)
        rows = x.reshape(-1, x.shape[-1])
        y = self.dot.grouped(rows, self.weight, sizes)
        if self.config.has_bias:
            y = y + take_by_group(self.bias, sizes, len(rows))
        return y.reshape(*x.shape[:-1], -1)


def _with_grouped_linears(cfg: Module.Config) -> Module.Config:
    """Return the config of a feed-forward with every `Linear` in it replaced by a grouped one."""

    def is_linear(node: Any) -> bool:
        # Not isinstance: a class derived from Linear may do what a grouped product does not.
        return type(node) is Linear.Config

    def grouped(linear: Any) -> GroupedLinear.Config:
        return GroupedLinear.Config(**{name: getattr(linear, name) for name in field_names(linear)})

    return replace_config(cfg, is_linear, grouped, missing_ok=True)


def _check_supports_call_stacked(expert: Module) -> None:
    """Check that all parameters of an expert are in layers that can distinguish experts.

    Raises:
        ConfigError: Naming the first module that has others.
    """
    for module in _modules(expert):
        if module._params and not isinstance(module, GroupedRows | Dot):
            raise ConfigError(
                f"an expert has a {type(module).__qualname__}, whose parameters are not those of "
                "a Linear, so that rows of all experts cannot go through it at once",
                where="expert",
                hint="MoE.Config(dispatch=CapacityLimited.Config(...)), which runs any module",
            )
        if isinstance(module, Dot) and type(module).grouped is Dot.grouped:
            raise ConfigError(
                f"{type(module).__qualname__} has no grouped product, which experts need",
                where="expert",
                hint="leave the experts' products plain, or "
                "MoE.Config(dispatch=CapacityLimited.Config(...))",
            )


def _modules(module: Module) -> Iterator[Module]:
    yield module
    for _, child in module.children():
        yield from _modules(child.module if isinstance(child, StackedModule) else child)


class MoE(Module):
    """Send each token to the few experts that a router chooses, and add up what they make of it.

    Any feed-forward becomes its experts' config: `replace_config(cfg, FeedForward, lambda ffn:
    MoE.Config(expert=ffn, num_experts=8, top_k=2))`.

    Source: Shazeer et al. 2017, arXiv:1701.06538, eq. 1; shared experts, Dai et al. 2024,
    arXiv:2401.06066, eq. 9. Slot protocol: the parent fills `dim`.
    """

    @config
    class Config(Module.Config["MoE"]):
        """The config of a `MoE`.

        Args:
            dim: Size of the last dimension of input and output.
            expert: The feed-forward that each expert is.
            num_experts: Number of experts.
            top_k: Experts that each token goes to.
            router: Chooses them.
            dispatch: How tokens get to them and back.
            shared: A feed-forward that every token goes to, too.
        """

        dim: PositiveInt = REQUIRED
        expert: Module.Config = REQUIRED
        num_experts: PositiveInt = REQUIRED
        top_k: PositiveInt = REQUIRED
        router: Module.Config = Router.Config()
        dispatch: Experts.Config = Dropless.Config()
        shared: Module.Config | None = None

    def setup(self, cfg: Config) -> None:
        """Build the router, the experts and the shared one."""
        for name in ("expert", "shared"):
            _check_is_plain(getattr(cfg, name), name)
        self.router = cfg.router.build(dim=cfg.dim, num_experts=cfg.num_experts, top_k=cfg.top_k)
        self.experts = cfg.dispatch.build(
            dim=cfg.dim, num_experts=cfg.num_experts, expert=cfg.expert
        )
        share = 1.0 - cfg.top_k / cfg.num_experts
        # The count of FLOPs per token leaves out the experts that a token does not go to.
        self.inactive_params = share * count_params(self.experts.param_specs())
        self.shared = None if cfg.shared is None else cfg.shared.build(dim=cfg.dim)

    def forward(self, x: Float[Array, "batch time dim"]) -> Float[Array, "batch time dim"]:
        """Return the mixture for each token."""
        routing = self.router(x)
        # Experts get rows in another order, to which the mask of tokens does not apply.
        with self.with_shared(TOKEN_MASK, None):
            y = self.experts(x, routing)
        return y if self.shared is None else y + self.shared(x)


def _check_is_plain(expert: Module.Config | None, name: str) -> None:
    if expert is not None and find_config(expert, MoE):
        raise ConfigError(
            "an expert is itself a mixture of experts",
            where=name,
            hint="replace feed-forwards once: replace_config(..., at=...) selects them",
        )
