"""StableLM: layer norms, positions for a quarter of a head; 12B has one norm for both branches."""

from typing import Any

from axcore.config import replace_config, update_config
from axcore.interop import (
    ATTENTION,
    FEED_FORWARD,
    SIZES,
    Chain,
    Family,
    Field,
    Rule,
    SplitAxis,
    UnstackArrays,
    WeightMap,
    activation,
    below,
    common_value,
    linear,
    without,
)
from axcore.layers import Attention, LayerNorm, RMSNorm, RoPE, TransformerLayer
from axcore.models import TOY, CausalLM, Sizes, of_size, transformer
from axl_attention.layers import OneNormLayer, with_one_norm
from axl_attention.models.shared_maps import (
    PartialRopeFields,
    Switch,
    affine,
    head_dim_of,
    head_norms,
    in_turn,
    layers_of,
    tied_by,
)
from axl_attention.norms import with_head_norms
from axl_attention.positions import PartialRotary

_STABLELM_SIZES: Sizes = {
    "3b": {
        "vocab_size": 50_304,
        "dim": 2560,
        "num_layers": 32,
        "num_heads": 32,
        "hidden_dim": 6912,
    },
    "2-1.6b": {
        "vocab_size": 100_352,
        "dim": 2048,
        "num_layers": 24,
        "num_heads": 32,
        "hidden_dim": 5632,
    },
    "2-12b": {
        "vocab_size": 100_352,
        "dim": 5120,
        "num_layers": 40,
        "num_heads": 32,
        "num_kv_heads": 8,
        "hidden_dim": 13_824,
    },
    "toy": TOY,
}


def stablelm(size: str) -> CausalLM.Config:
    """Return the config of a StableLM: `3b`, `2-1.6b`, `2-12b` or `toy`.

    Source: Bellagente et al. 2024, arXiv:2402.17834, section 2.2; `3b` and `2-12b` as in the
    configs published with the weights.
    """
    cfg = _plain(**of_size("stablelm", _STABLELM_SIZES, size))
    if size == "2-1.6b":
        return update_config(cfg, {"**.attention.linear.has_bias": True})
    if size == "3b":
        return cfg
    cfg = replace_config(cfg, Attention, with_head_norms(head_dim_of(cfg)))
    return replace_config(cfg, TransformerLayer, with_one_norm)


def _plain(**sizes: Any) -> Any:
    cfg = replace_config(transformer(**sizes), RMSNorm, LayerNorm.Config())
    return replace_config(cfg, RoPE, lambda old: PartialRotary.Config(fraction=0.25, inner=old))


def _weights(cfg: Any) -> WeightMap:
    num_heads = common_value(cfg, "**.attention.num_heads")
    counts = {"q": num_heads, "k": common_value(cfg, "**.attention.num_kv_heads") or num_heads}
    norms = (
        Rule(
            (f"{part}.norm.weight",),
            tuple(f"{part}_layernorm.norms.{i}.weight" for i in range(count)),
            Chain(SplitAxis(count), UnstackArrays(count)),
        )
        for part, count in counts.items()
    )
    projections = (rule for part in counts for rule in linear(f"{part}.linear", f"{part}_proj"))
    return layers_of(
        "model.layers",
        *affine("norm", "input_layernorm"),
        *affine("attention_residual.norm", "input_layernorm"),
        *affine("feed_forward_residual.norm", "post_attention_layernorm"),
        *below("attention", "self_attn", (*ATTENTION, *projections, *norms)),
        *below("feed_forward", "mlp", FEED_FORWARD),
        embedding="model.embed_tokens",
        norm="model.norm",
    )


STABLELM = Family(
    architecture="StableLmForCausalLM",
    template=lambda: _plain(**TOY),
    config=(
        *without(SIZES, "rms_norm_eps"),
        head_norms(
            "qk_layernorm", Field("use_qkv_bias", ("**.attention.linear.has_bias",), default=False)
        ),
        Switch(
            "use_parallel_residual",
            OneNormLayer,
            lambda cfg: replace_config(cfg, TransformerLayer, with_one_norm),
            lambda cfg: replace_config(cfg, OneNormLayer, in_turn),
        ),
        Field("layer_norm_eps", ("**.norm.epsilon",), default=1e-5, to_axcore=float),
        activation("hidden_act", "silu"),
        PartialRopeFields(default=0.25),
        tied_by(),
    ),
    weights=_weights,
    irrelevant=frozenset({"hidden_dropout"}),
)
