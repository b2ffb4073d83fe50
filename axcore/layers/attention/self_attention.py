"""`Attention`: projections, positions and heads around the attention op."""

from typing import Any

from jaxtyping import Array, Float, Num

from axcore.config import REQUIRED, PositiveInt, config
from axcore.errors import ConfigError
from axcore.layers.attention.attend import attend
from axcore.layers.attention.kv_cache import NoCache
from axcore.layers.attention.position import NoPosition
from axcore.layers.linear import Linear
from axcore.layers.remat_presets import (
    ATTENTION_KEY,
    ATTENTION_PROJECTED,
    ATTENTION_QUERY,
    ATTENTION_VALUE,
)
from axcore.layers.tokens import TokenInfo
from axcore.module import Module, named
from axcore.ops import named_heads
from axcore.parallel import shard

Heads = Float[Array, "batch time heads head_dim"]


class DotProductAttention(Module):
    """Softmax attention of each query over the keys it may see; the op chooses the kernel.

    Slot protocol: the parent fills `num_heads`. A layer that wraps another core passes more
    of the op's arguments on to it, as keywords: `self.core(q, k, v, info, sinks_N=...)`.
    """

    @config
    class Config(Module.Config["DotProductAttention"]):
        """Describes which keys a query sees and how they are weighed.

        Args:
            num_heads: Number of query heads.
            is_causal: Whether a query sees no later keys.
            window: Number of keys a query sees to its left and right, itself not counted; None on
                a side is no limit.
            scale: Factor on the products; by default `1 / sqrt(head_dim)`.
            soft_cap: Caps logits smoothly at this value.
        """

        num_heads: PositiveInt = REQUIRED
        is_causal: bool = True
        window: tuple[int | None, int | None] | None = None
        scale: float | None = None
        soft_cap: float | None = None

        @property
        def num_visible(self) -> int | None:
            """How many tokens a token sees at most, itself counted; None where all."""
            left = self.window[0] if self.window else None
            return None if left is None else left + 1

    def forward(
        self,
        q: Heads,
        k: Num[Array, "rows keys kv_heads head_dim"],
        v: Num[Array, "rows keys kv_heads value_dim"],
        info: TokenInfo,
        **options: Any,
    ) -> Float[Array, "batch time heads value_dim"]:
        """Returns each query's weighted mean of values; tokens of other documents are not seen."""
        cfg = self.config
        return attend(
            q,
            k,
            v,
            info,
            causal=cfg.is_causal,
            window=cfg.window,
            scale=cfg.scale,
            soft_cap=cfg.soft_cap,
            **options,
        )


class Attention(Module):
    """Multi-head, grouped-query and multi-query attention; they differ in `num_kv_heads` only.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2; Shazeer 2019, arXiv:1911.02150;
    Ainslie et al. 2023, arXiv:2305.13245. Slot protocol: the parent fills `dim`.
    """

    @config
    class Config(Module.Config["Attention"]):
        """Describes an `Attention`.

        Args:
            dim: Size of the last dimension of input and output.
            num_heads: Number of query heads.
            num_kv_heads: Number of key and value heads; `num_heads` where None.
            head_dim: Size of a head; `dim / num_heads` where None.
            linear: Used for the query, key and value projections.
            key_linear: Used for the key projection; `linear` where None.
            value_linear: Used for the value projection; `linear` where None.
            out_linear: Used for the output projection.
            position: Applied to queries and keys.
            core: Weighs values by queries and keys.
            kv_cache: Keeps keys and values from call to call where the model serves.
        """

        dim: PositiveInt = REQUIRED
        num_heads: PositiveInt = REQUIRED
        num_kv_heads: PositiveInt | None = None
        head_dim: PositiveInt | None = None
        linear: Module.Config = Linear.Config()
        key_linear: Module.Config | None = None
        value_linear: Module.Config | None = None
        out_linear: Module.Config = Linear.Config()
        position: Module.Config = NoPosition.Config()
        core: Module.Config = DotProductAttention.Config()
        kv_cache: Module.Config = NoCache.Config()

    def setup(self, cfg: Config) -> None:
        """Builds the projections, the positions and the core."""
        num_kv_heads = cfg.num_kv_heads or cfg.num_heads
        self.head_dim = cfg.head_dim or _head_dim(cfg)
        if cfg.num_heads % num_kv_heads:
            raise ConfigError(
                f"num_heads is {cfg.num_heads}, not a multiple of num_kv_heads, {num_kv_heads}",
                hint=f"set num_kv_heads to {_divisors(cfg.num_heads)}",
            )
        heads, kv_heads = cfg.num_heads * self.head_dim, num_kv_heads * self.head_dim
        self.attention_width = heads
        self.q = cfg.linear.build(in_dim=cfg.dim, out_dim=heads, axes=("embed", "heads"))
        kv = {"in_dim": cfg.dim, "out_dim": kv_heads, "axes": ("embed", "kv_heads")}
        self.k = (cfg.key_linear or cfg.linear).build(**kv)
        self.v = (cfg.value_linear or cfg.linear).build(**kv)
        self.out = cfg.out_linear.build(in_dim=heads, out_dim=cfg.dim, axes=("heads", "embed"))
        self.position = cfg.position.build(head_dim=self.head_dim)
        self.core = cfg.core.build(num_heads=cfg.num_heads)
        self.kv_cache = cfg.kv_cache.build(
            num_kv_heads=num_kv_heads, head_dim=self.head_dim, value_dim=self.head_dim
        )

    def forward(
        self, x: Float[Array, "batch time dim"], info: TokenInfo
    ) -> Float[Array, "batch time dim"]:
        """Returns each token's mixture of the tokens that it sees."""
        q, k = self._split(self.q(x), "heads"), self._split(self.k(x), "kv_heads")
        v = self._split(self.v(x), "kv_heads")
        q, k = self.position(q, k, info.positions)
        q, k = named_heads(q, ATTENTION_QUERY), named_heads(k, ATTENTION_KEY)
        k, v, info = self.kv_cache(k, named_heads(v, ATTENTION_VALUE), info)
        mixed = self.core(q, k, v, info)
        return named(self.out(mixed.reshape(*x.shape[:2], -1)), ATTENTION_PROJECTED)

    def _split(self, x: Float[Array, "batch time width"], axis: str) -> Heads:
        return shard(x, "batch", "time", axis).reshape(*x.shape[:2], -1, self.head_dim)


def _head_dim(cfg: Attention.Config) -> int:
    if cfg.dim % cfg.num_heads:
        raise ConfigError(
            f"dim is {cfg.dim}, not a multiple of num_heads, {cfg.num_heads}",
            hint="change one of them, or set head_dim",
        )
    return int(cfg.dim // cfg.num_heads)


def _divisors(number: int) -> str:
    found = [str(n) for n in range(1, number + 1) if number % n == 0]
    return " or ".join(filter(None, [", ".join(found[:-1]), found[-1]]))
