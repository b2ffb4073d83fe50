"""Llama 1, 2, 3, 3.1 and 3.2, and all that were published in their form."""

from typing import Any

from axcore.interop import ATTENTION_BIAS, HEAD_DIM, LLAMA_WEIGHTS, Family, Field, Fixed
from axcore.models.hugging_face.entries import LLAMA_LIKE, llama_gguf
from axcore.models.transformer import transformer


def smallest() -> Any:
    """Returns a transformer whose sizes a config map then sets."""
    return transformer(vocab_size=1, dim=1, num_layers=1, num_heads=1, hidden_dim=1)


LLAMA = Family(
    architecture="LlamaForCausalLM",
    template=smallest,
    config=(
        *LLAMA_LIKE,
        HEAD_DIM,
        ATTENTION_BIAS,
        Field("mlp_bias", ("**.feed_forward.linear.has_bias",), default=False),
    ),
    weights=lambda cfg: LLAMA_WEIGHTS,
    gguf=llama_gguf(Fixed("attention_bias", False, True), Fixed("mlp_bias", False, True)),
)
