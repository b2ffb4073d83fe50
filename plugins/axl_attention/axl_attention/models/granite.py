"""Granite 3: a Llama whose embeddings, attention, branches and logits are scaled by constants."""

from axcore.config import replace_config, update_config
from axcore.interop import (
    ATTENTION_BIAS,
    LLAMA_WEIGHTS,
    SIZES,
    Family,
    Field,
    RopeFields,
    activation,
    same,
)
from axcore.layers import PreNorm
from axcore.models import TOY, CausalLM, Sizes, TiedHead, of_size, transformer
from axl_attention.models.shared_maps import MLP_BIAS, tied_by
from axl_attention.norms import DividedLogits, with_scaled_residual

_PUBLISHED = {"vocab_size": 49_155, "num_layers": 40, "num_heads": 32, "num_kv_heads": 8}

_GRANITE_SIZES: Sizes = {
    "2b": {"dim": 2048, "hidden_dim": 8192, "scale": 1 / 64, "divisor": 8.0, **_PUBLISHED},
    "8b": {"dim": 4096, "hidden_dim": 12_800, "scale": 1 / 128, "divisor": 16.0, **_PUBLISHED},
    "toy": {**TOY, "scale": 1 / 16, "divisor": 2.0},
}


def granite(size: str) -> CausalLM.Config:
    """Return the config of a Granite 3.1: `2b`, `8b` or `toy`.

    Source: IBM 2024, "Granite 3.0 Language Models", table 1; constants as in the configs published
    with the weights.
    """
    sizes = dict(of_size("granite", _GRANITE_SIZES, size))
    scale, head = sizes.pop("scale"), DividedLogits.Config(divisor=sizes.pop("divisor"))
    cfg = replace_config(transformer(**sizes), PreNorm, with_scaled_residual)
    return update_config(
        cfg,
        {
            "head": head,
            "head.inner": TiedHead.Config(),
            "decoder.embedding.scale": 12.0,
            "**.residual.scale": 0.22,
            "**.core.scale": scale,
            "**.norm.epsilon": 1e-5,
            "**.position.theta": 5_000_000.0,
        },
    )


def _factor(name: str, path: str) -> Field:
    return Field(name, (path,), default=1.0, to_axcore=float)


GRANITE = Family(
    architecture="GraniteForCausalLM",
    template=lambda: granite("toy"),
    config=(
        *SIZES,
        activation("hidden_act", "silu"),
        RopeFields(),
        tied_by("head.inner"),
        ATTENTION_BIAS,
        MLP_BIAS,
        _factor("embedding_multiplier", "decoder.embedding.scale"),
        _factor("attention_multiplier", "**.core.scale"),
        _factor("residual_multiplier", "**.residual.scale"),
        _factor("logits_scaling", "head.divisor"),
    ),
    weights=lambda cfg: (*LLAMA_WEIGHTS, same("head.inner.weight", "lm_head.weight")),
)
