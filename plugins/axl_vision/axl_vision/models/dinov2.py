"""DINOv2: vision transformers that were pretrained without labels, and classifiers made of them."""

from operator import attrgetter
from typing import Any

import attrs

from axcore.config import update_config
from axcore.errors import ConfigError
from axcore.interop import (
    Chain,
    Concatenate,
    ConfigEntry,
    Family,
    Field,
    Fields,
    Labels,
    MustBe,
    Rule,
    Split,
    SplitAxis,
    Transpose,
    WeightMap,
    activation,
    below,
    both,
    common_value,
    linear,
    patches,
    same,
    without,
)
from axcore.layers import (
    FeedForward,
    Linear,
    PatchEmbedding,
    PlainFeedForward,
    ScannedLayers,
    encoder_layer,
)
from axcore.models import Sizes, of_size
from axl_vision.dinov2 import Dinov2, Dinov2Classifier, Dinov2Encoder, LayerScaledPreNorm
from axl_vision.encoder import NormalizePixels
from axl_vision.models.vit import ENCODER_SIZES

_SIZES: Sizes = {
    "small": {"dim": 384, "num_layers": 12, "num_heads": 6},
    "base": {"dim": 768, "num_layers": 12, "num_heads": 12},
    "large": {"dim": 1024, "num_layers": 24, "num_heads": 16},
    "giant": {"dim": 1536, "num_layers": 40, "num_heads": 24},
    "toy": {"dim": 64, "num_layers": 2, "num_heads": 4},
}
_RATIO = 4
"""Hidden units of a feed-forward, divided by D."""

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of the pixels of ImageNet."""

_PUBLISHED_SIZE = 518
"""Pixels of each side of the pictures that published positions are of."""


def dinov2(
    size: str,
    *,
    image_size: int = 224,
    positions_size: int = _PUBLISHED_SIZE,
    patch_size: int = 14,
    num_registers: int = 0,
) -> Dinov2.Config:
    """Return the config of a DINOv2: `small`, `base`, `large`, `giant` or `toy`.

    Args:
        size: Its name.
        image_size: Height and width of a picture.
        positions_size: Height and width of the pictures that its positions are of.
        patch_size: Height and width of a patch.
        num_registers: Tokens behind the class token; pretrained checkpoints have four, or none.

    Source: Oquab et al. 2023, arXiv:2304.07193, appendix B; giant: table 17.
    """
    sizes = of_size("dinov2", _SIZES, size)
    dim = sizes["dim"]
    layer = encoder_layer(num_heads=sizes["num_heads"], hidden_dim=_RATIO * dim)
    feed_forward: Any = layer.feed_forward
    if size == "giant":
        feed_forward = _gated(_gated_units(_RATIO * dim))
    residual = LayerScaledPreNorm.Config(norm=layer.residual.norm)
    encoder = Dinov2Encoder.Config(
        dim=dim,
        height=image_size,
        width=image_size,
        positions_size=positions_size,
        pixels=NormalizePixels.Config(mean=_MEAN, std=_STD),
        patches=PatchEmbedding.Config(patch_size=patch_size),
        num_first_tokens=1 + num_registers,
        is_antialiased=num_registers > 0,
        stack=ScannedLayers.Config(
            num_layers=sizes["num_layers"],
            layer=update_config(layer, {"residual": residual, "feed_forward": feed_forward}),
        ),
    )
    return Dinov2.Config(encoder=encoder)


def dinov2_classifier(size: str, *, num_classes: int, **options: Any) -> Dinov2Classifier.Config:
    """Return the config of a classifier with a DINOv2 as its encoder.

    Args:
        size: As of `dinov2`.
        num_classes: Number of logits.
        **options: As of `dinov2`.
    """
    encoder: Any = dinov2(size, **options).encoder
    return Dinov2Classifier.Config(num_classes=num_classes, encoder=encoder)


def _gated(hidden_dim: int) -> FeedForward.Config:
    return FeedForward.Config(hidden_dim=hidden_dim, linear=Linear.Config(has_bias=True))


def _gated_units(hidden_dim: int) -> int:
    """Return the hidden units of a gated feed-forward about as large as a plain one."""
    return -(-int(hidden_dim * 2 / 3) // 8) * 8


@attrs.frozen
class _PositionsSize(ConfigEntry):
    """`image_size`: the pictures that positions are of, whatever size a model gets."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config for pictures of that size.

        Raises:
            ConfigError: They are not square.
        """
        size = fields.take("image_size", 224)
        sides = {*size} if isinstance(size, list | tuple) else {size}
        if len(sides) != 1:
            raise ConfigError(
                f"config.json has image_size={size!r}; positions are interpolated as if pictures "
                "were square",
                where="image_size",
                hint="name a folder whose image_size is one number, as published ones have it",
            )
        return self.normal(update_config(cfg, {"encoder.positions_size": sides.pop()}))

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the field."""
        return {"image_size": cfg.encoder.positions_size}

    def normal(self, cfg: Any) -> Any:
        """Return a config of pictures of that size, since no weight depends on theirs."""
        size = cfg.encoder.positions_size
        return update_config(cfg, {"encoder.height": size, "encoder.width": size})


_LAYER = "encoder.stack.layer"


@attrs.frozen
class _FeedForwardFields(ConfigEntry):
    """`mlp_ratio` and `use_swiglu_ffn`, from which the hidden units follow."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with the feed-forward."""
        ratio, is_gated = fields.take("mlp_ratio", _RATIO), fields.take("use_swiglu_ffn", False)
        units = int(cfg.encoder.dim * ratio)
        plain = encoder_layer(num_heads=1, hidden_dim=units).feed_forward
        feed_forward = _gated(_gated_units(units)) if is_gated else plain
        return update_config(cfg, {f"{_LAYER}.feed_forward": feed_forward})

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the fields.

        Raises:
            ConfigError: No ratio makes as many hidden units, or it is another kind of layer.
        """
        feed_forward = attrgetter(f"{_LAYER}.feed_forward")(cfg)
        if not isinstance(feed_forward, FeedForward.Config | PlainFeedForward.Config):
            raise ConfigError(
                f"the feed-forward is a {type(feed_forward).__qualname__}",
                where=f"{_LAYER}.feed_forward",
            )
        is_gated = isinstance(feed_forward, FeedForward.Config)
        dim, units = cfg.encoder.dim, feed_forward.hidden_dim
        for ratio in range(1, 1 + -(-2 * units // dim)):
            if units == (_gated_units(ratio * dim) if is_gated else ratio * dim):
                return {"mlp_ratio": ratio, "use_swiglu_ffn": is_gated}
        raise ConfigError(
            f"hidden_dim is {units}, and dim {dim}; transformers has integer ratios alone",
            where=f"{_LAYER}.feed_forward.hidden_dim",
            hint=f"hidden_dim={_gated_units(_RATIO * dim) if is_gated else _RATIO * dim}",
        )


@attrs.frozen
class _PlainActivation(ConfigEntry):
    """`hidden_act`, which a gated feed-forward does not read."""

    entry = activation("hidden_act", "gelu", f"{_LAYER}.feed_forward.activation")

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with the activation."""
        if _is_plain(cfg):
            return self.entry.read(cfg, fields)
        fields.take("hidden_act", "gelu")
        return cfg

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the field, as all pretrained checkpoints have it where it is not read."""
        return self.entry.write(cfg) if _is_plain(cfg) else {"hidden_act": "gelu"}


def _is_plain(cfg: Any) -> bool:
    return isinstance(common_value(cfg, f"{_LAYER}.feed_forward"), PlainFeedForward.Config)


def _weights(cfg: Any) -> WeightMap:
    """Return the rules of an encoder, whose names have no prefix in files without a head."""
    feed_forward: WeightMap = (
        *linear("feed_forward.up", "mlp.fc1"),
        *linear("feed_forward.down", "mlp.fc2"),
    )
    if not _is_plain(cfg):
        units = common_value(cfg, f"{_LAYER}.feed_forward.hidden_dim")
        fused, parts = Concatenate((units,) * 2, axis=-1), ("feed_forward.gate", "feed_forward.up")
        weights, biases = (tuple(f"{one}.{name}" for one in parts) for name in ("weight", "bias"))
        feed_forward = (
            Rule(weights, ("mlp.weights_in.weight",), Chain(fused, Transpose())),
            Rule(biases, ("mlp.weights_in.bias",), fused),
            *linear("feed_forward.down", "mlp.weights_out"),
        )
    layer = (
        *both("attention_residual.norm", "norm1"),
        same("attention_residual.scale", "layer_scale1.lambda1"),
        *below("attention", "attention.attention", _ATTENTION),
        *linear("attention.out", "attention.output.dense"),
        *both("feed_forward_residual.norm", "norm2"),
        same("feed_forward_residual.scale", "layer_scale2.lambda1"),
        *feed_forward,
    )
    registers = cfg.encoder.num_first_tokens - 1
    first = Rule(("encoder.first_tokens",), ("embeddings.cls_token",), SplitAxis(1))
    if registers:
        names = ("embeddings.cls_token", "embeddings.register_tokens")
        first = Rule(first.axcore, names, Chain(Split((1, registers)), SplitAxis(1)))
    projection = "embeddings.patch_embeddings.projection"
    return (
        first,
        Rule(("encoder.mask_token",), ("embeddings.mask_token",), SplitAxis(1)),
        Rule(("encoder.positions",), ("embeddings.position_embeddings",), SplitAxis(1)),
        *patches("encoder.patches.linear", projection, cfg.encoder.patches.patch_size),
        *below(f"{_LAYER}.{{layer}}", "encoder.layer.{layer}", layer),
        *both("encoder.norm", "layernorm"),
    )


_ATTENTION: WeightMap = (
    *linear("q", "query"),
    *linear("k", "key"),
    *linear("v", "value"),
)


def _family(architecture: str, prefix: str, *entries: ConfigEntry, num_registers: int) -> Family:
    """Return the family of encoders, with that of classifiers.

    Args:
        architecture: Of transformers, without what its heads add.
        prefix: Of names in files with a head.
        *entries: Of the config map, in addition to those of all DINOv2.
        num_registers: Of the template.
    """

    def classifier_weights(cfg: Any) -> WeightMap:
        rules = _weights(cfg)
        named = (attrs.evolve(r, hf=tuple(f"{prefix}.{one}" for one in r.hf)) for r in rules)
        return (*named, *linear("head", "classifier"))

    entries = (
        *without(ENCODER_SIZES, "intermediate_size", "patch_size"),
        *entries,
        _PositionsSize(),
        _FeedForwardFields(),
        _PlainActivation(),
        Field("layer_norm_eps", ("**.norm.epsilon",), default=1e-6, to_axcore=float),
        MustBe("qkv_bias", (True,)),
    )
    encoder = Family(
        architecture=f"{architecture}Model",
        template=lambda: dinov2("toy", num_registers=num_registers),
        config=entries,
        weights=_weights,
        irrelevant=_IRRELEVANT,
        copies={},
    )
    classifier = attrs.evolve(
        encoder,
        architecture=f"{architecture}ForImageClassification",
        template=lambda: dinov2_classifier("toy", num_classes=2, num_registers=num_registers),
        config=(*entries, Labels()),
        weights=classifier_weights,
    )
    return attrs.evolve(encoder, classifier=classifier)


_IRRELEVANT = frozenset(
    {
        "apply_layernorm",
        "attention_probs_dropout_prob",
        "drop_path_rate",
        "hidden_dropout_prob",
        "id2label",
        "label2id",
        "layerscale_value",  # at first alone: a checkpoint has the scales
        "out_features",
        "out_indices",
        "problem_type",
        "reshape_hidden_states",
        "stage_names",
    }
)
"""Fields that change no number here; some are of backbones, which read features of layers."""

DINOV2 = _family(
    "Dinov2",
    "dinov2",
    Field("patch_size", ("**.patches.patch_size",), default=14),
    Field("use_mask_token", ("encoder.has_mask_token",), default=True),
    num_registers=0,
)

DINOV2_WITH_REGISTERS = _family(
    "Dinov2WithRegisters",
    "dinov2_with_registers",
    Field("patch_size", ("**.patches.patch_size",), default=16),
    Field(
        "num_register_tokens",
        ("encoder.num_first_tokens",),
        default=4,
        to_axcore=lambda count: count + 1,
        to_hf=lambda count: count - 1,
    ),
    num_registers=4,
)
