"""Nemotron-H: layers of one branch each, most of them state spaces, and few that attend."""

from typing import Any

import attrs

from axcore.config import evolve, find_config, replace_config, update_config
from axcore.errors import ConfigError
from axcore.interop import (
    ATTENTION,
    ConfigEntry,
    DefaultFrom,
    Family,
    Field,
    Fields,
    LayerKinds,
    MustBe,
    WeightMap,
    below,
    common_value,
    linear,
    same,
)
from axcore.layers import MoE, NoPosition, PlainFeedForward, RMSNorm, RoPE, Router
from axcore.models import TOY, CausalLM, Sizes, of_size, transformer
from axl_attention.layers import MixerLayer, OneBranchLayer
from axl_attention.mamba2 import FlooredMamba2
from axl_attention.models.mamba2 import UNLIMITED, mixer_weights
from axl_attention.models.shared_maps import Groups, NoPadding, tied_by

_MAMBA = {"num_groups": 8, "chunk": 128}
_NEMOTRON_H_SIZES: Sizes = {
    "nano-9b-v2": {
        "vocab_size": 131_072,
        "dim": 4480,
        "num_heads": 40,
        "num_kv_heads": 8,
        "head_dim": 128,
        "hidden_dim": 15_680,
        "layers": "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
        "mamba": {"num_heads": 128, "head_dim": 80, **_MAMBA},
    },
    "3-nano-30b-a3b": {
        "vocab_size": 131_072,
        "dim": 2688,
        "num_heads": 32,
        "num_kv_heads": 2,
        "head_dim": 128,
        "hidden_dim": 1856,
        "layers": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
        "mamba": {"num_heads": 64, **_MAMBA},
        "experts": {"num_experts": 128, "top_k": 6},
        "shared_dim": 3712,
    },
    "toy": {
        **{name: size for name, size in TOY.items() if name != "num_layers"},
        "head_dim": 32,
        "layers": "M-*M-",
        "mamba": {"num_heads": 8, "head_dim": 16, "num_groups": 2, "state_dim": 8, "chunk": 8},
    },
}
_NEMOTRON_H_SIZES["toy-mixed"] = {
    **_NEMOTRON_H_SIZES["toy"],
    "layers": "ME*ME",
    "hidden_dim": 32,
    "experts": {"num_experts": 4, "top_k": 2},
    "shared_dim": 48,
}
"""`layers` has a letter for each; with experts, `hidden_dim` is that of one."""


def nemotron_h(size: str) -> CausalLM.Config:
    """Return a Nemotron-H: `nano-9b-v2`, `3-nano-30b-a3b` with experts, `toy` or `toy-mixed`.

    No layer knows positions.

    Source: NVIDIA 2025, arXiv:2508.14444, section 2, and arXiv:2512.20848, section 2; sizes as in
    the configs published with the weights.
    """
    sizes = dict(of_size("nemotron_h", _NEMOTRON_H_SIZES, size))
    letters, mamba, head_dim = (sizes.pop(name) for name in ("layers", "mamba", "head_dim"))
    experts, shared_dim = sizes.pop("experts", None), sizes.pop("shared_dim", None)
    cfg: Any = replace_config(transformer(num_layers=1, **sizes), RoPE, NoPosition.Config())
    attention = evolve(cfg.decoder.stack.layer.attention, head_dim=head_dim)
    feed_forward: Any = _feed_forward(sizes["hidden_dim"])
    if experts:
        feed_forward = _mixture(sizes["hidden_dim"], shared_dim, experts)
    kinds = (
        MixerLayer.Config(mixer=FlooredMamba2.Config(**mamba)),
        OneBranchLayer.Config(attention=attention),
        OneBranchLayer.Config(feed_forward=feed_forward),
    )
    stack = _KINDS.stack([kinds[min(_LETTERS.index(one), 2)] for one in letters])
    cfg = update_config(cfg, {"decoder.stack": stack})
    return replace_config(cfg, RMSNorm, lambda norm: evolve(norm, epsilon=1e-5))


def _feed_forward(width: int) -> PlainFeedForward.Config:
    return PlainFeedForward.Config(hidden_dim=width, activation="squared_relu")


def _mixture(width: int, shared_dim: int, experts: Any) -> MoE.Config:
    router = Router.Config(score="sigmoid", scale=2.5, bias_rate=0.001, balance_loss=0.0001)
    return MoE.Config(
        expert=_feed_forward(width), shared=_feed_forward(shared_dim), router=router, **experts
    )


_LETTERS = "M*-E"
_TYPES = ("linear_attention", "full_attention", "mlp", "moe")
_NEWER = dict(zip(_TYPES, range(4), strict=True)) | {"mamba": 0, "attention": 1}


def _kinds(values: Any) -> list[int]:
    """Return the number of each layer's kind: a state space, attention, a feed-forward, experts.

    Raises:
        ConfigError: A layer is of another kind, or some have experts and others do not.
    """
    named = values.get("layers_block_type")
    given = values.get("hybrid_override_pattern", "") if named is None else named
    known = dict(zip(_LETTERS, range(4), strict=True)) if named is None else _NEWER
    kinds = [known.get(one, -1) for one in given]
    if -1 in kinds or {2, 3} <= {*kinds} or {0, 1, *kinds} - {2, 3} != {*kinds} - {2, 3}:
        raise ConfigError(
            f"layers are {given!r}; axcore knows state spaces, attention, and feed-forwards that "
            "are all dense or all experts",
            where="hybrid_override_pattern" if named is None else "layers_block_type",
            hint=f"name each layer by one of {', '.join(known)}",
        )
    return kinds


@attrs.frozen
class _LayerKinds(LayerKinds):
    """`hybrid_override_pattern`, or `layers_block_type` of files that transformers 5 wrote."""

    def read(self, fields: Fields, num_layers: int) -> list[int]:
        """Return the kind of each layer; experts are a feed-forward."""
        for name in ("layers_block_type", "hybrid_override_pattern"):
            fields.take(name, None)
        return [min(kind, 2) for kind in _kinds(fields.values)]

    def write(self, kinds: list[int]) -> dict[str, Any]:
        """Return the pattern."""
        return {"hybrid_override_pattern": "".join(_LETTERS[kind] for kind in kinds)}

    def fold(self, cfg: Any) -> tuple[Any, list[int]]:
        """Return a model with one layer of each kind, and the letter of each of its layers."""
        folded, kinds = super().fold(cfg)
        has_experts = bool(find_config(folded.decoder, MoE))
        return folded, [kind + (kind == 2 and has_experts) for kind in kinds]

    def unfold(self, cfg: Any, fields: Fields) -> Any:
        """Return a model with the layers that the fields name.

        Raises:
            ConfigError: There are others than `num_hidden_layers`.
        """
        count = len(_kinds(fields.values))
        given = fields.take("num_hidden_layers", None)
        if given not in (None, count):
            raise ConfigError(
                f"num_hidden_layers is {given}, and {count} layers are named",
                where="num_hidden_layers",
                hint=f"set it to {count}",
            )
        named = Fields({**fields.values, "num_hidden_layers": count})
        cfg = super().unfold(cfg, named)
        fields.read |= named.read
        return cfg


def _kind_of(layer: Any) -> int:
    if isinstance(layer, MixerLayer.Config):
        return 0
    # Layers of other families come here too, when it is asked which one a model is of.
    return 1 if getattr(layer, "attention", None) is not None else 2


_KINDS = _LayerKinds(("state spaces", "attention", "feed-forwards"), _kind_of)

_DENSE = (
    Field("intermediate_size", ("**.feed_forward.hidden_dim",), default=21_504),
    Field("mlp_bias", ("**.feed_forward.linear.has_bias",), default=False),
)
_MIXED = (
    Field("moe_intermediate_size", ("**.expert.hidden_dim",), default=7688),
    Field("moe_shared_expert_intermediate_size", ("**.shared.hidden_dim",), default=7688),
    Field("n_routed_experts", ("**.feed_forward.num_experts",), default=8),
    Field("num_experts_per_tok", ("**.feed_forward.top_k",), default=2),
    Field("routed_scaling_factor", ("**.router.scale",), default=1.0, to_axcore=float),
    Field("norm_topk_prob", ("**.router.is_normalized",), default=True),
    Groups("noaux_tc", "noaux_tc", rated_by=2),
    MustBe("n_shared_experts", (1,)),
    MustBe("moe_latent_size", (None,), is_written=False),
    MustBe("mlp_bias", (False,)),
)


_OF_EXPERTS = {
    *(entry.name for entry in _MIXED if isinstance(entry, Field | MustBe)),
    *("n_group", "topk_group", "topk_method"),
} - {"mlp_bias"}


class _FeedForwards(ConfigEntry):
    """The fields of feed-forwards, or those of experts where layers have these."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with these."""
        has_experts = 3 in _kinds(fields.values)
        if has_experts:
            mixture = _mixture(1, 1, {"num_experts": 2, "top_k": 1})
            cfg = replace_config(cfg, PlainFeedForward, mixture)
        for entry in _MIXED if has_experts else _DENSE:
            cfg = entry.read(cfg, fields)
        for name in ("intermediate_size",) if has_experts else _OF_EXPERTS:
            fields.take(name, None)  # of layers that the model does not have
        return cfg

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the fields."""
        values: dict[str, Any] = {}
        for entry in _MIXED if find_config(cfg.decoder, MoE) else _DENSE:
            values |= entry.write(cfg)
        return values


_EXPERT = (*linear("up", "up_proj"), *linear("down", "down_proj"))
_FEED_FORWARD = (
    *_EXPERT,
    *below("experts.expert.{expert}", "experts.{expert}", _EXPERT),
    *below("shared", "shared_experts", _EXPERT),
    *linear("router.linear", "gate"),
    same("router.bias", "gate.e_score_correction_bias"),
)


def _weights(cfg: Any) -> WeightMap:
    layer = (
        same("residual.norm.weight", "norm.weight"),
        *below("mixer", "mixer", mixer_weights(find_config(cfg, FlooredMamba2)[0].node)),
        *below("attention", "mixer", ATTENTION),
        *below("feed_forward", "mixer", _FEED_FORWARD),
    )
    return (
        same("decoder.embedding.weight", "backbone.embeddings.weight"),
        *below("decoder.stack.layer.{layer}", "backbone.layers.{layer}", layer),
        same("decoder.norm.weight", "backbone.norm_f.weight"),
        same("head.weight", "lm_head.weight"),
    )


NEMOTRON_H = Family(
    architecture="NemotronHForCausalLM",
    template=lambda: nemotron_h("toy"),
    layers=_KINDS,
    config=(
        Field("vocab_size", ("vocab_size",)),
        Field("hidden_size", ("dim",)),
        Field("layer_norm_epsilon", ("**.norm.epsilon",), default=1e-5, to_axcore=float),
        Field("num_attention_heads", ("**.attention.num_heads",)),
        DefaultFrom(
            "num_key_value_heads",
            "**.attention.num_kv_heads",
            lambda cfg: common_value(cfg, "**.attention.num_heads"),
        ),
        Field("head_dim", ("**.attention.head_dim",), default=128),
        Field("mamba_num_heads", ("**.mixer.num_heads",), default=128),
        Field("mamba_head_dim", ("**.mixer.head_dim",), default=64),
        Field("n_groups", ("**.mixer.num_groups",), default=8),
        Field("ssm_state_size", ("**.mixer.state_dim",), default=128),
        Field("conv_kernel", ("**.mixer.conv.width",), default=4),
        Field("chunk_size", ("**.mixer.chunk",), default=128),
        Field("use_conv_bias", ("**.mixer.conv.has_bias",), default=True),
        Field(
            "use_bias",
            ("**.mixer.linear.has_bias", "**.mixer.out_linear.has_bias"),
            default=False,
        ),
        Field("time_step_min", ("**.mixer.smallest_step",), default=1e-3, to_axcore=float),
        _FeedForwards(),
        MustBe("mlp_hidden_act", ("relu2",)),
        MustBe("mamba_hidden_act", ("silu",)),
        MustBe("attention_bias", (False,)),
        MustBe("sliding_window", (None,), is_written=False),
        MustBe("time_step_limit", UNLIMITED, is_written=False),
        tied_by(),
        NoPadding(),
    ),
    weights=_weights,
    irrelevant=frozenset(
        {
            "expand",
            "hidden_dropout",
            "mamba_proj_bias",
            "mamba_ssm_cache_dtype",
            "moe_shared_expert_overlap",
            "mtp_hybrid_override_pattern",
            "mtp_layers_block_type",
            "norm_eps",
            "num_logits_to_keep",
            "num_nextn_predict_layers",
            "rescale_prenorm_residual",
            "residual_in_fp32",
            "rms_norm_eps",
            "time_step_floor",
            "time_step_max",
            "time_step_rank",
            "use_mamba_kernels",
        }
    ),
    renamed=((r"^model\.", "backbone."),),
    mtp_tensors=(r"^mtp\.",),
)
