"""Cores of attention: windows, chunks, sinks, capped logits and biases by distance."""

import math
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Num

from axcore.config import REQUIRED, PositiveInt, config, evolve, find_config
from axcore.errors import ConfigError
from axcore.layers import DotProductAttention, TokenInfo, attend
from axcore.module import Module, Param
from axl_attention.wrapping import refuse_second, sees_row_offsets


class SlidingWindowAttention(Module):
    """Causal softmax attention over the last `window` tokens; replaces full attention.

    Through `n` layers information still travels `n * (window - 1)` tokens. Kernels skip blocks of
    keys outside the window, so time and memory grow with `time * window`.

    Source: Beltagy et al. 2020, arXiv:2004.05150, section 3.1; Jiang et al. 2023, arXiv:2310.06825.
    """

    @config
    class Config(Module.Config["SlidingWindowAttention"]):
        """The config of a `SlidingWindowAttention`.

        Args:
            num_heads: Number of query heads.
            window: Number of tokens that each token sees, itself counted.
            scale: Factor on the products; by default `1 / sqrt(head_dim)`.
            soft_cap: Caps logits smoothly at this value.
        """

        num_heads: PositiveInt = REQUIRED
        window: int = 1024
        scale: float | None = None
        soft_cap: float | None = None

        @property
        def window_size(self) -> int:
            """How many tokens a token sees at most, itself counted."""
            return self.window

    def setup(self, cfg: Config) -> None:
        """Refuse windows in which no token sees anything."""
        if cfg.window < 1:
            raise ConfigError(
                f"window is {cfg.window}; a token sees at least itself",
                hint="set window to 1 or more",
            )

    def forward(
        self,
        q: Float[Array, "batch time heads head_dim"],
        k: Num[Array, "rows keys kv_heads head_dim"],
        v: Num[Array, "rows keys kv_heads value_dim"],
        info: TokenInfo,
        **options: Any,
    ) -> Float[Array, "batch time heads value_dim"]:
        """Return each query's weighted mean of values; tokens of other documents are not seen."""
        cfg = self.config
        return attend(
            q,
            k,
            v,
            info,
            causal=True,
            window=(cfg.window - 1, None),
            scale=cfg.scale,
            soft_cap=cfg.soft_cap,
            **options,
        )


def with_sliding_window(old: Any) -> SlidingWindowAttention.Config:
    """Return the config that takes the place of full attention: its scale and cap are kept."""
    return SlidingWindowAttention.Config(scale=old.scale, soft_cap=old.soft_cap)


class ChunkedAttention(Module):
    """Attention within chunks of `chunk` tokens of a document, by whatever core is inside.

    A chunk is to the core inside what a document is: a segment. So every kernel that takes packed
    documents takes chunks too. In Llama 4 three layers of four are chunked.

    Source: Liu et al. 2018, arXiv:1801.10198, section 4.2 (local attention); `attention_chunk_size`
    of Llama 4's configs, Meta 2025. Slot protocol: the parent fills `num_heads`.
    """

    @config
    class Config(Module.Config["ChunkedAttention"]):
        """The config of a `ChunkedAttention`.

        Args:
            num_heads: Number of query heads.
            chunk: Tokens of a chunk; a document's last may have fewer.
            core: Weighs the values of a chunk.
        """

        num_heads: int = REQUIRED
        chunk: int = 1024
        core: Module.Config = DotProductAttention.Config()

    def setup(self, cfg: Config) -> None:
        """Build the core."""
        refuse_second(ChunkedAttention, cfg.core)
        if cfg.chunk < 1:
            raise ConfigError(f"chunk is {cfg.chunk}; a chunk has at least one token")
        self.core = cfg.core.build(num_heads=cfg.num_heads)

    def forward(self, q: Any, k: Any, v: Any, info: TokenInfo, **options: Any) -> Any:
        """Return each query's weighted mean of the values of its chunk."""
        chunk = self.config.chunk
        # Keys of a cache have no segments of the call; a range of places says the same.
        if info.num_cached is not None:
            first = info.positions // chunk * chunk
            return self.core(q, k, v, info, key_ranges=(first, first + chunk), **options)
        return self.core(q, k, v, info._replace(segment_ids=_chunk_ids(info, chunk)), **options)


def _chunk_ids(info: TokenInfo, chunk: int) -> Int[Array, "batch time"]:
    """Return segments that number the chunks of each row from 1 on; padding stays 0."""
    begins = (info.positions % chunk == 0).astype(jnp.int32)
    ids = jnp.cumsum(begins, axis=1) + 1
    return ids if info.segment_ids is None else jnp.where(info.segment_ids == 0, 0, ids)


def with_chunked(old: Any) -> ChunkedAttention.Config:
    """Return the config that takes the place of attention over full documents."""
    return ChunkedAttention.Config(core=old)


class AttentionSinks(Module):
    """Let each head attend to nothing, by as much as it learns.

    A weight of minus infinity is not a sink. Learned in float32, zero at first.

    Source: Xiao et al. 2023, arXiv:2309.17453, section 3.3 (the zero sink, with a learned logit);
    OpenAI 2025 (gpt-oss), arXiv:2508.10925, section 2.2. Slot protocol: the parent fills
    `num_heads`.
    """

    @config
    class Config(Module.Config["AttentionSinks"]):
        """The config of `AttentionSinks`.

        Args:
            num_heads: Number of query heads.
            core: Weighs the values by keys and sinks.
        """

        SEES_ROW_OFFSETS: ClassVar[bool] = True

        num_heads: PositiveInt = REQUIRED
        core: Module.Config = DotProductAttention.Config()

    def setup(self, cfg: Config) -> None:
        """Declare the sinks and build the core."""
        refuse_second(AttentionSinks, cfg.core)
        self.sinks = Param((cfg.num_heads,), axes=("heads",), init=0.0, cast=False)
        self.core = cfg.core.build(num_heads=cfg.num_heads)

    def forward(self, q: Any, k: Any, v: Any, info: TokenInfo, **options: Any) -> Any:
        """Return each query's weighted mean of values; the weights' sum is less than one."""
        return self.core(q, k, v, info, sinks_N=self.sinks, **options)


def with_sinks(old: Any) -> AttentionSinks.Config:
    """Return the config that takes the place of attention without sinks."""
    return AttentionSinks.Config(core=old)


def with_soft_cap(old: Any) -> Any:
    """Return the attention with its logits capped at 50, by `50 * tanh(logits / 50)`.

    Source: Gemma Team 2024, arXiv:2408.00118, section 2.

    Raises:
        ConfigError: Its logits are capped already.
    """
    if old.soft_cap is not None:
        raise ConfigError(
            f"soft_cap is {old.soft_cap} already", hint="set another value: **.core.soft_cap=..."
        )
    return evolve(old, soft_cap=50.0)


class ALiBi(Module):
    """Add `-slope * distance` to the logits of each head, in place of other positions.

    Softmax does not see what is added to a full row of logits, so under causality the bias
    `slope * key position` does the same. It has one value per key, not per pair, and costs no
    quadratic memory. A sink would see the difference, and is refused.

    Source: Press et al. 2021, arXiv:2108.12409, section 3. Slot protocol: the parent fills
    `num_heads`. Use it with `NoPosition`.
    """

    @config
    class Config(Module.Config["ALiBi"]):
        """The config of an `ALiBi`.

        Args:
            num_heads: Number of query heads.
            core: Weighs the values by keys and bias; causal.
        """

        num_heads: PositiveInt = REQUIRED
        core: Module.Config = DotProductAttention.Config()

    def setup(self, cfg: Config) -> None:
        """Build the core and compute the slopes."""
        refuse_second(ALiBi, cfg.core)
        if find_config(cfg.core, lambda node: not getattr(node, "is_causal", True)):
            raise ConfigError(
                "ALiBi wraps attention that is not causal, where distances have two sides",
                hint="set is_causal=True in its core",
            )
        if find_config(cfg.core, sees_row_offsets):
            raise _refused_sinks()
        self.slopes = alibi_slopes(cfg.num_heads)
        self.core = cfg.core.build(num_heads=cfg.num_heads)

    def forward(self, q: Any, k: Any, v: Any, info: TokenInfo, **options: Any) -> Any:
        """Return each query's weighted mean of values, near ones weighing more."""
        if "sinks_N" in options:
            raise _refused_sinks()
        # A bias by key position: for one query it differs from `-slope * distance` by a constant,
        # which softmax does not see.
        places = info.key_positions(k.shape[1]).astype(jnp.float32)[:, None, None, :]
        bias_BN1S: Float[Array, "batch heads 1 keys"] = self.slopes * places
        return self.core(q, k, v, info, bias_BNTS=bias_BN1S, **options)


def alibi_slopes(num_heads: int) -> np.ndarray:
    """Return the slope of each head, float32 `[1, heads, 1, 1]`.

    `2 ** (-8 i / n)` for `n` heads where `n` is a power of two. Otherwise those of the power of two
    below, and then every second one of the power of two above, as the authors' program has it.
    """
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = _geometric(power)
    if power < num_heads:
        slopes = np.concatenate([slopes, _geometric(2 * power)[::2][: num_heads - power]])
    return slopes.astype(np.float32)[None, :, None, None]


def _geometric(count: int) -> np.ndarray:
    return np.asarray(2.0 ** (-8.0 * np.arange(1, count + 1) / count))


def _refused_sinks() -> ConfigError:
    return ConfigError(
        "ALiBi and sinks are applied to one attention; the sinks would be weighed by how late a "
        "query comes",
        hint="take one of them",
    )


def with_alibi(old: Any) -> ALiBi.Config:
    """Return the config that takes the place of attention without a bias."""
    return ALiBi.Config(core=old)
