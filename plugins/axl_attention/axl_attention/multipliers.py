"""Layers of Falcon-H1: parts whose outputs are multiplied by constants.

Attention and a state space read the same tokens side by side (`ParallelMixers`).
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveInt, config
from axcore.errors import ConfigError
from axcore.layers import Attention, FeedForward, RoPE, TokenInfo, activation_fn, shard
from axcore.module import Module
from axl_attention.mamba2 import Mamba2
from axl_attention.positions import refuse_second

Tokens = Float[Array, "batch time dim"]


class ParallelMixers(Module):
    """`attention(a x) b + memory(c x) d` in the place of attention.

    Source: Falcon LLM Team 2025, arXiv:2507.22448, section 2.1. Slot protocol: the parent fills
    `dim`.
    """

    @config
    class Config(Module.Config["ParallelMixers"]):
        """The config of `ParallelMixers`.

        Args:
            dim: Size of the last dimension of input and output.
            attention: One of the two; called with the token info.
            memory: The other one.
            attention_in: On the input of attention.
            attention_out: On its output.
            memory_in: On the input of the other one.
            memory_out: On its output.
        """

        dim: PositiveInt = REQUIRED
        attention: Module.Config = Attention.Config()
        memory: Module.Config = REQUIRED
        attention_in: float = 1.0
        attention_out: float = 1.0
        memory_in: float = 1.0
        memory_out: float = 1.0

    def setup(self, cfg: Config) -> None:
        """Build both."""
        self.attention = cfg.attention.build(dim=cfg.dim)
        self.memory = cfg.memory.build(dim=cfg.dim)

    def forward(self, x: Tokens, info: TokenInfo) -> Tokens:
        """Return the sum of what both make of the tokens."""
        cfg = self.config
        remembered = self.memory(x * cfg.memory_in, info) * cfg.memory_out
        attended: Tokens = self.attention(x * cfg.attention_in, info) * cfg.attention_out
        return attended + remembered


class ScaledMamba2(Mamba2):
    """A `Mamba2` whose five projections are multiplied by constants.

    Source: Falcon LLM Team 2025, arXiv:2507.22448, section 3.2. Slot protocol: the parent fills
    `dim`.
    """

    @config
    class Config(Mamba2.Config):
        """The config of a `ScaledMamba2`.

        Args:
            factors: On the gate, the input, `b`, `c` and the steps.
        """

        factors: tuple[float, ...] = (1.0,) * 5

    def setup(self, cfg: Config) -> None:
        """Build the parts."""
        _check_count(cfg.factors, 5)
        super().setup(cfg)

    def projected(self, part: str, x: Any) -> Any:
        """Return a projection of the tokens, multiplied."""
        factor = self.config.factors[("z", "x", "b", "c", "dt").index(part)]
        return super().projected(part, x) * factor


class ScaledFeedForward(FeedForward):
    """`b down(act(a gate(x)) up(x))`.

    Source: Falcon LLM Team 2025, arXiv:2507.22448, section 3.2. Slot protocol: the parent fills
    `dim`.
    """

    @config
    class Config(FeedForward.Config):
        """The config of a `ScaledFeedForward`.

        Args:
            factors: On the gate, and on the output.
        """

        factors: tuple[float, ...] = (1.0, 1.0)

    def setup(self, cfg: Config) -> None:
        """Build the projections."""
        _check_count(cfg.factors, 2)
        super().setup(cfg)

    def forward(self, x: Tokens) -> Tokens:
        """Return the output for each token on its own."""
        gate, out = self.config.factors
        hidden = activation_fn(self.config.activation)(self.gate(x) * gate) * self.up(x)
        scaled: Tokens = self.down(shard(hidden, "batch", "time", "mlp")) * out
        return scaled


class ScaledKeys(Module):
    """Positions, and keys multiplied by a constant.

    Source: Falcon LLM Team 2025, arXiv:2507.22448, section 3.2. Slot protocol: the parent fills
    `head_dim`.
    """

    @config
    class Config(Module.Config["ScaledKeys"]):
        """The config of `ScaledKeys`.

        Args:
            head_dim: Size of a head.
            factor: On keys.
            inner: The positions.
        """

        head_dim: PositiveInt = REQUIRED
        factor: float = 1.0
        inner: Module.Config = RoPE.Config()

    def setup(self, cfg: Config) -> None:
        """Build the positions."""
        refuse_second(ScaledKeys, cfg.inner)
        self.inner = cfg.inner.build(head_dim=cfg.head_dim)

    def forward(self, q: Any, k: Any, positions: Any) -> tuple[Any, Any]:
        """Return queries and keys with positions, each in its dtype."""
        q, k = self.inner(q, k, positions)
        return q, (k.astype(jnp.float32) * self.config.factor).astype(k.dtype)


class NoNorm(Module):
    """What is given, as it is. Slot protocol: the parent fills both sizes."""

    @config
    class Config(Module.Config["NoNorm"]):
        """The config of a `NoNorm`.

        Args:
            dim: Size of the last dimension.
            num_groups: Number of parts.
        """

        dim: PositiveInt = REQUIRED
        num_groups: PositiveInt = REQUIRED

    def forward(self, x: Tokens) -> Tokens:
        """Return the input."""
        return x


def _check_count(factors: tuple[float, ...], count: int) -> None:
    if len(factors) != count:
        raise ConfigError(
            f"there are {len(factors)} factors; expected {count}",
            where="factors",
            hint=f"factors={(1.0,) * count}",
        )
