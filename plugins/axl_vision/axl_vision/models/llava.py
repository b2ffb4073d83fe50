"""LLaVA: a language model that reads the patches of CLIP's pictures."""

from typing import Any

from axcore.config import evolve, update_config
from axcore.errors import ConfigError
from axcore.interop import (
    Computed,
    ConfigEntry,
    Family,
    Field,
    Fields,
    JoinAxes,
    ModelPart,
    MustBe,
    Rule,
    WeightMap,
    activation,
    below,
    both,
    linear,
    part_weights,
    patches,
    same,
)
from axcore.models import (
    CausalLM,
    MultimodalLM,
    language_model_of,
    llama2,
    multimodal,
    with_language_model,
)
from axl_vision.image_tokens import ImageTokens
from axl_vision.models.clip import ATTENTION, NORMS, clip, encoder_fields
from axl_vision.models.vit import PictureSize, layer_weights

_IMAGE = "encoder.encoder"
_LLAMA = {
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "vocab_size": 32_000,
}
"""What transformers' own config of a Llama has, and files of LLaVA leave out."""


def llava(
    text: CausalLM.Config, size: str = "large", *, image_size: int = 336, patch_size: int = 14
) -> MultimodalLM.Config:
    """Return the config of a LLaVA 1.5: a language model, and CLIP's encoder of pictures.

    As in the paper, the last layer of the encoder is left out, and so is its last norm.

    Args:
        text: The language model.
        size: Of the CLIP, whose encoder it is.
        image_size: Height and width of a picture.
        patch_size: Height and width of a patch.

    Source: Liu et al. 2023, arXiv:2310.03744, section 3.2.
    """
    image: Any = clip(size, image_size=image_size, patch_size=patch_size).image
    layers = image.stack.num_layers - 1
    image = update_config(evolve(image, norm=None), {"stack.num_layers": layers})
    encoder = ImageTokens.Config(encoder=image)
    return multimodal(text, encoder, num_soft_tokens=image.num_patches)


class _FeatureLayer(ConfigEntry):
    """`vision_feature_layer`, behind which layers of the encoder are not used."""

    name = "vision_feature_layer"

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with the layers that are used.

        Raises:
            ConfigError: It names several layers, or none of the encoder's.
        """
        layer, count = fields.take(self.name, -2), cfg.encoder.encoder.stack.num_layers
        used = 0
        if isinstance(layer, int):
            # Counted from the embeddings, which are 0: -1 is behind the last layer.
            used = layer if layer >= 0 else count + 1 + layer
        if not 1 <= used <= count:
            raise ConfigError(
                f"config.json has {self.name}={layer!r}, and the encoder has {count} layers",
                where=self.name,
                hint="tokens of one layer are read, 1 to the last, or from the end as -1",
            )
        return update_config(cfg, {f"{_IMAGE}.stack.num_layers": used})

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the field for an encoder of which all layers are used."""
        return {self.name: -1}


def _weights(cfg: Any) -> WeightMap:
    tower, image = "vision_tower.vision_model", cfg.encoder.encoder
    layer = layer_weights(*ATTENTION, NORMS, parts=("q", "k", "v"))
    first = f"{tower}.embeddings.class_embedding"
    patch = f"{tower}.embeddings.patch_embedding"
    return (
        *part_weights(
            language_model_of(cfg),
            "language_model.",
            moved={"decoder.embedding.": "decoder.embedding.embedding."},
        ),
        Rule((f"{_IMAGE}.first_tokens",), (first,), JoinAxes(1)),
        same(f"{_IMAGE}.positions", f"{tower}.embeddings.position_embedding.weight"),
        *patches(f"{_IMAGE}.patches.linear", patch, image.patches.patch_size),
        *both(f"{_IMAGE}.input_norm", f"{tower}.pre_layrnorm"),
        *below(f"{_IMAGE}.stack.layer.{{layer}}", f"{tower}.encoder.layers.{{layer}}", layer),
        *linear("encoder.connector.up", "multi_modal_projector.linear_1"),
        *linear("encoder.connector.down", "multi_modal_projector.linear_2"),
    )


LLAVA = Family(
    architecture="LlavaForConditionalGeneration",
    template=lambda: llava(llama2("toy"), "toy", image_size=28),
    parts=("text_config", "vision_config"),
    config=(
        ModelPart(
            name="text_config",
            get=language_model_of,
            put=with_language_model,
            family="llama",
            defaults={"llama": _LLAMA},
        ),
        *encoder_fields("vision_config", _IMAGE, f"{_IMAGE}.stack", (1024, 24, 16, 4096)),
        PictureSize("vision_config.image_size", _IMAGE, default=336),
        Field("vision_config.patch_size", (f"{_IMAGE}.patches.patch_size",), default=14),
        Field("vision_config.num_channels", (f"{_IMAGE}.patches.num_channels",), default=3),
        activation("vision_config.hidden_act", "quick_gelu", f"{_IMAGE}.stack.**.activation"),
        Field("vision_config.layer_norm_eps", (f"{_IMAGE}.**.epsilon",), default=1e-5),
        MustBe("vision_config.model_type", ("clip_vision_model",)),
        _FeatureLayer(),
        Computed("decoder.embedding.num_tokens", lambda cfg: cfg.encoder.encoder.num_patches),
        activation("projector_hidden_act", "gelu", "encoder.connector.activation"),
        MustBe("vision_feature_select_strategy", ("default",)),
        MustBe("multimodal_projector_bias", (True,)),
    ),
    weights=_weights,
    length="text_config.max_position_embeddings",
    input_mark="image_token_index",
    irrelevant=frozenset(
        {
            "attention_dropout",
            "ignore_index",
            "image_seq_length",
            "image_token_index",
            "initializer_factor",
            "projection_dim",  # of CLIP, which compares vectors of this size
            "tie_word_embeddings",  # of the text, which says it itself
            "vocab_size",  # of CLIP's texts, or of the text once more
        }
    ),
    # Of the layers that are not used, and the norm behind them.
    skipped=(
        r"\.position_ids$",
        r"rotary_emb\.inv_freq$",
        r"vision_model\.encoder\.layers\.\d+\.",
        r"vision_model\.post_layernorm\.",
    ),
    copies={"language_model.lm_head.weight": "language_model.model.embed_tokens.weight"},
    renamed=((r"^vision_tower\.(?!vision_model\.)", "vision_tower.vision_model."),),
)
