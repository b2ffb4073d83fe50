"""OLMo 2 and 3, with norms behind both branches and in OLMo 3 a sliding window; and OLMoE."""

from typing import Any

from axcore.config import find_config, replace_config, update_config
from axcore.interop import (
    FEED_FORWARD,
    PRE_NORMS,
    SIZES,
    Family,
    Field,
    LayerTypes,
    MustBe,
    RopeFields,
    WeightMap,
    activation,
    below,
    every,
    linear,
    model_weights,
    same,
    window,
    without,
)
from axcore.layers import Attention, FeedForward, MoE, PreNorm, RoPE, Router, alternating
from axcore.models import TOY, CausalLM, Sizes, of_size, transformer
from axl_attention.models.gemma import local
from axl_attention.models.shared_maps import ROUTED, NoPadding, tied_by
from axl_attention.norms import with_normed_linear, with_reordered_norm
from axl_attention.rope_scaling import YaRN, yarn_attention_factor

_VOCABULARY = {"vocab_size": 100_352}

_OLMO2_SIZES: Sizes = {
    "1b": {"dim": 2048, "num_layers": 16, "num_heads": 16, "hidden_dim": 8192, **_VOCABULARY},
    "7b": {"dim": 4096, "num_layers": 32, "num_heads": 32, "hidden_dim": 11_008, **_VOCABULARY},
    "13b": {"dim": 5120, "num_layers": 40, "num_heads": 40, "hidden_dim": 13_824, **_VOCABULARY},
    "32b": {
        "dim": 5120,
        "num_layers": 64,
        "num_heads": 40,
        "num_kv_heads": 8,
        "hidden_dim": 27_648,
        **_VOCABULARY,
    },
    "toy": TOY,
}


def olmo2(size: str) -> CausalLM.Config:
    """Return the config of an OLMo 2: `1b`, `7b`, `13b`, `32b` or `toy`.

    Source: OLMo Team 2025, arXiv:2501.00656, sections 2 and 3; sizes as in the configs published
    with the weights.
    """
    cfg = _with_reordered_norms(transformer(**of_size("olmo2", _OLMO2_SIZES, size)))
    return update_config(cfg, {"**.position.theta": 500_000.0})


def _with_reordered_norms(cfg: Any) -> Any:
    """Return a transformer with the norms of OLMo 2 and 3."""
    cfg = replace_config(cfg, Attention, with_normed_linear)
    return replace_config(cfg, PreNorm, with_reordered_norm)


_THETA = 500_000.0
_PUBLISHED = {"vocab_size": 100_278, "window": 4096, "interval": 4}

_OLMO3_SIZES: Sizes = {
    "7b": {"dim": 4096, "num_layers": 32, "num_heads": 32, "hidden_dim": 11_008, **_PUBLISHED},
    "32b": {
        "dim": 5120,
        "num_layers": 64,
        "num_heads": 40,
        "num_kv_heads": 8,
        "hidden_dim": 27_648,
        **_PUBLISHED,
    },
    "toy": {**TOY, "window": 4, "interval": 2},
}


def olmo3(size: str) -> CausalLM.Config:
    """Return the config of an OLMo 3: `7b`, `32b` or `toy`.

    Source: OLMo Team 2025, "Olmo 3", arXiv:2512.13961, section 3.2; sizes as in the configs
    published with the weights.
    """
    sizes = dict(of_size("olmo3", _OLMO3_SIZES, size))
    window, interval = sizes.pop("window"), sizes.pop("interval")
    cfg = _with_reordered_norms(transformer(**sizes))
    cfg = update_config(cfg, {"**.position.theta": _THETA})
    stack, factor = cfg.decoder.stack, 8.0
    far = YaRN.Config(
        theta=_THETA,
        factor=factor,
        original_length=8192,
        attention_factor=yarn_attention_factor(factor),
    )
    near, wide = local(stack.layer, window), replace_config(stack.layer, RoPE, far)
    turns = alternating(stack, *[near] * (interval - 1), wide)
    return update_config(cfg, {"decoder.stack": turns})


_OLMOE_SIZES: Sizes = {
    "1b-7b": {
        "vocab_size": 50_304,
        "dim": 2048,
        "num_layers": 16,
        "num_heads": 16,
        "hidden_dim": 1024,
        "experts": {"num_experts": 64, "top_k": 8},
    },
    "toy": {**TOY, "hidden_dim": 32, "experts": {"num_experts": 4, "top_k": 2}},
}
"""`hidden_dim` is that of one expert."""


def olmoe(size: str) -> CausalLM.Config:
    """Return the config of an OLMoE: `1b-7b` or `toy`.

    Source: Muennighoff et al. 2024, arXiv:2409.02060, section 2 and table 1.
    """
    sizes = dict(of_size("olmoe", _OLMOE_SIZES, size))
    experts = sizes.pop("experts")
    router = Router.Config(is_normalized=False, balance_over="batch", z_loss=0.001)
    cfg = replace_config(transformer(**sizes), Attention, with_normed_linear)
    cfg = replace_config(
        cfg, FeedForward, lambda ffn: MoE.Config(expert=ffn, router=router, **experts)
    )
    return update_config(cfg, {"**.norm.epsilon": 1e-5})


NORMED_ATTENTION: WeightMap = (
    *linear("q.linear", "q_proj"),
    same("q.norm.weight", "q_norm.weight"),
    *linear("k.linear", "k_proj"),
    same("k.norm.weight", "k_norm.weight"),
    *linear("v", "v_proj"),
    *linear("out", "o_proj"),
)
"""Of an attention whose queries and keys are `NormedLinear`."""

_WEIGHTS = model_weights(
    *below("attention", "self_attn", NORMED_ATTENTION),
    same("attention_residual.norm.weight", "post_attention_layernorm.weight"),
    *below("feed_forward", "mlp", FEED_FORWARD),
    same("feed_forward_residual.norm.weight", "post_feedforward_layernorm.weight"),
)
_BIASES = tuple(
    f"**.attention.{part}.has_bias" for part in ("linear.linear", "value_linear", "out_linear")
)

_COMMON = (
    *without(SIZES, "num_hidden_layers", "rms_norm_eps"),
    Field("rms_norm_eps", ("**.norm.epsilon",), default=1e-5, to_axcore=float),
    activation("hidden_act", "silu"),
    tied_by(),
    Field("attention_bias", _BIASES, default=False),
)

OLMO2 = Family(
    architecture="Olmo2ForCausalLM",
    template=lambda: olmo2("toy"),
    config=(Field("num_hidden_layers", ("decoder.stack.num_layers",)), *_COMMON, RopeFields()),
    weights=lambda cfg: _WEIGHTS,
)

_LOCAL, _GLOBAL = (f"decoder.stack.layers[{kind}].attention" for kind in range(2))

OLMO3 = Family(
    architecture="Olmo3ForCausalLM",
    template=lambda: olmo3("toy"),
    layers=LayerTypes(
        ("sliding_attention", "full_attention"),
        lambda layer: not find_config(layer, lambda node: getattr(node, "window", None)),
        lambda fields: every(4),
    ),
    config=(
        *_COMMON,
        # transformers gives local layers this base whatever the field says.
        MustBe("rope_theta", (500_000.0,)),
        RopeFields(f"{_GLOBAL}.position", 500_000.0, layer_type="full_attention"),
        RopeFields(
            f"{_LOCAL}.position", 500_000.0, layer_type="sliding_attention", is_scaled=False
        ),
        window("sliding_window", 4096, f"{_LOCAL}.core.window"),
    ),
    weights=lambda cfg: _WEIGHTS,
)

_MIXED_WEIGHTS = model_weights(
    *PRE_NORMS, *below("attention", "self_attn", NORMED_ATTENTION), *ROUTED
)

OLMOE = Family(
    architecture="OlmoeForCausalLM",
    template=lambda: olmoe("toy"),
    config=(
        *OLMO2.config,
        Field("num_experts", ("**.feed_forward.num_experts",), default=64),
        Field("num_experts_per_tok", ("**.feed_forward.top_k",), default=8),
        Field("norm_topk_prob", ("**.router.is_normalized",), default=False),
        MustBe("clip_qkv", (None,), is_written=False),
        NoPadding(),
    ),
    weights=lambda cfg: _MIXED_WEIGHTS,
    irrelevant=frozenset({"router_aux_loss_coef"}),
)
