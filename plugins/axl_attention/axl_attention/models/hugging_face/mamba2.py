"""Mamba-2: one projection and one convolution for all that enters a mixer."""

import math
from typing import Any

from immutabledict import immutabledict

from axcore.interop import (
    Chain,
    Concatenate,
    Family,
    Field,
    Only,
    Redundant,
    Rule,
    SplitAxis,
    Transpose,
    WeightMap,
    below,
    common_value,
    linear,
    same,
)
from axl_attention.models.hugging_face.entries import NoPadding, tied_by
from axl_attention.models.mamba2 import mamba2


def _weights(cfg: Any) -> WeightMap:
    mixer = common_value(cfg, "**.mixer")
    inner, state = mixer.num_heads * mixer.head_dim, mixer.num_groups * mixer.state_dim
    projected = Concatenate((inner, inner, state, state, mixer.num_heads))
    convolved = Concatenate((inner, state, state))
    parts, convs = ("z", "x", "b", "c", "dt"), ("conv_x", "conv_b", "conv_c")
    rules = (
        Rule(_all(parts, "weight"), ("in_proj.weight",), Chain(Transpose(), projected)),
        Rule(_all(parts, "bias"), ("in_proj.bias",), projected),
        Rule(_all(convs, "weight"), ("conv1d.weight",), Chain(convolved, SplitAxis(1, axis=1))),
        Rule(_all(convs, "bias"), ("conv1d.bias",), convolved),
        same("a_log", "A_log"),
        same("d", "D"),
        same("dt_bias", "dt_bias"),
        same("norm.weight", "norm.weight"),
        *linear("out", "out_proj"),
    )
    layer = (same("residual.norm.weight", "norm.weight"), *below("mixer", "mixer", rules))
    return (
        same("decoder.embedding.weight", "backbone.embeddings.weight"),
        *below("decoder.stack.layer.{layer}", "backbone.layers.{layer}", layer),
        same("decoder.norm.weight", "backbone.norm_f.weight"),
        same("head.weight", "lm_head.weight"),
    )


def _all(parts: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(f"{part}.{name}" for part in parts)


def _expansion(cfg: Any) -> float:
    mixer = common_value(cfg, "**.mixer")
    inner: int = mixer.num_heads * mixer.head_dim
    return inner / cfg.dim if inner % cfg.dim else inner // cfg.dim


_UNLIMITED = ([0.0, math.inf], [0.0, {"__float__": "Infinity"}])
"""In Python's JSON, and in that of transformers 5."""

MAMBA2 = Family(
    architecture="Mamba2ForCausalLM",
    template=lambda: mamba2("toy"),
    config=(
        Field("vocab_size", ("vocab_size",)),
        Field("hidden_size", ("dim",)),
        Field("num_hidden_layers", ("decoder.stack.num_layers",)),
        Field("num_heads", ("**.mixer.num_heads",)),
        Field("head_dim", ("**.mixer.head_dim",)),
        Field("n_groups", ("**.mixer.num_groups",)),
        Field("state_size", ("**.mixer.state_dim",)),
        Field("chunk_size", ("**.mixer.chunk",), default=256),
        Field("conv_kernel", ("**.conv.width",)),
        Field("layer_norm_epsilon", ("**.norm.epsilon",), default=1e-5, to_ours=float),
        Field("use_bias", ("**.linear.has_bias", "**.out_linear.has_bias"), default=False),
        Field("use_conv_bias", ("**.conv.has_bias",), default=True),
        Redundant("expand", _expansion),
        Only("hidden_act", ("silu",)),
        Only("time_step_limit", _UNLIMITED, is_written=False),
        tied_by(),
        NoPadding(),
    ),
    weights=_weights,
    irrelevant=frozenset(
        {
            "norm_before_gate",
            "rescale_prenorm_residual",
            "residual_in_fp32",
            "rms_norm",
            "time_step_floor",
            "time_step_max",
            "time_step_min",
            "time_step_rank",
        }
    ),
    # Of the first Mamba, from whose config Codestral's was made.
    unread=frozenset({"intermediate_size", "time_step_init_scheme"}),
    copies=immutabledict({"lm_head.weight": "backbone.embeddings.weight"}),
    renamed=((r"^backbone\.embedding\.", "backbone.embeddings."),),
)
