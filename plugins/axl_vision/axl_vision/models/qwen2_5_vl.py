"""Qwen2.5-VL: a Qwen2 with positions on three axes, and an encoder whose layers see windows."""

from typing import Any

import attrs

from axcore.config import evolve, replace_config, update_config
from axcore.errors import ConfigError
from axcore.interop import (
    Chain,
    Computed,
    Concatenate,
    ConfigEntry,
    Derived,
    Family,
    Field,
    Fields,
    ModelPart,
    MustBe,
    ReorderAxes,
    Rule,
    SplitAxis,
    Transpose,
    WeightMap,
    activation,
    arranged,
    below,
    layers_of,
    linear,
    part_weights,
    same,
)
from axcore.layers import (
    Attention,
    AxialRoPE,
    DotProductAttention,
    FeedForward,
    Linear,
    MultimodalRoPE,
    PreNorm,
    RoPE,
    TransformerLayer,
)
from axcore.models import (
    CausalLM,
    MultimodalLM,
    Sizes,
    language_model_of,
    multimodal,
    of_size,
    qwen2,
    with_language_model,
)
from axl_vision.encoder import NormalizePixels
from axl_vision.models.clip import CLIP_MEAN, CLIP_STD
from axl_vision.windowed_tokens import WindowAttention, WindowedImageTokens

_SIZES: Sizes = {
    "3b": {"width": 1280, "num_layers": 32, "num_heads": 16, "hidden_dim": 3420},
    "7b": {"width": 1280, "num_layers": 32, "num_heads": 16, "hidden_dim": 3420},
    "72b": {"width": 1280, "num_layers": 32, "num_heads": 16, "hidden_dim": 3456},
    "toy": {"width": 32, "num_layers": 4, "num_heads": 2, "hidden_dim": 48},
}
IMAGE_SIZE = (448, 448)
_TURN = 8
"""The last of so many layers sees all of a picture."""


def qwen2_5_vl(
    text: CausalLM.Config, size: str, *, image_size: tuple[int, int] = IMAGE_SIZE
) -> MultimodalLM.Config:
    """Return the config of a Qwen2.5-VL: a language model, and the encoder of a size.

    Args:
        text: The language model, whose `RoPE` gets three axes: `qwen2("7b")`, for example.
        size: Of the encoder: `3b`, `7b`, `72b` or `toy`.
        image_size: Height and width of a picture, multiples of 112 pixels; weights are the same for
            all.

    Source: Bai et al. 2025, arXiv:2502.13923, table 1.
    """
    sizes = of_size("qwen2_5_vl", _SIZES, size)
    num_layers = sizes["num_layers"]
    wide = _layer(sizes["num_heads"], sizes["hidden_dim"])
    encoder: Any = WindowedImageTokens.Config(
        width=sizes["width"],
        image_size=image_size,
        pixels=NormalizePixels.Config(mean=CLIP_MEAN, std=CLIP_STD),
        stack=wide,
    )
    turn = min(_TURN, num_layers)
    encoder = _with_layers(encoder, wide, num_layers, range(turn - 1, num_layers, turn))
    rows, columns = encoder.grid
    positions = lambda old: MultimodalRoPE.Config(theta=old.theta)  # noqa: E731
    return multimodal(
        replace_config(text, RoPE, positions),
        encoder,
        num_soft_tokens=rows * columns,
        grid=(rows, columns),
    )


def with_picture_size(cfg: Any, height: int, width: int) -> Any:
    """Return the config of a model that reads pictures of another size with the same weights.

    Args:
        cfg: Of a Qwen2.5-VL or Qwen3-VL.
        height: In pixels.
        width: In pixels.
    """
    encoder = evolve(cfg.encoder, image_size=(height, width))
    rows, columns = encoder.grid
    return update_config(
        evolve(cfg, encoder=encoder),
        {
            "decoder.embedding.grid": (rows, columns),
            "decoder.embedding.**.num_tokens": rows * columns,
        },
    )


def _layer(num_heads: int, hidden_dim: int) -> TransformerLayer.Config:
    linear = Linear.Config(has_bias=True)
    return TransformerLayer.Config(
        attention=Attention.Config(
            num_heads=num_heads,
            linear=linear,
            out_linear=linear,
            position=AxialRoPE.Config(),
            core=DotProductAttention.Config(is_causal=False),
        ),
        feed_forward=FeedForward.Config(hidden_dim=hidden_dim, linear=linear),
        residual=PreNorm.Config(),
    )


def _with_layers(encoder: Any, wide: Any, num_layers: int, far: Any) -> Any:
    """Return an encoder with so many layers.

    Args:
        encoder: Its config.
        wide: A layer that sees all of a picture.
        num_layers: How many there are.
        far: The numbers of those that do; others see windows.
    """
    size = encoder.patches_in_window
    near = evolve(wide, attention=WindowAttention.Config(num_tokens=size, attention=wide.attention))
    layers = [wide if number in far else near for number in range(num_layers)]
    return evolve(encoder, stack=arranged(layers))


def _is_wide(layer: Any) -> bool:
    return not isinstance(layer.attention, WindowAttention.Config)


@attrs.frozen
class _Layers(ConfigEntry):
    """How many layers the encoder has, and which of them see all of a picture."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with the layers; those before are all of one kind.

        Raises:
            ConfigError: The numbers are not those of layers.
        """
        count = fields.take("vision_config.depth", 32)
        far = fields.take("vision_config.fullatt_block_indexes", [7, 15, 23, 31])
        if not all(isinstance(number, int) and 0 <= number < count for number in far):
            raise ConfigError(
                f"fullatt_block_indexes is {far!r}, and the encoder has {count} layers",
                where="vision_config.fullatt_block_indexes",
                hint="compare it with the file that was published",
            )
        encoder = cfg.encoder
        wide = next(filter(_is_wide, layers_of(encoder.stack)))
        return evolve(cfg, encoder=_with_layers(encoder, wide, count, far))

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return both fields."""
        layers = layers_of(cfg.encoder.stack)
        far = [number for number, layer in enumerate(layers) if _is_wide(layer)]
        return {
            "vision_config.depth": len(layers),
            "vision_config.fullatt_block_indexes": far,
        }


@attrs.frozen
class AnyPictureSize(ConfigEntry):
    """The size of pictures, of which published files say nothing: any is right."""

    name = "vision_config.image_size"

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with the size that an export from here was trained with."""
        size = fields.take(self.name, IMAGE_SIZE)
        return evolve(cfg, encoder=evolve(cfg.encoder, image_size=tuple(size)))

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the field, where it is not what its absence means."""
        size = cfg.encoder.image_size
        return {} if size == IMAGE_SIZE else {self.name: list(size)}


def encoder_fields(**defaults: int) -> tuple[ConfigEntry, ...]:
    """Return the fields of a `GridTokens`; `defaults` are what the absence of some means."""

    def field(name: str, path: str, default: Any) -> Field:
        return Field(f"vision_config.{name}", (f"encoder.{path}",), default=default)

    return (
        field("hidden_size", "width", defaults["hidden_size"]),
        field("num_heads", "stack.**.attention.num_heads", 16),
        field("intermediate_size", "stack.**.hidden_dim", defaults["intermediate_size"]),
        field("patch_size", "patch_size", defaults["patch_size"]),
        field("temporal_patch_size", "num_frames", 2),
        field("in_channels", "num_channels", 3),
        field("spatial_merge_size", "merge_size", 2),
        Field(
            "vision_config.rope_parameters",
            ("encoder.stack.**.position.theta",),
            default={"rope_type": "axial", "rope_theta": 10_000.0},
            to_axcore=lambda value: float(value["rope_theta"]),
            to_hf=lambda theta: {"rope_type": "axial", "rope_theta": theta},
        ),
        Derived("vision_config.out_hidden_size", lambda cfg: cfg.dim),
    )


GRID = (
    Computed("decoder.embedding.grid", lambda cfg: cfg.encoder.grid),
    Computed(
        "decoder.embedding.**.num_tokens",
        lambda cfg: cfg.encoder.grid[0] * cfg.encoder.grid[1],
    ),
)
"""How many soft tokens a picture of the encoder's size has, and where they are."""


def _template() -> Any:
    cfg = qwen2_5_vl(qwen2("toy"), "toy")
    # One layer, which sees all, until it is known how many there are.
    wide = next(filter(_is_wide, layers_of(cfg.encoder.stack)))
    return evolve(cfg, encoder=evolve(cfg.encoder, stack=wide))


def _weights(cfg: Any) -> WeightMap:
    encoder = cfg.encoder
    layer = (
        same("attention_residual.norm.weight", "norm1.weight"),
        same("feed_forward_residual.norm.weight", "norm2.weight"),
        *linear("feed_forward.gate", "mlp.gate_proj"),
        *linear("feed_forward.up", "mlp.up_proj"),
        *linear("feed_forward.down", "mlp.down_proj"),
        *(
            rule
            for at in ("attention", "attention.attention")
            for rule in fused_attention(at, encoder.width)
        ),
    )
    return (
        *part_weights(
            language_model_of(cfg),
            "",
            moved={"decoder.embedding.": "decoder.embedding.embedding.embedding."},
        ),
        *patch_weights(encoder),
        *below("encoder.stack.layer.{layer}", "visual.blocks.{layer}", layer),
        same("encoder.merger.norm.weight", "visual.merger.ln_q.weight"),
        *linear("encoder.merger.up", "visual.merger.mlp.0"),
        *linear("encoder.merger.down", "visual.merger.mlp.2"),
    )


def patch_weights(encoder: Any) -> WeightMap:
    """Return the rules of the projection of patches, a convolution over frames in transformers."""
    kernel = Chain(
        SplitAxis(encoder.num_channels, 0),
        SplitAxis(encoder.num_frames, 1),
        SplitAxis(encoder.patch_size, 2),
        ReorderAxes((4, 0, 1, 2, 3)),
    )
    own, other = "encoder.patches", "visual.patch_embed.proj"
    weight = Rule((f"{own}.weight",), (f"{other}.weight",), kernel)
    return (weight, same(f"{own}.bias", f"{other}.bias"))


def fused_attention(at: str, width: int) -> WeightMap:
    """Return the rules of an encoder's attention, whose projections are one in transformers.

    Args:
        at: Where it is in a layer.
        width: Size of a patch's token.
    """
    parts, fused = [f"{at}.{one}" for one in "qkv"], Concatenate((width,) * 3)
    return (
        Rule(
            tuple(f"{one}.weight" for one in parts),
            ("attn.qkv.weight",),
            Chain(Transpose(), fused),
        ),
        Rule(tuple(f"{one}.bias" for one in parts), ("attn.qkv.bias",), fused),
        *linear(f"{at}.out", "attn.proj"),
    )


_TEXT = {
    "hidden_size": 8192,
    "intermediate_size": 29_568,
    "num_attention_heads": 64,
    "num_hidden_layers": 80,
    "num_key_value_heads": 8,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1_000_000.0,
    "vocab_size": 152_064,
}
"""What transformers' own config of the text has, and files leave out."""

IRRELEVANT = frozenset(
    {
        "attention_dropout",
        "image_token_id",
        "in_chans",  # which transformers does not read
        "spatial_patch_size",
        "tokens_per_second",  # of films
        "video_token_id",
        "vision_end_token_id",
        "vision_start_token_id",
        "vision_token_id",
    }
)

_PICTURE = "{vision_start_token_id}{image_token_id}{vision_end_token_id}"
INPUT_TEXTS = {_PICTURE: _PICTURE, "{image_token_id}": _PICTURE}
"""Templates write all three tokens of a part, and leave a content that is text as it is."""

QWEN2_5_VL = Family(
    architecture="Qwen2_5_VLForConditionalGeneration",
    template=_template,
    parts=("text_config", "vision_config"),
    flat_part="text_config",
    config=(
        ModelPart(
            name="text_config",
            get=language_model_of,
            put=with_language_model,
            family="qwen2",
            defaults={"qwen2": _TEXT},
            types={"qwen2": "qwen2_5_vl_text"},
        ),
        MustBe("vision_config.model_type", ("qwen2_5_vl_vision", "qwen2_5_vl", None)),
        *encoder_fields(hidden_size=3584, intermediate_size=3420, patch_size=14),
        Field("vision_config.window_size", ("encoder.window_size",), default=112),
        activation("vision_config.hidden_act", "silu", "encoder.stack.**.activation"),
        AnyPictureSize(),
        _Layers(),
        *GRID,
    ),
    weights=_weights,
    length="text_config.max_position_embeddings",
    input_mark="image_token_id",
    input_texts=INPUT_TEXTS,
    irrelevant=IRRELEVANT,
    renamed=((r"^model\.language_model\.", "model."), (r"^model\.visual\.", "visual.")),
)
