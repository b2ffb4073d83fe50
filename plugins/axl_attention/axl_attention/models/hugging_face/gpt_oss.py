"""GPT-OSS: all experts of a layer in one tensor, gates and inputs by turns."""

from typing import Any

import attrs

from axcore.config import find_config
from axcore.interop import (
    ATTENTION,
    ATTENTION_BIAS,
    PRE_NORMS,
    SIZES,
    Chain,
    Family,
    Field,
    JoinAxes,
    Only,
    RopeFields,
    Rule,
    StackArrays,
    Transform,
    WeightMap,
    below,
    every,
    linear,
    model_weights,
    same,
    window,
    without,
)
from axcore.layers import MoE
from axl_attention.models.gpt_oss import gpt_oss
from axl_attention.models.hugging_face.entries import all_experts
from axl_attention.models.hugging_face.gemma import LOCAL, in_turns


def _weights(cfg: Any) -> WeightMap:
    mixture = find_config(cfg, MoE)[0].node
    count, width = mixture.num_experts, mixture.expert.hidden_dim

    def stacked(theirs: str, transform: Transform, *ours: str) -> Rule:
        whole = Chain(StackArrays(count), transform)
        return all_experts("experts.expert", ours, f"experts.{theirs}", whole, count=count)

    def by_turns(axis: int) -> Transform:
        return Chain(StackArrays(2, axis=-1), JoinAxes(width, axis=axis))

    experts = (
        stacked("gate_up_proj", by_turns(2), "gate.weight", "up.weight"),
        stacked("gate_up_proj_bias", by_turns(1), "gate.bias", "up.bias"),
        stacked("down_proj", Chain(), "down.weight"),
        stacked("down_proj_bias", Chain(), "down.bias"),
        *linear("router.linear", "router"),
    )
    return model_weights(
        *PRE_NORMS,
        *below("attention", "self_attn", ATTENTION),
        same("attention.core.sinks", "self_attn.sinks"),
        *below("feed_forward", "mlp", experts),
    )


GPT_OSS = Family(
    architecture="GptOssForCausalLM",
    template=lambda: gpt_oss("toy"),
    layers=in_turns(lambda fields: every(2)),
    config=(
        *without(SIZES, "num_hidden_layers"),
        Field("head_dim", ("**.attention.head_dim",), default=64),
        attrs.evolve(ATTENTION_BIAS, default=True),
        RopeFields(theta=150_000.0),
        window("sliding_window", 128, f"{LOCAL}.core.core.window"),
        Field("num_local_experts", ("**.feed_forward.num_experts",), alias="num_experts"),
        Field("num_experts_per_tok", ("**.feed_forward.top_k",), alias="experts_per_token"),
        Field("swiglu_alpha", ("**.expert.slope",), default=1.702),
        Field("swiglu_limit", ("**.expert.limit",), default=7.0, to_ours=float),
        Only("hidden_act", ("silu",)),
        Only("tie_word_embeddings", (False,)),
    ),
    weights=_weights,
    irrelevant=frozenset({"experts_per_token", "initial_context_length", "router_aux_loss_coef"}),
)
