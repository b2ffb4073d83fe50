"""Whisper: speech in many languages to text."""

from typing import Any

from immutabledict import immutabledict

from axcore.config import update_config
from axcore.interop import (
    Family,
    Field,
    MustBe,
    WeightMap,
    activation,
    below,
    both,
    convolution,
    linear,
    same,
)
from axcore.layers import (
    Attention,
    CrossAttention,
    CrossTransformerLayer,
    LayerNorm,
    LearnedPosition,
    Linear,
    PlainFeedForward,
    PreNorm,
    ScannedLayers,
    encoder_layer,
)
from axcore.models import Decoder, Sizes, of_size
from axl_audio.encoder import SpeechEncoder, StoredPositions, Subsampling
from axl_audio.features import WhisperLogMel
from axl_audio.speech_to_text import SpeechToText

_SIZES: Sizes = {
    "tiny": {"dim": 384, "encoder_layers": 4, "decoder_layers": 4, "num_heads": 6},
    "base": {"dim": 512, "encoder_layers": 6, "decoder_layers": 6, "num_heads": 8},
    "small": {"dim": 768, "encoder_layers": 12, "decoder_layers": 12, "num_heads": 12},
    "medium": {"dim": 1024, "encoder_layers": 24, "decoder_layers": 24, "num_heads": 16},
    "large-v2": {"dim": 1280, "encoder_layers": 32, "decoder_layers": 32, "num_heads": 20},
    "large-v3": {"dim": 1280, "encoder_layers": 32, "decoder_layers": 32, "num_heads": 20},
    "large-v3-turbo": {"dim": 1280, "encoder_layers": 32, "decoder_layers": 4, "num_heads": 20},
    "toy": {"dim": 32, "encoder_layers": 2, "decoder_layers": 2, "num_heads": 2},
}


def whisper(size: str) -> SpeechToText.Config:
    """Return the config of a multilingual Whisper.

    Args:
        size: `tiny`, `base`, `small`, `medium`, `large-v2`, `large-v3`, `large-v3-turbo` or `toy`,
            which hears six tenths of a second and writes bytes.

    Source: Radford et al. 2022, arXiv:2212.04356, table 1; large-v3 and turbo as published.
    """
    sizes = of_size("whisper", _SIZES, size)
    is_toy, is_third = size == "toy", size.startswith("large-v3")
    num_heads, hidden_dim = sizes["num_heads"], 4 * sizes["dim"]
    layer = encoder_layer(num_heads=num_heads, hidden_dim=hidden_dim, epsilon=1e-5)
    cross_layer = CrossTransformerLayer.Config(
        attention=_without_key_bias(Attention.Config(num_heads=num_heads)),
        cross_attention=_without_key_bias(CrossAttention.Config(num_heads=num_heads)),
        feed_forward=PlainFeedForward.Config(
            hidden_dim=hidden_dim, activation="gelu", linear=Linear.Config(has_bias=True)
        ),
        residual=PreNorm.Config(norm=LayerNorm.Config()),
    )
    return SpeechToText.Config(
        vocab_size=264 if is_toy else 51_866 if is_third else 51_865,
        dim=sizes["dim"],
        features=WhisperLogMel.Config(num_bands=128 if is_third else 80),
        encoder=SpeechEncoder.Config(
            subsampling=Subsampling.Config(strides=(1, 2)),
            positions=StoredPositions.Config(length=30 if is_toy else 1500),
            stack=ScannedLayers.Config(
                num_layers=sizes["encoder_layers"],
                layer=update_config(layer, {"attention": _without_key_bias(layer.attention)}),
            ),
            sees_padding=True,
        ),
        decoder=Decoder.Config(
            embedding=LearnedPosition.Config(max_length=40 if is_toy else 448),
            stack=ScannedLayers.Config(num_layers=sizes["decoder_layers"], layer=cross_layer),
            norm=LayerNorm.Config(),
        ),
    )


def _without_key_bias(attention: Any) -> Any:
    """Return an attention whose projections have biases, but for that of keys."""
    biased = Linear.Config(has_bias=True)
    return update_config(
        attention, {"linear": biased, "key_linear": Linear.Config(), "out_linear": biased}
    )


def _attention(axcore: str, hf: str) -> WeightMap:
    parts = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "out": "out_proj"}
    return tuple(
        rule for own, name in parts.items() for rule in linear(f"{axcore}.{own}", f"{hf}.{name}")
    )


_LAYER = (
    *both("attention_residual.norm", "self_attn_layer_norm"),
    *_attention("attention", "self_attn"),
    *both("feed_forward_residual.norm", "final_layer_norm"),
    *linear("feed_forward.up", "fc1"),
    *linear("feed_forward.down", "fc2"),
)


def encoder_weights(axcore: str, hf: str) -> WeightMap:
    """Return the weight map of a Whisper's encoder.

    Args:
        axcore: Its path here.
        hf: What the names of its weights begin with.
    """
    return (
        *convolution(f"{axcore}.subsampling.convolution.0", f"{hf}.conv1", 1),
        *convolution(f"{axcore}.subsampling.convolution.1", f"{hf}.conv2", 1),
        same(f"{axcore}.positions.weight", f"{hf}.embed_positions.weight"),
        *below(f"{axcore}.stack.layer.{{layer}}", f"{hf}.layers.{{layer}}", _LAYER),
        *both(f"{axcore}.norm", f"{hf}.layer_norm"),
    )


def _weights(cfg: Any) -> WeightMap:
    cross = (
        *both("cross_residual.norm", "encoder_attn_layer_norm"),
        *_attention("cross_attention", "encoder_attn"),
    )
    return (
        *encoder_weights("encoder", "model.encoder"),
        same("decoder.embedding.embedding.weight", "model.decoder.embed_tokens.weight"),
        same("decoder.embedding.positions", "model.decoder.embed_positions.weight"),
        *below("decoder.stack.layer.{layer}", "model.decoder.layers.{layer}", (*_LAYER, *cross)),
        *both("decoder.norm", "model.decoder.layer_norm"),
    )


WHISPER = Family(
    architecture="WhisperForConditionalGeneration",
    template=lambda: whisper("toy"),
    config=(
        Field("vocab_size", ("vocab_size",), default=51_865),
        Field("d_model", ("dim",), default=384),
        Field("num_mel_bins", ("features.num_bands",), default=80),
        Field("encoder_layers", ("encoder.stack.num_layers",), default=4),
        Field("decoder_layers", ("decoder.stack.num_layers",), default=4),
        Field("encoder_attention_heads", ("encoder.stack.**.attention.num_heads",), default=6),
        Field(
            "decoder_attention_heads",
            ("decoder.stack.**.attention.num_heads", "**.cross_attention.num_heads"),
            default=6,
        ),
        Field("encoder_ffn_dim", ("encoder.stack.**.hidden_dim",), default=1536),
        Field("decoder_ffn_dim", ("decoder.stack.**.hidden_dim",), default=1536),
        Field("max_source_positions", ("encoder.positions.length",), default=1500),
        Field("max_target_positions", ("decoder.embedding.max_length",), default=448),
        activation("activation_function", "gelu"),
        MustBe("scale_embedding", (False,)),
        MustBe("tie_word_embeddings", (True,)),
    ),
    weights=_weights,
    irrelevant=frozenset(
        {
            "activation_dropout",
            "apply_spec_augment",
            "classifier_proj_size",
            "decoder_layerdrop",
            "dropout",
            "encoder_layerdrop",
            "forced_decoder_ids",
            "init_std",
            "mask_feature_length",
            "mask_feature_min_masks",
            "mask_feature_prob",
            "mask_time_length",
            "mask_time_min_masks",
            "mask_time_prob",
            "max_length",
            "median_filter_width",
            "num_hidden_layers",
            "use_weighted_layer_sum",
        }
    ),
    copies=immutabledict({"proj_out.weight": "model.decoder.embed_tokens.weight"}),
    length="max_target_positions",
)
