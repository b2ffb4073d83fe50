"""GPT-NeoX and Pythia: queries, keys and values in one matrix, head by head."""

from typing import Any

import attrs

from axcore.config import replace_config
from axcore.interop import (
    ATTENTION_BIAS,
    SIZES,
    Chain,
    Concatenate,
    ConfigEntry,
    Family,
    Field,
    Fields,
    JoinAxes,
    Rule,
    SplitAxis,
    Transpose,
    WeightMap,
    activation,
    below,
    common_value,
    linear,
    same,
    without,
)
from axcore.layers import PreNorm, TransformerLayer
from axl_attention.models.gpt_neox import gpt_neox
from axl_attention.models.hugging_face.entries import affine, tied_by
from axl_attention.models.hugging_face.partial_rope import PartialRopeFields
from axl_attention.parallel_layer import ParallelLayer


class _ParallelResidual(ConfigEntry):
    """`use_parallel_residual`: whether both branches of a layer see its input."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with layers of that kind."""
        if fields.take("use_parallel_residual", True):
            return cfg
        return replace_config(cfg, ParallelLayer, _in_turn)

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the field."""
        layer = common_value(cfg, "decoder.stack.layer")
        return {"use_parallel_residual": isinstance(layer, ParallelLayer.Config)}


def _in_turn(old: Any) -> Any:
    return TransformerLayer.Config(
        attention=old.attention,
        feed_forward=old.feed_forward,
        residual=PreNorm.Config(norm=old.norm, dropout=old.dropout),
    )


def _weights(cfg: Any) -> WeightMap:
    num_heads = common_value(cfg, "**.attention.num_heads")
    sizes = (cfg.dim // num_heads,) * 3
    by_head = Chain(SplitAxis(num_heads), Concatenate(sizes, axis=1), JoinAxes(num_heads))
    layer = (
        *affine("attention_norm", "input_layernorm"),
        *affine("attention_residual.norm", "input_layernorm"),
        *affine("feed_forward_norm", "post_attention_layernorm"),
        *affine("feed_forward_residual.norm", "post_attention_layernorm"),
        *(
            Rule(
                tuple(f"attention.{part}.{name}" for part in "qkv"),
                (f"attention.query_key_value.{name}",),
                transform,
            )
            for name, transform in (("weight", Chain(Transpose(), by_head)), ("bias", by_head))
        ),
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
        Field("layer_norm_eps", ("**.norm.epsilon",), default=1e-5, to_ours=float),
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
