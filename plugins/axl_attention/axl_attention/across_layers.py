"""Keys and values that a layer takes from an earlier one, instead of making its own.

The projections' result is shared, before positions: both layers give the same keys theirs. Where a
model serves, both layers' positions make the same of them, and the first layer's cache drops
nothing that the other sees, that cache is shared too: its keys and values, and how to read them.
"""

from typing import Any

from jaxtyping import Array, Float

from axcore.config import (
    REQUIRED,
    PositiveInt,
    config,
    evolve,
    find_config,
    replace_config,
)
from axcore.errors import ConfigError, ModuleError
from axcore.layers import Attention, KVCacheConfig, Linear, NoCache, Sequence, TokenInfo
from axcore.module import Module, Param
from axl_attention.wrapping import refuse_second

_Projected = Float[Array, "*batch out_dim"]


class SentProjection(Module):
    """A projection that also sends its result to later layers.

    Slot protocol: the parent fills `in_dim`, `out_dim` and `axes`.
    """

    @config
    class Config(Module.Config["SentProjection"]):
        """The config of a `SentProjection`.

        Args:
            in_dim: Size of the last dimension of the input.
            out_dim: Size of the last dimension of the output.
            axes: Logical axes of the weight, input first.
            channel: Where later layers find the result.
            linear: The projection.
        """

        in_dim: PositiveInt = REQUIRED
        out_dim: PositiveInt = REQUIRED
        axes: tuple[str | None, str | None] = REQUIRED
        channel: str = REQUIRED
        linear: Module.Config = Linear.Config()

    def setup(self, cfg: Config) -> None:
        """Build the projection."""
        self.linear = cfg.linear.build(in_dim=cfg.in_dim, out_dim=cfg.out_dim, axes=cfg.axes)

    def forward(self, x: Float[Array, "*batch in_dim"]) -> _Projected:
        """Return the projection, and send it to later layers."""
        projected = self.linear(x)
        self.set_shared(self.config.channel, projected)
        return projected


class ReceivedProjection(Module):
    """What an earlier `SentProjection` sent; has no parameters.

    Slot protocol: the parent fills `in_dim`, `out_dim` and `axes`.
    """

    @config
    class Config(Module.Config["ReceivedProjection"]):
        """The config of a `ReceivedProjection`; its fields are those of `SentProjection`."""

        in_dim: PositiveInt = REQUIRED
        out_dim: PositiveInt = REQUIRED
        axes: tuple[str | None, str | None] = REQUIRED
        channel: str = REQUIRED

    def forward(self, x: Float[Array, "*batch in_dim"]) -> _Projected:
        """Return the projection that was sent last.

        Raises:
            ModuleError: Nothing was, or something of another size.
        """
        channel = self.config.channel
        projected = self.get_shared(channel)
        if projected is None:
            raise ModuleError(
                f"no earlier layer sent anything through {channel!r}",
                hint="give an earlier layer a SentProjection of that channel",
            )
        expected = (*x.shape[:-1], self.config.out_dim)
        if projected.shape != expected:
            raise ModuleError(
                f"{channel!r} holds shape {projected.shape}; expected {expected}",
                hint="give both layers equal sizes of heads, and as many key heads",
            )
        return projected


def with_shared_keys(old: Any) -> Any:
    """Return a stack in which every second layer uses the keys and values of the one before.

    Source: Brandon et al. 2024, arXiv:2405.12981, section 2.2 (CLA2).

    Raises:
        ConfigError: Layers cannot be paired, or hold no attention with keys of its own.
    """
    if find_config(old, ReceivedProjection):
        raise ConfigError(
            "layers of this stack use keys and values of earlier ones already",
            hint="apply shared_keys once",
        )
    layers = old.layer.layers if isinstance(old.layer, Sequence.Config) else (old.layer,)
    if len(layers) % 2:
        if old.num_layers % 2:
            raise ConfigError(
                f"{old.num_layers} times {len(layers)} layers cannot share in pairs",
                hint="change the number of layers by one",
            )
        # A scan repeats one layer, and a pair has two that differ: half as many turns of a pair.
        layers, old = 2 * layers, evolve(old, num_layers=old.num_layers // 2)
    pairs = zip(layers[::2], layers[1::2], strict=True)
    paired = tuple(layer for pair in pairs for layer in _sharing(*pair))
    return evolve(old, layer=Sequence.Config(layers=paired))


def _sharing(first: Any, second: Any) -> tuple[Any, Any]:
    """Return two layers of which the second uses the keys and values of the first."""
    pair = (
        replace_config(first, Attention, _sending),
        replace_config(second, Attention, _receiving),
    )
    if not (_have_same_positions(first, second) and _keeps_enough(first, second)):
        return pair
    channel = {"channel": "shared_cache"}
    return (
        replace_config(pair[0], NoCache, lambda cache: SentCache.Config(cache=cache, **channel)),
        replace_config(pair[1], NoCache, ReceivedCache.Config(**channel)),
    )


def _have_same_positions(first: Any, second: Any) -> bool:
    """Whether two layers' positions are the same; those with parts may hold weights."""
    position = find_config(first, Attention)[0].node.position
    has_parts = len(find_config(position, Module)) > 1
    return not has_parts and position == find_config(second, Attention)[0].node.position


def _keeps_enough(first: Any, second: Any) -> bool:
    """Whether a layer's cache keeps what another one sees: the full text, or what that keeps."""
    one, other = (find_config(layer, NoCache)[0].node for layer in (first, second))
    return one.layout is None or one.layout == other.layout


def _sending(attention: Any) -> Any:
    key, value = (own or attention.linear for own in (attention.key_linear, attention.value_linear))
    return evolve(
        attention,
        key_linear=SentProjection.Config(channel="shared_keys", linear=key),
        value_linear=SentProjection.Config(channel="shared_values", linear=value),
    )


def _receiving(attention: Any) -> Any:
    return evolve(
        attention,
        key_linear=ReceivedProjection.Config(channel="shared_keys"),
        value_linear=ReceivedProjection.Config(channel="shared_values"),
    )


class SentCache(Module):
    """Another cache, of which later layers see what it keeps.

    Slot protocol: the parent fills `num_kv_heads`, `head_dim` and `value_dim`.
    """

    @config
    class Config(Module.Config["SentCache"]):
        """The config of a `SentCache`.

        Args:
            num_kv_heads: Number of key and value heads.
            head_dim: Size of a key.
            value_dim: Size of a value; None where keys are the values, too.
            channel: Where later layers find what is kept.
            cache: Keeps keys and values.
            is_serving: Whether the cache keeps anything that could be sent.
        """

        num_kv_heads: PositiveInt = REQUIRED
        head_dim: PositiveInt = REQUIRED
        value_dim: PositiveInt | None = REQUIRED
        channel: str = REQUIRED
        cache: Module.Config = NoCache.Config()
        is_serving: bool = False

        def for_serving(self, cache_size: KVCacheConfig) -> "SentCache.Config":
            """Return the config that sends; its cache is that of a serving model already."""
            return evolve(self, is_serving=True)

    def setup(self, cfg: Config) -> None:
        """Build the cache."""
        self.cache = cfg.cache.build(
            num_kv_heads=cfg.num_kv_heads, head_dim=cfg.head_dim, value_dim=cfg.value_dim
        )

    def forward(self, k: Any, v: Any, info: TokenInfo) -> tuple[Any, Any, TokenInfo]:
        """Return the keys and values of the cache, and send them where the model serves."""
        k, v, info = self.cache(k, v, info)
        if self.config.is_serving:
            self.set_shared(self.config.channel, (k, v, info))
        return k, v, info


class ReceivedCache(Module):
    """What an earlier `SentCache` keeps; nothing of its own.

    Slot protocol: the parent fills `num_kv_heads`, `head_dim` and `value_dim`.
    """

    @config
    class Config(Module.Config["ReceivedCache"]):
        """The config of a `ReceivedCache`; its fields are those of `SentCache`."""

        num_kv_heads: PositiveInt = REQUIRED
        head_dim: PositiveInt = REQUIRED
        value_dim: PositiveInt | None = REQUIRED
        channel: str = REQUIRED
        is_serving: bool = False

        def for_serving(self, cache_size: KVCacheConfig) -> "ReceivedCache.Config":
            """Return the config that receives."""
            return evolve(self, is_serving=True)

    def forward(self, k: Any, v: Any, info: TokenInfo) -> tuple[Any, Any, TokenInfo]:
        """Return the cache that was sent last; in training its arguments, which are the same.

        Raises:
            ModuleError: Nothing was sent, or it was sent by a layer with other tokens.
        """
        if not self.config.is_serving:
            return k, v, info
        sent = self.get_shared(self.config.channel)
        if sent is None:
            raise ModuleError(
                f"no earlier layer sent its cache through {self.config.channel!r}",
                hint="give an earlier layer a SentCache of that channel",
            )
        keys, values, read_by = sent
        # As objects: their numbers are not known while a program is traced.
        if any(own is not other for own, other in zip(info.tokens, read_by.tokens, strict=True)):
            raise ModuleError(
                "a layer that receives a cache is called with other tokens than the layer that "
                "sent it: its TokenInfo has other positions or segment_ids",
                hint="give a layer that skips tokens a cache of its own: "
                "NoCache.Config(layout=GappedCache.Config())",
            )
        return keys, values, read_by


CHANNEL = "first_values"
"""The shared value by which the first layer's values reach the others."""


class ValueResidual(Module):
    """`share[0] * first layer's values + share[1] * own values`; the first layer's are its own.

    It is a projection, so it fills `Attention.value_linear` and no signature changes. The
    shares are learned, and a half each at first.

    Source: Zhou et al. 2024, arXiv:2410.17897, eq. 4 (learnable ResFormer). Slot protocol: the
    parent fills `in_dim`, `out_dim` and `axes`.
    """

    @config
    class Config(Module.Config["ValueResidual"]):
        """The config of a `ValueResidual`.

        Args:
            in_dim: Size of the last dimension of the input.
            out_dim: Size of the last dimension of the output.
            axes: Logical axes of the projection's weight, input first.
            linear: The layer's own projection.
        """

        in_dim: PositiveInt = REQUIRED
        out_dim: PositiveInt = REQUIRED
        axes: tuple[str | None, str | None] = REQUIRED
        linear: Module.Config = Linear.Config()

    def setup(self, cfg: Config) -> None:
        """Declare the shares and build the projection."""
        refuse_second(ValueResidual, cfg.linear)
        self.share = Param((2,), axes=(None,), init=0.5)
        self.linear = cfg.linear.build(in_dim=cfg.in_dim, out_dim=cfg.out_dim, axes=cfg.axes)

    def forward(self, x: Float[Array, "*batch in_dim"]) -> Float[Array, "*batch out_dim"]:
        """Return the mixed values; the first layer that runs sends its own to all others."""
        own = self.linear(x)
        first = self.get_shared(CHANNEL)
        if first is None:  # the same module in every layer; whichever runs first is the first
            self.set_shared(CHANNEL, own)
            return own
        return self.share[0] * first + self.share[1] * own


def with_value_residual(old: Any) -> Any:
    """Return an attention whose values are mixed with those of the first layer."""
    own = old.value_linear or old.linear
    return evolve(old, value_linear=ValueResidual.Config(linear=own))
