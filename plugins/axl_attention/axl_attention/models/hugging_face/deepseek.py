"""DeepSeek-V2, V3 and R1, and Kimi K2: fused latent projections, and experts after a few layers."""

from typing import Any

import attrs

from axcore.config import find_config, update_config
from axcore.errors import ConfigError
from axcore.interop import (
    FEED_FORWARD,
    PRE_NORMS,
    SIZES,
    Chain,
    Concatenate,
    ConfigEntry,
    Family,
    Field,
    Fields,
    JoinAxes,
    LayerKinds,
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
from axcore.layers import GroupLimit, MoE
from axl_attention.latent_attention import LatentAttention
from axl_attention.models.deepseek import deepseek_v2, deepseek_v3
from axl_attention.yarn import stretched_scale, weight_of_stretched_scale

_DENSE, _MIXED = (f"decoder.stack.layers[{kind}].feed_forward" for kind in range(2))


class _FirstDense(LayerKinds):
    """The first layers have no experts."""

    def read(self, fields: Fields, num_layers: int) -> list[int]:
        """Returns the kind of each layer."""
        num_dense = fields.take("first_k_dense_replace")
        return [int(i >= num_dense) for i in range(num_layers)]

    def write(self, kinds: list[int]) -> dict[str, Any]:
        """Returns how many layers are dense."""
        return {"first_k_dense_replace": kinds.index(1)}


@attrs.frozen
class _Groups(ConfigEntry):
    """Limits to groups: `topk_method`, `n_group` and `topk_group`."""

    free: str
    limited: str
    rated_by: int

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Returns a config with the limit, or none where all experts are one group.

        Raises:
            ConfigError: The fields contradict each other.
        """
        method = fields.take("topk_method", self.limited)
        counts = tuple(fields.take(name, None) or 1 for name in ("n_group", "topk_group"))
        limit = None
        if counts != (1, 1) and method == self.limited:
            limit = GroupLimit(num_groups=counts[0], num_kept=counts[1], rated_by=self.rated_by)
        elif counts != (1, 1) or method not in (self.free, self.limited):
            raise ConfigError(
                f"config.json has topk_method={method!r} with {counts[0]} groups, of which "
                f"{counts[1]} are kept; axcore knows {self.free}, {self.limited}",
                where="topk_method",
            )
        return update_config(cfg, {"**.router.groups": limit})

    def write(self, cfg: Any) -> dict[str, Any]:
        """Returns the three fields."""
        limit = common_value(cfg, "**.router.groups")
        counts = (limit.num_groups, limit.num_kept) if limit else (1, 1)
        method = self.limited if limit else self.free
        return {"topk_method": method, "n_group": counts[0], "topk_group": counts[1]}


class _SharedExperts(ConfigEntry):
    """`n_shared_experts`, which are one feed-forward, so many times as wide as an expert."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Returns a config with a shared expert of that width."""
        width = fields.take("n_shared_experts") * common_value(cfg, f"{_MIXED}.expert.hidden_dim")
        return update_config(cfg, {f"{_MIXED}.shared.hidden_dim": width})

    def write(self, cfg: Any) -> dict[str, Any]:
        """Returns how many experts that is."""
        widths = (common_value(cfg, f"{_MIXED}.{name}.hidden_dim") for name in ("shared", "expert"))
        return {"n_shared_experts": next(widths) // next(widths)}


class _Positions(ConfigEntry):
    """Rotary positions; `mscale_all_dim` of YaRN is in the scale of all logits."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Returns a config with the positions, and with the scale that they ask for.

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
        """Returns the fields."""
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


def _has_experts(layer: Any) -> int:
    return bool(find_config(layer, MoE))


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
    Field("intermediate_size", (f"{_DENSE}.hidden_dim",)),
    Field("moe_intermediate_size", (f"{_MIXED}.expert.hidden_dim",)),
    _SharedExperts(),
    Field(
        "n_routed_experts",
        (f"{_MIXED}.num_experts",),
        alias="num_local_experts",
    ),
    Field("num_experts_per_tok", (f"{_MIXED}.top_k",)),
    Field("routed_scaling_factor", ("**.router.scale",), to_ours=float),
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
        *below("feed_forward", "mlp", FEED_FORWARD),
        *below("feed_forward.shared", "mlp.shared_experts", FEED_FORWARD),
        *below("feed_forward.experts.expert.{expert}", "mlp.experts.{expert}", FEED_FORWARD),
        *linear("feed_forward.router.linear", "mlp.gate"),
        same("feed_forward.router.bias", "mlp.gate.e_score_correction_bias"),
    )


_UNUSED = frozenset({"aux_loss_alpha", "ep_size", "seq_aux"})
_LAYERS = _FirstDense(("dense feed-forwards", "experts"), _has_experts)

DEEPSEEK_V2 = Family(
    architecture="DeepseekV2ForCausalLM",
    template=lambda: deepseek_v2("toy"),
    layers=_LAYERS,
    config=(
        *_CONFIG,
        _Groups("greedy", "group_limited_greedy", rated_by=1),
        Only("norm_topk_prob", (False,)),
        Only("scoring_func", ("softmax",)),
    ),
    weights=_weights,
    irrelevant=_UNUSED,
)
DEEPSEEK_V3 = Family(
    architecture="DeepseekV3ForCausalLM",
    template=lambda: deepseek_v3("toy"),
    layers=_LAYERS,
    config=(
        *_CONFIG,
        _Groups("noaux_tc", "noaux_tc", rated_by=2),
        Field("norm_topk_prob", ("**.router.is_normalized",), default=True),
        Only("scoring_func", ("sigmoid",)),
        Only("rope_interleave", (True,), is_written=False),
    ),
    weights=_weights,
    irrelevant=_UNUSED | {"num_mtp_layers", "num_nextn_predict_layers"},
    skipped=(*DEEPSEEK_V2.skipped, r"^model\.layers\.61\."),
)
"""The layer after the last predicts a second token, which ours does not."""
