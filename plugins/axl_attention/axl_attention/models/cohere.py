"""Command R and R7B: one norm before both branches, a tied head whose logits are scaled."""

from typing import Any

import attrs

from axcore.config import find_config, replace_config, update_config
from axcore.interop import (
    ATTENTION_BIAS,
    FEED_FORWARD,
    SIZES,
    Chain,
    Derived,
    Family,
    Field,
    JoinAxes,
    LayerTypes,
    MustBe,
    RopeFields,
    Rule,
    SplitAxis,
    Transpose,
    WeightMap,
    activation,
    below,
    common_value,
    every,
    interleaved,
    linear,
    same,
    window,
    without,
)
from axcore.layers import (
    Attention,
    LayerNorm,
    NoPosition,
    RMSNorm,
    RoPE,
    TransformerLayer,
    alternating,
)
from axcore.models import TOY, CausalLM, Sizes, TiedHead, of_size, transformer
from axl_attention.layers import with_one_norm
from axl_attention.models.gemma import local
from axl_attention.models.shared_maps import head_dim_of, head_norms, layers_of, tied_by
from axl_attention.norms import DividedLogits, with_head_norms

_VOCABULARY = {"vocab_size": 256_000}
_8B = {
    "dim": 4096,
    "num_layers": 32,
    "num_heads": 32,
    "num_kv_heads": 8,
    "hidden_dim": 14_336,
    **_VOCABULARY,
}

_COHERE_SIZES: Sizes = {
    "aya-8b": {**_8B, "theta": 10_000.0, "scale": 1 / 16},
    "command-r": {
        "dim": 8192,
        "num_layers": 40,
        "num_heads": 64,
        "hidden_dim": 22_528,
        "theta": 8_000_000.0,
        "scale": 1 / 16,
        **_VOCABULARY,
    },
    "command-r-plus": {
        "dim": 12_288,
        "num_layers": 64,
        "num_heads": 96,
        "num_kv_heads": 8,
        "hidden_dim": 33_792,
        "theta": 75_000_000.0,
        "scale": 5 / 6,
        **_VOCABULARY,
    },
    "toy": {**TOY, "theta": 10_000.0, "scale": 0.5},
}


def cohere(size: str) -> CausalLM.Config:
    """Return the config of Aya 23 (`aya-8b`), Command R (`command-r`, `command-r-plus`) or `toy`.

    Source: Aryabumi et al. 2024, arXiv:2405.15032, section 2; Command R as in the configs published
    with the weights.
    """
    cfg = _cohere(**of_size("cohere", _COHERE_SIZES, size))
    if size not in ("command-r-plus", "toy"):
        return cfg
    return replace_config(cfg, Attention, with_head_norms(head_dim_of(cfg)))


_COHERE2_SIZES: Sizes = {
    "r7b": {**_8B, "theta": 50_000.0, "scale": 1 / 4, "window": 4096, "interval": 4},
    "toy": {**TOY, "theta": 10_000.0, "scale": 0.5, "window": 4, "interval": 2},
}


def cohere2(size: str) -> CausalLM.Config:
    """Return the config of Command R7B (`r7b`) or `toy`: global layers know no positions.

    Source: Cohere 2025, arXiv:2504.00698, section 2.1; sizes as in the config published with the
    weights.
    """
    sizes = dict(of_size("cohere2", _COHERE2_SIZES, size))
    window, interval = sizes.pop("window"), sizes.pop("interval")
    cfg = _cohere(**sizes)
    stack = cfg.decoder.stack
    wide = replace_config(stack.layer, RoPE, NoPosition.Config())
    turns = alternating(stack, *[local(stack.layer, window)] * (interval - 1), wide)
    return update_config(cfg, {"decoder.stack": turns})


def _cohere(*, theta: float, scale: float, **sizes: Any) -> Any:
    cfg = replace_config(transformer(**sizes), RMSNorm, LayerNorm.Config(has_bias=False))
    cfg = replace_config(cfg, TransformerLayer, with_one_norm)
    head = DividedLogits.Config(divisor=1 / scale, inner=TiedHead.Config())
    return update_config(cfg, {"**.position.theta": theta, "head": head})


def _weights(cfg: Any) -> WeightMap:
    num_heads = common_value(cfg, "**.attention.num_heads")
    counts = {"q": num_heads, "k": common_value(cfg, "**.attention.num_kv_heads") or num_heads}
    attention: list[Rule] = []
    for part, count in counts.items():
        heads = Chain(SplitAxis(count), interleaved(head_dim_of(cfg), axis=1))
        rows = Chain(heads, JoinAxes(count))
        for path in (part, f"{part}.linear"):  # the second where heads are normalised
            weight = Chain(Transpose(), rows)
            attention += [
                Rule((f"{path}.weight",), (f"{part}_proj.weight",), weight),
                Rule((f"{path}.bias",), (f"{part}_proj.bias",), rows),
            ]
        attention.append(Rule((f"{part}.norm.weight",), (f"{part}_norm.weight",), heads))
    return (
        *layers_of(
            "model.layers",
            same("norm.weight", "input_layernorm.weight"),
            *below("attention", "self_attn", attention),
            *linear("attention.v", "self_attn.v_proj"),
            *linear("attention.out", "self_attn.o_proj"),
            *below("feed_forward", "mlp", FEED_FORWARD),
            embedding="model.embed_tokens",
            norm="model.norm",
        ),
        same("head.inner.weight", "lm_head.weight"),
    )


_COMMON = (
    Field("layer_norm_eps", ("**.norm.epsilon",), default=1e-5, to_axcore=float),
    activation("hidden_act", "silu"),
    tied_by("head.inner", default=True),
    Field(
        "logit_scale",
        ("head.divisor",),
        default=1 / 16,
        to_axcore=lambda scale: 1 / scale,
        to_hf=lambda divisor: 1 / divisor,
    ),
)

COHERE = Family(
    architecture="CohereForCausalLM",
    template=lambda: _cohere(**_COHERE_SIZES["toy"]),
    config=(
        *without(SIZES, "rms_norm_eps"),
        RopeFields(theta=500_000.0),
        head_norms("use_qk_norm", ATTENTION_BIAS),
        *_COMMON,
    ),
    weights=_weights,
)
COHERE2 = attrs.evolve(
    COHERE,
    architecture="Cohere2ForCausalLM",
    template=lambda: cohere2("toy"),
    layers=LayerTypes(
        ("sliding_attention", "full_attention"),
        lambda layer: bool(find_config(layer, NoPosition)),
        lambda fields: every(fields.take("sliding_window_pattern", 4)),
    ),
    config=(
        *without(SIZES, "num_hidden_layers", "rms_norm_eps"),
        RopeFields("decoder.stack.layers[0].attention.position"),
        window("sliding_window", 4096, "decoder.stack.layers[0].attention.core.window"),
        ATTENTION_BIAS,
        *_COMMON,
        Derived("head_dim", head_dim_of, is_written=False),
        *(
            MustBe(name, (value,), is_written=False)
            for name, value in (
                ("order_of_interleaved_layers", "local_attn_first"),
                ("position_embedding_type", "rope_gptj"),
                ("rotary_pct", 1.0),
                ("use_gated_activation", True),
                ("use_parallel_block", True),
                ("use_qk_norm", False),
            )
        ),
    ),
    irrelevant=frozenset({"cache_implementation"}),
    # The first repeats the pattern of layers, the second `tie_word_embeddings`.
    unread=frozenset({"layer_switch", "use_embedding_sharing", "use_parallel_embedding"}),
)
