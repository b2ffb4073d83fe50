"""Qwen2 and Qwen2.5."""

from typing import Any

from axcore.config import update_config
from axcore.interop import (
    LLAMA_KEYS,
    LLAMA_WEIGHTS,
    EveryLayer,
    Family,
    Fixed,
    GGUFMap,
    GGUFRope,
    Only,
)
from axcore.models.hugging_face.entries import LLAMA_LIKE
from axcore.models.hugging_face.llama import smallest


def _template() -> Any:
    return update_config(smallest(), {"**.attention.linear.has_bias": True})


QWEN2 = Family(
    architecture="Qwen2ForCausalLM",
    template=_template,
    config=(
        *LLAMA_LIKE,
        Only("use_sliding_window", (False,)),
        EveryLayer("layer_types", "full_attention"),
    ),
    weights=lambda cfg: LLAMA_WEIGHTS,
    irrelevant=frozenset({"max_window_layers", "sliding_window"}),
    gguf=GGUFMap(
        architecture="qwen2",
        entries=(*LLAMA_KEYS, GGUFRope(), Fixed("use_sliding_window", False)),
    ),
)
