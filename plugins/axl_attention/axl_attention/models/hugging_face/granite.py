"""Granite: a Llama with four constants."""

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
from axl_attention.models.granite import granite
from axl_attention.models.hugging_face.entries import MLP_BIAS, tied_by


def _factor(name: str, path: str) -> Field:
    return Field(name, (path,), default=1.0, to_ours=float)


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
