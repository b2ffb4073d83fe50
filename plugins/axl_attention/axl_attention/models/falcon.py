"""Falcon: both branches in parallel, behind one norm or two, and few heads of keys and values."""

from typing import Any

from immutabledict import immutabledict

from axcore.config import find_config, replace_config, update_config
from axcore.interop import (
    SIZES,
    ConfigEntry,
    Family,
    Field,
    Fields,
    MustBe,
    RopeFields,
    WeightMap,
    activation,
    common_value,
    linear,
    without,
)
from axcore.layers import FeedForward, LayerNorm, PlainFeedForward, RMSNorm, TransformerLayer
from axcore.models import TOY, CausalLM, Sizes, TiedHead, UntiedHead, of_size, transformer
from axl_attention.layers import ParallelLayer, with_one_norm, with_parallel_layer
from axl_attention.models.shared_maps import (
    InnerSize,
    affine,
    by_head,
    fused_rows,
    layers_of,
    tied_by,
)


def _size(dim: int, num_layers: int, num_heads: int, num_kv_heads: int) -> dict[str, int]:
    return {
        "vocab_size": 65_024,
        "dim": dim,
        "num_layers": num_layers,
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "hidden_dim": 4 * dim,
    }


_FALCON_SIZES: Sizes = {
    "7b": _size(4544, 32, 71, 1),
    "40b": _size(8192, 60, 128, 8),
    "180b": _size(14_848, 80, 232, 8),
    "2-11b": _size(4096, 60, 32, 8),
    "toy": TOY,
}


def falcon(size: str) -> CausalLM.Config:
    """Return the config of a Falcon: `7b`, `40b`, `180b`, `2-11b` or `toy`.

    Source: Almazrouei et al. 2023, arXiv:2311.16867, section 4 and table 15; Falcon2 as in the
    config published with the weights.
    """
    cfg = transformer(**of_size("falcon", _FALCON_SIZES, size))
    for part, new in (
        (RMSNorm, LayerNorm.Config()),
        (FeedForward, PlainFeedForward.Config(activation="gelu")),
        (TransformerLayer, with_one_norm if size in ("7b", "2-11b") else with_parallel_layer),
    ):
        cfg = replace_config(cfg, part, new)
    if size == "2-11b":
        return update_config(cfg, {"**.position.theta": 500_042.0})
    return replace_config(cfg, UntiedHead, TiedHead.Config())


class _Layers(ConfigEntry):
    """How many norms a layer has, and how many heads of keys and values."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with such layers."""
        is_new = fields.take("new_decoder_architecture", False)
        given, is_one = fields.take("num_kv_heads", None), fields.take("multi_query", True)
        num_norms = fields.take("num_ln_in_parallel_attn", None) or 2
        layer = with_parallel_layer if is_new and num_norms == 2 else with_one_norm
        num_kv_heads = (given if is_new else None) or common_value(cfg, "**.attention.num_heads")
        if is_one and not is_new:
            num_kv_heads = 1
        cfg = update_config(cfg, {"**.attention.num_kv_heads": num_kv_heads})
        return replace_config(cfg, TransformerLayer, layer)

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the fields."""
        num_heads = common_value(cfg, "**.attention.num_heads")
        num_kv_heads = common_value(cfg, "**.attention.num_kv_heads") or num_heads
        num_norms = 2 if find_config(cfg, ParallelLayer) else 1
        if num_norms == 1 and num_kv_heads in (1, num_heads):
            return {"new_decoder_architecture": False, "multi_query": num_kv_heads == 1}
        return {
            "new_decoder_architecture": True,
            "num_kv_heads": num_kv_heads,
            "num_ln_in_parallel_attn": num_norms,
        }

    def normal(self, cfg: Any) -> Any:
        """Return a config that says how many heads of keys and values there are."""
        num_heads = common_value(cfg, "**.attention.num_heads")
        given = common_value(cfg, "**.attention.num_kv_heads")
        return update_config(cfg, {"**.attention.num_kv_heads": given or num_heads})


def _template() -> Any:
    cfg = replace_config(transformer(**TOY), RMSNorm, LayerNorm.Config())
    return replace_config(cfg, FeedForward, PlainFeedForward.Config(activation="gelu"))


def _weights(cfg: Any) -> WeightMap:
    num_heads = common_value(cfg, "**.attention.num_heads")
    count = common_value(cfg, "**.attention.num_kv_heads") or num_heads
    width = cfg.dim // num_heads
    rows = by_head(count, num_heads // count * width, width, width)
    qkv = tuple(f"attention.{part}" for part in "qkv")
    return layers_of(
        "transformer.h",
        *affine("norm", "input_layernorm"),
        *affine("attention_norm", "ln_attn"),
        *affine("feed_forward_norm", "ln_mlp"),
        *fused_rows(qkv, "self_attention.query_key_value", rows),
        *linear("attention.out", "self_attention.dense"),
        *linear("feed_forward.up", "mlp.dense_h_to_4h"),
        *linear("feed_forward.down", "mlp.dense_4h_to_h"),
        embedding="transformer.word_embeddings",
        norm="transformer.ln_f",
    )


FALCON = Family(
    architecture="FalconForCausalLM",
    template=_template,
    config=(
        *without(SIZES, "num_key_value_heads", "intermediate_size", "rms_norm_eps"),
        InnerSize("ffn_hidden_size"),
        Field("layer_norm_epsilon", ("**.norm.epsilon",), default=1e-5, to_axcore=float),
        activation("activation", "gelu"),
        Field("bias", ("**.linear.has_bias", "**.out_linear.has_bias"), default=False),
        RopeFields(),
        tied_by(default=True),
        _Layers(),
        MustBe("alibi", (False,)),
        MustBe("parallel_attn", (True,)),
        MustBe("apply_residual_connection_post_layernorm", (False,), is_written=False),
    ),
    weights=_weights,
    irrelevant=frozenset({"hidden_dropout"}),
    unread=frozenset({"ff_factor"}),
    copies=immutabledict({"lm_head.weight": "transformer.word_embeddings.weight"}),
)
