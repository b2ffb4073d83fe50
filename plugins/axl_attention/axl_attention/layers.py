"""Layers with one branch or two in parallel, and feed-forwards that are clamped, gated or scaled.

Letters: B batch, T time, K choices of a token, D width.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveFloat, PositiveInt, config
from axcore.errors import ConfigError
from axcore.layers import (
    Attention,
    Dropless,
    Dropout,
    Experts,
    FeedForward,
    Linear,
    PreNorm,
    RMSNorm,
    Routing,
    TokenInfo,
    shard,
)
from axcore.module import Module


class ParallelLayer(Module):
    """`x + attention(norm(x)) + feed_forward(norm(x))`, with two norms.

    Source: Black et al. 2022, arXiv:2204.06745, section 2.1. Slot protocol: the parent fills `dim`.
    """

    @config
    class Config(Module.Config["ParallelLayer"]):
        """The config of a `ParallelLayer`.

        Args:
            dim: Size of the last dimension of input and output.
            attention: Mixes tokens; called with the token info.
            feed_forward: Works on each token.
            norm: Used before each of the two, with weights of its own.
            dropout: Applied to what each of the two adds.
        """

        dim: PositiveInt = REQUIRED
        attention: Module.Config = Attention.Config()
        feed_forward: Module.Config = FeedForward.Config()
        norm: Module.Config = RMSNorm.Config()
        dropout: Dropout.Config = Dropout.Config()

    def setup(self, cfg: Config) -> None:
        """Build the two branches and their norms."""
        self.attention_norm = cfg.norm.build(dim=cfg.dim)
        self.attention = cfg.attention.build(dim=cfg.dim)
        self.feed_forward_norm = cfg.norm.build(dim=cfg.dim)
        self.feed_forward = cfg.feed_forward.build(dim=cfg.dim)
        self.attention_dropout = cfg.dropout.build()
        self.feed_forward_dropout = cfg.dropout.build()

    def forward(
        self, x: Float[Array, "batch time dim"], info: TokenInfo
    ) -> Float[Array, "batch time dim"]:
        """Return the tokens with what both branches make of them added."""
        mixed = self.attention_dropout(self.attention(self.attention_norm(x), info))
        fed = self.feed_forward_dropout(self.feed_forward(self.feed_forward_norm(x)))
        return shard(x + mixed + fed, "batch", "time", "embed")


def with_parallel_layer(old: Any) -> ParallelLayer.Config:
    """Return the config that takes the place of a layer of two branches in turn."""
    return ParallelLayer.Config(
        attention=old.attention,
        feed_forward=old.feed_forward,
        norm=old.residual.norm,
        dropout=old.residual.dropout,
    )


class OneNormLayer(Module):
    """`x + attention(y) + feed_forward(y)` where `y = norm(x)`.

    Source: Wang and Komatsuzaki 2021, "GPT-J-6B". Slot protocol: the parent fills `dim`.
    """

    @config
    class Config(Module.Config["OneNormLayer"]):
        """The config of a `OneNormLayer`; its fields are those of `ParallelLayer`."""

        dim: PositiveInt = REQUIRED
        attention: Module.Config = Attention.Config()
        feed_forward: Module.Config = FeedForward.Config()
        norm: Module.Config = RMSNorm.Config()
        dropout: Dropout.Config = Dropout.Config()

    def setup(self, cfg: Config) -> None:
        """Build the norm and both branches."""
        self.norm = cfg.norm.build(dim=cfg.dim)
        self.attention = cfg.attention.build(dim=cfg.dim)
        self.feed_forward = cfg.feed_forward.build(dim=cfg.dim)
        self.attention_dropout = cfg.dropout.build()
        self.feed_forward_dropout = cfg.dropout.build()

    def forward(
        self, x: Float[Array, "batch time dim"], info: TokenInfo
    ) -> Float[Array, "batch time dim"]:
        """Return the tokens with what both branches make of them added."""
        normed = self.norm(x)
        mixed = self.attention_dropout(self.attention(normed, info))
        fed = self.feed_forward_dropout(self.feed_forward(normed))
        return shard(x + mixed + fed, "batch", "time", "embed")


def with_one_norm(old: Any) -> OneNormLayer.Config:
    """Return the config that takes the place of a layer of two branches in turn."""
    return OneNormLayer.Config(
        attention=old.attention,
        feed_forward=old.feed_forward,
        norm=old.residual.norm,
        dropout=old.residual.dropout,
    )


class MixerLayer(Module):
    """A mixer of tokens in a residual connection.

    Source: Gu and Dao 2023, arXiv:2312.00752, section 3.4. Slot protocol: the parent fills `dim`.
    """

    @config
    class Config(Module.Config["MixerLayer"]):
        """The config of a `MixerLayer`.

        Args:
            dim: Size of the last dimension of input and output.
            mixer: Mixes tokens; called with the token info.
            residual: Wraps it, and decides where the norm is.
        """

        dim: PositiveInt = REQUIRED
        mixer: Module.Config = REQUIRED
        residual: Module.Config = PreNorm.Config()

    def setup(self, cfg: Config) -> None:
        """Build the mixer and its residual connection."""
        self.mixer = cfg.mixer.build(dim=cfg.dim)
        self.residual = cfg.residual.build(dim=cfg.dim)

    def forward(
        self, x: Float[Array, "batch time dim"], info: TokenInfo
    ) -> Float[Array, "batch time dim"]:
        """Return the tokens after the branch."""
        x = self.residual(x, lambda normed: self.mixer(normed, info))
        return shard(x, "batch", "time", "embed")


class OneBranchLayer(Module):
    """Attention or a feed-forward, alone in a residual connection.

    Source: NVIDIA 2025, arXiv:2504.03624, section 2.1. Slot protocol: the parent fills `dim`.
    """

    @config
    class Config(Module.Config["OneBranchLayer"]):
        """The config of a `OneBranchLayer`; it has one of the two.

        Args:
            dim: Size of the last dimension of input and output.
            attention: Mixes tokens; called with the token info.
            feed_forward: Works on each token.
            residual: Wraps it, and decides where the norm is.
        """

        dim: PositiveInt = REQUIRED
        attention: Module.Config | None = None
        feed_forward: Module.Config | None = None
        residual: Module.Config = PreNorm.Config()

    def setup(self, cfg: Config) -> None:
        """Build the branch and its residual connection."""
        if (cfg.attention is None) == (cfg.feed_forward is None):
            raise ConfigError(
                "a layer of one branch has attention or a feed-forward; it has both or none",
                where="attention",
                hint="set one of attention and feed_forward to None",
            )
        self.attention = cfg.attention and cfg.attention.build(dim=cfg.dim)
        self.feed_forward = cfg.feed_forward and cfg.feed_forward.build(dim=cfg.dim)
        self.residual = cfg.residual.build(dim=cfg.dim)

    def forward(
        self, x: Float[Array, "batch time dim"], info: TokenInfo
    ) -> Float[Array, "batch time dim"]:
        """Return the tokens after the branch."""
        if self.attention is None:
            return shard(self.residual(x, self.feed_forward), "batch", "time", "embed")
        x = self.residual(x, lambda normed: self.attention(normed, info))
        return shard(x, "batch", "time", "embed")


class ClampedFeedForward(Module):
    """`down((up(x) + 1) * gate(x) * sigmoid(slope * gate(x)))`, both clamped before.

    Gates are cut off above `limit`, what they let through on both sides.

    Source: `swiglu` in gpt_oss/torch/model.py of OpenAI's gpt-oss, 2025; the paper,
    arXiv:2508.10925, has no formula. Slot protocol: the parent fills `dim`.
    """

    @config
    class Config(Module.Config["ClampedFeedForward"]):
        """The config of a `ClampedFeedForward`.

        Args:
            dim: Size of the last dimension of input and output.
            hidden_dim: Number of hidden units.
            slope: Of the sigmoid.
            limit: What gates are at most, and the others at most in size.
            linear: Used for all three projections.
        """

        dim: PositiveInt = REQUIRED
        hidden_dim: PositiveInt = REQUIRED
        slope: PositiveFloat = 1.702
        limit: PositiveFloat = 7.0
        linear: Module.Config = Linear.Config()

    def setup(self, cfg: Config) -> None:
        """Build the three projections."""
        into = {"in_dim": cfg.dim, "out_dim": cfg.hidden_dim, "axes": ("embed", "mlp")}
        self.gate = cfg.linear.build(**into)
        self.up = cfg.linear.build(**into)
        self.down = cfg.linear.build(in_dim=cfg.hidden_dim, out_dim=cfg.dim, axes=("mlp", "embed"))

    def forward(self, x: Float[Array, "batch time dim"]) -> Float[Array, "batch time dim"]:
        """Return the output for each token on its own."""
        cfg = self.config
        gate = jnp.minimum(self.gate(x), cfg.limit)
        up = jnp.clip(self.up(x), -cfg.limit, cfg.limit)
        hidden = (up + 1) * gate * jax.nn.sigmoid(cfg.slope * gate)
        return self.down(shard(hidden, "batch", "time", "mlp"))


class TokenGated(Module):
    """`sigmoid(gate(x)) * inner(x)`, with one gate a token; for experts that all tokens share.

    Source: the shared expert of Qwen1.5-MoE, Qwen Team 2024. Slot protocol: the parent fills `dim`.
    """

    @config
    class Config(Module.Config["TokenGated"]):
        """The config of a `TokenGated`.

        Args:
            dim: Size of the last dimension of input and output.
            linear: From the token to its gate.
            inner: The feed-forward.
        """

        dim: PositiveInt = REQUIRED
        linear: Module.Config = Linear.Config()
        inner: Module.Config = REQUIRED

    def setup(self, cfg: Config) -> None:
        """Build the gate and the feed-forward."""
        self.gate = cfg.linear.build(in_dim=cfg.dim, out_dim=1, axes=("embed", None))
        self.inner = cfg.inner.build(dim=cfg.dim)

    def forward(self, x: Float[Array, "batch time dim"]) -> Float[Array, "batch time dim"]:
        """Return the output for each token on its own."""
        gate = jax.nn.sigmoid(self.gate(x).astype(jnp.float32)).astype(x.dtype)
        return gate * self.inner(x)


def with_token_gated(old: Any) -> TokenGated.Config:
    """Return the config that takes the place of a feed-forward without a gate."""
    return TokenGated.Config(inner=old)


Tokens = Float[Array, "batch time dim"]


class InputScaled(Experts):
    """Multiply what enters an expert by the router's weight, and add outputs up as they are.

    Each choice of a token is to the experts inside a token of its own, of weight one.

    Source: `forward` in models/llama4/moe.py of Meta's llama-models, 2025; no paper has it.
    """

    @config
    class Config(Experts.Config):
        """The config of an `InputScaled`.

        Args:
            inner: How the scaled tokens get to their experts and back.
        """

        inner: Experts.Config = Dropless.Config()

    def setup(self, cfg: Config) -> None:
        """Build the experts."""
        self.inner = cfg.inner.build(dim=cfg.dim, num_experts=cfg.num_experts, expert=cfg.expert)

    def forward(self, x: Tokens, routing: Routing) -> Tokens:
        """Return each token's sum of what its experts make of their share of it."""
        batch, time, num_choices = routing.experts.shape
        x_BTKD = x[:, :, None] * routing.weights.astype(x.dtype)[..., None]
        alone = Routing(
            routing.experts.reshape(batch, -1, 1),
            jnp.ones((batch, time * num_choices, 1), routing.weights.dtype),
        )
        y = self.inner(x_BTKD.reshape(batch, -1, x.shape[-1]), alone)
        return jnp.sum(y.reshape(batch, time, num_choices, -1), axis=2)
