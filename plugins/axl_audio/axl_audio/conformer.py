"""`ConformerLayer`: attention and convolution in turn, between two halves of a feed-forward.

Letters: B rows, T tokens, N heads, H size of a head, D size of a token.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from numpy.typing import NDArray

from axcore.config import REQUIRED, PositiveInt, config
from axcore.errors import ConfigError
from axcore.layers import (
    Activation,
    Attention,
    BatchNorm,
    Convolution,
    DotProductAttention,
    LayerNorm,
    Linear,
    PlainFeedForward,
    PreNorm,
    RoPE,
    TokenInfo,
    TransformerLayer,
    activation_fn,
    shard,
)
from axcore.module import Module, Normal, Param
from axl_audio.encoder import Positions, Tokens


class ConvolutionModule(Module):
    """A gate, a depthwise convolution over time, and a product. Slot protocol: fill `dim`.

    Differs from transformers: padding counts as zeros for the convolution and, in training, not at
    all for the batch norm, so that it changes no real token.

    Source: Gulati et al. 2020, arXiv:2005.08100, section 2.2.
    """

    @config
    class Config(Module.Config["ConvolutionModule"]):
        """The config of a `ConvolutionModule`.

        Args:
            dim: Size of a token.
            kernel_size: Tokens that the convolution sees, an odd number.
            norm: Behind the convolution; called with which tokens are not padding.
            activation: Behind the norm.
            linear: Both products.
        """

        dim: PositiveInt = REQUIRED
        kernel_size: PositiveInt = 31
        norm: BatchNorm.Config = BatchNorm.Config()
        activation: Activation = "silu"
        linear: Module.Config = Linear.Config()

    def setup(self, cfg: Config) -> None:
        """Build the products, the convolution and the norm.

        Raises:
            ConfigError: The kernel has no middle.
        """
        if cfg.kernel_size % 2 == 0:
            raise ConfigError(
                f"kernel_size is {cfg.kernel_size}, which has no middle",
                where="convolution.kernel_size",
                hint=f"kernel_size={cfg.kernel_size + 1}",
            )
        into = {"in_dim": cfg.dim, "out_dim": cfg.dim, "axes": ("embed", "mlp")}
        self.up = cfg.linear.build(**into)
        self.gate = cfg.linear.build(**into)
        self.depthwise = Convolution.Config(
            kernel_size=(cfg.kernel_size,),
            num_groups=cfg.dim,
            has_bias=False,
            axes=(None, "mlp"),
        ).build(in_dim=cfg.dim, out_dim=cfg.dim)
        self.norm = cfg.norm.build(dim=cfg.dim)
        self.down = cfg.linear.build(in_dim=cfg.dim, out_dim=cfg.dim, axes=("mlp", "embed"))

    def forward(self, x: Tokens, is_real: Bool[Array, "batch time"] | None) -> Tokens:
        """Return what each token gets of those around it."""
        x = self.up(x) * jax.nn.sigmoid(self.gate(x))
        x = self.norm(self.depthwise(shard(x, "batch", "time", "mlp"), is_real), is_real)
        return self.down(activation_fn(self.config.activation)(x))


class ConformerLayer(Module):
    """Half a feed-forward, attention, convolution, another half, and a norm.

    Slot protocol: the parent fills `dim`.

    Source: Gulati et al. 2020, arXiv:2005.08100, eq. 1.
    """

    @config
    class Config(Module.Config["ConformerLayer"]):
        """The config of a `ConformerLayer`.

        Args:
            dim: Size of a token.
            attention: Mixes tokens; called with the token info.
            convolution: Mixes neighbours; called with which tokens are not padding.
            feed_forward: Works on each token, in front and at the end.
            residual: Wraps each of the four.
            norm: Behind all of them.
        """

        dim: PositiveInt = REQUIRED
        attention: Module.Config = Attention.Config()
        convolution: Module.Config = ConvolutionModule.Config()
        feed_forward: Module.Config = PlainFeedForward.Config()
        residual: Module.Config = PreNorm.Config(norm=LayerNorm.Config())
        norm: Module.Config = LayerNorm.Config()

    def setup(self, cfg: Config) -> None:
        """Build the branches and their residual connections."""
        self.first_half = cfg.feed_forward.build(dim=cfg.dim)
        self.attention = cfg.attention.build(dim=cfg.dim)
        self.convolution = cfg.convolution.build(dim=cfg.dim)
        self.second_half = cfg.feed_forward.build(dim=cfg.dim)
        self.first_residual = cfg.residual.build(dim=cfg.dim)
        self.attention_residual = cfg.residual.build(dim=cfg.dim)
        self.convolution_residual = cfg.residual.build(dim=cfg.dim)
        self.second_residual = cfg.residual.build(dim=cfg.dim)
        self.norm = cfg.norm.build(dim=cfg.dim)

    def forward(self, x: Tokens, info: TokenInfo) -> Tokens:
        """Return the tokens after all branches."""
        x = self.first_residual(x, lambda normed: 0.5 * self.first_half(normed))
        x = self.attention_residual(x, lambda normed: self.attention(normed, info))
        x = self.convolution_residual(x, lambda normed: self.convolution(normed, info.is_real))
        x = self.second_residual(x, lambda normed: 0.5 * self.second_half(normed))
        return shard(self.norm(x), "batch", "time", "embed")


def conformer(layer: TransformerLayer.Config) -> ConformerLayer.Config:
    """Return the Conformer's form of a layer: its parts, and a convolution next to attention.

    Args:
        layer: Has norms before its branches.

    Raises:
        ConfigError: Its norms are elsewhere.
    """
    if not isinstance(layer.residual, PreNorm.Config):
        raise ConfigError(
            f"the layer's residual is a {type(layer.residual).__qualname__}",
            where="residual",
            hint="a Conformer has norms before its branches: residual=PreNorm.Config(...)",
        )
    return ConformerLayer.Config(
        attention=layer.attention,
        feed_forward=layer.feed_forward,
        residual=layer.residual,
        norm=layer.residual.norm,
    )


class NoPositions(Positions):
    """Leaves tokens as they are, where attention or convolutions see distances."""

    def forward(self, x: Tokens) -> Tokens:
        """Return the tokens."""
        return x


class RelativeAttention(Attention):
    """Attention whose products have a part for how far a key is from the query.

    It costs a table of T x T numbers for each head, so it has no fused kernel.

    Source: Dai et al. 2019, arXiv:1901.02860, section 3.3.
    """

    @config
    class Config(Attention.Config):
        """The config of a `RelativeAttention`; `position` stays empty.

        Args:
            distance_linear: Projects the sinusoids of distances.
        """

        core: Module.Config = DotProductAttention.Config(is_causal=False)
        distance_linear: Module.Config = Linear.Config()

    def setup(self, cfg: Config) -> None:
        """Build the projections; declare what is added to queries."""
        super().setup(cfg)
        self.distance = cfg.distance_linear.build(
            in_dim=cfg.dim, out_dim=cfg.num_heads * self.head_dim, axes=(None, "heads")
        )
        shape, axes = (cfg.num_heads, self.head_dim), ("heads", None)
        self.content_bias = Param(shape, axes=axes, init=Normal(std=0.02), decay=False)
        self.distance_bias = Param(shape, axes=axes, init=Normal(std=0.02), decay=False)

    def forward(
        self, x: Float[Array, "batch time dim"], info: TokenInfo
    ) -> Float[Array, "batch time dim"]:
        """Return each token's mixture of the tokens of its row."""
        q, k, v = (self._split(one(x), "heads") for one in (self.q, self.k, self.v))
        sinusoids = jnp.asarray(distances(*x.shape[1:]), x.dtype)[None]
        p = self._split(self.distance(sinusoids), "heads")[0]
        of_content, of_distance = (
            bias.astype(x.dtype)[None, None] for bias in (self.content_bias, self.distance_bias)
        )
        scores = jnp.einsum("btnh,rnh->bntr", q + of_distance, p)
        bias = _by_key(scores) * self.head_dim**-0.5
        mixed = self.core(q + of_content, k, v, info, bias_BNTS=bias)
        return self.out(mixed.reshape(*x.shape[:2], -1))


def distances(num_tokens: int, dim: int) -> NDArray[np.float32]:
    """Return sinusoids of how far a key is before the query, from T - 1 to 1 - T, `[2 T - 1, D]`.

    Source: Dai et al. 2019, arXiv:1901.02860, section 3.3; sines and cosines take turns.
    """
    places = np.arange(num_tokens - 1, -num_tokens, -1)[:, None]
    angles = places * np.exp(np.arange(0, dim, 2) * -(np.log(10_000) / dim))
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(-1, dim).astype(np.float32)


def _by_key(scores: Float[Array, "B N T distances"]) -> Float[Array, "B N T T"]:
    """Return the score of each query and key, from those of each query and distance."""
    rows, heads, num_tokens, count = scores.shape
    # Row i is the scores from T - 1 - i on. With one number more, rows that are as long as there
    # are queries begin one place earlier each: no gather, whose gradient would be a slow scatter.
    padded = jnp.pad(scores, ((0, 0), (0, 0), (0, 0), (1, 0)))
    turned = padded.reshape(rows, heads, count + 1, num_tokens)[:, :, 1:]
    return turned.reshape(rows, heads, num_tokens, count)[..., :num_tokens]


class RotatedInputAttention(Attention):
    """Attention whose queries and keys are made of tokens that positions rotated, head by head.

    Differs from `RoPE` in `Attention`, which rotates queries and keys: transformers'
    `Wav2Vec2Conformer` has it so, and its checkpoints are trained so.
    """

    @config
    class Config(Attention.Config):
        """The config of a `RotatedInputAttention`; its fields are those of `Attention`."""

        position: Module.Config = RoPE.Config()
        core: Module.Config = DotProductAttention.Config(is_causal=False)

    def forward(
        self, x: Float[Array, "batch time dim"], info: TokenInfo
    ) -> Float[Array, "batch time dim"]:
        """Return each token's mixture of the tokens of its row."""
        heads = x.reshape(*x.shape[:2], -1, self.head_dim)
        rotated = self.position(heads, heads, info.positions)[0].reshape(x.shape)
        q, k = self._split(self.q(rotated), "heads"), self._split(self.k(rotated), "kv_heads")
        mixed = self.core(q, k, self._split(self.v(x), "kv_heads"), info)
        return self.out(mixed.reshape(*x.shape[:2], -1))
