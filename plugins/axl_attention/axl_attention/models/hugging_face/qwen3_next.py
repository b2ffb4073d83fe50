"""Qwen3-Next: queries beside their gates, and all that enters a memory, in one matrix each."""

from typing import Any

from axcore.config import evolve, find_config, replace_config
from axcore.interop import (
    FEED_FORWARD,
    PRE_NORMS,
    Chain,
    Concatenate,
    ConfigEntry,
    Family,
    Field,
    Fields,
    Implied,
    JoinAxes,
    LayerTypes,
    Only,
    Rule,
    SplitAxis,
    Transform,
    Transpose,
    WeightMap,
    below,
    common_value,
    every,
    linear,
    model_weights,
    same,
)
from axl_attention.gated_delta_net import GatedDeltaNet
from axl_attention.models.hugging_face.entries import tied_by
from axl_attention.models.hugging_face.partial_rope import PartialRopeFields
from axl_attention.models.qwen3_next import qwen3_next

_INNER = "decoder.stack.layers[1].attention.inner"
_BIASES = (
    f"{_INNER}.linear",
    f"{_INNER}.out_linear.linear",
    "decoder.stack.layers[1].attention.linear",
)


def _by_head(num_heads: int, *sizes: int) -> Transform:
    """Return what puts rows of these sizes in each head beside each other."""
    return Chain(SplitAxis(num_heads), Concatenate(sizes, axis=1), JoinAxes(num_heads))


def _fused(parts: tuple[str, ...], theirs: str, rows: Transform) -> WeightMap:
    weights, biases = (tuple(f"{part}.{name}" for part in parts) for name in ("weight", "bias"))
    return (
        Rule(weights, (f"{theirs}.weight",), Chain(Transpose(), rows)),
        Rule(biases, (f"{theirs}.bias",), rows),
    )


def _memory(cfg: GatedDeltaNet.Config) -> WeightMap:
    heads, group = cfg.num_key_heads, cfg.num_value_heads // cfg.num_key_heads
    key, value = cfg.key_dim, group * cfg.value_dim
    convolved = Concatenate((heads * key, heads * key, heads * value))
    return (
        *_fused(("q", "k", "v", "z"), "in_proj_qkvz", _by_head(heads, key, key, value, value)),
        *_fused(("b", "a"), "in_proj_ba", _by_head(heads, group, group)),
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


def _weights(cfg: Any) -> WeightMap:
    heads, width = (
        common_value(cfg, f"**.attention.inner.{name}") for name in ("num_heads", "head_dim")
    )
    attention = (
        *_fused(("inner.q", "gate"), "q_proj", _by_head(heads, width, width)),
        *linear("inner.k", "k_proj"),
        *linear("inner.v", "v_proj"),
        *linear("inner.out.linear", "o_proj"),
        same("inner.position.query_norm.weight", "q_norm.weight"),
        same("inner.position.key_norm.weight", "k_norm.weight"),
    )
    return model_weights(
        *PRE_NORMS,
        *below("attention", "self_attn", attention),
        *below("attention", "linear_attn", _memory(find_config(cfg, GatedDeltaNet)[0].node)),
        *linear("feed_forward.router.linear", "mlp.gate"),
        *linear("feed_forward.shared.gate", "mlp.shared_expert_gate"),
        *below("feed_forward.shared.inner", "mlp.shared_expert", FEED_FORWARD),
        *below("feed_forward.experts.expert.{expert}", "mlp.experts.{expert}", FEED_FORWARD),
    )


class _Chunks(ConfigEntry):
    """How many tokens are computed at once, which is ours to choose and changes no number."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with chunks of the usual size."""
        return self.normal(cfg)

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return no field."""
        return {}

    def normal(self, cfg: Any) -> Any:
        """Return a config with chunks of the usual size."""
        return replace_config(cfg, GatedDeltaNet, lambda old: evolve(old, chunk=64))


_MEMORY = "decoder.stack.layers[0].attention"

QWEN3_NEXT = Family(
    architecture="Qwen3NextForCausalLM",
    template=lambda: qwen3_next("toy"),
    layers=LayerTypes(
        ("linear_attention", "full_attention"),
        lambda layer: not find_config(layer, GatedDeltaNet),
        lambda fields: every(fields.take("full_attention_interval", 4)),
    ),
    config=(
        Field("vocab_size", ("vocab_size",)),
        Field("hidden_size", ("dim",)),
        Field("rms_norm_eps", ("**.norm.epsilon",), default=1e-6, to_ours=float),
        Field("num_attention_heads", (f"{_INNER}.num_heads",)),
        Implied(
            "num_key_value_heads",
            "**.attention.inner.num_kv_heads",
            lambda cfg: common_value(cfg, "**.attention.inner.num_heads"),
        ),
        Field("head_dim", (f"{_INNER}.head_dim",), default=256),
        PartialRopeFields(default=0.25, path=f"{_INNER}.position.inner"),
        Field("attention_bias", tuple(f"{at}.has_bias" for at in _BIASES), default=False),
        Field("linear_conv_kernel_dim", (f"{_MEMORY}.conv.width",), default=4),
        Field("linear_key_head_dim", (f"{_MEMORY}.key_dim",), default=128),
        Field("linear_value_head_dim", (f"{_MEMORY}.value_dim",), default=128),
        Field("linear_num_key_heads", (f"{_MEMORY}.num_key_heads",), default=16),
        Field("linear_num_value_heads", (f"{_MEMORY}.num_value_heads",), default=32),
        Field("moe_intermediate_size", ("**.expert.hidden_dim",)),
        Field("shared_expert_intermediate_size", ("**.shared.inner.hidden_dim",)),
        Field("num_experts", ("**.feed_forward.num_experts",), alias="num_local_experts"),
        Field("num_experts_per_tok", ("**.feed_forward.top_k",)),
        Field("norm_topk_prob", ("**.router.is_normalized",), default=True),
        Only("hidden_act", ("silu",)),
        Only("decoder_sparse_step", (1,)),
        Only("mlp_only_layers", ([], None)),
        Only("use_sliding_window", (False,), is_written=False),
        tied_by(),
        _Chunks(),
    ),
    weights=_weights,
    irrelevant=frozenset({"intermediate_size", "router_aux_loss_coef"}),
    mtp_tensors=(r"^mtp\.",),
)
