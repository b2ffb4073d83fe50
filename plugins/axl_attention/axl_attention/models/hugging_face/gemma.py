"""Gemma 1, 2 and 3: each has what the one before it has, and more."""

from typing import Any

import attrs
from immutabledict import immutabledict

from axcore.config import find_config
from axcore.interop import (
    ATTENTION,
    ATTENTION_BIAS,
    FEED_FORWARD,
    LLAMA_WEIGHTS,
    SIZE_KEYS,
    SIZES,
    Computed,
    Family,
    Field,
    Fields,
    Fixed,
    GGUFEntry,
    GGUFMap,
    GGUFRope,
    Implied,
    Key,
    LayerTypes,
    LocalLayers,
    Only,
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
from axl_attention.models.gemma import gemma
from axl_attention.models.gemma2 import gemma2
from axl_attention.models.gemma3 import gemma3

LOCAL, GLOBAL = (f"decoder.stack.layers[{kind}].attention" for kind in range(2))

_COMMON = (
    *without(SIZES, "num_hidden_layers"),
    Computed("decoder.embedding.scale", lambda cfg: cfg.dim**0.5),
    Field("head_dim", ("**.attention.head_dim",), default=256),
    ATTENTION_BIAS,
    Only("tie_word_embeddings", (True,)),
    Only("use_bidirectional_attention", (False, None), is_written=False),
)


def _gguf(architecture: str, *more: GGUFEntry) -> GGUFMap:
    """Return how llama.cpp has a Gemma; its norms hold the whole scale."""
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
        Only("hidden_act", ("gelu_pytorch_tanh", "gelu")),
        Only("hidden_activation", ("gelu_pytorch_tanh", None), is_written=False),
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
_SCALE = Implied(
    "query_pre_attn_scalar",
    "**.core.scale",
    lambda cfg: common_value(cfg, "**.attention.head_dim") ** -0.5,
    to_ours=lambda scalar: scalar**-0.5,
    to_theirs=lambda scale: round(scale**-2),
    default=256,
)
_UNUSED = frozenset({"_sliding_window_pattern", "cache_implementation", "hidden_act"})
"""The first is there for `layer_types`, which are beside it."""


@attrs.frozen
class _Scale(GGUFEntry):
    """`query_pre_attn_scalar`, which llama.cpp reads off the sizes of the published models."""

    num_layers_of_27b: int

    def metadata(self, fields: Fields) -> dict[str, Any]:
        """Return nothing."""
        values, scalar = fields.values, fields.take("query_pre_attn_scalar")
        wanted = values["head_dim"]
        if values["num_hidden_layers"] == self.num_layers_of_27b:
            wanted = values["hidden_size"] // values["num_attention_heads"]
        if scalar != wanted:
            raise unsaid("query_pre_attn_scalar", scalar, f"{wanted} for models of these sizes")
        return {}


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
