"""Keys and values that a layer takes over from an earlier one, instead of making its own.

What travels is the projections' result, before positions: both layers give the same keys theirs.
Where a model serves, both layers' positions make the same of them, and the first layer's cache
drops nothing that the other sees, it is the other's, too.
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
from axcore.layers import Attention, Linear, NoCache, Sequence
from axcore.module import Module
from axl_attention.cross_layer_cache import ReceivedCache, SentCache

Projected = Float[Array, "*batch out_dim"]


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

    def forward(self, x: Float[Array, "*batch in_dim"]) -> Projected:
        """Return and sends the projection."""
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

    def forward(self, x: Float[Array, "*batch in_dim"]) -> Projected:
        """Return what was sent last.

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


def in_place_of(old: Any) -> Any:
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
    """Whether a layer's cache keeps what another one sees: the whole text, or what that keeps."""
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
