"""Granite 4: a Granite most of whose layers have a state space in the place of attention."""

from typing import Any

import attrs

from axcore.config import evolve, find_config, replace_config, update_config
from axcore.errors import ConfigError
from axcore.interop import (
    PRE_NORMS,
    ConfigEntry,
    DefaultFrom,
    Derived,
    Family,
    Field,
    Fields,
    LayerKinds,
    MustBe,
    RopeFields,
    Rule,
    Transpose,
    WeightMap,
    activation,
    below,
    common_value,
    linear,
    model_weights,
)
from axcore.layers import Attention, FeedForward, MoE, NoPosition, RoPE, Router
from axcore.models import TOY, CausalLM, Sizes, of_size
from axl_attention.mamba2 import Mamba2
from axl_attention.models.granite import HEAD, SCALES, mixture_weights, scaled
from axl_attention.models.mamba2 import UNLIMITED, mixer_weights
from axl_attention.models.shared_maps import NoPadding, fused, tied_by

_VOCABULARY = {"vocab_size": 100_352, "num_layers": 40}

_GRANITE4_SIZES: Sizes = {
    "h-micro": {
        "dim": 2048,
        "num_heads": 32,
        "num_kv_heads": 8,
        "hidden_dim": 8192,
        "scale": 1 / 64,
        "divisor": 8.0,
        "mamba": {"num_heads": 64},
        **_VOCABULARY,
    },
    "h-tiny": {
        "dim": 1536,
        "num_heads": 12,
        "num_kv_heads": 4,
        "hidden_dim": 1024,
        "scale": 1 / 128,
        "divisor": 6.0,
        "mamba": {"num_heads": 48},
        "experts": {"num_experts": 64, "top_k": 6, "width": 512},
        **_VOCABULARY,
    },
    "toy": {
        **TOY,
        "num_layers": 3,
        "scale": 1 / 16,
        "divisor": 2.0,
        "mamba": {"num_heads": 8, "head_dim": 16, "num_groups": 2, "state_dim": 8, "chunk": 8},
        "experts": {"num_experts": 4, "top_k": 2, "width": 32},
    },
}
"""`hidden_dim` is that of the feed-forward that all tokens go to."""


def granite4(size: str) -> CausalLM.Config:
    """Return the config of a Granite 4: `h-micro`, `h-tiny` or `toy`; no layer knows positions.

    Source: IBM 2025, "Granite 4.0"; sizes as in the configs published with the weights.
    """
    sizes = dict(of_size("granite4", _GRANITE4_SIZES, size))
    mamba, experts = sizes.pop("mamba"), sizes.pop("experts", None)
    cfg = replace_config(scaled(sizes), RoPE, NoPosition.Config())
    if experts:
        cfg = replace_config(cfg, FeedForward, _experts(**experts))
    cfg = update_config(cfg, {"**.norm.epsilon": 1e-5})
    stack, (first, period) = cfg.decoder.stack, (1, 3) if size == "toy" else (5, 10)
    fading = evolve(stack.layer, attention=Mamba2.Config(**mamba))
    layers = [fading if i % period != first else stack.layer for i in range(stack.num_layers)]
    return update_config(cfg, {"decoder.stack": _KINDS.stack(layers)})


def _experts(*, width: int, **experts: Any) -> Any:
    """Return a function from a feed-forward to experts next to it."""
    return lambda ffn: MoE.Config(
        expert=FeedForward.Config(hidden_dim=width),
        shared=ffn,
        router=Router.Config(balance_over="batch"),
        **experts,
    )


_NAMES = ("mamba", "attention")
_NEWER = {"linear_attention": 0, "full_attention": 1}
"""What files that transformers 5 wrote call the kinds."""


@attrs.frozen
class _LayerTypes(LayerKinds):
    """`layer_types`, by both names that the kinds have."""

    def read(self, fields: Fields, num_layers: int) -> list[int]:
        """Return the kind of each layer.

        Raises:
            ConfigError: A kind is unknown, or there is not one for each layer.
        """
        known = {**_NEWER, **{name: kind for kind, name in enumerate(_NAMES)}}
        named = fields.take("layer_types", None) or [_NAMES[0]] * num_layers
        if len(named) != num_layers or {*named} - known.keys():
            raise ConfigError(
                f"layer_types is {named}; there are {num_layers} layers",
                where="layer_types",
                hint=f"name for each layer one of {', '.join(_NAMES)}",
            )
        return [known[name] for name in named]

    def write(self, kinds: list[int]) -> dict[str, Any]:
        """Return `layer_types`."""
        return {"layer_types": [_NAMES[kind] for kind in kinds]}


_KINDS = _LayerTypes(("state spaces", "attention"), lambda one: not find_config(one, Mamba2))


class _FeedForwards(ConfigEntry):
    """Experts next to a feed-forward, or that one alone where there are none."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with these."""
        count, top_k = fields.take("num_local_experts", 8), fields.take("num_experts_per_tok", 2)
        width = fields.take("intermediate_size", 11_008)
        ffn = FeedForward.Config(hidden_dim=fields.take("shared_intermediate_size", 1024))
        mixed = _experts(width=width, num_experts=count, top_k=top_k)(ffn) if count else ffn
        return replace_config(cfg, MoE, lambda _: mixed)

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the fields."""
        ffn = common_value(cfg, "**.feed_forward")
        if isinstance(ffn, FeedForward.Config):
            width = {"intermediate_size": ffn.hidden_dim}
            none = {"num_local_experts": 0, "num_experts_per_tok": 0}
            return {**none, **width, "shared_intermediate_size": ffn.hidden_dim}
        return {
            "num_local_experts": common_value(ffn, "num_experts"),
            "num_experts_per_tok": common_value(ffn, "top_k"),
            "intermediate_size": common_value(ffn, "expert.hidden_dim"),
            "shared_intermediate_size": common_value(ffn, "shared.hidden_dim"),
        }


_FADING, _ATTENDING = (f"decoder.stack.layers[{kind}].attention" for kind in range(2))
_POSITION = f"{_ATTENDING}.position"


class _Positions(ConfigEntry):
    """`position_embedding_type`, and rotary positions where it is `rope`."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with these positions."""
        kind = fields.take("position_embedding_type", None) or "nope"
        rotated = RopeFields(_POSITION).read(cfg, fields)
        if kind == "rope":
            return rotated
        if kind != "nope":
            raise ConfigError(
                f"position_embedding_type is {kind!r}; axcore knows rope and nope",
                where="position_embedding_type",
            )
        return cfg

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the fields."""
        if isinstance(common_value(cfg, _POSITION), NoPosition.Config):
            return {"position_embedding_type": "nope"}
        return {"position_embedding_type": "rope", **RopeFields(_POSITION).write(cfg)}


class _HeadDim(ConfigEntry):
    """`mamba_d_head`, by default what `mamba_expand` gives each head."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with heads of this size."""
        size, expand = fields.take("mamba_d_head", "auto"), fields.values.get("mamba_expand", 2)
        if size == "auto":
            size = expand * cfg.dim // common_value(cfg, f"{_FADING}.num_heads")
        return update_config(cfg, {f"{_FADING}.head_dim": size})

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the field."""
        return {"mamba_d_head": common_value(cfg, f"{_FADING}.head_dim")}


def _expansion(cfg: Any) -> int:
    mixer = common_value(cfg, _FADING)
    return int(mixer.num_heads * mixer.head_dim // cfg.dim)


# Both kinds have an output projection, by different names: each is in one rule with an array that
# its kind alone has, and a vector is its own transpose.
_ATTENTION = (
    *linear("q", "q_proj"),
    *linear("k", "k_proj"),
    Rule(("v.weight", "out.weight"), ("v_proj.weight", "o_proj.weight"), Transpose()),
    Rule(("v.bias", "out.bias"), ("v_proj.bias", "o_proj.bias")),
)
_MIXED = Rule(("norm.weight", "out.weight"), ("norm.weight", "out_proj.weight"), Transpose())


def _weights(cfg: Any) -> WeightMap:
    layer: list[Rule] = [*PRE_NORMS, *below("attention", "self_attn", _ATTENTION)]
    for found in find_config(cfg, Mamba2)[:1]:
        own = [rule for rule in mixer_weights(found.node) if rule.hf[0] not in _MIXED.hf]
        layer += below("attention", "mamba", (*own, _MIXED))
    ffn, path = find_config(cfg, MoE), "feed_forward"
    if ffn:
        layer += mixture_weights(ffn[0].node)
        path = "feed_forward.shared"
    width = common_value(cfg, f"**.{path}.hidden_dim")
    parts = (f"{path}.gate", f"{path}.up")
    layer.append(fused(parts, "shared_mlp.input_linear", (width, width)))
    layer += linear(f"{path}.down", "shared_mlp.output_linear")
    return (*model_weights(*layer), HEAD)


GRANITEMOEHYBRID = Family(
    architecture="GraniteMoeHybridForCausalLM",
    template=lambda: granite4("toy"),
    layers=_KINDS,
    config=(
        Field("vocab_size", ("vocab_size",)),
        Field("hidden_size", ("dim",)),
        _FeedForwards(),
        Field("num_attention_heads", (f"{_ATTENDING}.num_heads",)),
        DefaultFrom(
            "num_key_value_heads",
            "**.attention.num_kv_heads",
            lambda cfg: find_config(cfg, Attention)[0].node.num_heads,
        ),
        Field(
            "attention_bias",
            (f"{_ATTENDING}.linear.has_bias", f"{_ATTENDING}.out_linear.has_bias"),
            default=False,
        ),
        _Positions(),
        Field("mamba_n_heads", (f"{_FADING}.num_heads",), default=128),
        _HeadDim(),
        Derived("mamba_expand", _expansion),
        Field("mamba_n_groups", (f"{_FADING}.num_groups",), default=1),
        Field("mamba_d_state", (f"{_FADING}.state_dim",), default=256),
        Field("mamba_d_conv", (f"{_FADING}.conv.width",), default=4),
        Field("mamba_chunk_size", (f"{_FADING}.chunk",), default=256),
        Field("mamba_conv_bias", (f"{_FADING}.conv.has_bias",), default=True),
        MustBe("mamba_proj_bias", (False,)),
        MustBe("time_step_limit", UNLIMITED, is_written=False),
        Field("rms_norm_eps", ("**.norm.epsilon",), default=1e-6, to_axcore=float),
        activation("hidden_act", "silu"),
        tied_by("head.inner"),
        *SCALES,
        MustBe("normalization_function", ("rmsnorm",), is_written=False),
        NoPadding(),
    ),
    weights=_weights,
    irrelevant=frozenset({"router_aux_loss_coef"}),
)
