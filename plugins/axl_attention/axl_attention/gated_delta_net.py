"""`GatedDeltaNet`: a memory that tokens overwrite mixes them, in time that grows with the row."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveInt, config
from axcore.errors import ConfigError
from axcore.layers import Linear, NoStateCache, RMSNorm, TokenInfo, shard
from axcore.module import Module, Param
from axl_attention.mamba2 import LogOfUniform
from axl_attention.recurrence import CausalConv, DeltaInputs, delta_rule

_EPSILON = 1e-6
"""Added to the square of the length of queries and keys."""


class GatedDeltaNet(Module):
    """Projections, short convolutions, the delta rule, and a norm whose output is gated.

    Documents of a row do not see each other. Sums and the memory are float32.

    Source: Yang et al. 2024, arXiv:2412.06464, section 3.4 and figure 1. Slot protocol: the parent
    fills `dim`.
    """

    @config
    class Config(Module.Config["GatedDeltaNet"]):
        """The config of a `GatedDeltaNet`.

        Args:
            dim: Size of the last dimension of input and output.
            num_key_heads: Number of heads of queries and of keys.
            num_value_heads: Number of heads of values, in groups with a key each.
            key_dim: Size of a head of queries or keys.
            value_dim: Size of a head of values.
            chunk: Tokens that are computed at once.
            linear: Used for the projections of the input.
            out_linear: Used for the output projection.
            conv: Used for queries, keys and values, each with weights of its own.
            norm: Used for each head of the output.
            state_cache: Keeps the memory of each row where the model serves.
        """

        dim: PositiveInt = REQUIRED
        num_key_heads: PositiveInt = REQUIRED
        num_value_heads: PositiveInt = REQUIRED
        key_dim: PositiveInt = 128
        value_dim: PositiveInt = 128
        chunk: PositiveInt = 64
        linear: Module.Config = Linear.Config()
        out_linear: Module.Config = Linear.Config()
        conv: Module.Config = CausalConv.Config(has_bias=False)
        norm: Module.Config = RMSNorm.Config()
        state_cache: Module.Config = NoStateCache.Config()

    def setup(self, cfg: Config) -> None:
        """Build the parts, and declare what each head has of its own."""
        if cfg.num_value_heads % cfg.num_key_heads:
            raise ConfigError(
                f"num_value_heads is {cfg.num_value_heads}, not a multiple of num_key_heads, "
                f"{cfg.num_key_heads}"
            )
        keys, values = cfg.num_key_heads * cfg.key_dim, cfg.num_value_heads * cfg.value_dim
        self.q, self.k = self._projection(keys, "heads"), self._projection(keys, "heads")
        self.v, self.z = self._projection(values, "heads"), self._projection(values, "heads")
        self.a = self._projection(cfg.num_value_heads, None)
        self.b = self._projection(cfg.num_value_heads, None)
        self.conv_q, self.conv_k, self.conv_v = (
            cfg.conv.build(dim=size, axis="heads") for size in (keys, keys, values)
        )
        heads = {"shape": (cfg.num_value_heads,), "axes": (None,), "cast": False}
        self.a_log = Param(**heads, init=LogOfUniform(low=0.01))
        self.dt_bias = Param(**heads, init=1.0)
        self.norm = cfg.norm.build(dim=cfg.value_dim)
        groups = (cfg.num_key_heads, cfg.num_value_heads // cfg.num_key_heads)
        self.state_cache = cfg.state_cache.build(shape=(*groups, cfg.key_dim, cfg.value_dim))
        self.out = cfg.out_linear.build(in_dim=values, out_dim=cfg.dim, axes=("heads", "embed"))

    def forward(
        self, x: Float[Array, "batch time dim"], info: TokenInfo
    ) -> Float[Array, "batch time dim"]:
        """Return the output of each token, from it and those before it."""
        cfg = self.config
        before = self.state_cache.before(info, jnp.float32)
        mixed, after = delta_rule(self._inputs(x, info), before, chunk=cfg.chunk)
        self.state_cache.after(after, info)
        heads = (*x.shape[:2], cfg.num_value_heads, cfg.value_dim)
        normed = self.norm(mixed.astype(x.dtype).reshape(heads))
        gate = jax.nn.silu(shard(self.z(x), "batch", "time", "heads").astype(jnp.float32))
        gated = normed.reshape(gate.shape).astype(jnp.float32) * gate
        return self.out(gated.astype(x.dtype))

    def _projection(self, out_dim: int, axis: str | None) -> Any:
        cfg = self.config
        return cfg.linear.build(in_dim=cfg.dim, out_dim=out_dim, axes=("embed", axis))

    def _inputs(self, x: Any, info: TokenInfo) -> DeltaInputs:
        cfg, rows = self.config, x.shape[:2]
        groups = (*rows, cfg.num_key_heads, cfg.num_value_heads // cfg.num_key_heads)
        q, k, v = (
            jax.nn.silu(conv(shard(linear(x), "batch", "time", "heads"), info)).astype(jnp.float32)
            for conv, linear in (
                (self.conv_q, self.q),
                (self.conv_k, self.k),
                (self.conv_v, self.v),
            )
        )
        steps = self.a(x).astype(jnp.float32) + self.dt_bias.astype(jnp.float32)[None, None]
        rate = jnp.exp(self.a_log.astype(jnp.float32))[None, None]
        log_decay = -rate * jax.nn.softplus(steps)
        beta, segments = jax.nn.sigmoid(self.b(x).astype(jnp.float32)), info.segment_ids
        # Where it serves, padding is at the end of a row whose memory is kept: with no decay and no
        # step it leaves the memory as it is. Documents are not packed there.
        if info.num_cached is not None and segments is not None:
            is_new = segments[:, :, None] > 0
            log_decay, beta = (jnp.where(is_new, one, 0.0) for one in (log_decay, beta))
            segments = None
        return DeltaInputs(
            _unit(q.reshape(*groups[:3], cfg.key_dim)) * cfg.key_dim**-0.5,
            _unit(k.reshape(*groups[:3], cfg.key_dim)),
            v.reshape(*groups, cfg.value_dim),
            log_decay.reshape(groups),
            beta.reshape(groups),
            jnp.zeros(rows, jnp.int32) if segments is None else segments,
        )


def _unit(x: Float[Array, "*batch dim"]) -> Float[Array, "*batch dim"]:
    return x * jax.lax.rsqrt(jnp.sum(jnp.square(x), axis=-1, keepdims=True) + _EPSILON)
