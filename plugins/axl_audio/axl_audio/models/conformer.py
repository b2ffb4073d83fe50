"""Conformers with a head for CTC, as transformers has them on the features of wav2vec 2.0."""

from typing import Any

from axcore.config import evolve, update_config
from axcore.errors import ConfigError
from axcore.interop import (
    ACTIVATIONS,
    Chain,
    Concatenate,
    ConfigEntry,
    Family,
    Field,
    Fields,
    Rule,
    SplitAxis,
    Transpose,
    WeightMap,
    activation,
    below,
    both,
    common_value,
    convolution,
    linear,
    same,
)
from axcore.layers import LayerNorm, Linear, ScannedLayers, encoder_layer
from axcore.models import Sizes, of_size
from axl_audio.conformer import (
    NoPositions,
    RelativeAttention,
    RotatedInputAttention,
    conformer,
)
from axl_audio.encoder import CTCModel
from axl_audio.models.wav2vec2 import (
    FIELDS,
    IRRELEVANT,
    RENAMED,
    SKIPPED,
    front_weights,
    wav2vec2,
)

_SIZES: Sizes = {
    "large": {"dim": 1024, "num_layers": 24, "num_heads": 16, "kernel_size": 31},
    "toy": {"dim": 32, "num_layers": 2, "num_heads": 2, "kernel_size": 5},
}


def wav2vec2_conformer(
    size: str, *, vocab_size: int = 32, position: str = "relative"
) -> CTCModel.Config:
    """Return the config of a Conformer on the features of wav2vec 2.0.

    Args:
        size: `large` or `toy`.
        vocab_size: Number of logits, the blank's among them.
        position: `relative`, or `rotary`.

    Source: Gulati et al. 2020, arXiv:2005.08100, section 2; sizes: Wang et al. 2020,
    arXiv:2010.05171, as published.
    """
    sizes = of_size("wav2vec2_conformer", _SIZES, size)
    is_toy, dim = size == "toy", sizes["dim"]
    layer = conformer(encoder_layer(num_heads=sizes["num_heads"], hidden_dim=4 * dim, epsilon=1e-5))
    cfg = wav2vec2("toy" if is_toy else "large-lv60", vocab_size=vocab_size)
    encoder = evolve(
        cfg.encoder,
        dim=dim,
        positions=NoPositions.Config(),
        stack=ScannedLayers.Config(num_layers=sizes["num_layers"], layer=layer),
        norm=LayerNorm.Config(),
    )
    changes = {
        "**.activation": "silu",
        "**.convolution.kernel_size": sizes["kernel_size"],
    }
    encoder = _placed(update_config(encoder, changes), position)
    return evolve(cfg, encoder=encoder)


_ATTENTION = "stack.layer.attention"


def _placed(encoder: Any, position: str) -> Any:
    """Return an encoder whose attention has positions of a kind.

    Raises:
        ConfigError: There is no such kind.
    """
    kinds = {"relative": RelativeAttention, "rotary": RotatedInputAttention}
    if position not in kinds:
        raise ConfigError(
            f"position is {position!r}; a Conformer has {' or '.join(map(repr, kinds))} here",
            where="position_embeddings_type",
            hint="position='relative'",
        )
    linear = Linear.Config(has_bias=True)
    heads = common_value(encoder, f"{_ATTENTION}.num_heads")
    made = kinds[position].Config(num_heads=heads, linear=linear, out_linear=linear)
    return update_config(encoder, {_ATTENTION: made})


class _Positions(ConfigEntry):
    """`position_embeddings_type`, and the base of rotary ones."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with such attention."""
        kind = fields.take("position_embeddings_type", "relative")
        theta = float(fields.take("rotary_embedding_base", 10_000))
        fields.take("max_source_positions", None)  # of a table that grows when it is too short
        encoder = _placed(cfg.encoder, kind)
        if kind == "rotary":
            encoder = update_config(encoder, {f"{_ATTENTION}.position.theta": theta})
        return evolve(cfg, encoder=encoder)

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the fields.

        Raises:
            ConfigError: Attention has other positions.
        """
        attention = cfg.encoder.stack.layer.attention
        if isinstance(attention, RelativeAttention.Config):
            return {"position_embeddings_type": "relative"}
        if not isinstance(attention, RotatedInputAttention.Config):
            raise ConfigError(
                f"attention is a {type(attention).__qualname__}; transformers has "
                "RelativeAttention or RotatedInputAttention in a Conformer",
                where=f"encoder.{_ATTENTION}",
            )
        theta = attention.position.theta
        # Transformers takes whole numbers alone; another one shows when this is read again.
        return {"position_embeddings_type": "rotary", "rotary_embedding_base": int(theta)}


def _weights(cfg: Any) -> WeightMap:
    dim, prefix = cfg.encoder.dim, "wav2vec2_conformer"
    # Products are convolutions over one token in Hugging Face's.
    product = Chain(Transpose(), SplitAxis(dim, 1))
    gated = Chain(Concatenate((dim, dim), axis=-1), product)
    norms = (
        ("first_residual.norm", "ffn1_layer_norm"),
        ("attention_residual.norm", "self_attn_layer_norm"),
        ("convolution_residual.norm", "conv_module.layer_norm"),
        ("convolution.norm", "conv_module.batch_norm"),
        ("second_residual.norm", "ffn2_layer_norm"),
        ("norm", "final_layer_norm"),
    )
    products = (
        ("first_half.up", "ffn1.intermediate_dense"),
        ("first_half.down", "ffn1.output_dense"),
        ("attention.q", "self_attn.linear_q"),
        ("attention.k", "self_attn.linear_k"),
        ("attention.v", "self_attn.linear_v"),
        ("attention.out", "self_attn.linear_out"),
        ("attention.distance", "self_attn.linear_pos"),
        ("second_half.up", "ffn2.intermediate_dense"),
        ("second_half.down", "ffn2.output_dense"),
    )
    halves = ("convolution.up.weight", "convolution.gate.weight")
    layer = (
        *(rule for own, name in norms for rule in both(own, name)),
        *(rule for own, name in products for rule in linear(own, name)),
        same("attention.content_bias", "self_attn.pos_bias_u"),
        same("attention.distance_bias", "self_attn.pos_bias_v"),
        Rule(halves, ("conv_module.pointwise_conv1.weight",), gated),
        *convolution("convolution.depthwise", "conv_module.depthwise_conv", 1),
        same("convolution.norm.mean", "conv_module.batch_norm.running_mean"),
        same("convolution.norm.variance", "conv_module.batch_norm.running_var"),
        Rule(("convolution.down.weight",), ("conv_module.pointwise_conv2.weight",), product),
    )
    return (
        *front_weights(prefix),
        *both("encoder.norm", f"{prefix}.encoder.layer_norm"),
        *below("encoder.stack.layer.{layer}", f"{prefix}.encoder.layers.{{layer}}", layer),
    )


WAV2VEC2_CONFORMER = Family(
    architecture="Wav2Vec2ConformerForCTC",
    template=lambda: wav2vec2_conformer("toy"),
    config=(
        *FIELDS,
        Field(
            "hidden_act",
            ("encoder.stack.**.activation",),
            default="gelu",
            to_axcore=lambda name: {**ACTIVATIONS, "swish": "silu"}.get(name, name),
        ),
        activation("feat_extract_activation", "gelu", "features.activation"),
        Field("conv_depthwise_kernel_size", ("**.convolution.kernel_size",), default=31),
        Field(
            "layer_norm_eps",
            ("encoder.norm.epsilon", "encoder.subsampling.norm.epsilon"),
            default=1e-5,
            to_axcore=float,
        ),
        _Positions(),
    ),
    weights=_weights,
    irrelevant=IRRELEVANT
    | {
        "conformer_conv_dropout",
        "do_stable_layer_norm",  # of another encoder: a Conformer has its norms in one place
        # Of a convolution that transformers has weights of, and never runs.
        "num_conv_pos_embedding_groups",
        "num_conv_pos_embeddings",
    },
    skipped=(*SKIPPED, r"\.pos_conv_embed\.", r"\.inv_freq$", r"num_batches_tracked$"),
    renamed=RENAMED,
    prefix="wav2vec2_conformer.",
    headless=("Wav2Vec2ConformerForPreTraining",),
    copies={},
)
