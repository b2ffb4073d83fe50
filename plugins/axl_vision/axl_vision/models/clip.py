"""CLIP: pictures and texts in one space."""

from typing import Any

from axcore.config import update_config
from axcore.errors import ConfigError
from axcore.interop import (
    ConfigEntry,
    Family,
    Field,
    JoinAxes,
    Rule,
    WeightMap,
    activation,
    below,
    both,
    linear,
    patches,
    same,
)
from axcore.layers import (
    Embedding,
    LayerNorm,
    LearnedPosition,
    Linear,
    PatchEmbedding,
    ScannedLayers,
    encoder_layer,
)
from axcore.models import Decoder, Sizes, of_size
from axl_vision.dual_encoder import DualEncoder, TextEncoder
from axl_vision.encoder import ImageEncoder, NormalizePixels
from axl_vision.models.vit import PictureSize, layer_weights

_SIZES: Sizes = {
    "base": {"image": (768, 12, 12), "text": (512, 12, 8), "dim": 512},
    "large": {"image": (1024, 24, 16), "text": (768, 12, 12), "dim": 768},
    "toy": {"image": (64, 2, 4), "text": (64, 2, 4), "dim": 32},
}
"""Width, layers and heads of both encoders, and the size of the vectors that are compared."""

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
_VOCABULARY, _LENGTH = 49_408, 77
_EPSILON = 1e-5


def clip(
    size: str,
    *,
    image_size: int = 224,
    patch_size: int = 32,
    vocab_size: int = _VOCABULARY,
    max_length: int = _LENGTH,
) -> DualEncoder.Config:
    """Return the config of a CLIP with a vision transformer: `base`, `large` or `toy`.

    Args:
        size: Its name.
        image_size: Height and width of a picture.
        patch_size: Height and width of a patch.
        vocab_size: Number of tokens of texts.
        max_length: Tokens of a text, at most.

    Source: Radford et al. 2021, arXiv:2103.00020, table 20.
    """
    sizes = of_size("clip", _SIZES, size)
    width, layers, heads = sizes["image"]
    image = ImageEncoder.Config(
        dim=width,
        height=image_size,
        width=image_size,
        pixels=NormalizePixels.Config(mean=CLIP_MEAN, std=CLIP_STD),
        patches=PatchEmbedding.Config(patch_size=patch_size, linear=Linear.Config()),
        input_norm=LayerNorm.Config(),
        stack=ScannedLayers.Config(num_layers=layers, layer=_layer(width, heads)),
    )
    width, layers, heads = sizes["text"]
    causal = update_config(_layer(width, heads), {"**.core.is_causal": True})
    text = TextEncoder.Config(
        vocab_size=vocab_size,
        dim=width,
        decoder=Decoder.Config(
            embedding=LearnedPosition.Config(max_length=max_length, embedding=Embedding.Config()),
            stack=ScannedLayers.Config(num_layers=layers, layer=causal),
            norm=LayerNorm.Config(),
        ),
    )
    cfg = DualEncoder.Config(image=image, text=text, projection_dim=sizes["dim"])
    return update_config(cfg, {"**.norm.epsilon": _EPSILON, "**.input_norm.epsilon": _EPSILON})


def _layer(width: int, heads: int) -> Any:
    layer = encoder_layer(num_heads=heads, hidden_dim=4 * width)
    return update_config(layer, {"**.activation": "quick_gelu"})


ATTENTION = ("self_attn.{}_proj", "self_attn.out_proj", ("mlp.fc1", "mlp.fc2"))
NORMS = ("layer_norm1", "layer_norm2")


def _weights(cfg: Any) -> WeightMap:
    layer = layer_weights(*ATTENTION, NORMS, parts=("q", "k", "v"))
    return (
        Rule(("image.first_tokens",), ("vision_model.embeddings.class_embedding",), JoinAxes(1)),
        same("image.positions", "vision_model.embeddings.position_embedding.weight"),
        *patches(
            "image.patches.linear",
            "vision_model.embeddings.patch_embedding",
            cfg.image.patches.patch_size,
        ),
        *both("image.input_norm", "vision_model.pre_layrnorm"),
        *below("image.stack.layer.{layer}", "vision_model.encoder.layers.{layer}", layer),
        *both("image.norm", "vision_model.post_layernorm"),
        *text_weights(layer),
        *linear("image_projection", "visual_projection"),
        *linear("text_projection", "text_projection"),
        same("log_scale", "logit_scale"),
    )


def text_weights(layer: WeightMap) -> WeightMap:
    """Return the rules of a text encoder."""
    return (
        same(
            "text.decoder.embedding.embedding.weight",
            "text_model.embeddings.token_embedding.weight",
        ),
        same("text.decoder.embedding.positions", "text_model.embeddings.position_embedding.weight"),
        *below("text.decoder.stack.layer.{layer}", "text_model.encoder.layers.{layer}", layer),
        *both("text.decoder.norm", "text_model.final_layer_norm"),
    )


def encoder_fields(
    part: str, path: str, stack: str, defaults: tuple[int, int, int, int]
) -> tuple[ConfigEntry, ...]:
    """Return the entries of an encoder's sizes.

    Args:
        part: The field of `config.json` that they are in.
        path: The encoder's path in the model's config.
        stack: Its stack's path.
        defaults: Width, layers, heads and hidden size that are not written.
    """
    width, layers, heads, hidden = defaults
    return (
        Field(f"{part}.hidden_size", (f"{path}.dim",), default=width),
        Field(f"{part}.num_hidden_layers", (f"{stack}.num_layers",), default=layers),
        Field(f"{part}.num_attention_heads", (f"{stack}.**.attention.num_heads",), default=heads),
        Field(f"{part}.intermediate_size", (f"{stack}.**.hidden_dim",), default=hidden),
    )


class RepeatedPart(ConfigEntry):
    """`text_config_dict` and its like, which some files have: a part's fields once more."""

    def __init__(self, part: str) -> None:
        self.part, self.name = part, f"{part}_dict"

    def read(self, cfg: Any, fields: Any) -> Any:
        """Check that the fields are those of the part.

        Raises:
            ConfigError: One of them has another value there, so that it is not said which counts.
        """
        for name, value in (fields.take(self.name, None) or {}).items():
            own = fields.values.get(f"{self.part}.{name}", value)
            if own != value:
                raise ConfigError(
                    f"config.json has {self.part}.{name}={own!r} and {self.name}.{name}={value!r}",
                    where=self.name,
                    hint=f"take out {self.name}, or write the same value in both",
                )
        return cfg

    def write(self, cfg: Any) -> dict[str, Any]:
        """Write nothing: the part has the fields."""
        return {}


CLIP = Family(
    architecture="CLIPModel",
    template=lambda: clip("toy"),
    parts=("text_config", "vision_config"),
    config=(
        *encoder_fields("vision_config", "image", "image.stack", (768, 12, 12, 3072)),
        *encoder_fields("text_config", "text", "text.decoder.stack", (512, 12, 8, 2048)),
        PictureSize("vision_config.image_size", "image"),
        Field("vision_config.patch_size", ("image.patches.patch_size",), default=32),
        Field("vision_config.num_channels", ("image.patches.num_channels",), default=3),
        activation("vision_config.hidden_act", "quick_gelu", "image.stack.**.activation"),
        activation("text_config.hidden_act", "quick_gelu", "text.**.activation"),
        Field("vision_config.layer_norm_eps", ("image.**.epsilon",), default=_EPSILON),
        Field("text_config.layer_norm_eps", ("text.**.epsilon",), default=_EPSILON),
        Field("text_config.vocab_size", ("text.vocab_size",), default=_VOCABULARY),
        Field(
            "text_config.max_position_embeddings",
            ("text.decoder.embedding.max_length",),
            default=_LENGTH,
        ),
        Field("projection_dim", ("projection_dim",), default=512),
        RepeatedPart("text_config"),
        RepeatedPart("vision_config"),
    ),
    weights=_weights,
    irrelevant=frozenset(
        {
            "add_cross_attention",
            "dropout",
            "initializer_factor",
            "logit_scale_init_value",
            "projection_dim",  # of the parts, which none of them reads
            "tie_word_embeddings",
        }
    ),
    skipped=(r"\.position_ids$",),
    copies={},
)
