"""GPT-NeoX and Pythia: attention parallel to feed-forwards, positions for a quarter of a head."""

from typing import Any

import attrs

from axcore.config import replace_config, update_config
from axcore.interop import (
    ATTENTION_BIAS,
    SIZES,
    ConfigEntry,
    Family,
    Field,
    Fields,
    WeightMap,
    activation,
    below,
    common_value,
    linear,
    same,
    without,
)
from axcore.layers import (
    FeedForward,
    LayerNorm,
    PlainFeedForward,
    RMSNorm,
    RoPE,
    TransformerLayer,
)
from axcore.models import TOY, CausalLM, Sizes, of_size, transformer
from axl_attention.layers import ParallelLayer, with_parallel_layer
from axl_attention.models.shared_maps import (
    PartialRopeFields,
    affine,
    by_head,
    fused_rows,
    in_turn,
    tied_by,
)
from axl_attention.positions import PartialRotary


def _size(vocab_size: int, dim: int, num_layers: int, num_heads: int) -> dict[str, int]:
    return {
        "vocab_size": vocab_size,
        "dim": dim,
        "num_layers": num_layers,
        "num_heads": num_heads,
        "hidden_dim": 4 * dim,
    }


_GPT_NEOX_SIZES: Sizes = {
    "pythia-70m": _size(50_304, 512, 6, 8),
    "pythia-160m": _size(50_304, 768, 12, 12),
    "pythia-410m": _size(50_304, 1024, 24, 16),
    "pythia-1b": _size(50_304, 2048, 16, 8),
    "pythia-1.4b": _size(50_304, 2048, 24, 16),
    "pythia-2.8b": _size(50_304, 2560, 32, 32),
    "pythia-6.9b": _size(50_432, 4096, 32, 32),
    "pythia-12b": _size(50_688, 5120, 36, 40),
    "20b": _size(50_432, 6144, 44, 64),
    "toy": {**TOY, "num_kv_heads": None},
}


def gpt_neox(size: str) -> CausalLM.Config:
    """Return the config of GPT-NeoX (`20b`), of a Pythia (`pythia-70m` to `pythia-12b`) or `toy`.

    Source: Black et al. 2022, arXiv:2204.06745, section 2; Biderman et al. 2023, arXiv:2304.01373,
    table 1.
    """
    cfg = transformer(**of_size("gpt_neox", _GPT_NEOX_SIZES, size))
    gelu = "gelu_tanh" if size == "20b" else "gelu"
    for part, new in (
        (RMSNorm, LayerNorm.Config()),
        (FeedForward, PlainFeedForward.Config(activation=gelu)),
        (RoPE, lambda old: PartialRotary.Config(fraction=0.25, inner=old)),
        (TransformerLayer, with_parallel_layer),
    ):
        cfg = replace_config(cfg, part, new)
    return update_config(cfg, {"**.linear.has_bias": True, "**.out_linear.has_bias": True})


class _ParallelResidual(ConfigEntry):
    """`use_parallel_residual`: whether both branches of a layer see its input."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with layers of that kind."""
        if fields.take("use_parallel_residual", True):
            return cfg
        return replace_config(cfg, ParallelLayer, in_turn)

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the field."""
        layer = common_value(cfg, "decoder.stack.layer")
        return {"use_parallel_residual": isinstance(layer, ParallelLayer.Config)}


_QKV = tuple(f"attention.{part}" for part in "qkv")


def _weights(cfg: Any) -> WeightMap:
    num_heads = common_value(cfg, "**.attention.num_heads")
    sizes = (cfg.dim // num_heads,) * 3
    layer = (
        *affine("attention_norm", "input_layernorm"),
        *affine("attention_residual.norm", "input_layernorm"),
        *affine("feed_forward_norm", "post_attention_layernorm"),
        *affine("feed_forward_residual.norm", "post_attention_layernorm"),
        *fused_rows(_QKV, "attention.query_key_value", by_head(num_heads, *sizes)),
        *linear("attention.out", "attention.dense"),
        *linear("feed_forward.up", "mlp.dense_h_to_4h"),
        *linear("feed_forward.down", "mlp.dense_4h_to_h"),
    )
    return (
        same("decoder.embedding.weight", "gpt_neox.embed_in.weight"),
        *below("decoder.stack.layer.{layer}", "gpt_neox.layers.{layer}", layer),
        *affine("decoder.norm", "gpt_neox.final_layer_norm"),
        same("head.weight", "embed_out.weight"),
    )


GPT_NEOX = Family(
    architecture="GPTNeoXForCausalLM",
    template=lambda: gpt_neox("toy"),
    config=(
        *without(SIZES, "num_key_value_heads", "rms_norm_eps"),
        Field("layer_norm_eps", ("**.norm.epsilon",), default=1e-5, to_axcore=float),
        activation("hidden_act", "gelu"),
        PartialRopeFields("rotary_pct", 0.25, "rotary_emb_base"),
        attrs.evolve(ATTENTION_BIAS, default=True),
        tied_by(),
        _ParallelResidual(),
    ),
    weights=_weights,
    irrelevant=frozenset({"classifier_dropout", "hidden_dropout"}),
    skipped=(r"\.attention\.(masked_)?bias$", r"rotary_emb\.inv_freq$"),
)
