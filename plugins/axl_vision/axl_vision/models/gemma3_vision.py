"""Gemma 3 with pictures: SigLIP's patches, averaged, in a Gemma 3 that sees each picture whole."""

from math import isqrt
from typing import Any

from axcore.config import evolve
from axcore.errors import ConfigError
from axcore.interop import (
    Computed,
    ConfigEntry,
    Family,
    Field,
    Fields,
    ModelPart,
    MustBe,
    WeightMap,
    activation,
    below,
    both,
    part_weights,
    patches,
    same,
)
from axcore.layers import FirstToken
from axcore.models import (
    CausalLM,
    MultimodalLM,
    language_model_of,
    llama2,
    multimodal,
    with_language_model,
    with_whole_inputs,
    without_whole_inputs,
)
from axl_vision.models.clip import ATTENTION, NORMS, encoder_fields
from axl_vision.models.siglip import siglip
from axl_vision.models.vit import PictureSize, layer_weights
from axl_vision.pooled_tokens import PooledImageTokens

_IMAGE = "encoder.encoder"
_TEXT = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_attention_heads": 8,
    "num_hidden_layers": 26,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "vocab_size": 262_208,
}
"""What transformers' own config of the text has, and files leave out."""

_PICTURE = "\n\n{boi_token_index}{image_token_index}{eoi_token_index}\n\n"


def gemma3_vision(
    text: CausalLM.Config,
    size: str = "so400m",
    *,
    image_size: int = 896,
    patch_size: int = 14,
    num_soft_tokens: int = 256,
) -> MultimodalLM.Config:
    """Return the config of a Gemma 3 that reads pictures.

    Args:
        text: The language model: `axl_attention.models.gemma3("4b")`, for example.
        size: Of the SigLIP, whose encoder it is.
        image_size: Height and width of a picture.
        patch_size: Height and width of a patch.
        num_soft_tokens: Of a picture, a square number: each is the mean of a square of patches.

    Raises:
        ConfigError: The patches of a picture are not so many squares.

    Source: Gemma Team 2025, arXiv:2503.19786, section 2.1.
    """
    image: Any = siglip(size, image_size=image_size, patch_size=patch_size).image
    encoder = PooledImageTokens.Config(encoder=evolve(image, pool=FirstToken.Config()))
    encoder = _pooled(encoder, num_soft_tokens)
    return with_whole_inputs(multimodal(text, encoder, num_soft_tokens=num_soft_tokens))


def _pooled(encoder: Any, num_soft_tokens: int) -> Any:
    """Return an encoder that makes so many soft tokens of a picture.

    Raises:
        ConfigError: Its patches cannot be divided so.
    """
    (rows, columns), side = encoder.grid, isqrt(num_soft_tokens)
    if side**2 != num_soft_tokens or rows != columns or rows % side:
        raise ConfigError(
            f"{num_soft_tokens} soft tokens of a picture, which has {rows} x {columns} patches",
            where="mm_tokens_per_image",
            hint="each is the mean of a square of patches: 64 x 64 patches make 256, for example",
        )
    return evolve(encoder, pooled=rows // side)


class _NumSoftTokens(ConfigEntry):
    """`mm_tokens_per_image`: soft tokens of a picture, whose patches are averaged."""

    name = "mm_tokens_per_image"

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with so many soft tokens.

        Raises:
            ConfigError: The patches cannot be divided so.
        """
        return evolve(cfg, encoder=_pooled(cfg.encoder, fields.take(self.name, 256)))

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the field.

        Raises:
            ConfigError: The encoder averages no patches.
        """
        if not isinstance(cfg.encoder, PooledImageTokens.Config):
            raise ConfigError(f"its encoder is a {type(cfg.encoder).__qualname__}", where="encoder")
        return {self.name: cfg.encoder.num_tokens}


def _text_of(cfg: Any) -> CausalLM.Config:
    return language_model_of(without_whole_inputs(cfg))


def _with_text(cfg: Any, text: CausalLM.Config) -> MultimodalLM.Config:
    return with_whole_inputs(with_language_model(without_whole_inputs(cfg), text))


def _weights(cfg: Any) -> WeightMap:
    tower, connector = "vision_tower.vision_model", "multi_modal_projector"
    layer = layer_weights(*ATTENTION, NORMS, parts=("q", "k", "v"))
    patch = f"{tower}.embeddings.patch_embedding"
    return (
        *part_weights(
            _text_of(cfg),
            "language_model.",
            moved={"decoder.embedding.": "decoder.embedding.embedding.embedding."},
        ),
        same(f"{_IMAGE}.positions", f"{tower}.embeddings.position_embedding.weight"),
        *patches(f"{_IMAGE}.patches.linear", patch, cfg.encoder.encoder.patches.patch_size),
        *below(f"{_IMAGE}.stack.layer.{{layer}}", f"{tower}.encoder.layers.{{layer}}", layer),
        *both(f"{_IMAGE}.norm", f"{tower}.post_layernorm"),
        same("encoder.connector.norm.weight", f"{connector}.mm_soft_emb_norm.weight"),
        # The one matrix of the folder whose rows are inputs.
        same("encoder.connector.linear.weight", f"{connector}.mm_input_projection_weight"),
    )


GEMMA3_VISION = Family(
    architecture="Gemma3ForConditionalGeneration",
    template=lambda: gemma3_vision(
        llama2("toy"), "toy", image_size=16, patch_size=4, num_soft_tokens=4
    ),
    parts=("text_config", "vision_config"),
    config=(
        ModelPart(
            name="text_config",
            get=_text_of,
            put=_with_text,
            family="gemma3_text",
            defaults={"gemma3_text": _TEXT},
        ),
        *encoder_fields("vision_config", _IMAGE, f"{_IMAGE}.stack", (768, 12, 12, 3072)),
        PictureSize("vision_config.image_size", _IMAGE),
        Field("vision_config.patch_size", (f"{_IMAGE}.patches.patch_size",), default=16),
        Field("vision_config.num_channels", (f"{_IMAGE}.patches.num_channels",), default=3),
        activation("vision_config.hidden_act", "gelu_pytorch_tanh", f"{_IMAGE}.**.activation"),
        Field("vision_config.layer_norm_eps", ("encoder.**.epsilon",), default=1e-6),
        MustBe("vision_config.model_type", ("siglip_vision_model",)),
        # Whose vector of the picture as a whole no token of the language model reads.
        MustBe("vision_config.vision_use_head", (False, True)),
        _NumSoftTokens(),
        Computed("decoder.embedding.embedding.num_tokens", lambda cfg: cfg.encoder.num_tokens),
        MustBe("tie_word_embeddings", (True,)),
    ),
    weights=_weights,
    length="text_config.max_position_embeddings",
    input_mark="image_token_index",
    # Templates write the first of the three tokens for a picture, and the processor the rest.
    input_texts={
        "{boi_token_index}": _PICTURE,
        "{image_token_index}": _PICTURE,
        # A text that has it already is as it was.
        _PICTURE: _PICTURE,
    },
    defaults={
        "boi_token_index": 255_999,
        "eoi_token_index": 256_000,
        "image_token_index": 262_144,
    },
    irrelevant=frozenset(
        {"attention_dropout", "boi_token_index", "eoi_token_index", "image_token_index"}
    ),
    skipped=(
        r"\.position_ids$",
        r"rotary_emb\.inv_freq$",
        r"^vision_tower\.vision_model\.head\.",
    ),
    copies={"language_model.lm_head.weight": "language_model.model.embed_tokens.weight"},
    # What transformers has called these parts, from version 4.50 on.
    renamed=(
        (r"^(model\.)?language_model\.(model\.)?(?!lm_head)", "language_model.model."),
        (r"^lm_head\.", "language_model.lm_head."),
        (r"^(model\.)?vision_tower\.(vision_model\.)?", "vision_tower.vision_model."),
        (r"^model\.multi_modal_projector\.", "multi_modal_projector."),
    ),
)
"""Gemma 3 as published from 4B on; without this plugin its text part is read."""
