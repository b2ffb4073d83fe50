"""`Mamba`: the first selective state space, in which every channel fades in its own way.

Letters: B batch, T time, C chunk, D channels, N numbers that are kept of a channel.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from axcore.config import REQUIRED, PositiveInt, config
from axcore.layers import Linear, NoStateCache, TokenInfo, shard
from axcore.module import Initializer, Module, Param
from axl_attention.mamba2 import StepBias
from axl_attention.recurrence import CausalConv, in_chunks


@config
class LogOfNumbers(Initializer):
    """The logarithms of 1, 2, ..., along the last dimension."""

    def sample(self, key: Array, shape: tuple[int, ...], fans: tuple[int, int]) -> Array:
        """Return the logarithms."""
        return jnp.broadcast_to(jnp.log(jnp.arange(1.0, shape[-1] + 1)), shape)


class Mamba(Module):
    """Projections, a short convolution, a selective scan, and a gate.

    Documents of a row do not see each other. Sums and states are float32.

    Source: Gu and Dao 2023, arXiv:2312.00752, sections 3.2 and 3.4. Slot protocol: the parent fills
    `dim`.
    """

    @config
    class Config(Module.Config["Mamba"]):
        """The config of a `Mamba`.

        Args:
            dim: Size of the last dimension of input and output.
            inner_dim: Number of channels.
            step_rank: Numbers that step sizes are made of.
            state_dim: Numbers that are kept of each channel.
            chunk: Tokens that are computed at once.
            linear: Used for the projections of the input.
            out_linear: Used for the output projection.
            conv: Used for the channels.
            state_cache: Keeps the state of each row where the model serves.
        """

        dim: PositiveInt = REQUIRED
        inner_dim: PositiveInt = REQUIRED
        step_rank: PositiveInt = REQUIRED
        state_dim: PositiveInt = 16
        chunk: PositiveInt = 64
        linear: Module.Config = Linear.Config()
        out_linear: Module.Config = Linear.Config()
        conv: Module.Config = CausalConv.Config()
        state_cache: Module.Config = NoStateCache.Config()

    def setup(self, cfg: Config) -> None:
        """Build the parts, and declare what each channel has of its own."""
        inner, into = cfg.inner_dim, {"in_dim": cfg.dim, "axes": ("embed", "heads")}
        self.x, self.z = (cfg.linear.build(out_dim=inner, **into) for _ in range(2))
        self.conv = cfg.conv.build(dim=inner, axis="heads")
        small = Linear.Config()
        widths = (cfg.step_rank, cfg.state_dim, cfg.state_dim)
        self.step, self.b, self.c = (
            small.build(in_dim=inner, out_dim=width, axes=("heads", None)) for width in widths
        )
        self.dt = small.build(in_dim=cfg.step_rank, out_dim=inner, axes=(None, "heads"))
        self.dt_bias = Param((inner,), axes=("heads",), cast=False, init=StepBias())
        shape = (inner, cfg.state_dim)
        self.a_log = Param(shape, axes=("heads", None), cast=False, init=LogOfNumbers())
        self.d = Param((inner,), axes=("heads",), cast=False, init=1.0)
        self.state_cache = cfg.state_cache.build(shape=shape)
        self.out = cfg.out_linear.build(in_dim=inner, out_dim=cfg.dim, axes=("heads", "embed"))

    def forward(
        self, x: Float[Array, "batch time dim"], info: TokenInfo
    ) -> Float[Array, "batch time dim"]:
        """Return the output of each token, from it and those before it."""
        gate = jax.nn.silu(shard(self.z(x), "batch", "time", "heads"))
        channels = jax.nn.silu(self.conv(shard(self.x(x), "batch", "time", "heads"), info))
        wide = channels.astype(jnp.float32)
        b, c = (part(channels).astype(jnp.float32) for part in (self.b, self.c))
        dt = self.dt(self.step(channels)).astype(jnp.float32)
        dt = jax.nn.softplus(dt + self.dt_bias.astype(jnp.float32)[None, None])
        segments = info.segment_ids
        begins = jnp.zeros(x.shape[:2], bool)
        if info.num_cached is not None and segments is not None:
            # Padding at the end of a row whose state is kept: a step of 0 leaves it as it is.
            dt = jnp.where(segments[:, :, None] > 0, dt, 0.0)
        elif segments is not None:
            begins = begins.at[:, 1:].set(segments[:, 1:] != segments[:, :-1])
        a = -jnp.exp(self.a_log.astype(jnp.float32))
        before = self.state_cache.before(info, jnp.float32)
        if before is None:
            before = jnp.zeros((x.shape[0], *a.shape), jnp.float32)
        read, after = selective_scan((dt, wide, b, c, begins), a, before, chunk=self.config.chunk)
        self.state_cache.after(after, info)
        mixed = read + self.d.astype(jnp.float32)[None, None] * wide
        return self.out(mixed.astype(x.dtype) * gate)


Scanned = tuple[
    Float[Array, "B T D"],
    Float[Array, "B T D"],
    Float[Array, "B T N"],
    Float[Array, "B T N"],
    Bool[Array, "B T"],
]
"""The size of each step, what enters, in which direction, which one is read, and whether a document
begins."""


def selective_scan(
    inputs: Scanned, a: Float[Array, "D N"], state: Float[Array, "B D N"], *, chunk: int
) -> tuple[Float[Array, "B T D"], Float[Array, "B D N"]]:
    """Return `c h` of every token and the last `h`, where `h = exp(dt a) h + dt b x`.

    The first `h` is of `state`, of the first token's document. States of one chunk are in memory
    together, and are computed again in the backward pass.

    Source: Gu and Dao 2023, arXiv:2312.00752, algorithm 2.
    """
    batch, time, width = inputs[0].shape
    chunks = tuple(in_chunks(array, min(chunk, time)) for array in inputs)

    @jax.checkpoint
    def step(state_BDN: Array, one: Scanned) -> tuple[Array, Array]:
        dt, x, b, c, begins = one
        decay_BCDN = jnp.exp(dt[..., None] * a[None, None])
        decay_BCDN = jnp.where(begins[:, :, None, None], 0.0, decay_BCDN)
        entered_BCDN = (dt * x)[..., None] * b[:, :, None]
        kept, inside = jax.lax.associative_scan(_both, (decay_BCDN, entered_BCDN), axis=1)
        states_BCDN = inside + kept * state_BDN[:, None]
        return states_BCDN[:, -1], jnp.einsum("bcdn,bcn->bcd", states_BCDN, c)

    state, y = jax.lax.scan(step, state, chunks)
    return jnp.moveaxis(y, 0, 1).reshape(batch, -1, width)[:, :time], state


def _both(one: tuple[Array, Array], then: tuple[Array, Array]) -> tuple[Array, Array]:
    """Return the step that does what two do: how much is kept, and what is added."""
    return one[0] * then[0], one[1] * then[0] + then[1]
