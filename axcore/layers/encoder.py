"""`encoder_layer`: the transformer layer of encoders, of pictures or of sound."""

from axcore.layers.attention.dot_product import DotProductAttention
from axcore.layers.attention.self_attention import Attention
from axcore.layers.linear import Linear
from axcore.layers.norm import LayerNorm, PreNorm
from axcore.layers.transformer import PlainFeedForward, TransformerLayer


def encoder_layer(
    *, num_heads: int, hidden_dim: int, epsilon: float = 1e-6
) -> TransformerLayer.Config:
    """Return a layer in which each token sees all others.

    It has norms before each branch, and biases, as vision transformers and Whisper have them.
    Source: Dosovitskiy et al. 2020, arXiv:2010.11929, section 3.1.

    Args:
        num_heads: Heads of attention.
        hidden_dim: Hidden units of the feed-forward.
        epsilon: Of both norms.
    """
    linear = Linear.Config(has_bias=True)
    return TransformerLayer.Config(
        attention=Attention.Config(
            num_heads=num_heads,
            linear=linear,
            out_linear=linear,
            core=DotProductAttention.Config(is_causal=False),
        ),
        feed_forward=PlainFeedForward.Config(
            hidden_dim=hidden_dim, activation="gelu", linear=linear
        ),
        residual=PreNorm.Config(norm=LayerNorm.Config(epsilon=epsilon)),
    )
