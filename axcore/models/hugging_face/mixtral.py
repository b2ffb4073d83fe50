"""Mixtral: experts under the names that Mistral's own files have."""

from typing import Any

from axcore.config import replace_config
from axcore.interop import (
    ATTENTION,
    HEAD_DIM,
    PRE_NORMS,
    Family,
    Field,
    Key,
    RopeFields,
    UnreachedWindow,
    below,
    linear,
    model_weights,
    window,
)
from axcore.layers import FeedForward, MoE
from axcore.models.hugging_face.entries import LLAMA_LIKE, llama_gguf
from axcore.models.hugging_face.llama import smallest

_EXPERT = (*linear("gate", "w1"), *linear("down", "w2"), *linear("up", "w3"))
_EXPERTS = "experts.expert.{expert}"


def _template() -> Any:
    return replace_config(
        smallest(), FeedForward, lambda ffn: MoE.Config(expert=ffn, num_experts=1, top_k=1)
    )


_WEIGHTS = model_weights(
    *PRE_NORMS,
    *below("attention", "self_attn", ATTENTION),
    *below(
        "feed_forward",
        "block_sparse_moe",
        (*linear("router.linear", "gate"), *below(_EXPERTS, "experts.{expert}", _EXPERT)),
    ),
)

MIXTRAL = Family(
    architecture="MixtralForCausalLM",
    template=_template,
    config=(
        *(entry for entry in LLAMA_LIKE if not isinstance(entry, RopeFields)),
        RopeFields(theta=1_000_000.0),
        HEAD_DIM,
        window("sliding_window", None),
        Field(
            "num_local_experts", ("**.feed_forward.num_experts",), alias="num_experts", default=8
        ),
        Field("num_experts_per_tok", ("**.feed_forward.top_k",), default=2),
    ),
    weights=lambda cfg: _WEIGHTS,
    irrelevant=frozenset({"router_aux_loss_coef"}),
    gguf=llama_gguf(
        UnreachedWindow(),
        Key("num_local_experts", "expert_count"),
        Key("num_experts_per_tok", "expert_used_count"),
    ),
)
