"""Mistral, with and without its window."""

from axcore.interop import HEAD_DIM, LLAMA_WEIGHTS, Family, UnreachedWindow, window
from axcore.models.hugging_face.entries import LLAMA_LIKE, llama_gguf
from axcore.models.hugging_face.llama import smallest

MISTRAL = Family(
    architecture="MistralForCausalLM",
    template=smallest,
    config=(*LLAMA_LIKE, HEAD_DIM, window("sliding_window", 4096)),
    weights=lambda cfg: LLAMA_WEIGHTS,
    gguf=llama_gguf(UnreachedWindow()),
)
