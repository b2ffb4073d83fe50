"""Parts of config maps and weight maps that most families of decoders share."""

from collections.abc import Iterable
from typing import Any

from axcore.interop.config_map import ConfigEntry, Field, Implied, common_value
from axcore.interop.weight_map import Rule, WeightMap, below, linear, same

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_fast": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
}
"""Ours by theirs, of which the last one is written."""


def without(entries: Iterable[ConfigEntry], *names: str) -> tuple[ConfigEntry, ...]:
    """Returns the entries of a config map but for those of these fields."""
    return tuple(entry for entry in entries if getattr(entry, "name", "") not in names)


def activation(name: str, default: str, path: str = "**.activation") -> Field:
    """Returns the entry of a feed-forward's activation."""
    back = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
    return Field(
        name,
        (path,),
        default=default,
        to_ours=lambda value: ACTIVATIONS.get(value, value),
        to_theirs=lambda value: back.get(value, value),
    )


def window(name: str, default: Any, path: str = "**.core.window") -> Field:
    """Returns the entry of a sliding window, which counts the token itself."""
    return Field(
        name,
        (path,),
        default=default,
        to_ours=lambda value: None if value is None else (value - 1, 0),
        to_theirs=lambda value: None if value is None else value[0] + 1,
    )


ATTENTION_BIAS = Field(
    "attention_bias",
    ("**.attention.linear.has_bias", "**.attention.out_linear.has_bias"),
    default=False,
)
KV_HEADS = Implied(
    "num_key_value_heads",
    "**.attention.num_kv_heads",
    lambda cfg: common_value(cfg, "**.attention.num_heads"),
)
HEAD_DIM = Implied(
    "head_dim",
    "**.attention.head_dim",
    lambda cfg: cfg.dim // common_value(cfg, "**.attention.num_heads"),
)
SIZES: tuple[ConfigEntry, ...] = (
    Field("vocab_size", ("vocab_size",)),
    Field("hidden_size", ("dim",)),
    Field("num_hidden_layers", ("decoder.stack.num_layers",)),
    Field("num_attention_heads", ("**.attention.num_heads",)),
    KV_HEADS,
    Field("intermediate_size", ("**.hidden_dim",)),
    Field("rms_norm_eps", ("**.norm.epsilon",), default=1e-6, to_ours=float),
)
ATTENTION: WeightMap = (
    *linear("q", "q_proj"),
    *linear("k", "k_proj"),
    *linear("v", "v_proj"),
    *linear("out", "o_proj"),
)
FEED_FORWARD: WeightMap = (
    *linear("gate", "gate_proj"),
    *linear("up", "up_proj"),
    *linear("down", "down_proj"),
)


def model_weights(*layer: Rule) -> WeightMap:
    """Returns the weight map of a model, given the rules of one layer."""
    return (
        same("decoder.embedding.weight", "model.embed_tokens.weight"),
        *below("decoder.stack.layer.{layer}", "model.layers.{layer}", layer),
        same("decoder.norm.weight", "model.norm.weight"),
        same("head.weight", "lm_head.weight"),
    )


PRE_NORMS: WeightMap = (
    same("attention_residual.norm.weight", "input_layernorm.weight"),
    same("feed_forward_residual.norm.weight", "post_attention_layernorm.weight"),
)
LLAMA_WEIGHTS = model_weights(
    *PRE_NORMS,
    *below("attention", "self_attn", ATTENTION),
    *below("feed_forward", "mlp", FEED_FORWARD),
)
