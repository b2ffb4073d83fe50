"""`SentCache` and `ReceivedCache`: layers that share keys keep them once where the model serves.

What travels is what the first layer's cache returned: its keys and values, and how to read them.
"""

from typing import Any

from axcore.config import REQUIRED, PositiveInt, config, evolve
from axcore.errors import ModuleError
from axcore.layers import KVCacheConfig, NoCache, TokenInfo
from axcore.module import Module


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

        def for_serving(self, room: KVCacheConfig) -> "SentCache.Config":
            """Return the config that sends; its cache is that of a serving model already."""
            return evolve(self, is_serving=True)

    def setup(self, cfg: Config) -> None:
        """Build the cache."""
        self.cache = cfg.cache.build(
            num_kv_heads=cfg.num_kv_heads, head_dim=cfg.head_dim, value_dim=cfg.value_dim
        )

    def forward(self, k: Any, v: Any, info: TokenInfo) -> tuple[Any, Any, TokenInfo]:
        """Return what the cache returns, and sends it where the model serves."""
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

        def for_serving(self, room: KVCacheConfig) -> "ReceivedCache.Config":
            """Return the config that receives."""
            return evolve(self, is_serving=True)

    def forward(self, k: Any, v: Any, info: TokenInfo) -> tuple[Any, Any, TokenInfo]:
        """Return what was sent last; where the model trains, what it is given, which is the same.

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
        if any(own is not other for own, other in zip(info.tokens, read_by.tokens, strict=True)):
            raise ModuleError(
                "a layer that receives a cache is called with other tokens than the layer that "
                "sent it: its TokenInfo has other positions or segment_ids",
                hint="give a layer that skips tokens a cache of its own: "
                "NoCache.Config(layout=GappedCache.Config())",
            )
        return keys, values, read_by
