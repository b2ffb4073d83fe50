"""Gemma 1, 2 and 3: each has what the one before it has, and more."""

from collections.abc import Mapping
from typing import Any

import attrs
from immutabledict import immutabledict

from axcore.config import evolve, find_config, replace_config, update_config
from axcore.interop import (
    ATTENTION,
    ATTENTION_BIAS,
    FEED_FORWARD,
    LLAMA_WEIGHTS,
    SIZE_KEYS,
    SIZES,
    Computed,
    DefaultFrom,
    Family,
    Field,
    Fields,
    Fixed,
    GGUFEntry,
    GGUFMap,
    GGUFRope,
    Key,
    LayerTypes,
    LocalLayers,
    MetadataKeys,
    MustBe,
    RopeFields,
    activation,
    below,
    common_value,
    every,
    model_weights,
    one_more,
    same,
    unsaid,
    window,
    without,
)
from axcore.layers import Attention, PreNorm, RMSNorm, RoPE, Sequence, alternating
from axcore.models import TOY, CausalLM, Sizes, TiedHead, UntiedHead, of_size, transformer
from axl_attention.norms import with_query_key_norm, with_sandwich_norm
from axl_attention.rope_scaling import LinearRoPE

_GEMMA_SIZES: Sizes = {
    "2b": {
        "vocab_size": 256_000,
        "dim": 2048,
        "num_layers": 18,
        "num_heads": 8,
        "num_kv_heads": 1,
        "head_dim": 256,
        "hidden_dim": 16_384,
    },
    "7b": {
        "vocab_size": 256_000,
        "dim": 3072,
        "num_layers": 28,
        "num_heads": 16,
        "head_dim": 256,
        "hidden_dim": 24_576,
    },
    "toy": {**TOY, "head_dim": 32},
}


def gemma(size: str) -> CausalLM.Config:
    """Return the config of a Gemma 1: `2b`, `7b` or `toy`.

    Source: Gemma Team 2024, arXiv:2403.08295, table 1; 256,000 tokens as in the published weights.
    """
    return _gemma_like(**of_size("gemma", _GEMMA_SIZES, size))


def _gemma_like(*, head_dim: int, scale: float | None = None, **sizes: Any) -> CausalLM.Config:
    """Return a transformer with scaled embeddings, a tied head, and norms stored less one.

    Args:
        head_dim: Size of a head.
        scale: Factor on the products of queries and keys; `1 / sqrt(head_dim)` where None.
        **sizes: Arguments of `transformer`.
    """
    cfg = replace_config(transformer(**sizes), UntiedHead, TiedHead.Config())
    return update_config(
        cfg,
        {
            "**.norm.weight_offset": 1.0,
            "**.embedding.scale": cfg.dim**0.5,
            "**.feed_forward.activation": "gelu_tanh",
            "**.attention.head_dim": head_dim,
            "**.core.scale": scale,
        },
    )


def local(layer: Any, window: int) -> Any:
    """Return a layer each token of which sees the last `window` tokens, itself counted."""
    core = evolve(layer.attention.core, window=(window - 1, None))
    return evolve(layer, attention=evolve(layer.attention, core=core))


_PUBLISHED = {"vocab_size": 256_000, "window": 4096}

_GEMMA2_SIZES: Sizes = {
    "2b": {
        "dim": 2304,
        "num_layers": 26,
        "num_heads": 8,
        "num_kv_heads": 4,
        "head_dim": 256,
        "hidden_dim": 9216,
        **_PUBLISHED,
    },
    "9b": {
        "dim": 3584,
        "num_layers": 42,
        "num_heads": 16,
        "num_kv_heads": 8,
        "head_dim": 256,
        "hidden_dim": 14_336,
        **_PUBLISHED,
    },
    "27b": {
        "dim": 4608,
        "num_layers": 46,
        "num_heads": 32,
        "num_kv_heads": 16,
        "head_dim": 128,
        "hidden_dim": 36_864,
        "scale": 144**-0.5,
        **_PUBLISHED,
    },
    "toy": {**TOY, "head_dim": 32, "window": 4},
}


def gemma2(size: str) -> CausalLM.Config:
    """Return the config of a Gemma 2: `2b`, `9b`, `27b` or `toy`.

    Source: Gemma Team 2024, arXiv:2408.00118, section 2 and table 1.
    """
    sizes = dict(of_size("gemma2", _GEMMA2_SIZES, size))
    window = sizes.pop("window")
    cfg = replace_config(_gemma_like(**sizes), PreNorm, with_sandwich_norm)
    cfg = update_config(cfg, {"**.core.soft_cap": 50.0, "head.soft_cap": 30.0})
    stack = cfg.decoder.stack
    turns = alternating(stack, local(stack.layer, window), stack.layer)
    return update_config(cfg, {"decoder.stack": turns})


_LOCAL_LAYERS = 5
"""Of each turn; the sixth is global."""

_GEMMA3_SIZES: Sizes = {
    "1b": {
        "vocab_size": 262_144,
        "dim": 1152,
        "num_layers": 26,
        "num_heads": 4,
        "num_kv_heads": 1,
        "head_dim": 256,
        "hidden_dim": 6912,
        "window": 512,
        "rope_factor": None,
    },
    "4b": {
        "vocab_size": 262_208,
        "dim": 2560,
        "num_layers": 34,
        "num_heads": 8,
        "num_kv_heads": 4,
        "head_dim": 256,
        "hidden_dim": 10_240,
        "window": 1024,
        "rope_factor": 8.0,
    },
    "12b": {
        "vocab_size": 262_208,
        "dim": 3840,
        "num_layers": 48,
        "num_heads": 16,
        "num_kv_heads": 8,
        "head_dim": 256,
        "hidden_dim": 15_360,
        "window": 1024,
        "rope_factor": 8.0,
    },
    "27b": {
        "vocab_size": 262_208,
        "dim": 5376,
        "num_layers": 62,
        "num_heads": 32,
        "num_kv_heads": 16,
        "head_dim": 128,
        "hidden_dim": 21_504,
        "scale": 168**-0.5,
        "window": 1024,
        "rope_factor": 8.0,
    },
    "toy": {**TOY, "num_layers": 8, "head_dim": 32, "window": 4, "rope_factor": 8.0},
}


def gemma3(size: str) -> CausalLM.Config:
    """Return the config of a Gemma 3: `1b`, `4b`, `12b`, `27b` or `toy`.

    Source: Gemma Team 2025, arXiv:2503.19786, section 2; sizes as in the configs published with the
    weights.
    """
    sizes = dict(of_size("gemma3", _GEMMA3_SIZES, size))
    window, factor = sizes.pop("window"), sizes.pop("rope_factor")
    cfg = replace_config(_gemma_like(**sizes), PreNorm, with_sandwich_norm)
    cfg = replace_config(cfg, Attention, with_query_key_norm)
    cfg = replace_config(cfg, RMSNorm, lambda norm: evolve(norm, weight_offset=1.0))
    stack = cfg.decoder.stack
    far = LinearRoPE.Config(factor=factor) if factor else RoPE.Config()
    near, wide = (
        local(stack.layer, window),
        replace_config(stack.layer, RoPE, evolve(far, theta=1_000_000.0)),
    )
    return update_config(cfg, {"decoder.stack": _in_turns(stack, near, wide)})


def _in_turns(stack: Any, near: Any, wide: Any) -> Any:
    """Return five near layers and a wide one, again and again; those left over are near."""
    num_left = stack.num_layers % (_LOCAL_LAYERS + 1)
    whole = evolve(stack, num_layers=stack.num_layers - num_left)
    turns = alternating(whole, *[near] * _LOCAL_LAYERS, wide)
    if not num_left:
        return turns
    return Sequence.Config(layers=(turns, evolve(stack, num_layers=num_left, layer=near)))


LOCAL, GLOBAL = (f"decoder.stack.layers[{kind}].attention" for kind in range(2))

_COMMON = (
    *without(SIZES, "num_hidden_layers"),
    Computed("decoder.embedding.scale", lambda cfg: cfg.dim**0.5),
    Field("head_dim", ("**.attention.head_dim",), default=256),
    ATTENTION_BIAS,
    MustBe("tie_word_embeddings", (True,)),
    MustBe("use_bidirectional_attention", (False, None), is_written=False),
)


def _gguf(architecture: str, *more: GGUFEntry) -> GGUFMap:
    """Return how llama.cpp has a Gemma; its norms hold the full scale."""
    return GGUFMap(
        architecture=architecture,
        entries=(
            *SIZE_KEYS,
            Key("intermediate_size", "feed_forward_length"),
            Fixed("attention_bias", False),
            *more,
        ),
        changes=((r"norm\.weight$", one_more),),
    )


GEMMA = Family(
    architecture="GemmaForCausalLM",
    template=lambda: gemma("toy"),
    config=(
        Field("num_hidden_layers", ("decoder.stack.num_layers",)),
        *_COMMON,
        # Early files say gelu, and the weights were trained with the approximation.
        MustBe("hidden_act", ("gelu_pytorch_tanh", "gelu")),
        MustBe("hidden_activation", ("gelu_pytorch_tanh", None), is_written=False),
        RopeFields(),
    ),
    weights=lambda cfg: LLAMA_WEIGHTS,
    gguf=_gguf("gemma", GGUFRope(), Fixed("hidden_act", "gelu_pytorch_tanh")),
)


def _is_global(layer: Any) -> int:
    return not find_config(layer, lambda node: getattr(node, "window", None))


def in_turns(default: Any) -> LayerTypes:
    """Return how local layers and global ones follow each other; see `LayerTypes`."""
    return LayerTypes(("sliding_attention", "full_attention"), _is_global, default)


def _pattern(fields: Fields) -> Any:
    return every(fields.take("sliding_window_pattern", 6))


_SANDWICH = (
    same("attention_residual.before.weight", "input_layernorm.weight"),
    same("attention_residual.after.weight", "post_attention_layernorm.weight"),
    same("feed_forward_residual.before.weight", "pre_feedforward_layernorm.weight"),
    same("feed_forward_residual.after.weight", "post_feedforward_layernorm.weight"),
    *below("attention", "self_attn", ATTENTION),
    *below("feed_forward", "mlp", FEED_FORWARD),
)
_SCALE = DefaultFrom(
    "query_pre_attn_scalar",
    "**.core.scale",
    lambda cfg: common_value(cfg, "**.attention.head_dim") ** -0.5,
    to_axcore=lambda scalar: scalar**-0.5,
    to_hf=lambda scale: round(scale**-2),
    default=256,
)
_UNUSED = frozenset({"_sliding_window_pattern", "cache_implementation", "hidden_act"})
"""The first is there for `layer_types`, which are next to it."""


@attrs.frozen
class _Scale(GGUFEntry):
    """`query_pre_attn_scalar`, which llama.cpp derives from the sizes of the checkpoints."""

    num_layers_of_27b: int

    def metadata(self, fields: Fields) -> dict[str, Any]:
        """Return nothing."""
        scalar, wanted = fields.take("query_pre_attn_scalar"), self._of(fields.values)
        if scalar != wanted:
            raise unsaid("query_pre_attn_scalar", scalar, f"{wanted} for models of these sizes")
        return {}

    def fields(self, keys: MetadataKeys, found: Mapping[str, Any]) -> dict[str, Any]:
        """Return the field."""
        return {"query_pre_attn_scalar": self._of(found)}

    def _of(self, values: Mapping[str, Any]) -> int:
        if values["num_hidden_layers"] == self.num_layers_of_27b:
            return int(values["hidden_size"] // values["num_attention_heads"])
        return int(values["head_dim"])


def _local_keys(*, num_layers_of_27b: int) -> tuple[GGUFEntry, ...]:
    return (
        Key("sliding_window", "attention.sliding_window"),
        LocalLayers(),
        _Scale(num_layers_of_27b),
        Fixed("hidden_activation", "gelu_pytorch_tanh"),
    )


_WEIGHTS2 = model_weights(*_SANDWICH)
GEMMA2 = Family(
    architecture="Gemma2ForCausalLM",
    template=lambda: gemma2("toy"),
    layers=in_turns(lambda fields: every(2)),
    config=(
        *_COMMON,
        activation("hidden_activation", "gelu_pytorch_tanh"),
        RopeFields(),
        _SCALE,
        window("sliding_window", 4096, f"{LOCAL}.core.window"),
        Field("attn_logit_softcapping", ("**.core.soft_cap",), default=50.0),
        Field("final_logit_softcapping", ("head.soft_cap",), default=30.0),
    ),
    weights=lambda cfg: _WEIGHTS2,
    irrelevant=_UNUSED,
    unread=frozenset({"sliding_window_size"}),
    gguf=_gguf(
        "gemma2",
        GGUFRope(),
        *_local_keys(num_layers_of_27b=46),
        *(
            Key(f"{name}_logit_softcapping", f"{name}_logit_softcapping", float, is_needed=True)
            for name in ("attn", "final")
        ),
    ),
)

_WEIGHTS3 = model_weights(
    *_SANDWICH,
    same("attention.position.query_norm.weight", "self_attn.q_norm.weight"),
    same("attention.position.key_norm.weight", "self_attn.k_norm.weight"),
)
GEMMA3_TEXT = Family(
    architecture="Gemma3ForCausalLM",
    template=lambda: gemma3("toy"),
    layers=in_turns(_pattern),
    config=(
        *_COMMON,
        activation("hidden_activation", "gelu_pytorch_tanh"),
        RopeFields(f"{GLOBAL}.position.inner", 1_000_000.0, layer_type="full_attention"),
        RopeFields(
            f"{LOCAL}.position.inner",
            name="rope_local_base_freq",
            layer_type="sliding_attention",
            is_scaled=False,
        ),
        _SCALE,
        window("sliding_window", 4096, f"{LOCAL}.core.window"),
        Field("attn_logit_softcapping", ("**.core.soft_cap",), default=None),
        Field("final_logit_softcapping", ("head.soft_cap",), default=None),
    ),
    weights=lambda cfg: _WEIGHTS3,
    irrelevant=_UNUSED,
    gguf=_gguf(
        "gemma3",
        GGUFRope(("linear",)),
        Key("rope_local_base_freq", "rope.freq_base_swa", float),
        *_local_keys(num_layers_of_27b=62),
        Fixed("attn_logit_softcapping", None),
        Key("final_logit_softcapping", "final_logit_softcapping", float),
    ),
)
GEMMA3 = attrs.evolve(
    GEMMA3_TEXT,
    nested="text_config",
    written_as="gemma3_text",
    defaults=immutabledict(
        vocab_size=262_208, num_attention_heads=8, num_key_value_heads=4, query_pre_attn_scalar=256
    ),
    irrelevant=_UNUSED
    | {
        "boi_token_index",
        "eoi_token_index",
        "image_token_index",
        "mm_tokens_per_image",
        "vision_config",
    },
    renamed=(
        (r"^(model\.)?language_model\.(model\.)?(?!lm_head)", "model."),
        (r"^language_model\.lm_head\.", "lm_head."),
    ),
    skipped=(*GEMMA3_TEXT.skipped, r"(^|\.)(vision_tower|multi_modal_projector)\."),
)
"""Gemma 3 with its vision tower, of which the text part is read; exports have that part alone."""
