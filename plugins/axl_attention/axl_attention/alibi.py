"""`ALiBi`: attention that likes near keys better, by a slope per head."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveInt, config, find_config
from axcore.errors import ConfigError
from axcore.layers import DotProductAttention, TokenInfo
from axcore.module import Module
from axl_attention.wrapping import refuse_second, sees_row_offsets


class ALiBi(Module):
    """Adds `-slope * distance` to the logits of each head, in place of other positions.

    Softmax does not see what is added to a whole row of logits, so under causality the bias
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
        """Build the core and computes the slopes."""
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


def in_place_of(old: Any) -> ALiBi.Config:
    """Return the config that takes the place of attention without a bias."""
    return ALiBi.Config(core=old)
