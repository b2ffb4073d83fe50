"""wav2vec 2.0 and HuBERT: speech models that were pretrained without texts, with a head for CTC."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import attrs

from axcore.config import evolve, update_config
from axcore.errors import ConfigError
from axcore.interop import (
    Chain,
    Computed,
    ConfigEntry,
    Derived,
    Family,
    Field,
    Fields,
    MustBe,
    ReorderAxes,
    Rule,
    SplitAxis,
    WeightMap,
    activation,
    below,
    both,
    convolution,
    linear,
    same,
)
from axcore.layers import (
    LayerNorm,
    NoNorm,
    PostNorm,
    PreNorm,
    ScannedLayers,
    encoder_layer,
)
from axcore.models import Sizes, of_size
from axl_audio.encoder import CTCModel, SpeechEncoder
from axl_audio.features import SpecAugment
from axl_audio.waveform import ConvolutionalPositions, FeatureProjection, WaveformFeatures

_SIZES: Sizes = {
    "base": {"dim": 768, "num_layers": 12, "num_heads": 12, "norm": "group"},
    "large": {"dim": 1024, "num_layers": 24, "num_heads": 16, "norm": "group"},
    "large-lv60": {"dim": 1024, "num_layers": 24, "num_heads": 16, "norm": "layer"},
    "toy": {"dim": 32, "num_layers": 2, "num_heads": 2, "norm": "group"},
}
_VOCABULARY = 32
"""Letters, a separator of words, and special tokens."""


def wav2vec2(size: str, *, vocab_size: int = _VOCABULARY) -> CTCModel.Config:
    """Return the config of a wav2vec 2.0, which is that of a HuBERT too.

    Args:
        size: `base`, `large`, `large-lv60` or `toy`. The first two have a group norm behind the
            first convolution and norms behind branches; `large-lv60` has layer norms behind all
            convolutions and norms before branches.
        vocab_size: Number of logits, the blank's among them.

    Source: Baevski et al. 2020, arXiv:2006.11477, section 4.2; large-lv60 as published.
    """
    sizes = of_size("wav2vec2", _SIZES, size)
    is_toy, is_stable = size == "toy", sizes["norm"] == "layer"
    dim = sizes["dim"]
    layer = encoder_layer(num_heads=sizes["num_heads"], hidden_dim=4 * dim)
    features = WaveformFeatures.Config(norm=sizes["norm"], has_bias=is_stable)
    positions = ConvolutionalPositions.Config()
    if is_toy:
        features = evolve(features, dims=(16,) * 7)
        positions = ConvolutionalPositions.Config(kernel_size=8, num_groups=4)
    encoder = SpeechEncoder.Config(
        dim=dim,
        subsampling=FeatureProjection.Config(),
        positions=positions,
        stack=ScannedLayers.Config(num_layers=sizes["num_layers"], layer=layer),
    )
    return CTCModel.Config(
        vocab_size=vocab_size,
        features=features,
        # Stretches of tokens are hidden instead, by `encoder.subsampling`.
        augment=SpecAugment.Config(num_band_masks=0, num_time_masks=0),
        encoder=update_config(_normed(encoder, is_stable=is_stable), {"**.epsilon": 1e-5}),
    )


def _normed(encoder: Any, *, is_stable: bool) -> Any:
    """Return an encoder with norms before its branches and at the end, or behind the branches."""
    norm = LayerNorm.Config()
    residual = (PreNorm if is_stable else PostNorm).Config(norm=norm)
    return update_config(
        encoder,
        {
            "positions.norm": None if is_stable else norm,
            "stack.layer.residual": residual,
            "norm": norm if is_stable else NoNorm.Config(),
        },
    )


class _StableNorm(ConfigEntry):
    """`do_stable_layer_norm`, and the epsilon of all norms of the encoder."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with the norms in their places."""
        is_stable = fields.take("do_stable_layer_norm", False)
        encoder = _normed(cfg.encoder, is_stable=is_stable)
        epsilon = float(fields.take("layer_norm_eps", 1e-5))
        return evolve(cfg, encoder=update_config(encoder, {"**.epsilon": epsilon}))

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return both fields."""
        is_stable = isinstance(cfg.encoder.stack.layer.residual, PreNorm.Config)
        epsilon = cfg.encoder.subsampling.norm.epsilon
        return {"do_stable_layer_norm": is_stable, "layer_norm_eps": epsilon}


class _MaskVector(ConfigEntry):
    """Whether there is a vector for hidden tokens: where any are hidden in training."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with the vector, or without."""
        # Looked at and not taken: what nothing takes is kept for exports.
        share = fields.values.get("mask_time_prob", 0.05)
        other = fields.values.get("mask_feature_prob", 0.0)
        has_vector = share > 0 or other > 0
        return update_config(cfg, {"encoder.subsampling.has_mask_vector": has_vector})

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return transformers' default, or that nothing is hidden."""
        return {
            "mask_time_prob": 0.05 if cfg.encoder.subsampling.has_mask_vector else 0.0,
            "mask_feature_prob": 0.0,
        }


def _tuple_field(name: str, path: str, default: tuple[int, ...]) -> Field:
    return Field(name, (path,), default=default, to_axcore=tuple, to_hf=list)


_DEFAULT = WaveformFeatures.Config()

FIELDS: tuple[ConfigEntry, ...] = (
    Field("vocab_size", ("vocab_size",), default=_VOCABULARY),
    Field("hidden_size", ("encoder.dim",), default=768),
    Field("num_hidden_layers", ("encoder.stack.num_layers",), default=12),
    Field("num_attention_heads", ("**.attention.num_heads",), default=12),
    Field("intermediate_size", ("**.hidden_dim",), default=3072),
    _tuple_field("conv_dim", "features.dims", _DEFAULT.dims),
    _tuple_field("conv_kernel", "features.kernel_sizes", _DEFAULT.kernel_sizes),
    _tuple_field("conv_stride", "features.strides", _DEFAULT.strides),
    Derived("num_feat_extract_layers", lambda cfg: len(cfg.features.dims)),
    Field("conv_bias", ("features.has_bias",), default=False),
    Field("feat_extract_norm", ("features.norm",), default="group"),
    _MaskVector(),
    # Adapters behind the encoder, and those of its layers by language (MMS).
    MustBe("add_adapter", (False,), is_written=False),
    MustBe("adapter_attn_dim", (None,), is_written=False),
    Derived("output_hidden_size", lambda cfg: cfg.encoder.dim, is_written=False),
)
"""Entries that a Conformer has too."""

_POSITIONS: tuple[ConfigEntry, ...] = (
    activation("hidden_act", "gelu", "encoder.stack.**.activation"),
    activation("feat_extract_activation", "gelu", "features.activation"),
    Computed("encoder.positions.activation", attrgetter("features.activation")),
    Field("num_conv_pos_embeddings", ("encoder.positions.kernel_size",), default=128),
    Field("num_conv_pos_embedding_groups", ("encoder.positions.num_groups",), default=16),
    _StableNorm(),
)


def front_weights(prefix: str) -> WeightMap:
    """Return the rules of what is before the layers, and of the head.

    Args:
        prefix: Of names in Hugging Face's.
    """
    return (
        *below(
            "features",
            f"{prefix}.feature_extractor",
            (
                *(
                    rule
                    for number in range(_MOST)
                    for rule in (
                        *convolution(f"convolution.{number}", f"conv_layers.{number}.conv", 1),
                        *both(f"norm.{number}", f"conv_layers.{number}.layer_norm"),
                    )
                ),
            ),
        ),
        *both("encoder.subsampling.norm", f"{prefix}.feature_projection.layer_norm"),
        *linear("encoder.subsampling.linear", f"{prefix}.feature_projection.projection"),
        same("encoder.subsampling.mask_vector", f"{prefix}.masked_spec_embed"),
        *linear("head", "lm_head"),
    )


def _weights(prefix: str) -> Callable[[Any], WeightMap]:
    def weights(cfg: Any) -> WeightMap:
        layer = (
            *both("attention_residual.norm", "layer_norm"),
            *(
                rule
                for own, name in (("q", "q"), ("k", "k"), ("v", "v"), ("out", "out"))
                for rule in linear(f"attention.{own}", f"attention.{name}_proj")
            ),
            *both("feed_forward_residual.norm", "final_layer_norm"),
            *linear("feed_forward.up", "feed_forward.intermediate_dense"),
            *linear("feed_forward.down", "feed_forward.output_dense"),
        )
        convolved = f"{prefix}.encoder.pos_conv_embed.conv"
        return (
            *front_weights(prefix),
            same("encoder.positions.bias", f"{convolved}.bias"),
            Rule(
                ("encoder.positions.scale",),
                (f"{convolved}.weight_g",),
                Chain(SplitAxis(1), SplitAxis(1)),
            ),
            Rule(
                ("encoder.positions.direction",),
                (f"{convolved}.weight_v",),
                ReorderAxes((2, 1, 0)),
            ),
            # One of the two is there: before the layers, or behind them.
            *both("encoder.positions.norm", f"{prefix}.encoder.layer_norm"),
            *both("encoder.norm", f"{prefix}.encoder.layer_norm"),
            *below("encoder.stack.layer.{layer}", f"{prefix}.encoder.layers.{{layer}}", layer),
        )

    return weights


_MOST = 16
"""Convolutions of features, at most; pretrained checkpoints have seven."""

_OF_TRAINING = """
    activation_dropout adapter_kernel_size adapter_stride apply_spec_augment classifier_proj_size
    codevector_dim contrastive_logits_temperature ctc_loss_reduction ctc_zero_infinity
    diversity_loss_weight feat_extract_dropout feat_proj_dropout feat_quantizer_dropout
    final_dropout gradient_checkpointing hidden_dropout hidden_dropout_prob layerdrop
    mask_channel_length
    mask_channel_min_space mask_channel_other mask_channel_prob mask_channel_selection
    mask_feature_length mask_feature_min_masks mask_feature_prob mask_time_length
    mask_time_min_masks mask_time_min_space mask_time_other mask_time_prob mask_time_selection
    num_adapter_layers num_codevector_groups num_codevectors_per_group num_negatives
    proj_codevector_dim tdnn_dilation tdnn_dim tdnn_kernel tokenizer_class use_weighted_layer_sum
    xvector_output_dim
"""
IRRELEVANT = frozenset(_OF_TRAINING.split())
"""Fields of training, of pretraining, and of heads for other tasks."""

SKIPPED = (r"^quantizer\.", r"^project_(q|hid)\.")
"""Tensors of pretraining."""

RENAMED = (
    (r"parametrizations\.weight\.original0", "weight_g"),
    (r"parametrizations\.weight\.original1", "weight_v"),
)
"""What newer versions of PyTorch call the parts of a kernel with weight norm."""

WAV2VEC2 = Family(
    architecture="Wav2Vec2ForCTC",
    template=lambda: wav2vec2("toy"),
    config=(*FIELDS, *_POSITIONS),
    weights=_weights("wav2vec2"),
    irrelevant=IRRELEVANT,
    skipped=SKIPPED,
    renamed=RENAMED,
    prefix="wav2vec2.",
    headless=("Wav2Vec2ForPreTraining",),
    copies={},
)


@attrs.frozen(kw_only=True)
class _ReadFamily(Family):
    """A family whose models another one has too, and which alone writes those that it has read."""

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the fields of the `config.json` that describes a model.

        Raises:
            ConfigError: The model was not read as one of these, or is none of them.
        """
        if getattr(getattr(cfg, "published", None), "family", "") != "hubert":
            raise ConfigError("it is written as wav2vec2, which has the same layers")
        return Family.write(self, cfg)


HUBERT = _ReadFamily(
    architecture="HubertForCTC",
    template=WAV2VEC2.template,
    config=(
        *WAV2VEC2.config,
        MustBe("feat_proj_layer_norm", (True,)),
        MustBe("conv_pos_batch_norm", (False,)),
    ),
    weights=_weights("hubert"),
    irrelevant=IRRELEVANT,
    skipped=SKIPPED,
    renamed=RENAMED,
    prefix="hubert.",
    copies={},
)
