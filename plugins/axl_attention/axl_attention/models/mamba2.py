"""Mamba-2: state spaces instead of attention, and no feed-forwards."""

import math
from typing import Any

from immutabledict import immutabledict

from axcore.config import replace_config, update_config
from axcore.interop import (
    Chain,
    Concatenate,
    Derived,
    Family,
    Field,
    MustBe,
    Rule,
    SplitAxis,
    Transpose,
    WeightMap,
    below,
    common_value,
    linear,
    same,
)
from axcore.layers import TransformerLayer
from axcore.models import TOY, CausalLM, Sizes, TiedHead, UntiedHead, of_size, transformer
from axl_attention.layers import MixerLayer
from axl_attention.mamba2 import Mamba2
from axl_attention.models.shared_maps import NoPadding, tied_by

_PILE = {"vocab_size": 50_288}
"""Of GPT-NeoX, filled to a multiple of 16."""

_MAMBA2_SIZES: Sizes = {
    "130m": {"dim": 768, "num_layers": 24, "num_heads": 24, **_PILE},
    "370m": {"dim": 1024, "num_layers": 48, "num_heads": 32, **_PILE},
    "780m": {"dim": 1536, "num_layers": 48, "num_heads": 48, **_PILE},
    "1.3b": {"dim": 2048, "num_layers": 48, "num_heads": 64, **_PILE},
    "2.7b": {"dim": 2560, "num_layers": 64, "num_heads": 80, **_PILE},
    "codestral-7b": {
        "vocab_size": 32_768,
        "dim": 4096,
        "num_layers": 64,
        "num_heads": 128,
        "num_groups": 8,
    },
    "toy": {
        "vocab_size": TOY["vocab_size"],
        "dim": TOY["dim"],
        "num_layers": TOY["num_layers"],
        "num_heads": 8,
        "head_dim": 16,
        "num_groups": 2,
        "state_dim": 8,
        "chunk": 8,
    },
}


def mamba2(size: str) -> CausalLM.Config:
    """Return the config of a Mamba-2: `130m` to `2.7b`, `codestral-7b` or `toy`.

    Source: Dao and Gu 2024, arXiv:2405.21060, table 10; Codestral as in the config published with
    its weights.
    """
    sizes = dict(of_size("mamba2", _MAMBA2_SIZES, size))
    vocab_size, dim, num_layers = (sizes.pop(name) for name in ("vocab_size", "dim", "num_layers"))
    cfg: Any = transformer(
        vocab_size=vocab_size, dim=dim, num_layers=num_layers, num_heads=1, hidden_dim=1
    )
    layer = MixerLayer.Config(mixer=Mamba2.Config(**sizes))
    cfg = replace_config(cfg, TransformerLayer, lambda _: layer)
    if size != "codestral-7b":
        cfg = replace_config(cfg, UntiedHead, TiedHead.Config())
    return update_config(cfg, {"**.norm.epsilon": 1e-5})


def mixer_weights(mixer: Mamba2.Config) -> WeightMap:
    """Return the rules of a `Mamba2`."""
    inner, state = mixer.num_heads * mixer.head_dim, mixer.num_groups * mixer.state_dim
    projected = Concatenate((inner, inner, state, state, mixer.num_heads))
    convolved = Concatenate((inner, state, state))
    parts, convs = ("z", "x", "b", "c", "dt"), ("conv_x", "conv_b", "conv_c")
    return (
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


def _weights(cfg: Any) -> WeightMap:
    rules = mixer_weights(common_value(cfg, "**.mixer"))
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


UNLIMITED = ([0.0, math.inf], [0.0, {"__float__": "Infinity"}])
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
        Field("layer_norm_epsilon", ("**.norm.epsilon",), default=1e-5, to_axcore=float),
        Field("use_bias", ("**.linear.has_bias", "**.out_linear.has_bias"), default=False),
        Field("use_conv_bias", ("**.conv.has_bias",), default=True),
        Derived("expand", _expansion),
        MustBe("hidden_act", ("silu",)),
        MustBe("time_step_limit", UNLIMITED, is_written=False),
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
