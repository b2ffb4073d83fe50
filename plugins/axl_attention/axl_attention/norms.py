"""Norms of queries, keys, projections and residuals, and numbers that scale them and logits."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from axcore.config import REQUIRED, PositiveFloat, PositiveInt, config, evolve
from axcore.errors import ConfigError
from axcore.layers import Dropout, Linear, Residual, RMSNorm, RoPE
from axcore.models import UntiedHead
from axcore.module import Module, Param, entry
from axl_attention.wrapping import refuse_second


class QueryKeyNorm(Module):
    """Normalise each head of queries and keys, then give them positions.

    Logits cannot grow without bound, so training bears higher learning rates.

    Source: Henry et al. 2020, arXiv:2010.04245; with weights before RoPE as in Yang et al. 2025
    (Qwen3), arXiv:2505.09388, section 2. Slot protocol: the parent fills `head_dim`.
    """

    @config
    class Config(Module.Config["QueryKeyNorm"]):
        """The config of a `QueryKeyNorm`.

        Args:
            head_dim: Size of a head.
            norm: Used for queries and for keys, each with weights of its own.
            inner: The positions.
        """

        head_dim: PositiveInt = REQUIRED
        norm: Module.Config = RMSNorm.Config()
        inner: Module.Config = RoPE.Config()

    def setup(self, cfg: Config) -> None:
        """Build both norms and the positions."""
        refuse_second(QueryKeyNorm, cfg.inner)
        self.query_norm = cfg.norm.build(dim=cfg.head_dim)
        self.key_norm = cfg.norm.build(dim=cfg.head_dim)
        self.inner = cfg.inner.build(head_dim=cfg.head_dim)

    def forward(self, q: Any, k: Any, positions: Any) -> tuple[Any, Any]:
        """Return queries and keys, normalised, with positions."""
        return self.inner(self.query_norm(q), self.key_norm(k), positions)


def with_query_key_norm(old: Any) -> Any:
    """Return an attention whose queries and keys are normalised before they get positions."""
    return evolve(old, position=QueryKeyNorm.Config(inner=old.position))


Heads = Float[Array, "batch time heads head_dim"]


class UnitQueryKey(Module):
    """Give queries and keys positions, then divide each head by its root mean square.

    Unlike `QueryKeyNorm` it has no weights, and comes behind the positions.

    Source: Henry et al. 2020, arXiv:2010.04245; behind RoPE as in models/llama4/model.py of Meta's
    llama-models, 2025. Slot protocol: the parent fills `head_dim`.
    """

    @config
    class Config(Module.Config["UnitQueryKey"]):
        """The config of a `UnitQueryKey`.

        Args:
            head_dim: Size of a head.
            epsilon: Added to the mean square.
            inner: The positions.
        """

        head_dim: PositiveInt = REQUIRED
        epsilon: PositiveFloat = 1e-5
        inner: Module.Config = RoPE.Config()

    def setup(self, cfg: Config) -> None:
        """Build the positions."""
        refuse_second(UnitQueryKey, cfg.inner)
        self.inner = cfg.inner.build(head_dim=cfg.head_dim)

    def forward(self, q: Heads, k: Heads, positions: Any) -> tuple[Heads, Heads]:
        """Return queries and keys with positions, normalised in float32, each in its dtype."""
        q, k = self.inner(q, k, positions)
        return self._normed(q), self._normed(k)

    def _normed(self, x: Heads) -> Heads:
        wide = x.astype(jnp.float32)
        mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
        return (wide * jax.lax.rsqrt(mean_square + self.config.epsilon)).astype(x.dtype)


def with_unit_query_key(old: Any) -> UnitQueryKey.Config:
    """Return the config that takes the place of positions of heads of any length."""
    return UnitQueryKey.Config(inner=old)


class NormedLinear(Module):
    """`norm(linear(x))`. Slot protocol: the parent fills `in_dim`, `out_dim` and `axes`.

    As the projection of queries and keys it normalises all heads together, where `QueryKeyNorm`
    normalises each by itself.

    Source: Dehghani et al. 2023, arXiv:2302.05442, section 2; over all heads as in OLMo Team 2025,
    arXiv:2501.00656, section 3.1.
    """

    @config
    class Config(Module.Config["NormedLinear"]):
        """The config of a `NormedLinear`.

        Args:
            in_dim: Size of the last dimension of the input.
            out_dim: Size of the last dimension of the output.
            axes: Logical axes of the projection's weight, input first.
            linear: The projection.
            norm: What normalises it.
        """

        in_dim: PositiveInt = REQUIRED
        out_dim: PositiveInt = REQUIRED
        axes: tuple[str | None, str | None] = REQUIRED
        linear: Module.Config = Linear.Config()
        norm: Module.Config = RMSNorm.Config()

    def setup(self, cfg: Config) -> None:
        """Build the projection and the norm."""
        refuse_second(NormedLinear, cfg.linear)
        self.linear = cfg.linear.build(in_dim=cfg.in_dim, out_dim=cfg.out_dim, axes=cfg.axes)
        self.norm = cfg.norm.build(dim=cfg.out_dim)

    def forward(self, x: Float[Array, "*batch in_dim"]) -> Float[Array, "*batch out_dim"]:
        """Return the normalised projection of the last dimension."""
        return self.norm(self.linear(x))


def with_normed_linear(old: Any) -> Any:
    """Return an attention that normalises queries and keys, all heads together."""
    return evolve(
        old,
        linear=NormedLinear.Config(linear=old.linear),
        value_linear=old.value_linear or old.linear,  # values are not normalised
    )


class HeadLayerNorm(Module):
    """`LayerNorm` without a bias over each head, where all heads have weights of their own.

    As the norm of a `NormedLinear` it normalises queries or keys.

    Source: Dehghani et al. 2023, arXiv:2302.05442, section 2.

    Slot protocol: the parent fills `dim`.
    """

    @config
    class Config(Module.Config["HeadLayerNorm"]):
        """The config of a `HeadLayerNorm`.

        Args:
            dim: Size of all heads together.
            head_dim: Size of a head.
            epsilon: Added to the variance.
        """

        dim: PositiveInt = REQUIRED
        head_dim: PositiveInt = REQUIRED
        epsilon: PositiveFloat = 1e-5

    def setup(self, cfg: Config) -> None:
        """Declare the weight, which is one at first."""
        if cfg.dim % cfg.head_dim:
            raise ConfigError(
                f"dim is {cfg.dim}, not a multiple of head_dim, {cfg.head_dim}",
                where="head_dim",
                hint="set head_dim to the size of the attention's heads",
            )
        self.weight = Param((cfg.dim,), axes=("norm",), init=1.0, cast=False)

    def forward(self, x: Float[Array, "batch time dim"]) -> Float[Array, "batch time dim"]:
        """Return the normalised input in the input's dtype; computed in float32."""
        cfg = self.config
        heads = x.astype(jnp.float32).reshape(*x.shape[:-1], -1, cfg.head_dim)
        centred = heads - jnp.mean(heads, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
        normed = (centred * jax.lax.rsqrt(variance + cfg.epsilon)).reshape(x.shape)
        return (normed * self.weight.astype(jnp.float32)[None, None]).astype(x.dtype)


def with_head_norms(head_dim: int) -> Callable[[Any], Any]:
    """Return what makes an attention normalise each head of this size by weights of its own."""
    norm = HeadLayerNorm.Config(head_dim=head_dim)

    def normed(old: Any) -> Any:
        old = with_normed_linear(old)
        return evolve(old, linear=evolve(old.linear, norm=norm))

    return normed


class GroupedRMSNorm(Module):
    """`RMSNorm` over each of `num_groups` parts. Slot protocol: the parent fills both sizes."""

    @config
    class Config(Module.Config["GroupedRMSNorm"]):
        """The config of a `GroupedRMSNorm`.

        Args:
            dim: Size of the last dimension.
            num_groups: Number of parts.
            epsilon: Added to the mean square.
        """

        dim: PositiveInt = REQUIRED
        num_groups: PositiveInt = REQUIRED
        epsilon: PositiveFloat = 1e-5

    def setup(self, cfg: Config) -> None:
        """Declare the weight, which is one at first."""
        self.weight = Param((cfg.dim,), axes=("norm",), init=1.0, cast=False)

    def forward(self, x: Float[Array, "batch time dim"]) -> Float[Array, "batch time dim"]:
        """Return the normalised input in the input's dtype; computed in float32."""
        cfg = self.config
        parts = x.astype(jnp.float32).reshape(*x.shape[:-1], cfg.num_groups, -1)
        mean_square = jnp.mean(jnp.square(parts), axis=-1, keepdims=True)
        normed = (parts * jax.lax.rsqrt(mean_square + cfg.epsilon)).reshape(x.shape)
        return (normed * self.weight.astype(jnp.float32)[None, None]).astype(x.dtype)


Hidden = Float[Array, "batch time dim"]


class SandwichNorm(Module):
    """`x + dropout(norm_after(branch(norm_before(x))))`.

    Source: Ding et al. 2021, arXiv:2105.13290 (Sandwich LayerNorm); Gemma Team 2024,
    arXiv:2408.00118, section 2. Slot protocol: the parent fills `dim`.
    """

    @config
    class Config(Module.Config["SandwichNorm"]):
        """The config of a `SandwichNorm`.

        Args:
            dim: Size of the last dimension.
            norm: Used before and after the branch, each with weights of its own.
            dropout: Applied to what is added.
        """

        dim: PositiveInt = REQUIRED
        norm: Module.Config = RMSNorm.Config()
        dropout: Dropout.Config = Dropout.Config()

    def setup(self, cfg: Config) -> None:
        """Build the norms and the dropout."""
        self.before = cfg.norm.build(dim=cfg.dim)
        self.after = cfg.norm.build(dim=cfg.dim)
        self.dropout = cfg.dropout.build()

    def forward(self, x: Hidden, branch: Callable[[Hidden], Hidden]) -> Hidden:
        """Return the input with what the branch makes of it added."""
        return x + self.dropout(self.after(branch(self.before(x))))


def with_sandwich_norm(old: Any) -> SandwichNorm.Config:
    """Return the config that takes the place of a norm before the branch only."""
    return SandwichNorm.Config(norm=old.norm, dropout=old.dropout)


class ReorderedNorm(Residual):
    """`x + dropout(norm(branch(x)))`.

    Source: Liu et al. 2021, arXiv:2111.09883, section 3.2 (res-post-norm); OLMo Team 2025,
    arXiv:2501.00656, section 3.1.
    """

    def forward(self, x: Hidden, branch: Callable[[Hidden], Hidden]) -> Hidden:
        """Return the input with what the branch makes of it, normalised, added."""
        return x + self.dropout(self.norm(branch(x)))


def with_reordered_norm(old: Any) -> ReorderedNorm.Config:
    """Return the config that takes the place of a norm before the branch."""
    return ReorderedNorm.Config(norm=old.norm, dropout=old.dropout)


Table = Float[Array, "vocab dim"]


class DividedLogits(Module):
    """Another head's logits over `divisor`; it divides the hidden vectors, which are fewer numbers.

    Source: Yang et al. 2022, arXiv:2203.03466, table 8. Slot protocol: the parent fills `dim` and
    `vocab_size`.
    """

    @config
    class Config(Module.Config["DividedLogits"]):
        """The config of a `DividedLogits`.

        Args:
            dim: Size of a hidden vector.
            vocab_size: Number of logits.
            divisor: What logits are divided by.
            inner: The head.
        """

        dim: PositiveInt = REQUIRED
        vocab_size: PositiveInt = REQUIRED
        divisor: PositiveFloat = 1.0
        inner: Module.Config = UntiedHead.Config()

    def setup(self, cfg: Config) -> None:
        """Build the head."""
        self.inner = cfg.inner.build(dim=cfg.dim, vocab_size=cfg.vocab_size)

    def forward(self, x: Hidden, table: Table) -> Float[Array, "batch time vocab"]:
        """Return float32 logits; `table` is the embedding table."""
        logits: Float[Array, "batch time vocab"] = self.inner(self._divided(x), table)
        return logits

    @entry
    def loss(
        self,
        x: Hidden,
        table: Table,
        targets: Int[Array, "batch time"],
        weights: Float[Array, "batch time"],
    ) -> Any:
        """Return the weighted sum of cross-entropies in nats, and the sum of weights."""
        return self.inner.loss(self._divided(x), table, targets, weights)

    @entry
    def loss_and_correct(
        self,
        x: Hidden,
        table: Table,
        targets: Int[Array, "batch time"],
        weights: Float[Array, "batch time"],
    ) -> Any:
        """Return what `loss` does, and the weight of targets that have the largest logit."""
        return self.inner.loss_and_correct(self._divided(x), table, targets, weights)

    @entry
    def log_probs(self, x: Hidden, table: Table, targets: Int[Array, "batch time"]) -> Any:
        """Return the float32 log-probability of each target."""
        return self.inner.log_probs(self._divided(x), table, targets)

    @entry
    def log_probs_and_entropies(
        self, x: Hidden, table: Table, targets: Int[Array, "batch time"], temperature: float = 1.0
    ) -> Any:
        """Return the log-probability of each target, and the entropy at its place."""
        return self.inner.log_probs_and_entropies(
            self._divided(x), table, targets, temperature=temperature
        )

    def _divided(self, x: Hidden) -> Hidden:
        return x / jnp.asarray(self.config.divisor, x.dtype)


class ScaledResidual(Residual):
    """`x + scale * dropout(branch(norm(x)))`.

    Source: Yang et al. 2023, arXiv:2310.02244, section 1 (depth-muP); IBM 2024, "Granite 3.0
    Language Models", section 3.
    """

    @config
    class Config(Residual.Config):
        """The config of a `ScaledResidual`.

        Args:
            scale: Factor on what is added.
        """

        scale: float = 1.0

    def forward(self, x: Hidden, branch: Callable[[Hidden], Hidden]) -> Hidden:
        """Return the input with what the branch makes of it, scaled, added."""
        return x + self.dropout(branch(self.norm(x))) * jnp.asarray(self.config.scale, x.dtype)


def with_scaled_residual(old: Any) -> ScaledResidual.Config:
    """Return the config that takes the place of a residual connection with a norm before."""
    return ScaledResidual.Config(norm=old.norm, dropout=old.dropout)


class TemperatureTuning(Module):
    """Multiply queries by `1 + strength * ln(1 + floor((position + 1) / interval))`.

    Over more keys softmax gets flatter; larger logits make up for it. Queries and keys get no
    position otherwise.

    Source: Nakanishi 2025, arXiv:2501.19399, eq. 3; by steps as in models/llama4/model.py of Meta's
    llama-models, 2025. Slot protocol: the parent fills `head_dim`.
    """

    @config
    class Config(Module.Config["TemperatureTuning"]):
        """The config of a `TemperatureTuning`.

        Args:
            head_dim: Size of a head.
            interval: Tokens after which the factor grows.
            strength: By how much it grows.
        """

        head_dim: PositiveInt = REQUIRED
        interval: PositiveInt = 8192
        strength: float = 0.1

    def forward(self, q: Any, k: Any, positions: Any) -> tuple[Any, Any]:
        """Return queries, scaled in float32, each in its dtype, and keys as they are."""
        cfg = self.config
        steps = jnp.floor((positions.astype(jnp.float32) + 1.0) / cfg.interval)
        factor = 1.0 + cfg.strength * jnp.log1p(steps)
        return (q.astype(jnp.float32) * factor[:, :, None, None]).astype(q.dtype), k
