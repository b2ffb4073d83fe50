"""Qwen3-VL: a Qwen3 with positions on three axes, whose first layers see inner layers' tokens.

The sizes with experts have the same encoder.
"""

import re
from typing import Any

import attrs

from axcore.config import evolve, find_config, replace_config, update_config
from axcore.errors import ConfigError
from axcore.interop import (
    Chain,
    Concatenate,
    ConfigEntry,
    Family,
    Field,
    Fields,
    ModelPart,
    MustBe,
    StackArrays,
    WeightMap,
    activation,
    all_experts,
    arranged,
    below,
    both,
    layers_of,
    linear,
    part_weights,
    same,
)
from axcore.layers import (
    AxialRoPE,
    LayerNorm,
    Linear,
    MoE,
    MultimodalRoPE,
    RoPE,
    encoder_layer,
)
from axcore.models import (
    CausalLM,
    MultimodalLM,
    Sizes,
    TiedHead,
    language_model_of,
    multimodal,
    of_size,
    qwen2,
    with_language_model,
)
from axl_vision.deep_tokens import (
    DeepImageTokens,
    SendTokens,
    with_deep_tokens,
    without_deep_tokens,
)
from axl_vision.grid_tokens import PatchMerger
from axl_vision.models.qwen2_5_vl import (
    GRID,
    IMAGE_SIZE,
    INPUT_TEXTS,
    IRRELEVANT,
    AnyPictureSize,
    encoder_fields,
    fused_attention,
    patch_weights,
)

_SIZES: Sizes = {
    "so400m": {
        "width": 1152,
        "num_heads": 16,
        "hidden_dim": 4304,
        "num_layers": 27,
        "deep": (8, 16, 24),
    },
    "large": {
        "width": 1024,
        "num_heads": 16,
        "hidden_dim": 4096,
        "num_layers": 24,
        "deep": (5, 11, 17),
    },
    "toy": {"width": 32, "num_heads": 2, "hidden_dim": 48, "num_layers": 3, "deep": (0, 1)},
}


def qwen3_vl(
    text: CausalLM.Config, size: str, *, image_size: tuple[int, int] = IMAGE_SIZE
) -> MultimodalLM.Config:
    """Return the config of a Qwen3-VL: a language model, and the encoder of a size.

    Args:
        text: The language model, whose `RoPE` gets three axes: `axl_attention.models.qwen3("8b")`,
            for example.
        size: Of the encoder: `so400m`, `large` (of the language models below 8b) or `toy`.
        image_size: Height and width of a picture, multiples of 32 pixels; weights are the same for
            all.

    Source: Bai et al. 2025, arXiv:2511.21631, section 2; sizes as in the configs published with the
    weights.
    """
    sizes = of_size("qwen3_vl", _SIZES, size)
    layer: Any = encoder_layer(num_heads=sizes["num_heads"], hidden_dim=sizes["hidden_dim"])
    layer = update_config(
        layer,
        {"attention.position": AxialRoPE.Config(), "feed_forward.activation": "gelu_tanh"},
    )
    encoder = DeepImageTokens.Config(
        width=sizes["width"],
        image_size=image_size,
        patch_size=16,
        patches=Linear.Config(has_bias=True),
        stack=_sending([layer] * sizes["num_layers"], sizes["deep"]),
        merger=PatchMerger.Config(norm=LayerNorm.Config(epsilon=1e-6)),
    )
    rows, columns = encoder.grid
    text = replace_config(
        text,
        RoPE,
        lambda old: MultimodalRoPE.Config(
            theta=old.theta, sections=(24, 20, 20), is_interleaved=True
        ),
    )
    return with_deep_tokens(
        multimodal(text, encoder, num_soft_tokens=rows * columns, grid=(rows, columns))
    )


def _sending(layers: list[Any], deep: Any) -> Any:
    """Return the stack of layers, those of some numbers with a `SendTokens` behind them."""
    sent = [(one, SendTokens.Config()) if n in deep else (one,) for n, one in enumerate(layers)]
    return arranged([one for some in sent for one in some])


@attrs.frozen
class _Layers(ConfigEntry):
    """How many layers the encoder has, and behind which of them tokens are sent."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with the layers; those before are all of one kind.

        Raises:
            ConfigError: The numbers are not those of layers, in their order.
        """
        count = fields.take("vision_config.depth", 27)
        deep = fields.take("vision_config.deepstack_visual_indexes", [8, 16, 24])
        if deep != sorted(set(deep) & set(range(count))):
            raise ConfigError(
                f"deepstack_visual_indexes is {deep!r}, and the encoder has {count} layers",
                where="vision_config.deepstack_visual_indexes",
                hint="compare it with the file that was published",
            )
        layer = layers_of(cfg.encoder.stack)[0]
        encoder = evolve(cfg.encoder, stack=_sending([layer] * count, deep))
        return with_deep_tokens(evolve(without_deep_tokens(cfg), encoder=encoder))

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return both fields."""
        layers = layers_of(cfg.encoder.stack)
        sends = [n for n, one in enumerate(layers) if isinstance(one, SendTokens.Config)]
        return {
            "vision_config.depth": len(layers) - len(sends),
            # Those that send were counted, too: one before the first of them, two before the next.
            "vision_config.deepstack_visual_indexes": [n - 1 - i for i, n in enumerate(sends)],
        }


@attrs.frozen
class _Tied(ConfigEntry):
    """Whether the head is the embedding, which counts outside of `text_config` alone."""

    name = "tie_word_embeddings"

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return the config; the field is now the text's."""
        fields.values[f"text_config.{self.name}"] = fields.take(self.name, False)
        return cfg

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the field."""
        return {self.name: isinstance(cfg.head, TiedHead.Config)}


def _text_of(cfg: Any) -> CausalLM.Config:
    return language_model_of(without_deep_tokens(cfg))


def _with_text(cfg: Any, text: CausalLM.Config) -> MultimodalLM.Config:
    return with_deep_tokens(with_language_model(without_deep_tokens(cfg), text))


def _weights(cfg: Any) -> WeightMap:
    layer = (
        *both("attention_residual.norm", "norm1"),
        *both("feed_forward_residual.norm", "norm2"),
        *linear("feed_forward.up", "mlp.linear_fc1"),
        *linear("feed_forward.down", "mlp.linear_fc2"),
        *fused_attention("attention", cfg.encoder.width),
    )
    merger = (
        *both("norm", "norm"),
        *linear("up", "linear_fc1"),
        *linear("down", "linear_fc2"),
    )
    rules = (
        *part_weights(
            _text_of(cfg),
            "",
            moved={"decoder.embedding.": "decoder.embedding.embedding.embedding.embedding."},
        ),
        *patch_weights(cfg.encoder),
        same("encoder.positions", "visual.pos_embed.weight"),
        *below("encoder.stack.layer.{layer}", "visual.blocks.{layer}", layer),
        *below("encoder.merger", "visual.merger", merger),
        *below("encoder.deep.{layer}", "visual.deepstack_merger_list.{layer}", merger),
    )
    return tuple(attrs.evolve(one, hf=tuple(map(_name, one.hf))) for one in rules)


def _mixed_weights(cfg: Any) -> WeightMap:
    """Return the map of a model with experts, whose arrays are one each in transformers."""
    mixture = find_config(cfg.decoder, MoE)[0].node
    count, width = mixture.num_experts, mixture.expert.hidden_dim
    one_by_one = ".feed_forward.experts.expert."
    gates = Chain(StackArrays(count), Concatenate((width, width), axis=2))
    return (
        *(rule for rule in _weights(cfg) if one_by_one not in rule.axcore[0]),
        *below(
            "decoder.stack.layer.{layer}.feed_forward",
            "model.language_model.layers.{layer}.mlp",
            (
                all_experts(
                    "experts.expert",
                    ("gate.weight", "up.weight"),
                    "experts.gate_up_proj",
                    gates,
                    count=count,
                ),
                all_experts(
                    "experts.expert",
                    ("down.weight",),
                    "experts.down_proj",
                    StackArrays(count),
                    count=count,
                ),
            ),
        ),
    )


def _name(name: str) -> str:
    """Return the name that a tensor has where both parts are below `model`."""
    if name.startswith("visual."):
        return f"model.{name}"
    return re.sub(r"^model\.", "model.language_model.", name)


_TEXT = {
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 22_016,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 128_000,
    "rms_norm_eps": 1e-6,
    "rope_theta": 500_000.0,
    "vocab_size": 151_936,
}
"""What transformers' own config of the text has, and files leave out."""

_MIXED_TEXT = {
    **_TEXT,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "moe_intermediate_size": 1408,
    "norm_topk_prob": True,
    "num_attention_heads": 16,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 16,
}
"""The same, where there are experts."""


def _config(kind: str, family: str, defaults: dict[str, Any]) -> tuple[ConfigEntry, ...]:
    """Return the config map of a family of this name, whose text is of another."""
    return (
        _Tied(),
        ModelPart(
            name="text_config",
            get=_text_of,
            put=_with_text,
            family=family,
            defaults={family: defaults},
            types={family: f"{kind}_text"},
        ),
        MustBe("vision_config.model_type", (f"{kind}_vision", kind, None)),
        *encoder_fields(hidden_size=1152, intermediate_size=4304, patch_size=16),
        Field(
            "vision_config.num_position_embeddings",
            ("encoder.positions_side",),
            default=2304,
            to_axcore=lambda count: int(count**0.5),
            to_hf=lambda side: side**2,
        ),
        activation("vision_config.hidden_act", "gelu_pytorch_tanh", "encoder.stack.**.activation"),
        AnyPictureSize(),
        _Layers(),
        *GRID,
    )


QWEN3_VL = Family(
    architecture="Qwen3VLForConditionalGeneration",
    template=lambda: qwen3_vl(qwen2("toy"), "toy"),
    parts=("text_config", "vision_config"),
    config=_config("qwen3_vl", "qwen3", _TEXT),
    weights=_weights,
    length="text_config.max_position_embeddings",
    input_mark="image_token_id",
    input_texts=INPUT_TEXTS,
    irrelevant=IRRELEVANT,
    copies={"lm_head.weight": "model.language_model.embed_tokens.weight"},
)
QWEN3_VL_MOE = attrs.evolve(
    QWEN3_VL,
    architecture="Qwen3VLMoeForConditionalGeneration",
    config=_config("qwen3_vl_moe", "qwen3_moe", _MIXED_TEXT),
    weights=_mixed_weights,
)
