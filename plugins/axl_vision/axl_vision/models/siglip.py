"""SigLIP: pictures and texts in one space, with a loss for each pair."""

from typing import Any

import attrs

from axcore.config import evolve, update_config
from axcore.interop import (
    Chain,
    Concatenate,
    Family,
    Field,
    Rule,
    SplitAxis,
    Transform,
    Transpose,
    WeightMap,
    activation,
    below,
    both,
    linear,
    patches,
    same,
)
from axcore.layers import (
    AttentionPool,
    CrossAttention,
    LastToken,
    LayerNorm,
    Linear,
    PlainFeedForward,
)
from axcore.models import Sizes, of_size
from axl_vision.dual_encoder import DualEncoder
from axl_vision.encoder import NormalizePixels
from axl_vision.models.clip import (
    ATTENTION,
    NORMS,
    clip,
    encoder_fields,
    text_weights,
)
from axl_vision.models.vit import PictureSize, layer_weights

_SIZES: Sizes = {
    "base": {"dim": 768, "num_layers": 12, "num_heads": 12, "hidden_dim": 3072},
    "large": {"dim": 1024, "num_layers": 24, "num_heads": 16, "hidden_dim": 4096},
    "so400m": {"dim": 1152, "num_layers": 27, "num_heads": 16, "hidden_dim": 4304},
    "toy": {"dim": 64, "num_layers": 2, "num_heads": 4, "hidden_dim": 128},
}
_VOCABULARY, _LENGTH, _EPSILON = 32_000, 64, 1e-6


def siglip(
    size: str,
    *,
    image_size: int = 224,
    patch_size: int = 16,
    vocab_size: int = _VOCABULARY,
    max_length: int = _LENGTH,
) -> DualEncoder.Config:
    """Return the config of a SigLIP: `base`, `large`, `so400m` or `toy`.

    Args:
        size: Its name.
        image_size: Height and width of a picture.
        patch_size: Height and width of a patch.
        vocab_size: Number of tokens of texts.
        max_length: Tokens of a text, all of which are read.

    Source: Zhai et al. 2023, arXiv:2303.15343, section 3; so400m: Alabdulmohsin et al. 2023,
    arXiv:2305.13035.
    """
    sizes = of_size("siglip", _SIZES, size)
    linear = Linear.Config(has_bias=True)
    base = clip(
        "toy",
        image_size=image_size,
        patch_size=patch_size,
        vocab_size=vocab_size,
        max_length=max_length,
    )
    pool = AttentionPool.Config(
        attention=CrossAttention.Config(num_heads=1, linear=linear, out_linear=linear),
        norm=LayerNorm.Config(),
        feed_forward=PlainFeedForward.Config(hidden_dim=1, linear=linear),
    )
    image = evolve(
        base.image, input_norm=None, num_first_tokens=0, pixels=NormalizePixels.Config(), pool=pool
    )
    cfg = evolve(
        base,
        image=image,
        text=evolve(base.text, pool=LastToken.Config()),
        projection_dim=None,
        text_linear=linear,
        scale=10.0,
        bias=-10.0,
        reads_padding=True,
    )
    return update_config(
        cfg,
        {
            "**.is_causal": False,
            "image.dim": sizes["dim"],
            "text.dim": sizes["dim"],
            "**.num_layers": sizes["num_layers"],
            "**.attention.num_heads": sizes["num_heads"],
            "**.hidden_dim": sizes["hidden_dim"],
            "**.activation": "gelu_tanh",
            "**.epsilon": _EPSILON,
            "image.patches.linear.has_bias": True,
            "image.patches.leaves_out_rest": True,  # 384 pixels are not a multiple of 14
        },
    )


@attrs.frozen
class _AsVector(Transform):
    """Makes an array of one number of a number, as SigLIP stores them."""

    is_inverse: bool = False

    def __call__(self, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arrays with a dimension more, or less."""
        return tuple(array.reshape(() if self.is_inverse else (1,)) for array in arrays)

    @property
    def inverse(self) -> Transform:
        """Make a number of the array."""
        return _AsVector(not self.is_inverse)


def _pool_weights(width: int) -> WeightMap:
    """Return the rules of the pool, whose three projections are one matrix in Hugging Face's."""
    fused = Concatenate((width,) * 3)
    return (
        Rule(("query",), ("probe",), Chain(SplitAxis(1), SplitAxis(1))),
        Rule(
            tuple(f"attention.{one}.weight" for one in "qkv"),
            ("attention.in_proj_weight",),
            Chain(Transpose(), fused),
        ),
        Rule(tuple(f"attention.{one}.bias" for one in "qkv"), ("attention.in_proj_bias",), fused),
        *linear("attention.out", "attention.out_proj"),
        *both("norm", "layernorm"),
        *linear("feed_forward.up", "mlp.fc1"),
        *linear("feed_forward.down", "mlp.fc2"),
    )


def _weights(cfg: Any) -> WeightMap:
    layer = layer_weights(*ATTENTION, NORMS, parts=("q", "k", "v"))
    return (
        same("image.positions", "vision_model.embeddings.position_embedding.weight"),
        *patches(
            "image.patches.linear",
            "vision_model.embeddings.patch_embedding",
            cfg.image.patches.patch_size,
        ),
        *below("image.stack.layer.{layer}", "vision_model.encoder.layers.{layer}", layer),
        *both("image.norm", "vision_model.post_layernorm"),
        *below("image.pool", "vision_model.head", _pool_weights(cfg.image.dim)),
        *text_weights(layer),
        *linear("text_projection", "text_model.head"),
        Rule(("log_scale",), ("logit_scale",), _AsVector()),
        Rule(("bias",), ("logit_bias",), _AsVector()),
    )


SIGLIP = Family(
    architecture="SiglipModel",
    template=lambda: siglip("toy"),
    parts=("text_config", "vision_config"),
    config=(
        Field("vision_config.hidden_size", ("image.dim",), default=768),
        Field("vision_config.num_hidden_layers", ("image.stack.num_layers",), default=12),
        Field("vision_config.num_attention_heads", ("image.**.attention.num_heads",), default=12),
        Field("vision_config.intermediate_size", ("image.**.hidden_dim",), default=3072),
        *encoder_fields("text_config", "text", "text.decoder.stack", (768, 12, 12, 3072)),
        PictureSize("vision_config.image_size", "image"),
        Field("vision_config.patch_size", ("image.patches.patch_size",), default=16),
        Field("vision_config.num_channels", ("image.patches.num_channels",), default=3),
        activation("vision_config.hidden_act", "gelu_pytorch_tanh", "image.**.activation"),
        activation("text_config.hidden_act", "gelu_pytorch_tanh", "text.**.activation"),
        Field("vision_config.layer_norm_eps", ("image.**.epsilon",), default=_EPSILON),
        Field("text_config.layer_norm_eps", ("text.**.epsilon",), default=_EPSILON),
        Field("text_config.vocab_size", ("text.vocab_size",), default=_VOCABULARY),
        Field(
            "text_config.max_position_embeddings",
            ("text.decoder.embedding.max_length",),
            default=_LENGTH,
        ),
    ),
    weights=_weights,
    irrelevant=frozenset({"initializer_factor", "projection_size", "vision_use_head"}),
    skipped=(r"\.position_ids$",),
    copies={},
)
