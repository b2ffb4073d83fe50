"""DeepSeek-V2, V3 and R1, and Kimi K2: fused latent projections, and experts after a few layers."""

from typing import Any

import attrs

from axcore.config import find_config, update_config
from axcore.errors import ConfigError
from axcore.interop import (
    PRE_NORMS,
    SIZES,
    Chain,
    Concatenate,
    ConfigEntry,
    Family,
    Field,
    Fields,
    JoinAxes,
    Only,
    Redundant,
    RopeFields,
    Rule,
    SplitAxis,
    Transpose,
    WeightMap,
    activation,
    below,
    common_value,
    interleaved,
    linear,
    model_weights,
    same,
    without,
)
from axl_attention.latent_attention import LatentAttention
from axl_attention.models.deepseek import deepseek_v2, deepseek_v3
from axl_attention.models.hugging_face.first_dense import (
    EXPERT_WEIGHTS,
    EXPERTS,
    FIRST_DENSE,
    Groups,
)
from axl_attention.yarn import stretched_scale, weight_of_stretched_scale


class _Positions(ConfigEntry):
    """Rotary positions; `mscale_all_dim` of YaRN is in the scale of all logits."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with the positions, and with the scale that they ask for.

        Raises:
            ConfigError: Positions are to be scaled beside the logits.
        """
        forms = [fields.take(name, None) or {} for name in ("rope_scaling", "rope_parameters")]
        values = {"rope_theta": fields.take("rope_theta", 10_000.0), **forms[0], **forms[1]}
        weights = [values.pop(name, None) for name in ("mscale", "mscale_all_dim")]
        cfg = RopeFields().read(cfg, Fields({"rope_parameters": values}))
        if weights[0] != weights[1]:
            raise ConfigError(
                f"mscale is {weights[0]} and mscale_all_dim {weights[1]}; axcore knows equal ones",
                where="rope_scaling",
            )
        if not weights[1]:
            return update_config(cfg, {"**.core.scale": None})
        scale = stretched_scale(values["factor"], weight=weights[1], width=_key_width(cfg))
        return update_config(
            cfg, {"**.attention.position.attention_factor": 1.0, "**.core.scale": scale}
        )

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the fields."""
        values, scale = RopeFields().write(cfg), common_value(cfg, "**.core.scale")
        scaling = values["rope_scaling"]
        if scale is not None and scaling:
            weight = weight_of_stretched_scale(scaling["factor"], scale, width=_key_width(cfg))
            del scaling["attention_factor"]
            scaling |= {"mscale": weight, "mscale_all_dim": weight}
        return values


def _key_width(cfg: Any) -> int:
    parts = (common_value(cfg, f"**.attention.{name}") for name in ("head_dim", "rope_dim"))
    return sum(parts)


_OTHERWISE = ("num_hidden_layers", "num_key_value_heads", "intermediate_size", "rms_norm_eps")
_CONFIG = (
    *without(
        SIZES, "num_hidden_layers", "num_key_value_heads", "intermediate_size", "rms_norm_eps"
    ),
    # The norms of latent vectors have 1e-6, whatever the others have.
    Field(
        "rms_norm_eps",
        ("**.residual.norm.epsilon", "decoder.norm.epsilon"),
        default=1e-6,
        to_ours=float,
    ),
    Redundant("num_key_value_heads", lambda cfg: common_value(cfg, "**.attention.num_heads")),
    activation("hidden_act", "silu"),
    Field("qk_nope_head_dim", ("**.attention.head_dim",)),
    Field("qk_rope_head_dim", ("**.attention.rope_dim",)),
    Field("v_head_dim", ("**.attention.value_dim",)),
    Field("kv_lora_rank", ("**.attention.latent_dim",)),
    Field("q_lora_rank", ("**.attention.query_latent_dim",)),
    Redundant("head_dim", lambda cfg: common_value(cfg, "**.attention.rope_dim"), is_written=False),
    Redundant("qk_head_dim", _key_width, is_written=False),
    _Positions(),
    *EXPERTS,
    *(Only(name, (False,)) for name in ("attention_bias", "tie_word_embeddings")),
    Only("mlp_bias", (False,), is_written=False),
    Only("moe_layer_freq", (1,), is_written=False),
)


def _weights(cfg: Any) -> WeightMap:
    attention = find_config(cfg, LatentAttention)[0].node
    heads, own, rotated = attention.num_heads, attention.head_dim, attention.rope_dim
    value, latent = attention.value_dim, attention.latent_dim
    queries = Chain(
        Transpose(), SplitAxis(heads), interleaved(rotated, kept=own, axis=1), JoinAxes(heads)
    )
    keys = Chain(Transpose(), Concatenate((latent, rotated)), interleaved(rotated, kept=latent))
    both = Chain(Transpose(), SplitAxis(heads), Concatenate((own, value), axis=1), JoinAxes(heads))
    projections = (
        Rule(("q.weight",), (f"q_{'b_' * bool(attention.query_latent_dim)}proj.weight",), queries),
        Rule(("latent.weight", "shared_k.weight"), ("kv_a_proj_with_mqa.weight",), keys),
        Rule(("k.weight", "v.weight"), ("kv_b_proj.weight",), both),
        *linear("query_latent", "q_a_proj"),
        same("query_norm.weight", "q_a_layernorm.weight"),
        same("latent_norm.weight", "kv_a_layernorm.weight"),
        *linear("out", "o_proj"),
    )
    return model_weights(
        *PRE_NORMS,
        *below("attention", "self_attn", projections),
        *EXPERT_WEIGHTS,
    )


_UNUSED = frozenset({"aux_loss_alpha", "ep_size", "seq_aux"})

DEEPSEEK_V2 = Family(
    architecture="DeepseekV2ForCausalLM",
    template=lambda: deepseek_v2("toy"),
    layers=FIRST_DENSE,
    config=(
        *_CONFIG,
        Groups("greedy", "group_limited_greedy", rated_by=1),
        Only("norm_topk_prob", (False,)),
        Only("scoring_func", ("softmax",)),
    ),
    weights=_weights,
    irrelevant=_UNUSED,
)
DEEPSEEK_V3 = Family(
    architecture="DeepseekV3ForCausalLM",
    template=lambda: deepseek_v3("toy"),
    layers=FIRST_DENSE,
    config=(
        *_CONFIG,
        Groups("noaux_tc", "noaux_tc", rated_by=2),
        Field("norm_topk_prob", ("**.router.is_normalized",), default=True),
        Only("scoring_func", ("sigmoid",)),
        Only("rope_interleave", (True,), is_written=False),
    ),
    weights=_weights,
    irrelevant=_UNUSED | {"num_mtp_layers", "num_nextn_predict_layers"},
    mtp_counts=("num_nextn_predict_layers", "num_mtp_layers"),
)
KIMI_K2 = attrs.evolve(DEEPSEEK_V3, written_as="deepseek_v3")
"""Its own type has no class in transformers, but for code that comes with the weights."""
