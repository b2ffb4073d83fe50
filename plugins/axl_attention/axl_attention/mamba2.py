"""`Mamba2`: a selective state space mixes tokens, at a cost that grows with the time alone."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveFloat, PositiveInt, config
from axcore.errors import ConfigError
from axcore.layers import Linear, NoStateCache, TokenInfo, shard
from axcore.module import Initializer, Module, Param
from axl_attention.norms import GroupedRMSNorm
from axl_attention.recurrence import CausalConv, Inputs, state_space


@config
class LogOfUniform(Initializer):
    """The logarithm of what is uniform between two numbers."""

    low: float = 1.0
    high: float = 16.0

    def sample(self, key: Array, shape: tuple[int, ...], fans: tuple[int, int]) -> Array:
        """Return samples."""
        return jnp.log(jax.random.uniform(key, shape, jnp.float32, self.low, self.high))


@config
class StepBias(Initializer):
    """What softplus makes step sizes of, whose logarithms are uniform."""

    smallest: float = 1e-3
    largest: float = 0.1

    def sample(self, key: Array, shape: tuple[int, ...], fans: tuple[int, int]) -> Array:
        """Return samples."""
        low, high = jnp.log(self.smallest), jnp.log(self.largest)
        steps = jnp.exp(jax.random.uniform(key, shape, jnp.float32, low, high))
        return steps + jnp.log(-jnp.expm1(-steps))


class Mamba2(Module):
    """Projections, a short convolution, a state space, and a gated norm.

    Documents of a row do not see each other. Sums and states are float32.

    Source: Dao and Gu 2024, arXiv:2405.21060, section 7.1 and figure 6. Slot protocol: the parent
    fills `dim`.
    """

    @config
    class Config(Module.Config["Mamba2"]):
        """The config of a `Mamba2`.

        Args:
            dim: Size of the last dimension of input and output.
            num_heads: Number of heads.
            head_dim: Size of a head.
            num_groups: Number of groups of heads; a group has `b` and `c` in common.
            state_dim: Numbers that are kept of each dimension of a head.
            chunk: Tokens that are computed at once.
            linear: Used for the projections of the input.
            out_linear: Used for the output projection.
            conv: Used for `x`, `b` and `c`, each with weights of its own.
            norm: Used for the gated output.
            state_cache: Keeps the state of each row where the model serves.
        """

        dim: PositiveInt = REQUIRED
        num_heads: PositiveInt = REQUIRED
        head_dim: PositiveInt = 64
        num_groups: PositiveInt = 1
        state_dim: PositiveInt = 128
        chunk: PositiveInt = 256
        linear: Module.Config = Linear.Config()
        out_linear: Module.Config = Linear.Config()
        conv: Module.Config = CausalConv.Config()
        norm: Module.Config = GroupedRMSNorm.Config()
        state_cache: Module.Config = NoStateCache.Config()

    def setup(self, cfg: Config) -> None:
        """Build the parts, and declare what each head has of its own."""
        if cfg.num_heads % cfg.num_groups:
            raise ConfigError(
                f"num_heads is {cfg.num_heads}, not a multiple of num_groups, {cfg.num_groups}"
            )
        inner, state = cfg.num_heads * cfg.head_dim, cfg.num_groups * cfg.state_dim
        self.z, self.x = self._projection(inner, "heads"), self._projection(inner, "heads")
        self.b, self.c = self._projection(state, None), self._projection(state, None)
        self.dt = self._projection(cfg.num_heads, None)
        self.conv_x = cfg.conv.build(dim=inner, axis="heads")
        self.conv_b = cfg.conv.build(dim=state, axis=None)
        self.conv_c = cfg.conv.build(dim=state, axis=None)
        heads = {"shape": (cfg.num_heads,), "axes": (None,), "cast": False}
        self.a_log = Param(**heads, init=LogOfUniform())
        self.dt_bias = Param(**heads, init=StepBias())
        self.d = Param(**heads, init=1.0)
        self.norm = cfg.norm.build(dim=inner, num_groups=cfg.num_groups)
        groups = (cfg.num_groups, cfg.num_heads // cfg.num_groups)
        self.state_cache = cfg.state_cache.build(shape=(*groups, cfg.head_dim, cfg.state_dim))
        self.out = cfg.out_linear.build(in_dim=inner, out_dim=cfg.dim, axes=("heads", "embed"))

    def forward(
        self, x: Float[Array, "batch time dim"], info: TokenInfo
    ) -> Float[Array, "batch time dim"]:
        """Return the output of each token, from it and those before it."""
        gate = jax.nn.silu(shard(self.projected("z", x), "batch", "time", "heads"))
        mixed = self._mixed(self._inputs(x, info), info).reshape(gate.shape).astype(x.dtype)
        return self.out(self.norm(mixed * gate))

    def projected(self, part: str, x: Any) -> Any:
        """Return one of the projections of the tokens: `z`, `x`, `b`, `c` or `dt`."""
        return getattr(self, part)(x)

    def _projection(self, out_dim: int, axis: str | None) -> Any:
        cfg = self.config
        return cfg.linear.build(in_dim=cfg.dim, out_dim=out_dim, axes=("embed", axis))

    def _inputs(self, x: Any, info: TokenInfo) -> Inputs:
        cfg, rows = self.config, x.shape[:2]
        groups = (cfg.num_groups, cfg.num_heads // cfg.num_groups)
        inner = shard(self.projected("x", x), "batch", "time", "heads")
        steps = (
            self.projected("dt", x).astype(jnp.float32)
            + self.dt_bias.astype(jnp.float32)[None, None]
        )
        convolved = (
            jax.nn.silu(conv(projected, info)).astype(jnp.float32)
            for conv, projected in (
                (self.conv_x, inner),
                (self.conv_b, self.projected("b", x)),
                (self.conv_c, self.projected("c", x)),
            )
        )
        entering, b, c = convolved
        steps, segments = jax.nn.softplus(steps), info.segment_ids
        # Where it serves, padding is at the end of a row whose state is kept: a step of 0 leaves it
        # as it is. Documents are not packed there.
        if info.num_cached is not None and segments is not None:
            steps, segments = jnp.where(segments[:, :, None] > 0, steps, 0.0), None
        return Inputs(
            entering.reshape(*rows, *groups, cfg.head_dim),
            steps.reshape(*rows, *groups),
            b.reshape(*rows, cfg.num_groups, cfg.state_dim),
            c.reshape(*rows, cfg.num_groups, cfg.state_dim),
            jnp.zeros(rows, jnp.int32) if segments is None else segments,
        )

    def _mixed(
        self, inputs: Inputs, info: TokenInfo
    ) -> Float[Array, "batch time groups heads head_dim"]:
        groups = inputs.dt.shape[2:]
        a = -jnp.exp(self.a_log.astype(jnp.float32)).reshape(groups)
        skipped = self.d.astype(jnp.float32).reshape(1, 1, *groups, 1) * inputs.x
        before = self.state_cache.before(info, jnp.float32)
        read, after = state_space(inputs, a, before, chunk=self.config.chunk)
        self.state_cache.after(after, info)
        return read + skipped


class FlooredMamba2(Mamba2):
    """A `Mamba2` whose steps are never smaller than one size.

    Source: NVIDIA 2025, arXiv:2504.03624, section 2.1, as in transformers. Slot protocol: the
    parent fills `dim`.
    """

    @config
    class Config(Mamba2.Config):
        """The config of a `FlooredMamba2`.

        Args:
            smallest_step: The floor of steps.
        """

        smallest_step: PositiveFloat = 1e-3

    def _inputs(self, x: Any, info: TokenInfo) -> Inputs:
        inputs = super()._inputs(x, info)
        steps = jnp.maximum(inputs.dt, self.config.smallest_step)
        if info.num_cached is not None and info.segment_ids is not None:
            # Padding keeps its step of 0, by which it leaves the state of a row as it is.
            steps = jnp.where(info.segment_ids[:, :, None, None] > 0, steps, 0.0)
        return inputs._replace(dt=steps)
