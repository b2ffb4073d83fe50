"""Norms, dropout, and the residual connections that are made of them."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from axcore.config import REQUIRED, Fraction, PositiveFloat, PositiveInt, config
from axcore.errors import ConfigError
from axcore.layers.linear import as_row
from axcore.module import Module, Param
from axcore.ops import rms_norm


class RMSNorm(Module):
    """`x / sqrt(mean(x^2) + epsilon) * weight`.

    Source: Zhang and Sennrich 2019, arXiv:1910.07467, eq. 4. Slot protocol: the parent fills `dim`.
    """

    @config
    class Config(Module.Config["RMSNorm"]):
        """The config of an `RMSNorm`.

        Args:
            dim: Size of the last dimension.
            epsilon: Added to the mean square.
            weight_offset: Added to the stored weight; 1 stores the difference from one.
        """

        dim: PositiveInt = REQUIRED
        epsilon: PositiveFloat = 1e-6
        weight_offset: float = 0.0

    def setup(self, cfg: Config) -> None:
        """Declare the weight, which is one at first."""
        init = 1.0 - cfg.weight_offset
        self.weight = Param((cfg.dim,), axes=("norm",), init=init, cast=False)

    def forward(self, x: Float[Array, "*batch dim"]) -> Float[Array, "*batch dim"]:
        """Return the normalised input in the input's dtype."""
        cfg = self.config
        return rms_norm(x, self.weight, epsilon=cfg.epsilon, scale_offset=cfg.weight_offset)


class LayerNorm(Module):
    """`(x - mean) / sqrt(variance + epsilon) * weight + bias`.

    Source: Ba et al. 2016, arXiv:1607.06450, eq. 4. Slot protocol: the parent fills `dim`.
    """

    @config
    class Config(Module.Config["LayerNorm"]):
        """The config of a `LayerNorm`.

        Args:
            dim: Size of the last dimension.
            epsilon: Added to the variance.
            has_bias: Whether a bias is added.
        """

        dim: PositiveInt = REQUIRED
        epsilon: PositiveFloat = 1e-5
        has_bias: bool = True

    def setup(self, cfg: Config) -> None:
        """Declare the weight, one at first, and the bias, zero."""
        self.weight = Param((cfg.dim,), axes=("norm",), init=1.0, cast=False)
        if cfg.has_bias:
            self.bias = Param((cfg.dim,), axes=("norm",), init=0.0, cast=False)

    def forward(self, x: Float[Array, "*batch dim"]) -> Float[Array, "*batch dim"]:
        """Return the normalised input in the input's dtype."""
        # In 16 bits a sum over a long row would lose most of its digits.
        x32 = x.astype(jnp.float32)
        centred = x32 - jnp.mean(x32, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
        normed = centred * jax.lax.rsqrt(variance + self.config.epsilon)
        normed = normed * as_row(self.weight.astype(jnp.float32), x.ndim)
        if self.config.has_bias:
            normed = normed + as_row(self.bias.astype(jnp.float32), x.ndim)
        return normed.astype(x.dtype)


class NoNorm(Module):
    """Leave the input as it is. Slot protocol: the parent fills `dim`."""

    @config
    class Config(Module.Config["NoNorm"]):
        """The config of a `NoNorm`."""

        dim: PositiveInt = REQUIRED

    def forward(self, x: Float[Array, "*batch dim"]) -> Float[Array, "*batch dim"]:
        """Return the input."""
        return x


class Dropout(Module):
    """Zero elements with probability `rate` in training, and scale the others up.

    Source: Srivastava et al. 2014, JMLR 15, section 10 (inverted form).
    """

    @config
    class Config(Module.Config["Dropout"]):
        """The config of a `Dropout`; a rate of 0 does nothing and uses no random key."""

        rate: Fraction = 0.0

    def forward(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return the input with elements dropped, or as it is outside of training."""
        rate = self.config.rate
        if rate == 0.0 or not self.training:
            return x
        keep = jax.random.bernoulli(self.rng("dropout"), 1.0 - rate, self.kept_together(x.shape))
        return jnp.where(keep, x / jnp.asarray(1.0 - rate, x.dtype), jnp.zeros((), x.dtype))

    def kept_together(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the choices: one for each element."""
        return shape


class StochasticDepth(Dropout):
    """Zero all of a row with probability `rate` in training, and scale the other rows up.

    In a residual connection a row skips the branch: `PreNorm.Config(dropout=
    StochasticDepth.Config(rate=0.1))`.

    Source: Huang et al. 2016, arXiv:1603.09382.
    """

    @config
    class Config(Dropout.Config):
        """The config of a `StochasticDepth`."""

    def kept_together(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return one choice for each row."""
        return (shape[0], *(1 for _ in shape[1:]))


class GroupNorm(Module):
    """Normalise groups of channels over all places of a row, times a weight, plus a bias.

    Source: Wu and He 2018, arXiv:1803.08494, eq. 7. Slot protocol: the parent fills `dim`.
    """

    @config
    class Config(Module.Config["GroupNorm"]):
        """The config of a `GroupNorm`.

        Args:
            dim: Size of the last dimension, the channels.
            num_groups: Groups of channels.
            epsilon: Added to the variance.
        """

        dim: PositiveInt = REQUIRED
        num_groups: PositiveInt = 32
        epsilon: PositiveFloat = 1e-5

    def setup(self, cfg: Config) -> None:
        """Declare the weight, one at first, and the bias, zero."""
        if cfg.dim % cfg.num_groups:
            raise ConfigError(
                f"dim is {cfg.dim}, not a multiple of num_groups, {cfg.num_groups}",
                where="num_groups",
                hint="num_groups=1 normalises all channels together, num_groups=dim each alone",
            )
        self.weight = Param((cfg.dim,), axes=("norm",), init=1.0, cast=False)
        self.bias = Param((cfg.dim,), axes=("norm",), init=0.0, cast=False)

    def forward(
        self,
        x: Float[Array, "batch *places dim"],
        is_real: Bool[Array, "batch *places"] | None = None,
    ) -> Float[Array, "batch *places dim"]:
        """Return the normalised input in the input's dtype.

        Args:
            x: The input.
            is_real: Which places count in mean and variance; None where all do.
        """
        cfg = self.config
        grouped = x.astype(jnp.float32).reshape(
            x.shape[0], -1, cfg.num_groups, x.shape[-1] // cfg.num_groups
        )
        counted = None if is_real is None else is_real.reshape(x.shape[0], -1, 1, 1)
        mean, variance = _moments(grouped, (1, 3), counted)
        normed = ((grouped - mean) * jax.lax.rsqrt(variance + cfg.epsilon)).reshape(x.shape)
        weight, bias = self.weight.astype(jnp.float32), self.bias.astype(jnp.float32)
        return (normed * as_row(weight, x.ndim) + as_row(bias, x.ndim)).astype(x.dtype)


def _moments(
    x: Float[Array, "..."], axes: tuple[int, ...], counted: Bool[Array, "..."] | None
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Return mean and variance over axes, which stay with size 1; zeros where nothing counts."""
    if counted is None:
        return jnp.mean(x, axes, keepdims=True), jnp.var(x, axes, keepdims=True)
    is_counted = jnp.broadcast_to(counted, x.shape)
    # A row of padding has nothing that counts, and the mean of nothing would be NaN.
    count = jnp.maximum(jnp.sum(is_counted, axes, jnp.float32, keepdims=True), 1)
    mean = jnp.sum(jnp.where(is_counted, x, 0), axes, keepdims=True) / count
    squared = jnp.where(is_counted, jnp.square(x - mean), 0)
    return mean, jnp.sum(squared, axes, keepdims=True) / count


class BatchNorm(Module):
    """Normalise each channel over a batch; outside of training by running statistics.

    Statistics are of the global batch, also where it is split over devices; micro-batches have
    their own, and their running statistics are averaged.

    Source: Ioffe and Szegedy 2015, arXiv:1502.03167, algorithms 1 and 2. Slot protocol: the parent
    fills `dim`.
    """

    @config
    class Config(Module.Config["BatchNorm"]):
        """The config of a `BatchNorm`.

        Args:
            dim: Size of the last dimension, the channels.
            epsilon: Added to the variance.
            decay: Share of the running statistics that a step keeps.
        """

        dim: PositiveInt = REQUIRED
        epsilon: PositiveFloat = 1e-5
        decay: Fraction = 0.9

    def setup(self, cfg: Config) -> None:
        """Declare weight and bias, and the running statistics."""
        self.weight = Param((cfg.dim,), axes=("norm",), init=1.0, cast=False)
        self.bias = Param((cfg.dim,), axes=("norm",), init=0.0, cast=False)
        self.mean = Param((cfg.dim,), axes=("norm",), init=0.0, is_buffer=True)
        self.variance = Param((cfg.dim,), axes=("norm",), init=1.0, is_buffer=True)

    def forward(
        self,
        x: Float[Array, "batch *places dim"],
        is_real: Bool[Array, "batch *places"] | None = None,
    ) -> Float[Array, "batch *places dim"]:
        """Return the normalised input in the input's dtype.

        Args:
            x: The input.
            is_real: Which places count in mean and variance; None where all do.
        """
        x32, mean, variance = x.astype(jnp.float32), self.mean, self.variance
        if self.training:
            axes = tuple(range(x.ndim - 1))
            counted = None if is_real is None else is_real[..., None]
            mean, variance = (one.reshape(-1) for one in _moments(x32, axes, counted))
            kept = self.config.decay
            self.update("mean", kept * self.mean + (1 - kept) * mean)
            self.update("variance", kept * self.variance + (1 - kept) * variance)
        scale = jax.lax.rsqrt(variance + self.config.epsilon) * self.weight.astype(jnp.float32)
        shift = self.bias.astype(jnp.float32) - mean * scale
        return (x32 * as_row(scale, x.ndim) + as_row(shift, x.ndim)).astype(x.dtype)


Hidden = Float[Array, "batch time dim"]
_Branch = Callable[[Hidden], Hidden]


class Residual(Module):
    """A norm, a dropout, and a branch between them. Slot protocol: the parent fills `dim`.

    A subclass says in which order: `forward(x, branch)`.
    """

    @config
    class Config(Module.Config["Residual"]):
        """The config of a residual connection."""

        dim: PositiveInt = REQUIRED
        norm: Module.Config = RMSNorm.Config()
        dropout: Dropout.Config = Dropout.Config()

    def setup(self, cfg: Config) -> None:
        """Build the norm and the dropout."""
        self.norm = cfg.norm.build(dim=cfg.dim)
        self.dropout = cfg.dropout.build()


class PreNorm(Residual):
    """`x + dropout(branch(norm(x)))`.

    Source: Xiong et al. 2020, arXiv:2002.04745, figure 1b.
    """

    def forward(self, x: Hidden, branch: _Branch) -> Hidden:
        """Return the input with what the branch makes of it added."""
        return x + self.dropout(branch(self.norm(x)))


class PostNorm(Residual):
    """`norm(x + dropout(branch(x)))`.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.1.
    """

    def forward(self, x: Hidden, branch: _Branch) -> Hidden:
        """Return the normalised sum of the input and what the branch makes of it."""
        return self.norm(x + self.dropout(branch(x)))
