"""`Attention`: projections, positions and heads around the attention op."""

from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveInt, config, evolve, find_config
from axcore.errors import ConfigError
from axcore.layers.attention.dot_product import DotProductAttention
from axcore.layers.attention.kv_cache import NoCache
from axcore.layers.attention.rope import NoPosition
from axcore.layers.cache import KVCacheConfig
from axcore.layers.linear import Linear
from axcore.layers.tokens import TokenInfo
from axcore.module import Module, named
from axcore.ops import named_heads
from axcore.parallel import shard

Heads = Float[Array, "batch time heads head_dim"]


ATTENTION_QUERY = "attention_query"
ATTENTION_KEY = "attention_key"
ATTENTION_VALUE = "attention_value"
ATTENTION_PROJECTED = "attention_projected"
"""Names of values that a `Remat` config can keep for the backward pass."""


class Attention(Module):
    """Multi-head, grouped-query and multi-query attention; they differ in `num_kv_heads` only.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2; Shazeer 2019, arXiv:1911.02150;
    Ainslie et al. 2023, arXiv:2305.13245. Slot protocol: the parent fills `dim`.
    """

    @config
    class Config(Module.Config["Attention"]):
        """The config of an `Attention`.

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

        def for_serving(self, cache_size: KVCacheConfig) -> "Attention.Config":
            """Return itself; without a cache where tokens see later ones, as in encoders.

            Those are there together, in one call.
            """
            sees_later = find_config(self.core, lambda node: not getattr(node, "is_causal", True))
            return evolve(self, kv_cache=NoCache.Config()) if sees_later else self

    def setup(self, cfg: Config) -> None:
        """Build the projections, the positions and the core."""
        num_kv_heads = cfg.num_kv_heads or cfg.num_heads
        self.head_dim = cfg.head_dim or head_dim_of(cfg.dim, cfg.num_heads)
        if cfg.num_heads % num_kv_heads:
            raise ConfigError(
                f"num_heads is {cfg.num_heads}, not a multiple of num_kv_heads, {num_kv_heads}",
                hint=f"set num_kv_heads to {_divisors(cfg.num_heads)}",
            )
        heads, kv_heads = cfg.num_heads * self.head_dim, num_kv_heads * self.head_dim
        self.attention_width = heads  # read where FLOPs are counted: what each pair of tokens costs
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
        """Return each token's mixture of the tokens that it sees."""
        q, k = self._split(self.q(x), "heads"), self._split(self.k(x), "kv_heads")
        v = self._split(self.v(x), "kv_heads")
        # Before the cache: keys are kept with their positions, and never rotated again.
        q, k = self.position(q, k, info.positions)
        # Named behind the rotation, so that remat that keeps them need not rotate again.
        q, k = named_heads(q, ATTENTION_QUERY), named_heads(k, ATTENTION_KEY)
        k, v, info = self.kv_cache(k, named_heads(v, ATTENTION_VALUE), info)
        mixed = self.core(q, k, v, info)
        return named(self.out(mixed.reshape(*x.shape[:2], -1)), ATTENTION_PROJECTED)

    def _split(self, x: Float[Array, "batch time width"], axis: str) -> Heads:
        return shard(x, "batch", "time", axis).reshape(*x.shape[:2], -1, self.head_dim)


def head_dim_of(dim: int, num_heads: int) -> int:
    """Return the size of a head where nothing else is said.

    Raises:
        ConfigError: The heads do not divide the vector.
    """
    if dim % num_heads:
        raise ConfigError(
            f"dim is {dim}, not a multiple of num_heads, {num_heads}",
            hint="change one of them, or set head_dim",
        )
    return dim // num_heads


def _divisors(number: int) -> str:
    found = [str(n) for n in range(1, number + 1) if number % n == 0]
    return " or ".join(filter(None, [", ".join(found[:-1]), found[-1]]))
