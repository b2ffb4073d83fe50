"""DeepSeek-V2, V3 and V3.2, Kimi K2 and GLM-4.7-Flash.

They have latent attention, and experts in all but the first layers.
"""

from typing import Any

import attrs

from axcore.config import evolve, find_config, replace_config, update_config
from axcore.errors import ConfigError
from axcore.interop import (
    PRE_NORMS,
    SIZES,
    Chain,
    Concatenate,
    ConfigEntry,
    Derived,
    EveryLayer,
    Family,
    Field,
    Fields,
    JoinAxes,
    LayerKinds,
    MustBe,
    RopeFields,
    Rule,
    SplitAxis,
    Transpose,
    WeightMap,
    activation,
    below,
    both,
    common_value,
    interleaved,
    linear,
    model_weights,
    same,
    without,
)
from axcore.layers import Attention, FeedForward, GroupLimit, MoE, RoPE, Router, Sequence
from axcore.models import TOY, CausalLM, Sizes, of_size, transformer
from axl_attention.latent_attention import LatentAttention
from axl_attention.models.shared_maps import (
    EXPERT_WEIGHTS,
    EXPERTS,
    FIRST_DENSE,
    Groups,
)
from axl_attention.rope_scaling import YaRN, stretched_scale, weight_of_stretched_scale
from axl_attention.sparse_attention import IndexedLatentAttention, LightningIndexer

_HEADS = {"head_dim": 128, "rope_dim": 64, "value_dim": 128, "latent_dim": 512}
_TOY = {
    **TOY,
    "num_kv_heads": None,
    "num_layers": 3,
    "num_dense": 1,
    "heads": {"head_dim": 16, "rope_dim": 8, "value_dim": 12, "latent_dim": 32},
    "expert_dim": 32,
    "num_shared": 2,
}

_DEEPSEEK_V2_SIZES: Sizes = {
    "lite": {
        "vocab_size": 102_400,
        "dim": 2048,
        "num_layers": 27,
        "num_heads": 16,
        "hidden_dim": 10_944,
        "num_dense": 1,
        "heads": _HEADS,
        "expert_dim": 1408,
        "num_shared": 2,
        "experts": {"num_experts": 64, "top_k": 6},
        "routing": {},
    },
    "236b": {
        "vocab_size": 102_400,
        "dim": 5120,
        "num_layers": 60,
        "num_heads": 128,
        "hidden_dim": 12_288,
        "num_dense": 1,
        "heads": {**_HEADS, "query_latent_dim": 1536},
        "expert_dim": 1536,
        "num_shared": 2,
        "experts": {"num_experts": 160, "top_k": 6},
        "routing": {"scale": 16.0, "groups": GroupLimit(num_groups=8, num_kept=3, rated_by=1)},
    },
    "toy": {**_TOY, "experts": {"num_experts": 4, "top_k": 2}, "routing": {}},
}

_V3_ROUTER = {"score": "sigmoid", "bias_rate": 0.001, "balance_loss": 0.0001}

_DEEPSEEK_V3_SIZES: Sizes = {
    "671b": {
        "vocab_size": 129_280,
        "dim": 7168,
        "num_layers": 61,
        "num_heads": 128,
        "hidden_dim": 18_432,
        "num_dense": 3,
        "heads": {**_HEADS, "query_latent_dim": 1536},
        "expert_dim": 2048,
        "num_shared": 1,
        "experts": {"num_experts": 256, "top_k": 8},
        "routing": {"groups": GroupLimit(num_groups=8, num_kept=4)},
    },
    "toy": {
        **_TOY,
        "heads": {**_TOY["heads"], "query_latent_dim": 48},
        "experts": {"num_experts": 8, "top_k": 2},
        "routing": {"groups": GroupLimit(num_groups=4, num_kept=2)},
    },
}

# A toy has many heads: where all products of a key are negative, its score is 0, as others' are.
_INDEXERS = {
    "671b": LightningIndexer.Config(),
    "toy": LightningIndexer.Config(num_heads=16, head_dim=12, top_k=5),
}
_DEEPSEEK_V32_SIZES: Sizes = {
    size: {**values, "heads": {**values["heads"], "indexer": _INDEXERS[size]}}
    for size, values in _DEEPSEEK_V3_SIZES.items()
}

_KIMI_K2_SIZES: Sizes = {
    "1t": {
        "vocab_size": 163_840,
        "dim": 7168,
        "num_layers": 61,
        "num_heads": 64,
        "hidden_dim": 18_432,
        "num_dense": 1,
        "heads": {**_HEADS, "query_latent_dim": 1536},
        "expert_dim": 2048,
        "num_shared": 1,
        "experts": {"num_experts": 384, "top_k": 8},
    },
    "toy": {name: value for name, value in _DEEPSEEK_V3_SIZES["toy"].items() if name != "routing"},
}

_GLM47_FLASH_SIZES: Sizes = {
    "30b-a3b": {
        "vocab_size": 154_880,
        "dim": 2048,
        "num_layers": 47,
        "num_heads": 20,
        "hidden_dim": 10_240,
        "num_dense": 1,
        "heads": {
            "head_dim": 192,
            "rope_dim": 64,
            "value_dim": 256,
            "latent_dim": 512,
            "query_latent_dim": 768,
        },
        "expert_dim": 1536,
        "num_shared": 1,
        "experts": {"num_experts": 64, "top_k": 4},
    },
    "toy": _KIMI_K2_SIZES["toy"],
}


def deepseek_v2(size: str) -> CausalLM.Config:
    """Return the config of a DeepSeek-V2: `lite`, `236b` or `toy`.

    Source: DeepSeek-AI 2024, arXiv:2405.04434, section 2 and appendix B; routing as in the
    published configs.
    """
    sizes = dict(of_size("deepseek_v2", _DEEPSEEK_V2_SIZES, size))
    router = Router.Config(is_normalized=False, balance_loss=0.001, **sizes.pop("routing"))
    return _deepseek(router=router, yarn_weight=0.707, **sizes)


def deepseek_v3(size: str) -> CausalLM.Config:
    """Return the config of a DeepSeek-V3: `671b` or `toy`; without the head for a second token.

    Source: DeepSeek-AI 2024, arXiv:2412.19437, sections 2.1 and 4.2.
    """
    return _deepseek_v3(dict(of_size("deepseek_v3", _DEEPSEEK_V3_SIZES, size)))


def deepseek_v32(size: str) -> CausalLM.Config:
    """Return the config of a DeepSeek-V3.2, V3 with an indexer in each layer: `671b` or `toy`.

    Source: DeepSeek-AI 2025, "DeepSeek-V3.2-Exp", section 2; sizes as in the published config.
    """
    return _deepseek_v3(dict(of_size("deepseek_v32", _DEEPSEEK_V32_SIZES, size)))


def _deepseek_v3(sizes: Any) -> Any:
    router = Router.Config(scale=2.5, **_V3_ROUTER, **sizes.pop("routing"))
    return _deepseek(router=router, yarn_weight=1.0, **sizes)


def kimi_k2(size: str) -> CausalLM.Config:
    """Return the config of a Kimi K2, which is a DeepSeek-V3 with more experts: `1t` or `toy`.

    Source: Kimi Team 2025, arXiv:2507.20534, table 2; positions as in the published configs.
    """
    sizes = dict(of_size("kimi_k2", _KIMI_K2_SIZES, size))
    cfg = _deepseek(router=Router.Config(scale=2.827, **_V3_ROUTER), yarn_weight=1.0, **sizes)
    heads = sizes["heads"]
    scale = stretched_scale(32.0, weight=1.0, width=heads["head_dim"] + heads["rope_dim"])
    return update_config(
        cfg,
        {
            "**.position.theta": 50_000.0,
            "**.position.factor": 32.0,
            "**.position.beta_fast": 1.0,
            "**.core.scale": scale,
        },
    )


def glm47_flash(size: str) -> CausalLM.Config:
    """Return the config of a GLM-4.7-Flash, without the head for a second token: `30b-a3b`, `toy`.

    Source: the config that Z.ai published with the weights, 2026.
    """
    sizes = dict(of_size("glm47_flash", _GLM47_FLASH_SIZES, size))
    cfg = _deepseek(router=Router.Config(scale=1.8, **_V3_ROUTER), yarn_weight=1.0, **sizes)
    epsilons = dict.fromkeys(_NORMS, 1e-5)
    cfg = update_config(cfg, {"**.core.scale": None, **epsilons})
    return replace_config(cfg, YaRN, RoPE.Config(theta=1_000_000.0))


def _deepseek(
    *,
    router: Router.Config,
    yarn_weight: float,
    heads: Any,
    num_dense: int,
    expert_dim: int,
    num_shared: int,
    experts: Any,
    **sizes: Any,
) -> Any:
    cfg = replace_config(transformer(**sizes), Attention, _latent_attention(heads, yarn_weight))
    stack = cfg.decoder.stack
    mixed = replace_config(
        stack.layer,
        FeedForward,
        lambda ffn: MoE.Config(
            expert=evolve(ffn, hidden_dim=expert_dim),
            shared=evolve(ffn, hidden_dim=num_shared * expert_dim),
            router=router,
            **experts,
        ),
    )
    first = evolve(stack, num_layers=num_dense)
    rest = evolve(stack, num_layers=stack.num_layers - num_dense, layer=mixed)
    return update_config(cfg, {"decoder.stack": Sequence.Config(layers=(first, rest))})


def _latent_attention(heads: Any, yarn_weight: float) -> Any:
    """Return a function from an attention to a latent one, stretched to 40 times 4096 tokens.

    The attention factor is on all of the logits, not on the part with position only, so it is
    in their scale.
    """
    width = heads["head_dim"] + heads["rope_dim"]
    scale = stretched_scale(40.0, weight=yarn_weight, width=width)
    kind = IndexedLatentAttention if "indexer" in heads else LatentAttention

    def latent(old: Any) -> Any:
        yarn = YaRN.Config(
            theta=old.position.theta, factor=40.0, original_length=4096, attention_factor=1.0
        )
        core = evolve(old.core, scale=scale)
        return kind.Config(num_heads=old.num_heads, position=yarn, core=core, **heads)

    return latent


class _Positions(ConfigEntry):
    """Rotary positions; `mscale_all_dim` of YaRN is in the scale of all logits."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with the positions, and with the scale that they ask for.

        Raises:
            ConfigError: Positions and logits are both to be scaled.
        """
        forms = [fields.take(name, None) or {} for name in ("rope_scaling", "rope_parameters")]
        values = {"rope_theta": fields.take("rope_theta", 10_000.0), **forms[0], **forms[1]}
        weights = [values.pop(name, None) for name in ("mscale", "mscale_all_dim")]
        if values.get("partial_rotary_factor") == 1.0:  # of the part of a head that is rotated
            del values["partial_rotary_factor"]
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


_NORMS = ("**.residual.norm.epsilon", "decoder.norm.epsilon")
"""The norms of latent vectors have 1e-6, whatever the others have."""
_CONFIG = (
    *without(
        SIZES, "num_hidden_layers", "num_key_value_heads", "intermediate_size", "rms_norm_eps"
    ),
    Field("rms_norm_eps", _NORMS, default=1e-6, to_axcore=float),
    Derived("num_key_value_heads", lambda cfg: common_value(cfg, "**.attention.num_heads")),
    activation("hidden_act", "silu"),
    Field("qk_nope_head_dim", ("**.attention.head_dim",)),
    Field("qk_rope_head_dim", ("**.attention.rope_dim",)),
    Field("v_head_dim", ("**.attention.value_dim",)),
    Field("kv_lora_rank", ("**.attention.latent_dim",)),
    Field("q_lora_rank", ("**.attention.query_latent_dim",)),
    Derived("head_dim", lambda cfg: common_value(cfg, "**.attention.rope_dim"), is_written=False),
    Derived("qk_head_dim", _key_width, is_written=False),
    _Positions(),
    *EXPERTS,
    *(MustBe(name, (False,)) for name in ("attention_bias", "tie_word_embeddings")),
    MustBe("mlp_bias", (False,), is_written=False),
    MustBe("moe_layer_freq", (1,), is_written=False),
)


_INDEXER_WEIGHTS: WeightMap = (
    *linear("q", "wq_b"),
    *linear("k", "wk"),
    *both("key_norm", "k_norm"),
    *linear("weights", "weights_proj"),
)


def _weights(cfg: Any) -> WeightMap:
    attention = find_config(cfg, LatentAttention)[0].node
    heads, own, rotated = attention.num_heads, attention.head_dim, attention.rope_dim
    value, latent = attention.value_dim, attention.latent_dim
    queries = Chain(
        Transpose(), SplitAxis(heads), interleaved(rotated, kept=own, axis=1), JoinAxes(heads)
    )
    keys = Chain(Transpose(), Concatenate((latent, rotated)), interleaved(rotated, kept=latent))
    keys_values = Chain(
        Transpose(), SplitAxis(heads), Concatenate((own, value), axis=1), JoinAxes(heads)
    )
    projections = (
        Rule(("q.weight",), (f"q_{'b_' * bool(attention.query_latent_dim)}proj.weight",), queries),
        Rule(("latent.weight", "shared_k.weight"), ("kv_a_proj_with_mqa.weight",), keys),
        Rule(("k.weight", "v.weight"), ("kv_b_proj.weight",), keys_values),
        *linear("query_latent", "q_a_proj"),
        same("query_norm.weight", "q_a_layernorm.weight"),
        same("latent_norm.weight", "kv_a_layernorm.weight"),
        *linear("out", "o_proj"),
        *below("indexer", "indexer", _INDEXER_WEIGHTS),
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
        MustBe("norm_topk_prob", (False,)),
        MustBe("scoring_func", ("softmax",)),
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
        MustBe("scoring_func", ("sigmoid",)),
        MustBe("rope_interleave", (True,), is_written=False),
    ),
    weights=_weights,
    irrelevant=_UNUSED | {"num_mtp_layers", "num_nextn_predict_layers"},
    mtp_counts=("num_nextn_predict_layers", "num_mtp_layers"),
)
KIMI_K2 = attrs.evolve(DEEPSEEK_V3, written_as="deepseek_v3")
"""Its own type has no class in transformers, but for code that comes with the weights."""


class _NamedKinds(LayerKinds):
    """`mlp_layer_types`, or how many layers come before those with experts."""

    num_dense = 1
    """How many that is where nothing says it."""

    def read(self, fields: Fields, num_layers: int) -> list[int]:
        """Return the kind of each layer.

        Raises:
            ConfigError: A kind is unknown, or there is not one for each layer.
        """
        num_dense = fields.take("first_k_dense_replace", self.num_dense)
        dense, sparse = _KINDS
        named = fields.take("mlp_layer_types", None)
        if named is None:
            named = [dense] * num_dense + [sparse] * (num_layers - num_dense)
        if len(named) != num_layers or {*named} - {*_KINDS}:
            raise ConfigError(
                f"mlp_layer_types is {named}; there are {num_layers} layers",
                where="mlp_layer_types",
                hint=f"name for each layer one of {', '.join(_KINDS)}",
            )
        return [_KINDS.index(name) for name in named]

    def write(self, kinds: list[int]) -> dict[str, Any]:
        """Return both fields."""
        named = [_KINDS[kind] for kind in kinds]
        return {"mlp_layer_types": named, "first_k_dense_replace": kinds.index(1)}


class _FirstOrNamed(_NamedKinds):
    """`first_k_dense_replace`, and `mlp_layer_types` where that does not say which layers it is."""

    num_dense = 3

    def write(self, kinds: list[int]) -> dict[str, Any]:
        """Return one of the fields, or both."""
        fields = super().write(kinds)
        if kinds == sorted(kinds):
            del fields["mlp_layer_types"]
        return fields


_KINDS = ("dense", "sparse")

GLM4_MOE_LITE = attrs.evolve(
    DEEPSEEK_V3,
    architecture="Glm4MoeLiteForCausalLM",
    template=lambda: glm47_flash("toy"),
    layers=_NamedKinds(FIRST_DENSE.names, FIRST_DENSE.kind_of),
    config=(
        *without(DEEPSEEK_V3.config, "rms_norm_eps", "scoring_func", "routed_scaling_factor"),
        Field("rms_norm_eps", _NORMS, default=1e-5, to_axcore=float),
        Field("routed_scaling_factor", ("**.router.scale",), default=1.8, to_axcore=float),
        MustBe("scoring_func", ("sigmoid",), is_written=False),
        MustBe("partial_rotary_factor", (1.0,), is_written=False),
    ),
)
DEEPSEEK_V32 = attrs.evolve(
    DEEPSEEK_V3,
    architecture="DeepseekV32ForCausalLM",
    template=lambda: deepseek_v32("toy"),
    layers=_FirstOrNamed(FIRST_DENSE.names, FIRST_DENSE.kind_of),
    config=(
        *DEEPSEEK_V3.config,
        Field("index_n_heads", ("**.indexer.num_heads",)),
        Field("index_head_dim", ("**.indexer.head_dim",)),
        Field("index_topk", ("**.indexer.top_k",)),
        EveryLayer("layer_types", "indexed_attention"),
    ),
)
