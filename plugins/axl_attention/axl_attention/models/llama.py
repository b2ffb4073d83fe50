"""Llama 3.1, 3.2 and 4.

Llama 3.1 is Llama 3 with positions stretched from 8192 tokens. In Llama 4, rotary rows are
interleaved, all experts of a layer are in one tensor, and layers are of four kinds.
"""

from typing import Any

import attrs
from immutabledict import immutabledict

from axcore.config import evolve, field_names, find_config, replace_config, update_config
from axcore.errors import ConfigError
from axcore.interop import (
    ATTENTION_BIAS,
    FEED_FORWARD,
    PRE_NORMS,
    SIZES,
    Chain,
    Concatenate,
    ConfigEntry,
    Family,
    Field,
    Fields,
    LayerKinds,
    RopeFields,
    StackArrays,
    WeightMap,
    activation,
    all_experts,
    below,
    common_value,
    every,
    layers_of,
    linear,
    model_weights,
    without,
)
from axcore.layers import (
    Attention,
    FeedForward,
    MoE,
    NoPosition,
    RoPE,
    Router,
    Sequence,
    alternating,
)
from axcore.models import TOY, CausalLM, Sizes, TiedHead, UntiedHead, of_size, transformer
from axl_attention.attention_cores import ChunkedAttention, with_chunked
from axl_attention.layers import InputScaled
from axl_attention.models.shared_maps import interleaved_projection, tied_by
from axl_attention.norms import TemperatureTuning, UnitQueryKey
from axl_attention.rope_scaling import Llama3RoPE

_SHARED_SIZES = {"vocab_size": 128_256, "num_kv_heads": 8}

_LLAMA31_SIZES: Sizes = {
    "8b": {
        "dim": 4096,
        "num_layers": 32,
        "num_heads": 32,
        "hidden_dim": 14_336,
        **_SHARED_SIZES,
    },
    "70b": {
        "dim": 8192,
        "num_layers": 80,
        "num_heads": 64,
        "hidden_dim": 28_672,
        **_SHARED_SIZES,
    },
    "405b": {
        "dim": 16_384,
        "num_layers": 126,
        "num_heads": 128,
        "hidden_dim": 53_248,
        **_SHARED_SIZES,
    },
    "toy": TOY,
}
_LLAMA32_SIZES: Sizes = {
    "1b": {"dim": 2048, "num_layers": 16, "num_heads": 32, "hidden_dim": 8192, **_SHARED_SIZES},
    "3b": {"dim": 3072, "num_layers": 28, "num_heads": 24, "hidden_dim": 8192, **_SHARED_SIZES},
    "toy": TOY,
}


def llama31(size: str) -> CausalLM.Config:
    """Return the config of a Llama 3.1: `8b`, `70b`, `405b` or `toy`; 3.3 is its `70b`.

    Source: Grattafiori et al. 2024, arXiv:2407.21783, table 3; positions as in the configs
    published with the weights.
    """
    return _stretched(of_size("llama31", _LLAMA31_SIZES, size), factor=8.0)


def llama32(size: str) -> CausalLM.Config:
    """Return the config of a Llama 3.2 for text: `1b`, `3b` or `toy`; its embedding is its head.

    Source: Meta 2024, the model card of Llama 3.2; the configs published with the weights.
    """
    cfg = _stretched(of_size("llama32", _LLAMA32_SIZES, size), factor=32.0)
    return replace_config(cfg, UntiedHead, TiedHead.Config())


def _stretched(sizes: Any, *, factor: float) -> Any:
    position = Llama3RoPE.Config(theta=500_000.0, factor=factor)
    cfg = replace_config(transformer(**sizes), RoPE, lambda _: position)
    return update_config(cfg, {"**.norm.epsilon": 1e-5})


_TURN = 4
"""Layers of a turn, of which the last one sees all tokens and no positions."""

_PUBLISHED = {
    "vocab_size": 202_048,
    "dim": 5120,
    "num_layers": 48,
    "num_heads": 40,
    "num_kv_heads": 8,
    "head_dim": 128,
    "hidden_dim": 16_384,
    "expert_dim": 8192,
    "chunk": 8192,
    "interval": 8192,
}
_LLAMA4_SIZES: Sizes = {
    "scout": {**_PUBLISHED, "num_experts": 16, "every": 1, "stretched_from": 8192},
    "maverick": {**_PUBLISHED, "num_experts": 128, "every": 2, "stretched_from": None},
    "toy": {
        **TOY,
        "num_layers": 4,
        "head_dim": 32,
        "expert_dim": 32,
        "chunk": 6,
        "interval": 4,
        "num_experts": 4,
        "every": 2,
        "stretched_from": 8,
    },
}
"""`every` second layer of Maverick has experts; `hidden_dim` is that of the others."""


def llama4(size: str) -> CausalLM.Config:
    """Return the config of a Llama 4, without what sees images: `scout`, `maverick` or `toy`.

    Only those whose positions are stretched normalise queries and keys.

    Source: Meta 2025, "The Llama 4 herd"; the configs published with the weights.
    """
    sizes = dict(of_size("llama4", _LLAMA4_SIZES, size))
    names = ("head_dim", "expert_dim", "chunk", "interval", "num_experts", "every")
    head_dim, expert_dim, chunk, interval, num_experts, every = map(sizes.pop, names)
    length = sizes.pop("stretched_from")
    cfg = update_config(
        transformer(**sizes),
        {
            "**.attention.head_dim": head_dim,
            "**.norm.epsilon": 1e-5,
            "**.position.theta": 500_000.0,
        },
    )
    stack = cfg.decoder.stack
    near = replace_config(stack.layer, Attention, _local(chunk, length))
    wide = update_config(
        stack.layer, {"attention.position": TemperatureTuning.Config(interval=interval)}
    )
    turn = [
        replace_config(layer, FeedForward, _experts(expert_dim, num_experts))
        if (i + 1) % every == 0
        else layer
        for i, layer in enumerate([near] * (_TURN - 1) + [wide])
    ]
    return update_config(cfg, {"decoder.stack": alternating(stack, *turn)})


def _local(chunk: int, length: int | None) -> Any:
    """Return a function from an attention to one within chunks."""

    def local(old: Any) -> Any:
        position = old.position
        if length is not None:
            stretched = Llama3RoPE.Config(theta=position.theta, original_length=length)
            position = UnitQueryKey.Config(inner=stretched)
        return evolve(old, position=position, core=evolve(with_chunked(old.core), chunk=chunk))

    return local


def _experts(width: int, count: int) -> Any:
    """Return a function from a feed-forward to experts, each as wide as the shared one."""

    def experts(ffn: Any) -> Any:
        expert = evolve(ffn, hidden_dim=width)
        return MoE.Config(
            expert=expert,
            shared=expert,
            num_experts=count,
            top_k=1,
            router=Router.Config(score="sigmoid", is_normalized=False, balance_loss=0.001),
            dispatch=InputScaled.Config(),
        )

    return experts


_LAYERS = tuple(f"decoder.stack.layers[{kind}]" for kind in range(4))
_NEAR, _WIDE = (tuple(f"{at}.attention.position" for at in _LAYERS[i : i + 2]) for i in (0, 2))
_DENSE = tuple(f"{at}.feed_forward" for at in _LAYERS[::2])


@attrs.frozen
class _Kinds(LayerKinds):
    """`no_rope_layers` and `moe_layers`: layers in chunks and without, dense and with experts."""

    def read(self, fields: Fields, num_layers: int) -> list[int]:
        """Return the kind of each layer.

        Raises:
            ConfigError: There is not 0 or 1 for each layer, or types of attention contradict it.
        """
        interval = fields.take("no_rope_layer_interval", 4)
        flags = fields.take("no_rope_layers", None) or [
            1 - every(interval)(i) for i in range(num_layers)
        ]
        if len(flags) != num_layers or {*flags} - {0, 1}:
            raise ConfigError(
                f"no_rope_layers is {flags}; there are {num_layers} layers, with 0 or 1 for each",
                where="no_rope_layers",
            )
        types = ["chunked_attention" if flag else "full_attention" for flag in flags]
        named = fields.take("layer_types", None)
        if named not in (None, types):
            raise ConfigError(
                f"layer_types is {named}; axcore knows chunks in layers with rotary positions, and "
                "all tokens in those without",
                where="layer_types",
            )
        step = fields.take("interleave_moe_layer_step", 1)
        mixed = fields.take("moe_layers", None)
        mixed = range(step - 1, num_layers, step) if mixed is None else mixed
        return [2 * (1 - flag) + (i in mixed) for i, flag in enumerate(flags)]

    def write(self, kinds: list[int]) -> dict[str, Any]:
        """Return both lists."""
        return {
            "no_rope_layers": [int(kind < 2) for kind in kinds],
            "moe_layers": [i for i, kind in enumerate(kinds) if kind % 2],
        }

    def fold(self, cfg: Any) -> tuple[Any, list[int]]:
        """Return a layer of each kind, and each layer's kind.

        One that the model lacks is made of parts of others; a shared expert is a dense layer's.
        """
        layers = layers_of(cfg.decoder.stack)
        if any("feed_forward" not in field_names(layer) for layer in layers):
            raise ConfigError("a layer has no feed-forward", where="decoder.stack")
        one = {int(self.kind_of(layer)): layer for layer in layers}
        made = [_made(kind, one) for kind in range(len(self.names)) if kind not in one]
        stack = Sequence.Config(layers=(*layers, *filter(None, made)))
        folded, kinds = super().fold(update_config(cfg, {"decoder.stack": stack}))
        return folded, kinds[: len(layers)]


def _made(kind: int, one: dict[int, Any]) -> Any:
    """Return a layer of a kind, made of those of others; None where they lack its parts."""
    layer = one.get(kind ^ 1)
    parts = [one[other].feed_forward for other in one if other % 2 == kind % 2]
    if not parts and kind % 2 == 0:
        parts = [other.feed_forward.shared for other in one.values()]
    return update_config(layer, {"feed_forward": parts[0]}) if layer and parts else None


def _kind_of(layer: Any) -> int:
    is_wide = not find_config(layer, ChunkedAttention)
    return 2 * is_wide + bool(find_config(layer, MoE))


class _Positions(ConfigEntry):
    """Rotary positions, `use_qk_norm` behind them, and the temperature of layers without."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with both."""
        epsilon = float(fields.take("rms_norm_eps", 1e-5))
        cfg = _with(cfg, _NEAR, lambda _: UnitQueryKey.Config(epsilon=epsilon))
        cfg = RopeFields("**.attention.position.inner", 500_000.0).read(cfg, fields)
        if not fields.take("use_qk_norm", True):
            cfg = _with(cfg, _NEAR, lambda old: old.inner)
        tuned = TemperatureTuning.Config(
            interval=fields.take("floor_scale", 8192), strength=fields.take("attn_scale", 0.1)
        )
        # Published configs say 4 instead of true.
        is_tuned = fields.take("attn_temperature_tuning", True)
        return _with(cfg, _WIDE, lambda _: tuned if is_tuned else NoPosition.Config())

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the fields."""
        near, wide = common_value(cfg, *_NEAR), common_value(cfg, *_WIDE)
        is_unit, is_tuned = (
            isinstance(near, UnitQueryKey.Config),
            isinstance(wide, TemperatureTuning.Config),
        )
        if not is_unit:
            cfg = _with(cfg, _NEAR, lambda old: UnitQueryKey.Config(inner=old))
        scales = {"floor_scale": wide.interval, "attn_scale": wide.strength} if is_tuned else {}
        return {
            **RopeFields("**.attention.position.inner").write(cfg),
            "use_qk_norm": is_unit,
            "attn_temperature_tuning": is_tuned,
            **scales,
        }


def _with(cfg: Any, paths: tuple[str, ...], new: Any) -> Any:
    for path in paths:
        cfg = replace_config(cfg, lambda _: True, new, at=path)
    return cfg


def _weights(cfg: Any) -> WeightMap:
    attention = common_value(cfg, "**.attention.num_heads", "**.attention.num_heads")
    num_kv_heads = common_value(cfg, "**.attention.num_kv_heads") or attention
    head_dim = common_value(cfg, "**.attention.head_dim")
    mixture = find_config(cfg, MoE)[0].node
    count, width = mixture.num_experts, mixture.expert.hidden_dim
    projections = (
        *interleaved_projection("q", attention, rotated=head_dim),
        *interleaved_projection("k", num_kv_heads, rotated=head_dim),
        *linear("v", "v_proj"),
        *linear("out", "o_proj"),
    )
    experts = (
        all_experts(
            "experts.inner.expert",
            ("gate.weight", "up.weight"),
            "experts.gate_up_proj",
            Chain(StackArrays(count), Concatenate((width, width), axis=2)),
            count=count,
        ),
        all_experts(
            "experts.inner.expert",
            ("down.weight",),
            "experts.down_proj",
            StackArrays(count),
            count=count,
        ),
        *linear("router.linear", "router"),
        *below("shared", "shared_expert", FEED_FORWARD),
    )
    return model_weights(
        *PRE_NORMS,
        *below("attention", "self_attn", projections),
        *below("feed_forward", "feed_forward", (*FEED_FORWARD, *experts)),
    )


LLAMA4_TEXT = Family(
    architecture="Llama4ForCausalLM",
    template=lambda: llama4("toy"),
    layers=_Kinds(
        (
            "with_chunked attention, dense",
            "with_chunked attention, with experts",
            "full attention, dense",
            "full attention, with experts",
        ),
        _kind_of,
    ),
    config=(
        *without(SIZES, "num_hidden_layers", "intermediate_size", "rms_norm_eps"),
        Field("rms_norm_eps", ("**.norm.epsilon",), default=1e-5, to_axcore=float),
        Field("head_dim", ("**.attention.head_dim",), default=128),
        Field("intermediate_size", ("**.expert.hidden_dim", "**.shared.hidden_dim")),
        Field("intermediate_size_mlp", tuple(f"{at}.hidden_dim" for at in _DENSE), default=16_384),
        Field("attention_chunk_size", ("**.core.chunk",), default=8192),
        Field("num_local_experts", ("**.feed_forward.num_experts",), default=16),
        Field("num_experts_per_tok", ("**.feed_forward.top_k",), default=1),
        activation("hidden_act", "silu"),
        _Positions(),
        ATTENTION_BIAS,
        tied_by(),
    ),
    weights=_weights,
    irrelevant=frozenset({"cache_implementation", "for_llm_compressor", "router_aux_loss_coef"}),
)
LLAMA4 = attrs.evolve(
    LLAMA4_TEXT,
    nested="text_config",
    written_as="llama4_text",
    defaults=immutabledict(num_attention_heads=40, num_key_value_heads=8),
    irrelevant=LLAMA4_TEXT.irrelevant
    | {"boi_token_index", "eoi_token_index", "image_token_index", "vision_config"},
    renamed=((r"^language_model\.", ""),),
    skipped=(*LLAMA4_TEXT.skipped, r"^(vision_model|multi_modal_projector)\."),
)
"""Llama 4 as published, of which the text part is read; exports have that part alone."""
