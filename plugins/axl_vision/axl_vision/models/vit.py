"""ViT: a vision transformer that classifies pictures."""

from operator import attrgetter
from typing import Any

import attrs

from axcore.config import update_config
from axcore.interop import (
    ConfigEntry,
    Family,
    Field,
    Fields,
    Labels,
    MustBe,
    Rule,
    SplitAxis,
    WeightMap,
    activation,
    below,
    both,
    linear,
    patches,
)
from axcore.layers import PatchEmbedding, ScannedLayers, encoder_layer
from axcore.models import Sizes, of_size
from axl_vision.encoder import ImageClassifier, ImageEncoder

_SIZES: Sizes = {
    "tiny": {"dim": 192, "num_layers": 12, "num_heads": 3, "hidden_dim": 768},
    "small": {"dim": 384, "num_layers": 12, "num_heads": 6, "hidden_dim": 1536},
    "base": {"dim": 768, "num_layers": 12, "num_heads": 12, "hidden_dim": 3072},
    "large": {"dim": 1024, "num_layers": 24, "num_heads": 16, "hidden_dim": 4096},
    "huge": {"dim": 1280, "num_layers": 32, "num_heads": 16, "hidden_dim": 5120},
    "toy": {"dim": 64, "num_layers": 2, "num_heads": 4, "hidden_dim": 128},
}


def vit(
    size: str, *, num_classes: int, image_size: int = 224, patch_size: int = 16
) -> ImageClassifier.Config:
    """Return the config of a ViT: `tiny`, `small`, `base`, `large`, `huge` or `toy`.

    Args:
        size: Its name.
        num_classes: Number of logits.
        image_size: Height and width of a picture.
        patch_size: Height and width of a patch.

    Source: Dosovitskiy et al. 2020, arXiv:2010.11929, table 1; tiny and small: Touvron et al. 2020,
    arXiv:2012.12877, table 1.
    """
    sizes = of_size("vit", _SIZES, size)
    layer = encoder_layer(num_heads=sizes["num_heads"], hidden_dim=sizes["hidden_dim"])
    encoder = ImageEncoder.Config(
        dim=sizes["dim"],
        height=image_size,
        width=image_size,
        patches=PatchEmbedding.Config(patch_size=patch_size),
        stack=ScannedLayers.Config(num_layers=sizes["num_layers"], layer=layer),
    )
    return ImageClassifier.Config(num_classes=num_classes, encoder=encoder)


@attrs.frozen
class PictureSize(ConfigEntry):
    """Height and width of a picture, one number where they are equal.

    Args:
        name: Of the field.
        path: The encoder's path in the model's config.
        default: What the field's absence means.
    """

    name: str
    path: str
    default: int = 224

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with the size."""
        size = fields.take(self.name, self.default)
        height, width = size if isinstance(size, list | tuple) else (size, size)
        return update_config(cfg, {f"{self.path}.height": height, f"{self.path}.width": width})

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the field."""
        encoder = attrgetter(self.path)(cfg)
        is_square = encoder.height == encoder.width
        return {self.name: encoder.height if is_square else [encoder.height, encoder.width]}


def layer_weights(
    attention: str,
    out: str,
    feed_forward: tuple[str, str],
    norms: tuple[str, str],
    *,
    parts: tuple[str, str, str] = ("query", "key", "value"),
) -> WeightMap:
    """Return the rules of an encoder's layer, from names in Hugging Face's.

    Args:
        attention: What the names of query, key and value are below, with `{}` for which of them.
        out: Of the projection behind attention.
        feed_forward: Of its two projections.
        norms: Before attention and before the feed-forward.
        parts: What query, key and value are called.
    """
    queries, keys, values = (attention.format(one) for one in parts)
    return (
        *both("attention_residual.norm", norms[0]),
        *linear("attention.q", queries),
        *linear("attention.k", keys),
        *linear("attention.v", values),
        *linear("attention.out", out),
        *both("feed_forward_residual.norm", norms[1]),
        *linear("feed_forward.up", feed_forward[0]),
        *linear("feed_forward.down", feed_forward[1]),
    )


def _weights(cfg: Any) -> WeightMap:
    layer = layer_weights(
        "attention.attention.{}",
        "attention.output.dense",
        ("intermediate.dense", "output.dense"),
        ("layernorm_before", "layernorm_after"),
    )
    size = cfg.encoder.patches.patch_size
    return (
        Rule(("encoder.first_tokens",), ("vit.embeddings.cls_token",), SplitAxis(1)),
        Rule(("encoder.positions",), ("vit.embeddings.position_embeddings",), SplitAxis(1)),
        *patches("encoder.patches.linear", "vit.embeddings.patch_embeddings.projection", size),
        *below("encoder.stack.layer.{layer}", "vit.encoder.layer.{layer}", layer),
        *both("encoder.norm", "vit.layernorm"),
        *linear("head", "classifier"),
    )


ENCODER_SIZES: tuple[ConfigEntry, ...] = (
    Field("hidden_size", ("**.encoder.dim",), default=768),
    Field("num_hidden_layers", ("**.encoder.stack.num_layers",), default=12),
    Field("num_attention_heads", ("**.attention.num_heads",), default=12),
    Field("intermediate_size", ("**.hidden_dim",), default=3072),
    Field("patch_size", ("**.patches.patch_size",), default=16),
    Field("num_channels", ("**.patches.num_channels",), default=3),
)

VIT = Family(
    architecture="ViTForImageClassification",
    template=lambda: vit("toy", num_classes=2),
    config=(
        *ENCODER_SIZES,
        PictureSize("image_size", "encoder"),
        Labels(),
        Field("layer_norm_eps", ("**.norm.epsilon",), default=1e-12, to_axcore=float),
        activation("hidden_act", "gelu"),
        MustBe("qkv_bias", (True,)),
    ),
    weights=_weights,
    irrelevant=frozenset(
        {
            "attention_probs_dropout_prob",
            "encoder_stride",
            "hidden_dropout_prob",
            "id2label",
            "label2id",
            "pooler_act",
            "pooler_output_size",
            "problem_type",
        }
    ),
    copies={},
)
