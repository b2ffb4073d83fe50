"""The catalogue's starting point: a decoder-only transformer of given sizes.

Other models are functions that edit this one's result with `replace_config` and `evolve`; this
function gets no argument for a feature.
"""

from axcore.layers import Attention, FeedForward, RoPE, ScannedLayers, TransformerLayer
from axcore.models.causal_lm import CausalLM
from axcore.models.decoder import Decoder


def transformer(
    *,
    vocab_size: int,
    dim: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int | None = None,
    hidden_dim: int,
) -> CausalLM.Config:
    """Returns the config of a pre-norm transformer with RoPE and gated feed-forwards.

    Source: Touvron et al. 2023, arXiv:2302.13971, section 2.2.
    """
    layer = TransformerLayer.Config(
        attention=Attention.Config(
            num_heads=num_heads, num_kv_heads=num_kv_heads, position=RoPE.Config()
        ),
        feed_forward=FeedForward.Config(hidden_dim=hidden_dim),
    )
    return CausalLM.Config(
        vocab_size=vocab_size,
        dim=dim,
        decoder=Decoder.Config(stack=ScannedLayers.Config(num_layers=num_layers, layer=layer)),
    )
