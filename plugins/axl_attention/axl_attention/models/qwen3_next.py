"""Qwen3-Next and Qwen3.5: three layers with a memory to one that attends, and gates.

Qwen3-Next has many small experts; Qwen3.5 has them or is dense.
"""

from typing import Any

import attrs

from axcore.config import evolve, find_config, replace_config, update_config
from axcore.interop import (
    FEED_FORWARD,
    PRE_NORMS,
    Chain,
    CheckpointInfo,
    Concatenate,
    ConfigEntry,
    DefaultFrom,
    Family,
    Field,
    Fields,
    LayerTypes,
    MustBe,
    Rule,
    SplitAxis,
    StackArrays,
    Transpose,
    WeightMap,
    all_experts,
    below,
    common_value,
    every,
    linear,
    model_weights,
    same,
)
from axcore.layers import Attention, FeedForward, MoE, RMSNorm, RoPE, Router, alternating
from axcore.models import TOY, CausalLM, Sizes, of_size, transformer
from axl_attention.gated_attention import with_gates
from axl_attention.gated_delta_net import GatedDeltaNet
from axl_attention.layers import TokenGated
from axl_attention.models.shared_maps import (
    PartialRopeFields,
    by_head,
    fused,
    fused_rows,
    tied_by,
)
from axl_attention.norms import with_query_key_norm
from axl_attention.positions import PartialRotary

_QWEN3_NEXT_SIZES: Sizes = {
    "80b-a3b": {
        "vocab_size": 151_936,
        "dim": 2048,
        "num_layers": 48,
        "num_heads": 16,
        "num_kv_heads": 2,
        "head_dim": 256,
        "hidden_dim": 512,
        "turn": 4,
        "experts": {"num_experts": 512, "top_k": 10},
        "memory": {"num_key_heads": 16, "num_value_heads": 32},
    },
    "toy": {
        **TOY,
        "num_layers": 4,
        "head_dim": 32,
        "hidden_dim": 32,
        "turn": 2,
        "experts": {"num_experts": 4, "top_k": 2},
        "memory": {
            "num_key_heads": 2,
            "num_value_heads": 4,
            "key_dim": 8,
            "value_dim": 16,
            "chunk": 8,
        },
    },
}
"""`hidden_dim` is that of an expert; the last layer of each `turn` attends."""


_QWEN3_5 = {"vocab_size": 248_320, "head_dim": 256, "turn": 4}

_QWEN3_5_SIZES: Sizes = {
    "9b": {
        **_QWEN3_5,
        "dim": 4096,
        "num_layers": 32,
        "num_heads": 16,
        "num_kv_heads": 4,
        "hidden_dim": 12_288,
        "memory": {"num_key_heads": 16, "num_value_heads": 32},
    },
    "27b": {
        **_QWEN3_5,
        "dim": 5120,
        "num_layers": 64,
        "num_heads": 24,
        "num_kv_heads": 4,
        "hidden_dim": 17_408,
        "memory": {"num_key_heads": 16, "num_value_heads": 48},
    },
    "35b-a3b": {
        **_QWEN3_5,
        "dim": 2048,
        "num_layers": 40,
        "num_heads": 16,
        "num_kv_heads": 2,
        "hidden_dim": 512,
        "experts": {"num_experts": 256, "top_k": 8},
        "memory": {"num_key_heads": 16, "num_value_heads": 32},
    },
    "toy": {name: size for name, size in _QWEN3_NEXT_SIZES["toy"].items() if name != "experts"},
    "toy-mixed": _QWEN3_NEXT_SIZES["toy"],
}


def qwen3_next(size: str) -> CausalLM.Config:
    """Return the config of a Qwen3-Next, without what predicts a second token: `80b-a3b` or `toy`.

    Source: Qwen Team 2025, "Qwen3-Next: towards ultimate training and inference efficiency"; sizes
    as in the config published with the weights.
    """
    return _hybrid(of_size("qwen3_next", _QWEN3_NEXT_SIZES, size))


def qwen3_5(size: str) -> CausalLM.Config:
    """Return the text part of a Qwen3.5: `9b`, `27b`, `35b-a3b`, `toy` or `toy-mixed`.

    It predicts no second token. `35b-a3b` and `toy-mixed` have experts.

    Source: Qwen Team 2026, "Qwen3.5"; sizes as in the configs published with the weights.
    """
    cfg = _hybrid(of_size("qwen3_5", _QWEN3_5_SIZES, size))
    # With experts its layers are those of Qwen3-Next, and only their files differ.
    name = "qwen3_5_moe_text" if find_config(cfg, MoE) else "qwen3_5_text"
    return evolve(cfg, published=CheckpointInfo(family=name))


def _hybrid(given: Any) -> CausalLM.Config:
    sizes = dict(given)
    head_dim, turn, memory = (sizes.pop(name) for name in ("head_dim", "turn", "memory"))
    experts = sizes.pop("experts", None)
    cfg: Any = transformer(**sizes)
    if experts:
        cfg = replace_config(cfg, FeedForward, _experts(experts))
    cfg = update_config(cfg, {"**.attention.head_dim": head_dim, "**.position.theta": 10_000_000.0})
    cfg = replace_config(cfg, RoPE, lambda rope: PartialRotary.Config(fraction=0.25, inner=rope))
    cfg = replace_config(cfg, Attention, with_query_key_norm)
    cfg = replace_config(cfg, RMSNorm, lambda norm: evolve(norm, weight_offset=1.0))
    stack = cfg.decoder.stack
    attending = replace_config(stack.layer, Attention, with_gates)
    remembering = evolve(stack.layer, attention=GatedDeltaNet.Config(**memory))
    turns = alternating(stack, *[remembering] * (turn - 1), attending)
    return update_config(cfg, {"decoder.stack": turns})


def _experts(experts: Any) -> Any:
    """Return a function from a feed-forward to experts of its size, one of which all share."""
    return lambda ffn: MoE.Config(
        expert=ffn,
        shared=TokenGated.Config(inner=ffn),
        router=Router.Config(balance_loss=0.001, balance_over="batch"),
        **experts,
    )


_INNER = "decoder.stack.layers[1].attention.inner"
_BIASES = (
    f"{_INNER}.linear",
    f"{_INNER}.out_linear.linear",
    "decoder.stack.layers[1].attention.linear",
)


def _memory(cfg: GatedDeltaNet.Config, *projections: Rule) -> WeightMap:
    heads, group = cfg.num_key_heads, cfg.num_value_heads // cfg.num_key_heads
    key, value = cfg.key_dim, group * cfg.value_dim
    convolved = Concatenate((heads * key, heads * key, heads * value))
    return (
        *projections,
        Rule(
            ("conv_q.weight", "conv_k.weight", "conv_v.weight"),
            ("conv1d.weight",),
            Chain(convolved, SplitAxis(1, axis=1)),
        ),
        same("a_log", "A_log"),
        same("dt_bias", "dt_bias"),
        same("norm.weight", "norm.weight"),
        *linear("out", "out_proj"),
    )


def _fused_by_head(cfg: GatedDeltaNet.Config) -> WeightMap:
    heads, group = cfg.num_key_heads, cfg.num_value_heads // cfg.num_key_heads
    key, value = cfg.key_dim, group * cfg.value_dim
    return (
        *fused_rows(("q", "k", "v", "z"), "in_proj_qkvz", by_head(heads, key, key, value, value)),
        *fused_rows(("b", "a"), "in_proj_ba", by_head(heads, group, group)),
    )


def _fused_by_part(cfg: GatedDeltaNet.Config) -> WeightMap:
    keys, values = cfg.num_key_heads * cfg.key_dim, cfg.num_value_heads * cfg.value_dim
    return (
        fused(("q", "k", "v"), "in_proj_qkv", (keys, keys, values)),
        *(rule for part in "zba" for rule in linear(part, f"in_proj_{part}")),
    )


_EXPERTS = below("feed_forward.experts.expert.{expert}", "mlp.experts.{expert}", FEED_FORWARD)
_MIXED = (
    *linear("feed_forward.router.linear", "mlp.gate"),
    *linear("feed_forward.shared.gate", "mlp.shared_expert_gate"),
    *below("feed_forward.shared.inner", "mlp.shared_expert", FEED_FORWARD),
)


def _layers(cfg: Any, fuse: Any, *feed_forward: Rule) -> WeightMap:
    heads, width = (
        common_value(cfg, f"**.attention.inner.{name}") for name in ("num_heads", "head_dim")
    )
    attention = (
        *fused_rows(("inner.q", "gate"), "q_proj", by_head(heads, width, width)),
        *linear("inner.k", "k_proj"),
        *linear("inner.v", "v_proj"),
        *linear("inner.out.linear", "o_proj"),
        same("inner.position.query_norm.weight", "q_norm.weight"),
        same("inner.position.key_norm.weight", "k_norm.weight"),
    )
    memory = find_config(cfg, GatedDeltaNet)[0].node
    return model_weights(
        *PRE_NORMS,
        *below("attention", "self_attn", attention),
        *below("attention", "linear_attn", _memory(memory, *fuse(memory))),
        *feed_forward,
    )


def _stacked_experts(cfg: Any) -> WeightMap:
    """Return the rules of experts that are one array each of a layer, outputs before inputs."""
    mixture = find_config(cfg, MoE)[0].node
    count, width = mixture.num_experts, mixture.expert.hidden_dim
    stacked = Chain(Transpose(), StackArrays(count))
    both, parts = Chain(stacked, Concatenate((width, width), axis=1)), ("gate.weight", "up.weight")
    rules = (
        all_experts("experts.expert", parts, "experts.gate_up_proj", both, count=count),
        all_experts("experts.expert", ("down.weight",), "experts.down_proj", stacked, count=count),
    )
    return below("feed_forward", "mlp", rules)


class _Chunks(ConfigEntry):
    """How many tokens are computed at once, which is free to choose and changes no number."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with chunks of the usual size."""
        return self.normal(cfg)

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return no field."""
        return {}

    def normal(self, cfg: Any) -> Any:
        """Return a config with chunks of the usual size."""
        return replace_config(cfg, GatedDeltaNet, lambda old: evolve(old, chunk=64))


class _AxesOfText(ConfigEntry):
    """Rotary positions of which pictures have three, and a text one on all axes."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with the positions of a text."""
        given = fields.take("rope_parameters", None) or {}
        axes = ("mrope_section", "mrope_interleaved")
        plain = {name: value for name, value in given.items() if name not in axes}
        inner = Fields({**fields.values, "rope_parameters": plain})
        cfg = _POSITIONS.read(cfg, inner)
        fields.read |= inner.read
        return cfg

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the fields."""
        return _POSITIONS.write(cfg)


_MEMORY = "decoder.stack.layers[0].attention"
_POSITIONS = PartialRopeFields(default=0.25, path=f"{_INNER}.position.inner")
_FIELDS: tuple[ConfigEntry, ...] = (
    Field("vocab_size", ("vocab_size",)),
    Field("hidden_size", ("dim",)),
    Field("rms_norm_eps", ("**.norm.epsilon",), default=1e-6, to_axcore=float),
    Field("num_attention_heads", (f"{_INNER}.num_heads",)),
    DefaultFrom(
        "num_key_value_heads",
        "**.attention.inner.num_kv_heads",
        lambda cfg: common_value(cfg, "**.attention.inner.num_heads"),
    ),
    Field("head_dim", (f"{_INNER}.head_dim",), default=256),
    Field("attention_bias", tuple(f"{at}.has_bias" for at in _BIASES), default=False),
    Field("linear_conv_kernel_dim", (f"{_MEMORY}.conv.width",), default=4),
    Field("linear_key_head_dim", (f"{_MEMORY}.key_dim",), default=128),
    Field("linear_value_head_dim", (f"{_MEMORY}.value_dim",), default=128),
    Field("linear_num_key_heads", (f"{_MEMORY}.num_key_heads",), default=16),
    Field("linear_num_value_heads", (f"{_MEMORY}.num_value_heads",), default=32),
    MustBe("hidden_act", ("silu",)),
    tied_by(),
    _Chunks(),
)
_EXPERT_FIELDS: tuple[ConfigEntry, ...] = (
    Field("moe_intermediate_size", ("**.expert.hidden_dim",), default=512),
    Field("shared_expert_intermediate_size", ("**.shared.inner.hidden_dim",), default=512),
    Field("num_experts", ("**.feed_forward.num_experts",), alias="num_local_experts"),
    Field("num_experts_per_tok", ("**.feed_forward.top_k",)),
)

QWEN3_NEXT = Family(
    architecture="Qwen3NextForCausalLM",
    template=lambda: qwen3_next("toy"),
    layers=LayerTypes(
        ("linear_attention", "full_attention"),
        lambda layer: not find_config(layer, GatedDeltaNet),
        lambda fields: every(fields.take("full_attention_interval", 4)),
    ),
    config=(
        *_FIELDS,
        *_EXPERT_FIELDS,
        _POSITIONS,
        Field("norm_topk_prob", ("**.router.is_normalized",), default=True),
        MustBe("decoder_sparse_step", (1,)),
        MustBe("mlp_only_layers", ([], None)),
        MustBe("use_sliding_window", (False,), is_written=False),
    ),
    weights=lambda cfg: _layers(cfg, _fused_by_head, *_MIXED, *_EXPERTS),
    irrelevant=frozenset({"intermediate_size", "router_aux_loss_coef"}),
    mtp_tensors=(r"^mtp\.",),
)
QWEN3_5_TEXT = attrs.evolve(
    QWEN3_NEXT,
    architecture="Qwen3_5ForCausalLM",
    template=lambda: qwen3_5("toy"),
    config=(
        *_FIELDS,
        Field("intermediate_size", ("**.feed_forward.hidden_dim",)),
        _AxesOfText(),
        MustBe("attn_output_gate", (True,), is_written=False),
    ),
    weights=lambda cfg: _layers(cfg, _fused_by_part, *below("feed_forward", "mlp", FEED_FORWARD)),
    irrelevant=frozenset(
        {"mamba_ssm_dtype", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"}
    ),
)
QWEN3_5_MOE_TEXT = attrs.evolve(
    QWEN3_5_TEXT,
    architecture="Qwen3_5MoeForCausalLM",
    template=lambda: qwen3_5("toy-mixed"),
    config=(
        *_FIELDS,
        *_EXPERT_FIELDS,
        _AxesOfText(),
        MustBe("attn_output_gate", (True,), is_written=False),
    ),
    weights=lambda cfg: _layers(cfg, _fused_by_part, *_MIXED, *_EXPERTS),
    other_weights=lambda cfg: _layers(cfg, _fused_by_part, *_MIXED, *_stacked_experts(cfg)),
    irrelevant=QWEN3_NEXT.irrelevant | QWEN3_5_TEXT.irrelevant,
)
_OF_PICTURES = {
    "image_token_id",
    "video_token_id",
    "vision_config",
    "vision_end_token_id",
    "vision_start_token_id",
}
_WHOLE: Any = {
    "nested": "text_config",
    "renamed": ((r"^model\.language_model\.", "model."),),
    "skipped": (*QWEN3_NEXT.skipped, r"^model\.visual\."),
}
QWEN3_5 = attrs.evolve(
    QWEN3_5_TEXT,
    written_as="qwen3_5_text",
    irrelevant=QWEN3_5_TEXT.irrelevant | _OF_PICTURES,
    **_WHOLE,
)
"""Qwen3.5 as published, of which the text part is read; exports have that part alone."""
QWEN3_5_MOE = attrs.evolve(
    QWEN3_5_MOE_TEXT,
    written_as="qwen3_5_moe_text",
    irrelevant=QWEN3_5_MOE_TEXT.irrelevant | _OF_PICTURES,
    **_WHOLE,
)
"""The same with experts; published files have one array of all of a layer."""
